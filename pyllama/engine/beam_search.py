"""Beam search: the likeliest continuations of a prompt.

    engine = Engine(Context(model, n_seq_max=4))
    beams = generate_beams(engine, tokens, BeamSearchParams(beam_width=4, max_tokens=32))
    print(model.tokenizer.decode(beams[0].tokens), beams[0].score)

Each beam has a sequence of the engine. A beam that continues in several ways is forked, which
shares its cells; a step decodes one token of every beam as one batch. Blocks until all have ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ..errors import SamplingError
from ..sampling.top import top_positions
from .engine import Engine
from .lease import Lease
from .logprobs import log_softmax
from .request import Floats, check_prompt
from .rows import Row, batches


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Parameters of `generate_beams`, with vLLM's names.

    Args:
        beam_width: number of continuations that are searched and returned.
        max_tokens: maximum number of tokens of each.
        length_penalty: exponent of the length that divides a sum of log-probabilities; larger
            ones favour longer texts, 0 compares the sums.
        ignore_eos: treat end-of-generation tokens like all others (``SamplingParams.ignore_eos``
            never samples them).
        temperature: divisor of the logits; 0 leaves them as they are, like 1.

    Raises:
        SamplingError: a value is outside its range.
    """

    beam_width: int
    max_tokens: int
    length_penalty: float = 1.0
    ignore_eos: bool = False
    temperature: float = 0.0

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            if getattr(self, name) < 1:
                raise SamplingError(f"{name}: got {getattr(self, name)}, want at least 1")
        if not abs(self.length_penalty) * math.log(self.max_tokens + 1) < 700:  # else overflows
            raise SamplingError(
                f"length_penalty: got {self.length_penalty}, want a number so that "
                "max_tokens**length_penalty is at most 1e300"
            )
        if not 0 <= self.temperature < math.inf:
            raise SamplingError(f"temperature: got {self.temperature}, want 0 or more")


class Beam(NamedTuple):
    """A continuation.

    Attributes:
        tokens: with the end-of-generation token, if it ended with one.
        logprob: sum of their log-probabilities, after ``temperature``.
        score: ``logprob / len(tokens) ** length_penalty``.
        reason: ``eog``, or ``length`` after ``max_tokens``.
    """

    tokens: tuple[int, ...]
    logprob: float
    score: float
    reason: Literal["eog", "length"]


class _Running(NamedTuple):
    tokens: tuple[int, ...]
    logprob: float
    lease: Lease


def generate_beams(engine: Engine, tokens: Seq[int], params: BeamSearchParams) -> list[Beam]:
    """The ``beam_width`` best continuations of a prompt, best first.

    A step extends every beam by every token. Of the best ``beam_width`` extensions those that end
    are finished; the best ``beam_width`` of the others are the next beams. It stops early only
    when no beam can become better than all finished ones. Ties go to the better parent, then to
    the lower token id.

    Args:
        engine: has ``beam_width`` sequences without requests or leases; its requests wait.
        tokens: the prompt.

    Raises:
        BatchError: no tokens, an unknown token, or too few free sequences.
        ContextFull: prompt and ``max_tokens`` do not fit into a sequence, or the beams not into
            the cells.
        Aborted: the decode was stopped.

    Source: transformers, ``generate`` with ``num_beams`` and ``early_stopping="never"``.
    """
    check_prompt(len(tokens), 0, engine.context.n_ctx_seq, min_room=params.max_tokens - 1)
    leases = [Lease(engine) for _ in range(params.beam_width)]
    leases[0].evaluate(tokens)
    tokenizer = engine.context.model.tokenizer
    eog = frozenset() if params.ignore_eos else frozenset(tokenizer.eog)
    logits = engine.context.logits[-1:]
    running, finished = [_Running((), 0.0, leases[0])], list[Beam]()
    for length in range(1, params.max_tokens + 1):
        n_top = params.beam_width + len(eog)  # enough without those that end
        children: list[tuple[_Running, int, float]] = []
        for rank, (i, token, logprob) in enumerate(_extensions(running, logits, n_top, params)):
            parent = running[i]
            if token in eog or length == params.max_tokens:
                if rank < params.beam_width:
                    reason: Literal["eog", "length"] = "eog" if token in eog else "length"
                    score = logprob / length**params.length_penalty
                    finished.append(Beam((*parent.tokens, token), logprob, score, reason))
            elif len(children) < params.beam_width:
                children.append((parent, token, logprob))
        finished = sorted(finished, key=lambda beam: -beam.score)[: params.beam_width]
        if not children or _is_decided(finished, children[0][2], length, params):
            break
        running = _forked(leases, children)
        logits = _decode(engine, [beam.lease.row(beam.tokens[-1:]) for beam in running])
    return finished


def _extensions(
    running: Seq[_Running], logits: Floats, n_top: int, params: BeamSearchParams
) -> list[tuple[int, int, float]]:
    """The best extensions (beam, token, sum of log-probabilities) of each beam, best first."""
    if params.temperature:
        logits = logits / np.float32(params.temperature)
    found = []
    for i, (beam, logprobs) in enumerate(zip(running, log_softmax(logits), strict=True)):
        for token in top_positions(logprobs, n_top).tolist():
            if logprobs[token] > -np.inf:
                found.append((i, token, beam.logprob + float(logprobs[token])))
    return sorted(found, key=lambda extension: -extension[2])


def _is_decided(finished: Seq[Beam], logprob: float, length: int, params: BeamSearchParams) -> bool:
    """Whether no continuation of beams, the best one of ``logprob``, can be among the best."""
    if len(finished) < params.beam_width:
        return False
    # sums only decrease: the best score is that of the same sum at the most favourable length
    best_length = params.max_tokens if params.length_penalty > 0 else length + 1
    best_score: float = logprob / best_length**params.length_penalty
    return finished[-1].score >= best_score


def _forked(leases: Seq[Lease], children: Seq[tuple[_Running, int, float]]) -> list[_Running]:
    """The next beams: the first child of a beam keeps its sequence, the others fork it."""
    kept = {id(parent.lease) for parent, _, _ in children}
    free = [lease for lease in leases if id(lease) not in kept]
    taken, running = set[int](), []
    for parent, token, logprob in children:
        lease = parent.lease
        if id(lease) in taken:
            lease = free.pop()
            lease.fork(parent.lease)
        taken.add(id(lease))
        running.append(_Running((*parent.tokens, token), logprob, lease))
    return running


def _decode(engine: Engine, rows: list[Row]) -> Floats:
    """Logits float32[n_beams, n_vocab] after one token of each beam."""

    def parts() -> Iterator[Floats]:
        for part in batches(rows, engine.context.n_batch):
            engine.decode(part)
            yield engine.context.logits.copy()

    logits: Floats = np.concatenate(list(parts()))
    return logits
