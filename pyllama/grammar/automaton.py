"""The automaton of a grammar over bytes: nodes with at most one kind of step each.

    automaton = build(parse(text), "root", text)
    automaton.kind.size, automaton.n_classes

Each rule is built from its end to its start, so that a node's successors exist already and equal
nodes are made once; a repetition is a chain or a loop of nodes. Bytes that no class of characters
tells apart are one class of bytes. A character of several bytes is a step to the node of a `Tail`,
which returns like a called rule, so that it is shared by all nodes with that class.

Rules are numbered so that each comes before those that it may call before its first byte; that
order exists if no rule is left-recursive.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import GrammarError
from .code_points import Ranges
from .gbnf import (
    Alternatives,
    Chars,
    Expression,
    Literal,
    Reference,
    Repeat,
    Rule,
    Sequence,
    Token,
    place,
    short,
)
from .utf8 import Tail, leads

MAX_NODES = 100_000
MAX_RULES = 10_000
MAX_CLASSES = 5_000  # distinct classes of characters

# kinds of nodes, with the meaning of their numbers a and b
CHAR = 1  # a: row of `rows`; b: node after the character
TAIL = 2  # a: row of `rows`
SPLIT = 3  # a: position in `targets`; b: number of targets
CALL = 4  # a: rule; b: node after it
TOKEN = 5  # a: 0, a row without bytes; b: node after the token; c: index of `tokens`
END = 6  # of a rule
ACCEPT = 7  # the end of the whole text
DIRECT = -1  # in a row: the byte is the whole character

END_NODE, ACCEPT_NODE = 1, 2
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Automaton:
    """A grammar as arrays.

    Attributes:
        kind, a, b, c: int32[n_nodes], see the constants above.
        targets: nodes of all SPLITs.
        class_of: uint8[256], the class of each byte.
        rows: int32[n_rows, n_classes]: for a CHAR, DIRECT or the node of the tail, 0 if the byte
            begins no such character; for a TAIL the next node.
        starts: first node of each rule.
        nullable: whether each rule matches the empty text.
        root: index of the root rule.
        tokens: the tokens that the grammar names.
        text: the grammar, for positions in messages.
    """

    kind: Ints
    a: Ints
    b: Ints
    c: Ints
    targets: Ints
    class_of: NDArray[np.uint8]
    rows: Ints
    starts: Ints
    nullable: Ints
    root: int
    tokens: tuple[Token, ...]
    text: str

    @property
    def n_classes(self) -> int:
        """Number of classes of bytes."""
        return int(self.rows.shape[1])


def build(rules: Mapping[str, Rule], root: str, text: str) -> Automaton:
    """The automaton of some rules.

    Args:
        rules: all rules; their references are defined.
        root: the rule that the text matches.
        text: the grammar, for positions in messages.

    Raises:
        GrammarError: there is no root, a left recursion, a rule without a finite text that the
            root leads to, or a grammar over the limits.
    """
    if root not in rules:
        names = ", ".join(map(short, list(rules)[:8]))
        raise GrammarError(
            f"there is no rule {root!r} to start with; add '{root} ::= ...'"
            + (f" or start with one of {names}" if names else "")
        )
    _check_size(rules, text)
    builder = _RuleBuilder(rules)
    all_names = list(rules)
    starts = [builder.rule(name) for name in all_names]
    first = _walk(builder, starts, with_text=False)
    order = _order(all_names, first, rules, text)
    root_index = all_names.index(root)
    _check_finite(all_names, root_index, _walk(builder, starts, with_text=True), rules, text)
    return builder.automaton(all_names, order, starts, first.ends, root_index, text)


def _check_size(rules: Mapping[str, Rule], text: str) -> None:
    """Raise an error if there would be too many nodes, before any is made."""
    if len(rules) > MAX_RULES:
        raise GrammarError(f"the grammar has {len(rules)} rules, at most {MAX_RULES} are possible")
    total = 0
    for name, rule in rules.items():
        total += _size(rule.body)
        if total > MAX_NODES:
            raise GrammarError(
                f"{place(text, rule.at)}: with rule {short(name)!r} there are {total} states, "
                f"at most {MAX_NODES} are possible; use smaller repetition counts"
            )


def _size(node: Expression) -> int:
    if isinstance(node, Literal):
        return len(node.text)
    if isinstance(node, Sequence):
        return sum(map(_size, node.items))
    if isinstance(node, Alternatives):
        return 1 + sum(map(_size, node.options))
    if isinstance(node, Repeat):
        copies = max(node.least, 1) if node.most is None else node.most
        return copies * (1 + _size(node.item))
    return 1


class _RuleBuilder:
    """Nodes of all rules, appended rule by rule."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self.rules = rules
        self.index = {name: i for i, name in enumerate(rules)}
        self.kind = [0, END, ACCEPT]
        self.a, self.b, self.c = [0, 0, 0], [0, 0, 0], [0, 0, 0]
        self.targets: list[tuple[int, ...]] = [(), (), ()]
        self.row_of: dict[Ranges | Tail, int] = {}
        self.row_edges: list[list[tuple[int, int, int]]] = [[]]  # row 0 has no bytes
        self.row_of_char: dict[str, int] = {}
        self.tail_node: dict[Tail, int] = {}
        self.tokens: list[Token] = []
        self.symbol_of: dict[tuple[int | str, bool], int] = {}
        self.nodes: dict[tuple[int, ...], int] = {}  # of the current rule

    def rule(self, name: str) -> int:
        """Build a rule; returns its first node."""
        self.nodes = {}
        return self.build(self.rules[name].body, END_NODE)

    def add(self, kind: int, a: int, b: int = 0, c: int = 0) -> int:
        key = (kind, a, b, c)
        node = self.nodes.get(key)
        if node is None:
            node = self.nodes[key] = self.new(kind, a, b, c)
        return node

    def new(self, kind: int, a: int = 0, b: int = 0, c: int = 0) -> int:
        self.kind.append(kind)
        self.a.append(a)
        self.b.append(b)
        self.c.append(c)
        self.targets.append(())
        return len(self.kind) - 1

    def split(self, targets: list[int]) -> int:
        """A node that is at all of some nodes at once."""
        distinct = tuple(dict.fromkeys(targets))
        if len(distinct) == 1:
            return distinct[0]
        key = (SPLIT, *distinct)
        node = self.nodes.get(key)
        if node is None:
            node = self.nodes[key] = self.new(SPLIT)
            self.targets[node] = distinct
        return node

    def build(self, node: Expression, after: int) -> int:
        """The first node of an expression that goes on with the node ``after``."""
        if isinstance(node, Literal):
            for char in reversed(node.text):
                after = self.add(CHAR, self.char_row(char), after)
            return after
        if isinstance(node, Chars):
            return self.add(CHAR, self.row(node.ranges), after)
        if isinstance(node, Reference):
            body = self.rules[node.name].body
            if isinstance(body, Chars) or (isinstance(body, Literal) and len(body.text) <= 2):
                return self.build(body, after)
            return self.add(CALL, self.index[node.name], after)
        if isinstance(node, Sequence):
            for item in reversed(node.items):
                after = self.build(item, after)
            return after
        if isinstance(node, Alternatives):
            texts = [option.text for option in node.options if isinstance(option, Literal)]
            options = [option for option in node.options if not isinstance(option, Literal)]
            entries = [self.build(option, after) for option in options]
            return self.split([*self.prefix_tree(texts, after), *entries])
        if isinstance(node, Repeat):
            return self.repeat(node, after)
        key = node.token, node.negated
        if key not in self.symbol_of:
            self.symbol_of[key] = len(self.tokens)
            self.tokens.append(node)
        return self.add(TOKEN, 0, after, self.symbol_of[key])

    def repeat(self, node: Repeat, after: int) -> int:
        if node.most is None:
            loop = self.new(SPLIT)
            entry = self.build(node.item, loop)
            self.targets[loop] = (entry, after)
            start = entry if node.least else loop
            for _ in range(node.least - 1):
                start = self.build(node.item, start)
            return start
        start = after
        for _ in range(node.most - node.least):
            start = self.split([self.build(node.item, start), after])
        for _ in range(node.least):
            start = self.build(node.item, start)
        return start

    def prefix_tree(self, texts: list[str], after: int) -> list[int]:
        """The first nodes of a choice of texts, which share nodes for common beginnings."""
        children: list[dict[str, int]] = [{}]
        ends = {0} if "" in texts else set()
        for text in texts:
            at = 0
            for char in text:
                following = children[at].get(char)
                if following is None:
                    following = children[at][char] = len(children)
                    children.append({})
                at = following
            ends.add(at)
        entries: list[list[int]] = [[] for _ in children]
        for at in range(len(children) - 1, -1, -1):  # children come after their parents
            found = [
                self.add(CHAR, self.char_row(char), self.split(entries[child]))
                for char, child in children[at].items()
            ]
            entries[at] = [*found, after] if at in ends else found
        return entries[0] if texts else []

    def char_row(self, char: str) -> int:
        row = self.row_of_char.get(char)
        if row is None:
            row = self.row_of_char[char] = self.row(((ord(char), ord(char)),))
        return row

    def row(self, ranges: Ranges) -> int:
        """The row of a class of characters."""
        row = self.row_of.get(ranges)
        if row is None:
            if len(self.row_of) >= MAX_CLASSES:
                raise GrammarError(
                    f"the grammar has more than {MAX_CLASSES} different classes of characters"
                )
            edges = []
            for byte, tail in leads(ranges).items():
                edges.append((byte, byte, DIRECT if tail is None else self.tail(tail)))
            row = self.row_of[ranges] = len(self.row_edges)
            self.row_edges.append(edges)
        return row

    def tail(self, tail: Tail) -> int:
        node = self.tail_node.get(tail)
        if node is None:
            edges = [
                (low, high, END_NODE if after is None else self.tail(after))
                for low, high, after in tail.edges
            ]
            node = self.tail_node[tail] = self.new(TAIL, len(self.row_edges))
            self.row_edges.append(edges)
        return node

    def automaton(
        self,
        names: list[str],
        order: list[int],
        starts: list[int],
        nullable: list[bool],
        root: int,
        text: str,
    ) -> Automaton:
        """The arrays, with rules renumbered in the given order."""
        rows = np.zeros((len(self.row_edges), 256), np.int32)
        for row, edges in enumerate(self.row_edges):
            for low, high, node in edges:
                rows[row, low : high + 1] = node
        distinct, class_of = _classes(rows)
        kind, a = np.array(self.kind, np.int32), np.array(self.a, np.int32)
        b = np.array(self.b, np.int32)
        position = np.empty(len(names), np.int32)
        position[order] = np.arange(len(names), dtype=np.int32)
        calls = kind == CALL
        a[calls] = position[a[calls]]
        targets: list[int] = []
        for node in np.flatnonzero(kind == SPLIT).tolist():
            a[node], b[node] = len(targets), len(self.targets[node])
            targets += self.targets[node]
        return Automaton(
            kind, a, b, np.array(self.c, np.int32),
            targets=np.array(targets, np.int32),
            class_of=class_of,
            rows=distinct,
            starts=np.array(starts, np.int32)[order],
            nullable=np.array(nullable, np.int32)[order],
            root=int(position[root]),
            tokens=tuple(self.tokens),
            text=text,
        )  # fmt: skip


