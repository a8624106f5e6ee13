"""Drafted tokens: a tree that follows a text, and the protocol of drafters.

    draft = Draft.chain([5, 9, 2])                  # three point masses
    draft = Draft([5, 9, 7], [-1, 0, -1])           # a tree: 5 -> 9, and 7 beside 5
    draft.children()                                # [[0, 2], [1], [], []]: of the text, of 0, ...

Nodes are in topological order: a parent precedes its children. Nodes of one parent have distinct
tokens. With distributions, they must be drawn from the distribution at their parent without
replacement, in the order of the nodes; `verify` has the rule and its conditions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..errors import DraftError
from ..sampling import Distribution

if TYPE_CHECKING:
    from ..grammar import Matcher


@dataclass(slots=True)
class Draft:
    """A tree of proposed tokens.

    Args:
        tokens: token of each node.
        parent: parent of each node; -1 for nodes that follow the text's last token.
        q: for each node the draft's distribution at its parent, the same for all of one parent;
            None for point masses, which are sampled from the target and compared.
    """

    tokens: list[int]
    parent: list[int]
    q: list[Distribution] | None = None

    @classmethod
    def chain(cls, tokens: Sequence[int], q: list[Distribution] | None = None) -> Draft:
        """A draft in which each token follows the one before it."""
        return cls(list(tokens), list(range(-1, len(tokens) - 1)), q)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether no node has more than one child."""
        return len(set(self.parent)) == len(self.parent)

    def children(self) -> list[list[int]]:
        """The children of the text's last token, then those of each node."""
        found: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for node, parent in enumerate(self.parent):
            found[parent + 1].append(node)
        return found

    def depths(self) -> list[int]:
        """The depth of each node; 1 for those that follow the text's last token."""
        depths: list[int] = []
        for parent in self.parent:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    def path(self, node: int) -> list[int]:
        """The nodes from the text to this one, which is included; [] for -1."""
        found = []
        while node >= 0:
            found.append(node)
            node = self.parent[node]
        return found[::-1]

    def first(self, n: int) -> Draft:
        """The first ``n`` nodes; verification stays exact if ``n`` does not depend on tokens."""
        if n >= len(self.tokens):
            return self
        return Draft(self.tokens[:n], self.parent[:n], None if self.q is None else self.q[:n])

    def leading_chain(self) -> Draft:
        """The first nodes, up to the first that does not follow the one before it."""
        n = next((i for i, parent in enumerate(self.parent) if parent != i - 1), len(self))
        return self.first(n)

    def check(self, n_vocab: int) -> None:
        """Check the structure and the token ids.

        Raises:
            DraftError: the draft breaks a rule of this module.
        """
        n = len(self.tokens)
        if len(self.parent) != n or (self.q is not None and len(self.q) != n):
            n_q = "no" if self.q is None else len(self.q)
            raise DraftError(f"draft of {n} tokens has {len(self.parent)} parents, {n_q} q")
        seen = set()
        for node, (token, parent) in enumerate(zip(self.tokens, self.parent, strict=True)):
            if not 0 <= token < n_vocab:
                raise DraftError(
                    f"drafted token {token} is outside the vocabulary of {n_vocab} tokens"
                )
            if not -1 <= parent < node:
                raise DraftError(f"node {node} of a draft has the parent {parent}, not one before")
            if (parent, token) in seen:
                raise DraftError(f"token {token} is drafted twice after node {parent}")
            seen.add((parent, token))


class DraftView(Protocol):
    """A text as drafters see it."""

    @property
    def id(self) -> int:
        """Number of the text, the same for its whole life."""

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and accepted tokens; the last one is not evaluated yet."""

    @property
    def sequence_id(self) -> int | None:
        """The sequence of the target that has all tokens but the last; None if none has."""

    @property
    def matcher(self) -> Matcher | None:
        """State of the grammar that applies to the next token; None if none does.

        A drafter may advance it, and must roll it back.
        """


class Costs(NamedTuple):
    """What the drafts of a model cost on this machine, as measured before the first one.

    Attributes:
        read_s: time to read a token of a text, in which a model must read all of them.
        draft_s: time to draft a token.
        accept_rate: the rate that is expected until drafts were verified.
    """

    read_s: float
    draft_s: float
    accept_rate: float


class Drafter(Protocol):
    """Proposes tokens for several texts at once.

    One that reads a text before it drafts may have an attribute ``costs`` (`Costs`): it then reads
    a text only if that is expected to pay. One whose drafts have a maximum length may have it as an
    attribute ``max_draft``.
    """

    def propose(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        """A draft of at most so many nodes for each text; None where there is nothing to propose.

        Must not fail for any text.
        """

    def accepted(self, view: DraftView, path: Sequence[int]) -> None:
        """The nodes of the text's last draft that were accepted.

        The next call of `propose` sees their tokens, unless the text was changed or has ended.
        """

    def release(self, view: DraftView) -> None:
        """The text has ended; nothing of it is needed any more."""


class Index(ABC):
    """A searchable text, to which tokens are appended.

    Attributes:
        tokens: all tokens so far.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []

    @abstractmethod
    def append(self, token: int) -> None:
        """Add a token."""

    @abstractmethod
    def draft(self, max_nodes: int) -> Draft | None:
        """A continuation of the text."""


@dataclass
class IndexDrafter(ABC):
    """A drafter that has an `Index` of each text.

    A view may lose tokens only by a context shift; its index is then made again.
    """

    indexes: dict[int, Index] = field(default_factory=dict, init=False, repr=False)

    @abstractmethod
    def new_index(self) -> Index:
        """The index of a new text."""

    def propose(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        return [
            self.up_to_date(view).draft(n) if n > 0 else None
            for view, n in zip(views, max_nodes, strict=True)
        ]

    def up_to_date(self, view: DraftView) -> Index:
        """The text's index with all its tokens."""
        index = self.indexes.get(view.id)
        n = 0 if index is None else len(index.tokens)
        is_longer = index is not None and n <= len(view.tokens)
        if index is None or not is_longer or (n and view.tokens[n - 1] != index.tokens[-1]):
            index, n = self.new_index(), 0
            self.indexes[view.id] = index
        for token in view.tokens[n:] if n < len(view.tokens) else ():
            index.append(token)
        return index

    def accepted(self, view: DraftView, path: Sequence[int]) -> None:  # noqa: B027
        """See `Drafter.accepted`."""

    def release(self, view: DraftView) -> None:
        self.indexes.pop(view.id, None)
