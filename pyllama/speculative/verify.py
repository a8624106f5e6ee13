"""Verification: which drafted tokens are accepted, and the token that follows them.

    verifier = Verifier(chain)
    verdict = verifier.verify(draft, lambda row: logits[row])   # row 0: last token, i + 1: node i
    verdict.tokens      # the accepted tokens, then one that was not drafted
    verdict.path        # the accepted nodes: rows of memory to keep

Whatever is drafted, the tokens have the distribution of the target's chain without drafts. Drafts
of point masses even have its tokens, seed for seed: each row is sampled as without a draft, and
compared with the children. Drafts with distributions are verified by rejection sampling (`choose`);
`docs/speculation.md` has the rules as formulas. Not thread-safe.

The tokens are exact if siblings are drawn without replacement from one distribution q, and if no
decision to draw a token, to keep it or to cut the draft depends on that token or on later draws.
A threshold on the probability of the drawn token (llama.cpp's ``p_min``) breaks this rule; one on
the largest probability of q does not.

Source: Leviathan et al. 2023, Chen et al. 2023; for trees Jeon et al. 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np

from ..errors import DraftError
from ..sampling import Chain, Distribution, Mt19937
from ..sampling.top import Floats
from .draft import Draft

Mark = tuple[Any, Any]

ACCEPTANCE_SEED = 0x9E3779B9  # llama.cpp's: its stream is seeded with the chain's seed xor this


class Verdict(NamedTuple):
    """The result of one verification.

    Attributes:
        path: accepted nodes, from the text on.
        tokens: their tokens, then the token sampled after them, if the text did not end before.
    """

    path: list[int]
    tokens: list[int]


class Verifier:
    """Verifies the drafts of one text.

    Args:
        chain: the target's samplers; the verifier samples from it and accepts tokens.

    Attributes:
        chain: the same.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self._rng = Mt19937(chain.seed ^ ACCEPTANCE_SEED)

    def verify(
        self,
        draft: Draft | None,
        row: Callable[[int], Floats],
        ends: Callable[[int], bool] | None = None,
        argmax: Callable[[int], int] | None = None,
    ) -> Verdict:
        """Accept tokens of a draft, and sample the next one.

        Afterwards the chain's state is the one after accepting the verdict's tokens. Without a
        draft this is one `Chain.sample`.

        Args:
            draft: follows `Draft.check`.
            row: logits of a row; row 0 follows the text's last token, row i + 1 node i. Called
                only for rows on the accepted path, after the tokens before it were accepted.
            ends: called with each token; True ends the text with it.
            argmax: index of a row's largest logit, if that is known.

        Raises:
            DraftError: a drafted token has probability 0 in its q.
            SamplingError: see `Chain.sample`.
        """
        children = [[]] if draft is None else draft.children()
        path: list[int] = []
        tokens: list[int] = []
        node: int | None = -1
        while node is not None:
            argmax_token = None if argmax is None else argmax(node + 1)
            node, token = self._next(row(node + 1), argmax_token, draft, children[node + 1])
            self.chain.accept(token)
            tokens.append(token)
            if node is not None:
                path.append(node)
            if ends is not None and ends(token):
                break
        return Verdict(path, tokens)

    def _next(
        self, logits: Floats, argmax: int | None, draft: Draft | None, children: list[int]
    ) -> tuple[int | None, int]:
        """The accepted child, or None, and the token."""
        proposed = [draft.tokens[child] for child in children] if draft is not None else []
        if proposed and draft is not None and draft.q is not None:
            p = self.chain.distribution(logits)
            if p is not None:
                i, token = choose(p, draft.q[children[0]], proposed, self._rng.uniform_double)
                return (None if i is None else children[i]), token
        token = self.chain.sample(logits, argmax)
        return (children[proposed.index(token)] if token in proposed else None), token

    def mark(self) -> Mark:
        """The state of chain and random stream, for `rollback`."""
        return self.chain.mark(), self._rng.mark()

    def rollback(self, mark: Mark) -> None:
        """Restore the state at a mark; later marks become invalid."""
        self.chain.rollback(mark[0])
        self._rng.rollback(mark[1])

    def clone(self) -> Verifier:
        """An independent copy of the verifier, its chain and their state."""
        return deepcopy(self)


def choose(
    p: Distribution, q: Distribution, proposed: Sequence[int], uniform: Callable[[], float]
) -> tuple[int | None, int]:
    """Accept one of several tokens, or sample another, so that the token has distribution p.

    For each proposed token x in order: accept it with probability min(1, p(x) / q(x)). If it is
    rejected, p becomes the normalised positive part of p - q, and q loses x and is normalised. If
    none is accepted, sample p. Nothing is added to a denominator: a rejection that leaves no
    residual has probability 0, except for rounding, and is not made.

    Args:
        p: the target's distribution.
        q: the draft's distribution; its probabilities need not sum to 1.
        proposed: drawn from q without replacement.
        uniform: the next random number in [0, 1).

    Returns:
        The index of the accepted token, or None; the token.

    Raises:
        DraftError: a proposed token has probability 0 in q.
    """
    probs = p.probs
    order = p.ids.argsort(kind="stable")  # linear where they are in order
    at = p.ids.searchsorted(q.ids, sorter=order)
    at = order[np.minimum(at, p.ids.size - 1)]  # positions of q's tokens in p
    shared = p.ids[at] == q.ids
    q_left = q.probs.astype(np.float64)
    for i, token in enumerate(proposed):
        found = (q.ids == token).nonzero()[0]
        if not found.size or not q_left[found[0]] > 0:
            raise DraftError(f"token {token} is drafted, but has probability 0 in the draft's q")
        j = found[0]
        q_now = q_left / q_left.sum()
        p_token = probs[at[j]] if shared[j] else 0.0
        if uniform() * q_now[j] < p_token:
            return i, token
        rest = probs.copy()
        rest[at[shared]] -= q_now[shared]
        np.maximum(rest, 0.0, out=rest)
        total = rest.sum()
        if not total > 0:
            return i, token
        probs = rest / total
        q_left[j] = 0.0
    running = probs.cumsum()
    # a target of 0 would match a leading token of probability 0
    target = max(uniform() * running[-1], np.nextafter(0.0, 1.0))
    return None, int(p.ids[running.searchsorted(target)])