def _classes(rows: Ints) -> tuple[Ints, NDArray[np.uint8]]:
    """The distinct columns of ``rows``, and the index of each column among them."""
    index: dict[bytes, int] = {}
    columns = np.ascontiguousarray(rows.T)
    class_of = [index.setdefault(column.tobytes(), len(index)) for column in columns]
    first = [class_of.index(i) for i in range(len(index))]
    return np.ascontiguousarray(rows[:, first]), np.array(class_of, np.uint8)


class _Walk(NamedTuple):
    """Per rule: the rules that it may call, in order, and whether its end is reached."""

    calls: list[dict[int, None]]
    ends: list[bool]


def _walk(builder: _RuleBuilder, starts: list[int], *, with_text: bool) -> _Walk:
    """Follow the steps from the start of each rule; linear in the nodes.

    Args:
        with_text: follow all steps, so that a rule ends if it has a finite text; else only the
            steps without text, so that it ends if it may be empty.
    """
    n = len(starts)
    calls: list[dict[int, None]] = [{} for _ in range(n)]
    ends = [False] * n
    waiting: list[list[tuple[int, int]]] = [[] for _ in range(n)]  # (caller, node after the call)
    kind, a, b = builder.kind, builder.a, builder.b
    seen: set[tuple[int, int]] = set()
    todo = list(enumerate(starts))
    while todo:
        rule, node = entry = todo.pop()
        if entry in seen:
            continue
        seen.add(entry)
        if kind[node] == SPLIT:
            todo += [(rule, target) for target in reversed(builder.targets[node])]
        elif kind[node] == CALL:
            called = a[node]
            calls[rule][called] = None
            if ends[called]:
                todo.append((rule, b[node]))
            else:
                waiting[called].append((rule, b[node]))
        elif kind[node] == END:
            if not ends[rule]:
                ends[rule] = True
                todo += waiting[rule]
        elif with_text and (kind[node] == TOKEN or builder.row_edges[a[node]]):
            todo.append((rule, b[node]))
    return _Walk(calls, ends)


