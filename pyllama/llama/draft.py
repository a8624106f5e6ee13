"""Draft models of `Llama`: llama-cpp-python's functions, drafters, models, and names.

    llama = Llama("x.gguf", draft_model=LlamaPromptLookupDecoding(num_pred_tokens=10))
    llama = Llama("x.gguf", draft_model="small.gguf")
    llama = Llama("x.gguf", draft_model="ngram-map-k,suffix")       # names of `drafter_by_name`
    llama = Llama("x.gguf", draft_model="draft-mtp")                # the model's own head
    llama = Llama("x.gguf", draft_model="x-eagle3.gguf")            # a head that is a file
    llama("...", temperature=0); print(llama.speculation.stats.n_accept)

Drafts change no text, they only save time: drafted tokens are compared with those that the model
samples in any case, seed for seed. (Drafts with distributions, of a `Drafter` of one's own, change
texts, but not their distribution.) As many tokens are drafted as pay by measured times; a
`Speculation` has other limits.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.request import Ids
from ..errors import DraftError
from ..parameters.drafting import DRAFT_MTP
from ..runtime.context import Context
from ..runtime.heads import head_of_file, mtp_head
from ..runtime.model import Model
from ..speculative import (
    Draft,
    Drafter,
    DraftView,
    FirstOf,
    HeadDrafter,
    PromptLookup,
    Speculation,
    Stats,
    draft_model,
    drafter_by_name,
    head_drafter,
)
from ..speculative.names import DRAFTERS, NONE

Function = Callable[[Ids], npt.ArrayLike]
_NAMES = (NONE, *DRAFTERS, DRAFT_MTP)


class LlamaDraftModel(ABC):
    """A function that proposes tokens, to derive from.

    Source: llama-cpp-python, ``LlamaDraftModel``.
    """

    @abstractmethod
    def __call__(self, input_ids: Ids, /, **kwargs: Any) -> Ids:
        """The proposed tokens after these; int32[n], n may be 0."""


class LlamaPromptLookupDecoding(LlamaDraftModel):
    """Proposes what followed the first occurrence of the last n-gram in the text.

    `Llama` uses `PromptLookup` in its place: the same drafts in O(1) per token.

    Args:
        max_ngram_size: length of the longest n-gram; shorter ones down to 1 follow.
        num_pred_tokens: maximum number of proposed tokens.

    Source: llama-cpp-python, ``LlamaPromptLookupDecoding``.
    """

    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10) -> None:
        self.max_ngram_size, self.num_pred_tokens = max_ngram_size, num_pred_tokens

    def drafter(self) -> PromptLookup:
        """The drafter with the same proposals."""
        return PromptLookup(self.max_ngram_size, self.num_pred_tokens)

    @staticmethod
    def find_candidate_pred_tokens(
        input_ids: Ids, max_ngram_size: int, num_pred_tokens: int
    ) -> Ids:
        """The proposed tokens after these, without an object."""
        index = PromptLookup(max_ngram_size, num_pred_tokens).new_index()
        for token in np.asarray(input_ids).tolist():
            index.append(token)
        draft = index.draft(num_pred_tokens)
        return np.array([] if draft is None else draft.tokens, np.intc)

    def __call__(self, input_ids: Ids, /, **kwargs: Any) -> Ids:
        """The proposed tokens after these."""
        return self.find_candidate_pred_tokens(input_ids, self.max_ngram_size, self.num_pred_tokens)


@dataclass
class FunctionDrafter:
    """Drafts of a function with the interface of `LlamaDraftModel`, as point masses.

    Args:
        function: called with all token ids of a text; returns token ids. Its exceptions propagate.
    """

    function: Function

    def propose(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        return [
            self._draft(view, n) if n > 0 else None
            for view, n in zip(views, max_nodes, strict=True)
        ]

    def _draft(self, view: DraftView, max_nodes: int) -> Draft | None:
        proposed = np.asarray(self.function(np.array(view.tokens, np.intc)))
        if proposed.ndim != 1:
            raise DraftError(
                f"draft_model returned an array of {proposed.ndim} dimensions, want token ids"
            )
        tokens = proposed[:max_nodes].astype(int).tolist()
        return Draft.chain(tokens) if tokens else None

    def accepted(self, view: DraftView, path: Sequence[int]) -> None:
        """See `Drafter.accepted`."""

    def release(self, view: DraftView) -> None:
        """See `Drafter.release`."""


def check_draft_model(given: object) -> None:
    """Check that `speculation_for` knows a draft model, without loading it.

    Raises:
        DraftError: it is none of the kinds that are known, or there is no such file.
    """
    if isinstance(given, str | os.PathLike) and not _is_named(given):
        if not os.path.exists(given):
            raise DraftError(
                f"Llama: draft_model={os.fspath(given)!r}: there is no such file, and the names of "
                f"drafters are {', '.join(_NAMES)}"
            )
    elif isinstance(given, str):
        drafter_by_name(given, models={DRAFT_MTP: lambda: FirstOf(())})
    elif not (
        given is None
        or isinstance(given, Speculation | Model)
        or _is_drafter(given)
        or (callable(given) and not isinstance(given, type))
    ):
        raise DraftError(
            f"Llama: draft_model={given!r} is no draft model; want a function of token ids, a "
            "Drafter, a Speculation, a Model, a GGUF file or the name of a drafter"
        )


def speculation_for(given: object, target: Context) -> tuple[Speculation | None, ExitStack]:
    """How to draft for a context.

    Args:
        given: a draft model in any of the forms of this module, checked by `check_draft_model`.
        target: the context that verifies the drafts.

    Returns:
        The speculation, None for no drafts, and what to close after its last use.

    Raises:
        DraftError, ModelError: the model cannot draft.
        AllocError: the draft model's context does not fit into memory.
    """
    opened = ExitStack()
    if given is None or isinstance(given, Speculation):
        return given, opened
    if isinstance(given, LlamaPromptLookupDecoding) and type(given) is LlamaPromptLookupDecoding:
        return _speculation(given.drafter(), given.num_pred_tokens), opened
    if isinstance(given, str) and _is_named(given):
        of_model = {DRAFT_MTP: lambda: HeadDrafter(target, mtp_head(target.model))}
        drafter = drafter_by_name(given, models=of_model)
        return None if drafter is None else _speculation(drafter, name=given), opened
    with opened:  # closes them after an error
        if isinstance(given, str | os.PathLike):
            head = head_of_file(target.model, Path(given))
            if head is not None:
                return _speculation(head_drafter(target, head)), opened
            given = Model.load(Path(given))
            opened.callback(given.close)
        if isinstance(given, Model):
            return _speculation(_model_drafter(given, target, opened)), opened.pop_all()
    if _is_drafter(given):
        return _speculation(given), opened
    function: Any = given
    n_draft = getattr(function, "num_pred_tokens", Speculation.max_draft)  # llama-cpp-python's
    return _speculation(FunctionDrafter(function), n_draft), opened


def _speculation(
    drafter: Any, max_draft: int = Speculation.max_draft, name: str | None = None
) -> Speculation:
    return Speculation(drafter, max_draft, stats=Stats(name or type(drafter).__name__))


def _model_drafter(model: Model, target: Context, opened: ExitStack) -> Drafter:
    context = Context(
        model,
        n_ctx=target.n_ctx,
        n_batch=target.n_batch,
        n_ubatch=target.n_ubatch,
        n_threads=target.n_threads,
        n_threads_batch=target.n_threads_batch,
    )
    opened.callback(context.close)
    return draft_model(target.model.tokenizer, context)


def _is_named(given: object) -> bool:
    """Whether all parts of a text are names of drafters."""
    return isinstance(given, str) and {name.strip() for name in given.split(",")} <= {*_NAMES}


def _is_drafter(given: object) -> bool:
    if isinstance(given, type):  # the class in place of an object
        return False
    return all(hasattr(given, name) for name in ("propose", "accepted", "release"))
