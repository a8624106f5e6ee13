"""Text of diffusion language models: masked tokens become known in steps.

    context = Context(model, n_ubatch=256)          # tokens of the prompt and the text together
    for step in unmask(context, prompt, DiffusionParams(eps=0.001), SamplingParams(temp=0)):
        print(step.number, tokenizer.decode(step.tokens[len(prompt):]))

Each step evaluates the whole text and chooses a token for every masked position. The tokens of the
highest confidence replace their masks; the other positions stay masked. Not thread-safe.
Source: Ye et al. 2025, "Dream 7B"; Nie et al. 2025, "Large Language Diffusion Models"; llama.cpp,
``diffusion_generate``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import BatchError, ModelError, SamplingError
from .parameters.diffusion import ALGORITHMS, DiffusionParams
from .parameters.sampling import SamplingParams
from .runtime.batch import Batch
from .runtime.context import Context
from .sampling.candidates import Candidates
from .sampling.chain import Chain
from .sampling.samplers.dist import Dist

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.intp]
_TINY = 1e-10  # added to probabilities before a logarithm


class UnmaskStep(NamedTuple):
    """The text after a step.

    Attributes:
        number: of the step, from 1; steps without a masked token are left out.
        tokens: of the prompt and the text, with the mask token at masked positions.
    """

    number: int
    tokens: list[int]


def unmask(
    context: Context,
    prompt: Sequence[int],
    params: DiffusionParams | None = None,
    sampling: SamplingParams | None = None,
) -> Iterator[UnmaskStep]:
    """Make the text after a prompt, and yield it after each step.

    The prompt and the text have ``context.n_ubatch`` tokens together. Of the samplers there are
    top-k, top-p and temperature; with a temperature of 0 each token is the likeliest.

    Args:
        prompt: token ids. Without blocks, mask tokens in it become known too.
        params: None for the defaults, with ``eps`` 0.001.
        sampling: ``temp``, ``top_k``, ``top_p`` and ``seed`` are used; None for the defaults.

    Raises:
        ModelError: it is no diffusion model, or names no mask token.
        BatchError: the prompt leaves no room.
        SamplingError: ``eps`` and ``block_length`` are both given or both 0, or blocks or steps
            cannot be divided.
        Aborted, ComputeError: as ``Context.decode``.
    """
    params = params or DiffusionParams(eps=0.001)
    mask, n = mask_token(context), context.n_ubatch
    if not len(prompt) < n:
        raise BatchError(
            f"the prompt has {len(prompt)} tokens and leaves no room in a text of n_ubatch = {n}"
        )
    blocks = _blocks(params, len(prompt), n)
    return _steps(context, [*prompt], mask, blocks, params, sampling or SamplingParams())


def mask_token(context: Context) -> int:
    """The token of masked positions. Raises: ModelError: the model has none."""
    model = context.model
    if not model.hparams.diffusion:
        raise ModelError(
            f"{model.path}: {model.hparams.arch} is no diffusion model, its texts are made token "
            "by token: use pyllama-cli"
        )
    mask = model.tokenizer.vocab.roles.get("mask")
    if mask is None:
        raise ModelError(
            f"{model.path}: there is no mask token; name it by the key "
            "tokenizer.ggml.mask_token_id (`kv_overrides`)"
        )
    return mask


def _blocks(params: DiffusionParams, n_prompt: int, n: int) -> list[tuple[int, int, int]]:
    """The first position of each block, its end, and the number of its first step."""
    length = params.block_length
    if bool(params.eps) == bool(length):
        raise SamplingError("eps or block_length must be above 0, and not both")
    if not length:
        return [(0, n, 0)]
    n_blocks = n // length
    if n % length or params.steps % n_blocks:
        raise SamplingError(
            f"block_length {length}, steps {params.steps}: blocks must divide the {n} tokens of "
            f"the text (n_ubatch), and the {max(n_blocks, 1)} blocks the steps"
        )
    steps = params.steps // n_blocks
    return [
        (start, min(start + length, n), i * steps)
        for i, start in enumerate(range(n_prompt, n, length))
    ]


def _steps(
    context: Context, tokens: list[int], mask: int, blocks: list[tuple[int, int, int]],
    params: DiffusionParams, sampling: SamplingParams,
) -> Iterator[UnmaskStep]:  # fmt: skip
    n_prompt = len(tokens)
    tokens += [mask] * (context.n_ubatch - n_prompt)
    choice = _Choice(params, sampling, context.hparams.n_vocab)
    n_steps = params.steps if params.eps else params.steps // (len(tokens) // params.block_length)
    for start, end, first in blocks:
        masked = _masked(tokens, mask, start, end)
        counts = np.full(n_steps, len(masked) // n_steps)
        counts[: len(masked) % n_steps] += 1  # of a block's tokens that become known in each step
        for step in range(n_steps):
            masked = _masked(tokens, mask, start, end)
            if not masked.size:
                break
            rows = _logits(context, tokens, masked)
            if params.cfg_scale:
                rows = rows.copy()
                others = _logits(context, [mask] * n_prompt + tokens[n_prompt:], masked)
                rows = others + np.float32(params.cfg_scale + 1) * (rows - others)
            count = masked.size
            if step < n_steps - 1:
                count = _due(step, n_steps, masked.size, params.eps) if params.eps else counts[step]
            for i, token in choice.known(rows, int(count)):
                tokens[masked[i]] = token
            yield UnmaskStep(first + step + 1, tokens.copy())


def _masked(tokens: list[int], mask: int, start: int, end: int) -> Ints:
    return np.array([i for i in range(start, end) if tokens[i] == mask], np.intp)


def _due(step: int, n_steps: int, n_masked: int, eps: float) -> int:
    """How many of the masked tokens become known, for a time that falls from 1 to ``eps``."""
    f32 = np.float32
    now, then = (f32(1) - f32(i) / f32(n_steps) * (f32(1) - f32(eps)) for i in (step, step + 1))
    return int(f32(n_masked) * (f32(1) - then / now))


def _logits(context: Context, tokens: list[int], positions: Ints) -> Floats:
    """The logits of positions: float32[n, n_vocab], which the next call overwrites."""
    if context.hparams.shift_logits:
        positions = np.maximum(positions - 1, 0)
    needed = np.unique(positions)
    flags = np.zeros(len(tokens), bool)
    flags[needed] = True
    context.decode(Batch(tokens, logits=flags.tolist()))
    return context.logits[np.searchsorted(needed, positions)]


class _Choice:
    """Chooses tokens for masked positions, and which of them become known.

    Random numbers are those of llama.cpp, but for Gumbel noise and ``alg_temp``.
    """

    def __init__(self, params: DiffusionParams, sampling: SamplingParams, n_vocab: int) -> None:
        self._algorithm, self._alg_temp = ALGORITHMS[params.algorithm], params.alg_temp
        self._temp = max(sampling.temp, 0.0)
        self._has_noise = params.add_gumbel_noise and self._temp > 0
        names: tuple[str, ...] = ("top_k", "top_p")
        if self._temp and not self._has_noise:
            names += ("temperature",)
        own = SamplingParams(
            seed=sampling.seed, temp=sampling.temp, top_k=sampling.top_k, top_p=sampling.top_p
        )
        self._chain = Chain(replace(own, samplers=names), n_vocab)
        self._draw = Dist(sampling.seed)
        self._order = Dist(self._draw.seed).rng  # of positions: another stream of the same seed
        self._noise = np.random.default_rng(self._draw.seed)

    def known(self, rows: Floats, count: int) -> list[tuple[int, int]]:
        """The rows whose tokens become known, and these tokens.

        Args:
            rows: the logits of masked positions, float32[n, n_vocab].
            count: how many become known, on average if the algorithm is ``origin``.
        """
        if self._algorithm == "origin":
            p = np.float32(count) / np.float32(len(rows))
            found = (i for i in range(len(rows)) if self._order.uniform_float() < p)
            return [(i, self._choose(rows[i])[0]) for i in found]
        chosen = [self._choose(row) for row in rows]
        confidences = np.array([confidence for _, confidence in chosen])
        if self._alg_temp:  # a draw without replacement
            confidences = confidences / self._alg_temp + self._noise.gumbel(size=len(rows))
        first = np.argsort(-confidences, kind="stable")[:count]
        return [(i, chosen[i][0]) for i in first.tolist()]

    def _choose(self, logits: Floats) -> tuple[int, float]:
        """A token for a position, and how certain the model is."""
        candidates = self._chain.apply(logits)
        at = self._pick(candidates)
        token, probs = candidates.token(at), candidates.probs()
        if self._algorithm == "entropy":
            return token, float((probs * np.log(probs + np.float32(_TINY))).sum())
        if self._algorithm == "margin":
            best = np.sort(probs)[-2:]
            return token, float(best[-1] - best[0]) if best.size > 1 else float(best[0])
        if self._algorithm == "random":
            return token, self._order.uniform_float()
        return token, float(probs[at])

    def _pick(self, candidates: Candidates) -> int:
        """The position of the chosen candidate."""
        if not self._temp:
            return candidates.argmax()
        if self._has_noise:
            noise = self._noise.gumbel(size=len(candidates))
            return int((candidates.logits + self._temp * noise).argmax())
        token = self._draw.pick(candidates)
        return int((candidates.ids == token).argmax())
