"""Suffix decoding: the most frequent continuation of a suffix of any length, in all texts so far.

    drafter = SuffixDecoding()
    drafter.propose([view], [8])    # looks in the text itself, and in texts that were released
    drafter.release(view)           # its tokens serve later texts

A suffix automaton has one state for each set of substrings that end at the same places, at most
two states for each token, and for each state the number of places. The longest suffix of a text
that occurred before is a state, kept up to date in amortised O(1) per token; its transitions with
their counts are the continuations. Good for agents and other texts that repeat themselves.

Memory is bounded: finished texts fill an automaton of limited size, which then replaces the
previous one, so that between one and two of these sizes are remembered.

Source: Blumer et al. 1985 (automaton), Oliaro et al. 2024 (SuffixDecoding), whose trees are of
limited depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from .draft import Draft, DraftView, Index, IndexDrafter

ROOT = 0
_MAX_COUNTED = 64  # suffixes of a place that are counted, the longest first
_MAX_BRANCHES = 64  # a state with more continuations predicts none
_MAX_SUFFIXES = 4  # suffixes of a text that are compared, the longest first


class SuffixAutomaton:
    """All substrings of some texts, with their counts.

    Attributes:
        length: of the longest substring of each state.
        link: the state of the longest suffix that is another state; -1 for the root.
        next: by state, the state after each token.
        count: number of places where the substrings of a state end.
    """

    __slots__ = ("count", "last", "length", "link", "next")

    def __init__(self) -> None:
        self.length, self.link, self.count = [0], [-1], [0]
        self.next: list[dict[int, int]] = [{}]
        self.last = ROOT  # the state of the whole current text

    def __len__(self) -> int:
        return len(self.length)

    def append(self, token: int) -> None:
        """Add a token to the current text; amortised O(1)."""
        state = self.last
        follower = self.next[state].get(token)
        if follower is None:
            new = self._state(self.length[state] + 1, {})
            while state >= 0 and token not in self.next[state]:
                self.next[state][token] = new
                state = self.link[state]
            self.link[new] = ROOT if state < 0 else self._split(state, token)
            self.last = new
        else:  # in a second text
            self.last = self._split(state, token)
        state, n = self.last, 0
        while state > ROOT and n < _MAX_COUNTED:
            self.count[state] += 1
            state, n = self.link[state], n + 1

    def end_text(self) -> None:
        """The next token begins another text."""
        self.last = ROOT

    def _state(self, length: int, following: dict[int, int]) -> int:
        self.length.append(length)
        self.link.append(ROOT)
        self.count.append(0)
        self.next.append(following)
        return len(self.length) - 1

    def _split(self, state: int, token: int) -> int:
        """The state after a transition, without substrings that are longer by more than one."""
        old = self.next[state][token]
        if self.length[old] == self.length[state] + 1:
            return old
        new = self._state(self.length[state] + 1, self.next[old].copy())
        self.link[new], self.count[new] = self.link[old], self.count[old]
        self.link[old] = new
        while state >= 0 and self.next[state].get(token) == old:
            self.next[state][token] = new
            state = self.link[state]
        return new

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """The longest suffix, with its length, of a matched substring and one more token."""
        while state > ROOT and length <= self.length[self.link[state]]:
            state = self.link[state]  # the state was split after the match
        while state > ROOT and token not in self.next[state]:
            state = self.link[state]
            length = self.length[state]
        following = self.next[state].get(token)
        return (ROOT, 0) if following is None else (following, length + 1)


@dataclass
class SuffixDecoding(IndexDrafter):
    """Drafts from the text and from earlier ones.

    A continuation's probability is estimated as its share of the places, times L / (L + 1) for a
    match of L tokens: a match of one token is often chance. Nodes are added in the order of the
    estimated probability that they are accepted, down to ``min_probability``.

    Args:
        max_tokens: number of tokens of earlier texts that are kept at least; at most twice as many.
        factor: a draft is at most this many times as long as its match.
        min_probability: of a node to be accepted.
        is_tree: whether to draft several continuations.
    """

    max_tokens: int = 1 << 16
    factor: float = 2.0
    min_probability: float = 0.1
    is_tree: bool = False
    finished: list[SuffixAutomaton] = field(default_factory=list, init=False, repr=False)

    def new_index(self) -> Index:
        return _Suffixes(self)

    def release(self, view: DraftView) -> None:
        """Add the text to the earlier ones."""
        tokens = self.up_to_date(view).tokens[-self.max_tokens :]
        super().release(view)
        size = 2 * self.max_tokens
        if not self.finished or len(self.finished[-1]) + 2 * len(tokens) > size + 2:
            self.finished = [*self.finished[-1:], SuffixAutomaton()]
        for token in tokens:
            self.finished[-1].append(token)
        self.finished[-1].end_text()


class _Suffixes(Index):
    def __init__(self, drafter: SuffixDecoding) -> None:
        super().__init__()
        self._drafter = drafter
        self._own = SuffixAutomaton()
        self._matches: list[tuple[SuffixAutomaton, int, int]] = []  # in finished texts

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self._own.append(token)
        self._matches = [(a, *a.step(state, n, token)) for a, state, n in self._matches]

    def draft(self, max_nodes: int) -> Draft | None:
        self._follow_finished()
        own, drafter = self._own, self._drafter
        earlier = own.link[own.last]  # the longest suffix that also ends elsewhere
        matches = [*self._matches, (own, earlier, own.length[max(earlier, ROOT)])]
        best: Draft | None = None
        best_score = 0.0
        for automaton, state, length in matches:
            for _ in range(_MAX_SUFFIXES):
                max_score = min(max_nodes, drafter.factor * length) * length / (length + 1)
                if state <= ROOT or max_score <= best_score:
                    break
                draft, score = self._expand(automaton, state, length, max_nodes)
                if score > best_score:
                    best, best_score = draft, score
                state = automaton.link[state]
                length = automaton.length[state]
        return best

    def _follow_finished(self) -> None:
        """Match the text in automata that were added since the last draft."""
        known = {id(automaton): match for match in self._matches for automaton in match[:1]}
        finished = self._drafter.finished
        if [match[0] for match in self._matches] != finished:
            self._matches = [known.get(id(a)) or (a, *_match(a, self.tokens)) for a in finished]

    def _expand(
        self, automaton: SuffixAutomaton, state: int, length: int, max_nodes: int
    ) -> tuple[Draft, float]:
        """The likeliest nodes after a match, and the expected number of accepted ones."""
        drafter = self._drafter
        draft, score = Draft([], []), 0.0
        n_found = 0  # orders equal probabilities
        heap: list[tuple[float, int, int, int, int, int]] = []

        def find(parent: int, probability: float, state: int, length: int) -> None:
            nonlocal n_found
            following = automaton.next[state]
            if not following or len(following) > _MAX_BRANCHES:
                return
            counts = [(automaton.count[to], token, to) for token, to in following.items()]
            share = probability * length / (length + 1) / max(sum(n for n, _, _ in counts), 1)
            for count, token, to in counts if drafter.is_tree else [max(counts)]:
                if share * count >= drafter.min_probability:
                    n_found += 1
                    heappush(heap, (-share * count, n_found, parent, token, to, length + 1))

        find(-1, 1.0, state, length)
        max_nodes = min(max_nodes, int(drafter.factor * length))
        while heap and len(draft) < max_nodes:
            negative, _, parent, token, state, length = heappop(heap)
            draft.tokens.append(token)
            draft.parent.append(parent)
            score -= negative
            find(len(draft) - 1, -negative, state, length)
        return draft, score


def _match(automaton: SuffixAutomaton, tokens: Sequence[int]) -> tuple[int, int]:
    state, length = ROOT, 0
    for token in tokens:
        state, length = automaton.step(state, length, token)
    return state, length
