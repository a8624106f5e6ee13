"""Drafts of a head that drafts a block of tokens at once: DFlash, DSpark.

    drafter = BlockDrafter(target, dflash_head(target.model, Path("dflash.gguf")))

    tokens     t0  t1  t2 | t3  mask  mask        t3 is not evaluated yet
    hidden     h0  h1  h2 |     -> d4   d5        h: the target's

The head stores keys and values of the target's hidden states of all evaluated tokens, and evaluates
one block: the last token and a mask for each token to draft. The block's own are removed again.
What is drafted at one position does not depend on what is drafted at another, so drafts are chains.
A DSpark head's graph chooses the likeliest tokens of a block one after the other; its block may
have a mask less, since the first token drafts too.
Source: llama.cpp, ``draft-dflash`` and ``draft-dspark``.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from ..arch.dflash import MARKOV
from ..runtime.batch import Batch
from ..runtime.context import Context
from ..runtime.heads import Head
from ..runtime.params import ContextParams
from ..sampling import SamplingParams
from .draft import Costs, DraftView
from .heads import HeadDrafter
from .model import ACCEPT_RATE, LIKELIEST, Growing, ReadPart, stacked

_READ = 32  # tokens of the batch whose time is measured


class BlockDrafter(HeadDrafter):
    """Drafts of a head that drafts blocks.

    Args:
        target: the context that verifies the drafts; keeps its hidden states from now on.
        head: as a model: ``runtime.heads.dflash_head``.
        sampling, p_min: see `ModelDrafter`.
        params: of the head's context; None for those of the target.

    Attributes:
        max_draft: maximum length of a draft: the tokens of the head's block that draft.

    Raises:
        AllocError, BatchError, DraftError, SamplingError: see `HeadDrafter`.
    """

    def __init__(
        self,
        target: Context,
        head: Head,
        sampling: SamplingParams = LIKELIEST,
        *,
        p_min: float = 0.0,
        params: ContextParams | None = None,
    ) -> None:
        self._mask: int = head.model.hparams.own["mask_token"]
        super().__init__(target, head, sampling, p_min=p_min, params=params)
        hparams = head.model.hparams
        self._is_dspark = MARKOV in head.model.weights
        # tokens of a block that draft none
        self._n_first = 0 if self._is_dspark and hparams.own["sample_from_anchor"] else 1
        self.max_draft = min(hparams.block_size, self.context.n_ubatch) - self._n_first

    def _measure(self) -> Costs:
        context, times = self.context, []
        n = max(1, min(_READ, context.n_batch, self._n_ctx // 2))
        block = min(context.hparams.block_size, context.n_ubatch, self._n_ctx - n)
        try:
            for _ in range(3):  # the first one touches the pages of a new context
                context.kv.clear()
                start = perf_counter()
                context.decode(Batch([0] * n, logits="none"))
                read = perf_counter()
                context.decode(Batch([0] * block, logits="all"))
                times.append(((read - start) / n, (perf_counter() - read) / block))
        finally:
            context.kv.clear()
        read_s, draft_s = (min(column) for column in zip(*times, strict=True))
        return Costs(read_s, draft_s, ACCEPT_RATE)

    def _tokens(self, view: DraftView) -> list[int]:
        n = self._n_read(view)
        return list(view.tokens[-n - 1 :]) if n else []

    def _catch_up(self, growing: list[Growing]) -> None:
        """Store keys and values of the rest of each text, and draft."""
        assert self.max_draft is not None
        last = [g.rest.pop() for g in growing]
        super()._catch_up(growing)
        part: list[tuple[Growing, int, int]] = []
        n = 0
        for g, token in zip(growing, last, strict=True):
            room = self._n_ctx - len(g.text.held)
            size = self._n_first + min(g.max_nodes, self.max_draft, room - self._n_first)
            # a Markov head needs a graph for each block
            if part and (self._is_dspark or n + size > self.context.n_ubatch):
                self._draft_blocks(part)
                part, n = [], 0
            if size > self._n_first:
                part.append((g, token, size))
                n += size
            else:
                g.frontier = []
        self._draft_blocks(part)

    def _append(self, part: list[ReadPart]) -> None:
        """Store keys and values of tokens of texts."""
        tokens = [token for piece in part for token in piece.tokens]
        seqs = [piece.growing.text.seq for piece in part for _ in piece.tokens]
        hidden = stacked([state for piece in part for state in piece.states])
        self.context.decode(Batch(tokens, seq_id=seqs, logits="none", hidden=hidden))
        for piece in part:
            piece.growing.text.held += piece.tokens

    def _draft_blocks(self, part: Sequence[tuple[Growing, int, int]]) -> None:
        """Evaluate the block of each text: its last token, and the number of tokens with masks."""
        tokens: list[int] = []
        seqs: list[int] = []
        flags: list[bool] = []
        for g, token, size in part:
            tokens += [token, *[self._mask] * (size - 1)]
            seqs += [g.text.seq] * size
            flags += [i >= self._n_first for i in range(size)]
        if tokens:
            self.context.decode(Batch(tokens, seq_id=seqs, logits=flags))
        row = 0
        for g, _, size in part:
            for i in range(size - self._n_first):
                n = len(g.draft)
                self._lengthen(g, row + i)
                g.frontier = list(range(n, len(g.draft)))
                if not g.frontier:
                    break
            row += size - self._n_first
            g.frontier = []


def head_drafter(
    target: Context,
    head: Head,
    sampling: SamplingParams = LIKELIEST,
    *,
    width: int = 1,
    p_min: float = 0.0,
    p_split: float = 0.1,
    params: ContextParams | None = None,
) -> HeadDrafter:
    """The drafter for a head; see `HeadDrafter`. One that drafts blocks has no trees."""
    if head.model.hparams.block_size:
        return BlockDrafter(target, head, sampling, p_min=p_min, params=params)
    return HeadDrafter(
        target, head, sampling, width=width, p_min=p_min, p_split=p_split, params=params
    )