def _check_finite(
    names: list[str], root: int, walk: _Walk, rules: Mapping[str, Rule], text: str
) -> None:
    """Raise an error for a rule without a finite text that the root leads to."""
    reached, todo = {root}, [root]
    while todo:
        new = [rule for rule in walk.calls[todo.pop()] if rule not in reached]
        reached.update(new)
        todo += new
    endless = [rule for rule in reached if not walk.ends[rule]]
    if not endless:
        return
    # the rules that it needs lead to a cycle, or to a class without characters
    rule = min(endless, key=lambda rule: rules[names[rule]].at)
    path: dict[int, None] = {}
    while rule not in path:
        path[rule] = None
        needed = [called for called in walk.calls[rule] if not walk.ends[called]]
        if not needed:
            raise GrammarError(
                f"{place(text, rules[names[rule]].at)}: rule {short(names[rule])!r} matches no "
                "text: it needs a class without characters"
            )
        rule = needed[0]
    cycle = [names[i] for i in [*list(path)[list(path).index(rule) :], rule]]
    ends = {name for name, does_end in zip(names, walk.ends, strict=True) if does_end}
    raise GrammarError(
        f"{_closing_place(cycle, rules, ends, True, text)}: rule {short(cycle[0])!r} has no finite "
        f"text: {_shown(cycle)}; add an alternative without this reference"
    )


