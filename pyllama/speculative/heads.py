"""Drafts of a head: layers that were trained to draft, from the hidden states of the target.

    drafter = HeadDrafter(target, mtp_head(target.model))      # its own multi-token prediction
    drafter = HeadDrafter(target, eagle3_head(target.model, Path("eagle3.gguf")))

A head without keys and values of its own (Gemma 4's assistant) reads the target's: of the text it
reads the last token only, and all drafted tokens have the position of that one.

At token i of the text a head reads the embedding of token i and the target's hidden states of token
i - 1, so it reads the text without its first token. At a drafted token it reads its own hidden
states of the token before it. These are not the target's: accepted tokens are read again.

    tokens     t1  t2  t3 | d4  d5          the text ends with t3
    hidden     h0  h1  h2 | g3  g4          h: the target's, g: the head's at the token before

Several layers of multi-token prediction draft one token each: layer k reads the whole text with the
target's hidden states, then the first k drafted tokens, each with the hidden states of the layer
that drafted it.
Source: DeepSeek-AI 2024, "DeepSeek-V3", section 2.2; Li et al. 2025, "EAGLE-3"; llama.cpp,
``draft-mtp`` and ``draft-eagle3``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runtime.context import Context
from ..runtime.heads import Head
from ..runtime.params import ContextParams
from ..sampling import Distribution, SamplingParams
from ..sampling.top import Floats
from .draft import Costs, Draft, DraftView
from .model import LIKELIEST, DraftText, Growing, ModelDrafter

if TYPE_CHECKING:
    from ..grammar import Matcher


@dataclass(slots=True)
class _DraftedText:
    """A text with a draft, to which the next layer adds a token.

    Attributes:
        drafted: its tokens.
        hidden: for each of them the hidden states before it, of the layer that drafted it.
        q: their distributions, see `Draft`.
    """

    view: DraftView
    drafted: list[int] = field(default_factory=list)
    hidden: list[Floats] = field(default_factory=list)
    q: list[Distribution] = field(default_factory=list)
    _mark: Any = None

    def __post_init__(self) -> None:
        self._mark = self.matcher and self.matcher.mark()

    @property
    def id(self) -> int:
        return self.view.id

    @property
    def tokens(self) -> Sequence[int]:
        return self.view.tokens

    @property
    def sequence_id(self) -> int | None:
        return self.view.sequence_id

    @property
    def matcher(self) -> Matcher | None:
        return self.view.matcher

    def add(self, growing: Growing) -> None:
        """Add the first token of a layer's draft."""
        (token,) = growing.draft.tokens
        self.drafted.append(token)
        self.hidden += growing.states
        self.q += growing.q
        if self.matcher is not None:
            self.matcher.accept(token)

    def end(self) -> Draft | None:
        """The draft; resets the matcher."""
        if self.matcher is not None:
            self.matcher.rollback(self._mark)
        return Draft.chain(self.drafted, self.q or None) if self.drafted else None


class HeadDrafter(ModelDrafter):
    """Drafts of a head.

    Args:
        target: the context that verifies the drafts; keeps its hidden states from now on.
        head: as a model: ``runtime.heads.mtp_head``, ``eagle3_head``.
        sampling, width, p_min, p_split: see `ModelDrafter`. Several layers draft chains.
        params: of the head's context; None for those of the target. Overrides are the target's.

    Attributes:
        max_draft: maximum length of a draft: the number of layers, if there are several.

    Raises:
        AllocError: the caches do not fit into memory.
        BatchError: the target keeps hidden states for another head.
        DraftError, SamplingError: see `ModelDrafter`.
    """

    def __init__(
        self,
        target: Context,
        head: Head,
        sampling: SamplingParams = LIKELIEST,
        *,
        width: int = 1,
        p_min: float = 0.0,
        p_split: float = 0.1,
        params: ContextParams | None = None,
    ) -> None:
        target.keep_hidden(head.reads)
        self._target = target
        overrides = replace(target.params.overrides, n_layer=None, sparse_threshold=None)
        self._reads_cells = bool(head.target_layers)
        context = Context(
            head.model,
            params or target.params,
            target=target if self._reads_cells else None,
            target_layers=head.target_layers,
            overrides=overrides,
        )
        width = 1 if head.later else width
        super().__init__(context, sampling, width=width, p_min=p_min, p_split=p_split)
        if self._reads_cells:
            self.costs = self.costs._replace(read_s=0.0)  # of the text it reads the last token
        self._later: list[HeadDrafter] = []
        self.max_draft: int | None = None
        if head.later:
            for depth, model in enumerate(head.later, 1):
                one = HeadDrafter(
                    target, Head(model, head.reads), sampling, p_min=p_min, params=params
                )
                one._depth = depth
                self._later.append(one)
            self.max_draft = 1 + len(self._later)
            read_s = sum(one.costs.read_s for one in (self, *self._later))
            self.costs = Costs(read_s, *self.costs[1:])

    def propose(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        """See `Drafter.propose`. Raises: Aborted: as of `ModelDrafter`."""
        if not self._later:
            return super().propose(views, max_nodes)
        texts = [_DraftedText(view) for view in views]
        try:
            for depth, layer in enumerate((self, *self._later)):
                room = [
                    int(len(text.drafted) == depth < n)
                    for text, n in zip(texts, max_nodes, strict=True)
                ]
                for text, growing in zip(texts, layer._grow(texts, room), strict=True):
                    if growing is not None and len(growing.draft):
                        text.add(growing)
        finally:
            drafts = [text.end() for text in texts]
        return drafts

    def release(self, view: DraftView) -> None:
        """See `Drafter.release`."""
        for one in self._later:
            one.release(view)
        super().release(view)

    def _grow(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Growing | None]:
        try:
            return super()._grow(views, max_nodes)
        finally:
            for view in views:
                text = self._texts.get(view.id)
                if text is not None:  # drafted tokens were read with other hidden states
                    text.tree = None
                    del text.held[self._n_read(view) :]
                    n_kept = 0 if self._reads_cells else len(text.held)
                    self.context.kv.seq_rm(text.seq, n_kept)

    def _admit(self, view: DraftView, max_nodes: int) -> Growing | None:
        growing = super()._admit(view, max_nodes)
        if growing is not None and view.sequence_id is not None:
            self.context.target_seqs[growing.text.seq] = view.sequence_id
        return growing

    def _keep(self, text: DraftText, tokens: list[int], n: int) -> int:
        if not self._reads_cells:
            return super()._keep(text, tokens, n)
        text.held = tokens[:-1]  # the target has their keys and values
        return len(text.held)

    def _n_read(self, view: DraftView) -> int:
        """The number of the text's tokens whose hidden states before them the target has.

        0 if the sequence is not known.
        """
        n = 0 if view.sequence_id is None else self._target.kv.length(view.sequence_id)
        return n if n < len(view.tokens) else 0

    def _tokens(self, view: DraftView) -> list[int]:
        n = self._n_read(view)
        tokens = list(view.tokens[-n:]) if n else []
        return tokens + view.drafted if isinstance(view, _DraftedText) and n else tokens

    def _states(self, view: DraftView, start: int) -> Floats:
        assert view.sequence_id is not None
        n = self._n_read(view)
        first = self._target.kv.length(view.sequence_id) - n
        found = self._target.kv.hidden(view.sequence_id, first + start)
        if isinstance(view, _DraftedText) and view.hidden:
            # an earlier text in the same sequence may have gone on with drafted tokens
            found = np.concatenate([found, view.hidden[max(0, start - n) :]])
        return found
