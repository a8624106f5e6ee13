"""A step that verifies drafts: its batch, and the tokens that each text gets from its rows.

    step = DraftStep(context, jobs, drafts)
    context.decode(step.batch)
    for i, job in enumerate(jobs):
        found = step.verify(i)      # the cache then holds the accepted tokens too

The batch has for each text its last token, which is not evaluated yet, and the nodes of its draft.
The step decides which tokens the texts get and which of them stay in the cache; the engine adds
them to the texts.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..kv.table import MAX_BRANCHES
from ..runtime.batch import Batch
from ..sampling import apply_logits_processors
from ..speculative import Draft, Verifier
from .job import Job, Verified
from .logprobs import token_logprob
from .request import Floats, Ids

if TYPE_CHECKING:
    from ..runtime.context import Context


@dataclass(slots=True)
class Verification:
    """The result of a step for one text.

    Attributes:
        tokens: the sampled tokens, also those before an error.
        path: accepted nodes of the draft.
        rows: the logits' rows of the tokens that the step has added to the cache.
        error: the exception of a callback or a sampler.
    """

    tokens: list[Verified]
    path: list[int]
    rows: list[int]
    error: Exception | None


class DraftStep:
    """Verifies one draft for each of several texts.

    Args:
        context: evaluates the batch.
        jobs: the texts; each runs, and has one token to evaluate.
        drafts: a draft for each, or None.

    Attributes:
        batch: what to decode before `verify`.
        drafts: those that are verified: trees with too many branches for one batch are dropped.

    Raises:
        DraftError: see `Draft.check`.
    """

    def __init__(self, context: Context, jobs: Seq[Job], drafts: Seq[Draft | None]) -> None:
        self._context, self._jobs = context, jobs
        self.drafts = _with_few_branches(drafts, context.model.hparams.n_vocab)
        tokens: list[int] = []
        seqs: list[int] = []
        parents: list[int] = []
        self._first: list[int] = []  # row of each text's last token; those of its nodes follow
        for job, draft in zip(jobs, self.drafts, strict=True):
            assert job.sequence is not None
            row = len(tokens)
            self._first.append(row)
            tokens.append(job.tokens[-1])
            parents.append(-1)
            if draft is not None:
                tokens += draft.tokens
                parents += [row + 1 + parent for parent in draft.parent]
            seqs += [job.sequence.seq_id] * (len(tokens) - row)
        self._is_tree = any(draft is not None and not draft.is_chain for draft in self.drafts)
        seq_id = seqs[0] if len(jobs) == 1 else seqs
        self.batch = Batch(tokens, None, seq_id, "all", parents if self._is_tree else None)

    def verify(self, i: int) -> Verification:
        """Sample the tokens of a text, and keep the accepted nodes in the cache.

        Once for each text.
        """
        found = self._sampled(self._jobs[i], self.drafts[i], self._first[i])
        self._keep(self._jobs[i], self.drafts[i], found.rows)
        return found

    def _sampled(self, job: Job, draft: Draft | None, first: int) -> Verification:
        """Sample from the rows on the accepted path, which begins with row ``first``."""
        context, request = self._context, job.request
        verifier = job.verifier = job.verifier or Verifier(job.chain)
        found: list[Verified] = []
        logits: Floats = context.logits_ith(first)
        ids: Ids = np.empty(0, np.intc)

        def row(i: int) -> Floats:
            nonlocal logits, ids
            logits = context.logits_ith(first + i)
            if request.processors or request.criteria:
                ids = np.array([*job.tokens, *(one.token for one in found)], np.intc)
                return apply_logits_processors(request.processors, ids, logits)
            return logits

        def ends(token: int) -> bool:
            if any(stop(ids, logits) for stop in request.criteria):
                found.append(Verified(None))
                return True
            n = job.n_logprobs
            logprob = None if n is None else token_logprob(logits, token, n)
            found.append(Verified(token, logprob, verifier.mark() if job.is_run else None))
            return token in job.ends or len(found) == job.n_left

        mark, path, error = verifier.mark(), list[int](), None
        argmax = None if request.processors else lambda i: context.argmax_ith(first + i)
        try:
            path = verifier.verify(draft, row, ends, argmax).path
        except Exception as raised:
            error = raised
        except BaseException:
            verifier.rollback(mark)
            raise
        for one in found[: len(path)]:
            one.drafted = True
        # without drafts the last token is not evaluated
        rows = [first, *(first + 1 + node for node in path[: len(found) - 1])]
        return Verification(found, path, rows, error)

    def _keep(self, job: Job, draft: Draft | None, rows: list[int]) -> None:
        """Keep the tokens of some rows of a text in the cache, and remove those of the others."""
        sequence, kv = job.sequence, self._context.kv
        assert sequence is not None
        if self._is_tree:
            kv.commit_tree(sequence.seq_id, [row - rows[0] for row in rows])
        elif draft is not None and len(rows) <= len(draft):
            kv.drop_last(sequence.seq_id, len(draft) + 1 - len(rows))
        sequence.append([self.batch.tokens[row] for row in rows])


def _with_few_branches(drafts: Seq[Draft | None], n_vocab: int) -> list[Draft | None]:
    """The drafts, without those with which a batch would have too many branches."""
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