def _order(names: list[str], walk: _Walk, rules: Mapping[str, Rule], text: str) -> list[int]:
    """The rules in an order in which callers come first.

    Raises:
        GrammarError: a rule may call itself before its first byte.
    """
    sorter: TopologicalSorter[int] = TopologicalSorter(dict(enumerate(walk.calls)))
    try:
        return list(sorter.static_order())[::-1]
    except CycleError as error:
        cycle = error.args[1][::-1]
        first = min(range(len(cycle) - 1), key=lambda i: rules[names[cycle[i]]].at)
        found = [names[i] for i in [*cycle[first:-1], *cycle[:first], cycle[first]]]
        empty = {name for name, is_empty in zip(names, walk.ends, strict=True) if is_empty}
        raise GrammarError(
            f"{_closing_place(found, rules, empty, False, text)}: left recursion: "
            f"{_shown(found)}, before any character; put the recursive rule last, or use a "
            "repetition such as ( )*"
        ) from None


def _shown(cycle: list[str]) -> str:
    """A cycle of rules as messages show it."""
    shown = [short(name) for name in cycle]
    return " -> ".join([*shown[:4], "...", *shown[-3:]] if len(shown) > 8 else shown)


def _closing_place(
    cycle: list[str], rules: Mapping[str, Rule], ends: Container[str], with_text: bool, text: str
) -> str:
    """Line and column of the reference that closes a cycle of rules; see `_walk`."""
    found = _references(rules[cycle[-2]].body, ends, with_text)
    return place(text, next(reference.at for reference in found if reference.name == cycle[-1]))


def _references(node: Expression, ends: Container[str], with_text: bool) -> Iterator[Reference]:
    """The references that `_walk` follows in an expression, given the rules that end."""
    if isinstance(node, Reference):
        yield node
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from _references(item, ends, with_text)
            if not _ends(item, ends, with_text):
                return
    elif isinstance(node, Alternatives):
        for option in node.options:
            yield from _references(option, ends, with_text)
    elif isinstance(node, Repeat) and node.most != 0:
        yield from _references(node.item, ends, with_text)


def _ends(node: Expression, ends: Container[str], with_text: bool) -> bool:
    """Whether `_walk` reaches the end of an expression."""
    if isinstance(node, Reference):
        return node.name in ends
    if isinstance(node, Sequence):
        return all(_ends(item, ends, with_text) for item in node.items)
    if isinstance(node, Alternatives):
        return any(_ends(option, ends, with_text) for option in node.options)
    if isinstance(node, Repeat):
        return not node.least or _ends(node.item, ends, with_text)
    if isinstance(node, Literal):
        return with_text or not node.text
    return with_text and not (isinstance(node, Chars) and not node.ranges)
