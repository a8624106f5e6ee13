"""Drafts of a head: layers that were trained to draft, from the hidden states of the target.

    drafter = HeadDrafter(target, mtp_head(target.model))      # its own multi-token prediction
    drafter = HeadDrafter(target, eagle3_head(target.model, Path("eagle3.gguf")))

At each token a head reads its embedding, and the target's hidden states at the token before it.
In a draft the latter are the head's own. So it reads the text without its first token, and the
accepted tokens of a draft once more, with the target's hidden states. The target keeps these in the
cells of its tokens (``Context.keep_hidden``).
Source: DeepSeek-AI 2024, "DeepSeek-V3", section 2.2; Li et al. 2025, "EAGLE-3"; llama.cpp,
``draft-mtp`` and ``draft-eagle3``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..runtime.context import Context
from ..runtime.heads import Head
from ..runtime.params import ContextParams
from ..sampling import SamplingParams
from ..sampling.top import Floats
from .draft import Draft, DraftView
from .model import LIKELIEST, ModelDrafter


class HeadDrafter(ModelDrafter):
    """Drafts of a head.

    Args:
        target: the context that verifies the drafts; keeps its hidden states from now on.
        head: as a model: ``runtime.heads.mtp_head``, ``eagle3_head``.
        sampling, width, p_min, p_split: see `ModelDrafter`.
        params: of the head's context; None for those of the target. Overrides are the target's.

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
        context = Context(head.model, params or target.params, overrides=overrides)
        super().__init__(context, sampling, width=width, p_min=p_min, p_split=p_split)

    def propose(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        """See `Drafter.propose`. Raises: Aborted: as of `ModelDrafter`."""
        drafts = super().propose(views, max_nodes)
        for view in views:
            text = self._texts.get(view.id)
            if text is not None:  # drafted tokens were read with other hidden states
                text.tree = None
                del text.held[len(self._tokens(view)) :]
                self.context.kv.seq_rm(text.seq, len(text.held))
        return drafts

    def _tokens(self, view: DraftView) -> list[int]:
        """All but the first whose hidden states the target has; [] if a sequence is not known."""
        seq = view.sequence_id
        n = 0 if seq is None else self._target.kv.length(seq)
        return list(view.tokens[-n:]) if 0 < n < len(view.tokens) else []

    def _states(self, view: DraftView, start: int) -> Floats:
        assert view.sequence_id is not None
        return self._target.kv.hidden(view.sequence_id, start)
