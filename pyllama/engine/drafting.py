"""Verifies drafts: which drafted tokens a text gets, and which of them stay in the cache.

    drafts = checked(speculation.propose(runs, limits), n_vocab)
    rows = scheduler.plan(drafts)                  # a row: the last token, then the draft's nodes
    context.decode(batch_of(rows))
    result = verify(context, rows[0], first=0, is_tree=False)   # the cache then holds the accepted

The step adds the tokens to the texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..kv.table import MAX_BRANCHES
from ..sampling import apply_logits_processors
from ..speculative import Draft, Verifier
from .jobs import TextRun, Verified
from .logprobs import token_logprob
from .request import Floats, Ids
from .rows import Row

if TYPE_CHECKING:
    from ..runtime.context import Context


@dataclass(slots=True)
class Verification:
    """The result of a step for one text.

    Attributes:
        tokens: the sampled tokens, also those before an error.
        path: accepted nodes of the draft.
        outputs: the logits' rows of the tokens that the step has added to the cache.
        error: the exception of a callback or a sampler.
    """

    tokens: list[Verified]
    path: list[int]
    outputs: list[int]
    error: Exception | None


def checked(drafts: Sequence[Draft | None], n_vocab: int) -> list[Draft | None]:
    """The drafts, without those with which a batch would have too many branches.

    Raises:
        DraftError: see `Draft.check`.
    """
    found: list[Draft | None] = []
    n_branches = 0
    for draft in drafts:
        found.append(None)
        if draft is not None:
            draft.check(n_vocab)
            n = len(draft) - len(set(draft.parent))
            if n_branches + n <= MAX_BRANCHES:
                n_branches, found[-1] = n_branches + n, draft
    return found


def verify(context: Context, row: Row, first: int, *, is_tree: bool) -> Verification:
    """Sample the tokens of a row's text, and keep the accepted nodes in the cache.

    Once for each row of a batch that was decoded.

    Args:
        first: index of the row's first logits.
        is_tree: whether the batch is one.
    """
    run, sequence, draft = row.run, row.sequence, row.draft
    assert run is not None
    result = _sampled(context, run, draft, first)
    kept = [output - first for output in result.outputs]
    if is_tree:
        context.kv.commit_tree(sequence.seq_id, kept)
    elif len(kept) < len(row.tokens):
        context.kv.drop_last(sequence.seq_id, len(row.tokens) - len(kept))
    sequence.append([row.tokens[i] for i in kept])
    return result


def _sampled(context: Context, run: TextRun, draft: Draft | None, first: int) -> Verification:
    """Sample from the logits on the accepted path, which begins with row ``first``."""
    request = run.request
    verifier = run.verifier = run.verifier or Verifier(run.chain)
    found: list[Verified] = []
    logits: Floats = context.logits_ith(first)
    ids: Ids = np.empty(0, np.intc)

    def logits_of(i: int) -> Floats:
        nonlocal logits, ids
        logits = context.logits_ith(first + i)
        if request.processors or request.criteria:
            ids = np.array([*run.tokens[run.n_text :], *(one.token for one in found)], np.intc)
            return apply_logits_processors(request.processors, ids, logits)
        return logits

    def ends(token: int) -> bool:
        if any(stop(ids, logits) for stop in request.criteria):
            found.append(Verified(None))
            return True
        n = run.n_logprobs
        logprob = None if n is None else token_logprob(logits, token, n)
        found.append(Verified(token, logprob, verifier.mark() if run.is_run else None))
        return token in run.ends or len(found) == run.n_left

    mark, path, error = verifier.mark(), list[int](), None
    argmax = None if request.processors else lambda i: context.argmax_ith(first + i)
    try:
        path = verifier.verify(draft, logits_of, ends, argmax).path
    except Exception as raised:
        error = raised
    except BaseException:
        verifier.rollback(mark)
        raise
    for one in found[: len(path)]:
        one.drafted = True
    # without drafts the last token is not evaluated
    outputs = [first, *(first + 1 + node for node in path[: len(found) - 1])]
    return Verification(found, path, outputs, error)
