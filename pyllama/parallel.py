"""Many prompts at once, with continuous batching: a prompt begins as soon as another has ended.

    context = Context(model, n_ctx=4096, n_seq_max=8)
    for i, token in generate_many(context, prompts, SamplingParams(temp=0.0), n_predict=64): ...

Every decode takes one token of each running text and as much of waiting prompts as fits behind
them. What all prompts begin with is evaluated once and shared. A text has the same tokens as if it
were alone, whatever runs beside it. Not thread-safe: the context's sequences are taken over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .batch import Batch
from .context import Context
from .errors import BatchError, ContextFull
from .sampling import Chain, SamplingParams


@dataclass
class _Slot:
    """One running text, in sequence ``seq``."""

    seq: int
    index: int  # of its prompt
    chain: Chain
    waiting: list[int]  # tokens that are not evaluated yet
    n_left: int
    need: int  # cells that it may take, beside what all prompts share
    output: int = field(default=-1)  # row of its logits in the decode that ran


def generate_many(
    context: Context,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    n_predict: int = -1,
) -> Iterator[tuple[int, int]]:
    """Continue each prompt.

    Args:
        context: its memory is cleared; as many texts run at once as it has sequences.
        params: how to choose, for all prompts or for each.
        n_predict: tokens of each text at most; -1 for an equal share of the context.

    Yields:
        (index of the prompt, token id), in the order in which they are made. An end-of-generation
        token is a text's last one.

    Raises:
        BatchError: an empty prompt, an unknown token.
        ContextFull: a prompt that does not fit even alone.
    """
    each = _params(params, len(prompts))
    if n_predict == 0 or not prompts:
        return
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise BatchError(f"prompt {i} is empty: begin with the BOS token, or a text")
        if len(prompt) >= context.n_ctx_seq:
            raise ContextFull(
                f"prompt {i} has {len(prompt)} tokens, a context of {context.n_ctx_seq} takes "
                f"{context.n_ctx_seq - 1}; use a larger one (-c, n_ctx)"
            )
    most = [most_tokens(context, len(prompt), n_predict) for prompt in prompts]
    yield from _Run(context, prompts, each, most).tokens()


def most_tokens(context: Context, n_prompt: int, n_predict: int = -1) -> int:
    """Tokens that `generate_many` makes of a prompt of ``n_prompt`` tokens, at most."""
    most = n_predict if n_predict >= 0 else max(1, context.n_ctx // context.kv.n_seq_max)
    return min(most, context.n_ctx_seq - n_prompt)


class _Run:
    def __init__(
        self,
        context: Context,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        most: Sequence[int],
    ) -> None:
        self._context, self._prompts, self._params = context, prompts, params
        self._most, self._n_shared = most, _shared(prompts)
        self._queue = list(range(len(prompts)))[::-1]
        self._slots: list[_Slot] = []
        self._free = list(range(context.kv.n_seq_max))[::-1]
        self._held = [self._n_shared] * context.kv.n_seq_max  # tokens that a free sequence has

    def tokens(self) -> Iterator[tuple[int, int]]:
        context = self._context
        is_eog = context.model.tokenizer.is_eog
        context.kv.clear()
        self._share()
        while self._slots or self._queue:
            self._admit()
            self._decode()
            for slot in list(self._slots):
                if slot.output < 0:
                    continue
                logits, best = context.logits_ith(slot.output), context.best_ith(slot.output)
                token = slot.chain.sample(logits, best)
                slot.chain.accept(token)
                slot.n_left -= 1
                yield slot.index, token
                if slot.n_left == 0 or is_eog(token):
                    self._end(slot)
                else:
                    slot.waiting = [token]

    def _share(self) -> None:
        """Evaluate what all prompts begin with, for all sequences."""
        context, tokens = self._context, list(self._prompts[0][: self._n_shared])
        for start in range(0, len(tokens), context.n_batch):
            context.decode(Batch(tokens[start : start + context.n_batch], logits="none"))
        if tokens:
            for seq in range(1, context.kv.n_seq_max):
                context.kv.seq_cp(0, seq)

    def _admit(self) -> None:
        """Begin waiting prompts while there are sequences and cells for all of their tokens."""
        room = self._context.n_ctx - self._n_shared - sum(slot.need for slot in self._slots)
        while self._queue and self._free:
            i = self._queue[-1]
            prompt, n_left = self._prompts[i], self._most[i]
            seq = max(self._free, key=self._held.__getitem__)  # of a window, some may have lost it
            need = len(prompt) - self._held[seq] + n_left
            if need > room and self._slots and self._context.kv.unified:
                return
            self._queue.pop()
            self._free.remove(seq)
            hparams, tokenizer = self._context.model.hparams, self._context.model.tokenizer
            chain = Chain(self._params[i], hparams.n_vocab, tokenizer.eog)
            for token in prompt:
                chain.accept(token)
            waiting = [int(t) for t in prompt[self._held[seq] :]]
            self._slots.append(_Slot(seq, i, chain, waiting, n_left, need))
            room -= need

    def _decode(self) -> None:
        """Evaluate waiting tokens of all slots, the short ones first, up to a batch."""
        tokens: list[int] = []
        seqs: list[int] = []
        wanted: list[bool] = []
        n_outputs = 0
        for slot in sorted(self._slots, key=lambda s: len(s.waiting)):
            part = slot.waiting[: self._context.n_batch - len(tokens)]
            slot.waiting = slot.waiting[len(part) :]
            slot.output = n_outputs if part and not slot.waiting else -1
            n_outputs += slot.output >= 0
            tokens += part
            seqs += [slot.seq] * len(part)
            wanted += [False] * len(part)
            if slot.output >= 0:
                wanted[-1] = True
        self._context.decode(Batch(tokens, seq_id=seqs, logits=wanted))

    def _end(self, slot: _Slot) -> None:
        self._slots.remove(slot)
        self._held[slot.seq] = self._context.kv.rewind(slot.seq, self._n_shared)
        self._free.append(slot.seq)


def _params(
    params: SamplingParams | Sequence[SamplingParams] | None, n: int
) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * n
    if len(params) != n:
        raise BatchError(f"{len(params)} sampling parameters for {n} prompts")
    return params


def _shared(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens that all of several prompts begin with; each keeps one of its own for its logits."""
    if len(prompts) < 2:
        return 0
    n = 0
    for column in zip(*(prompt[:-1] for prompt in prompts), strict=False):
        if any(token != column[0] for token in column):
            break
        n += 1
    return n
