"""Deterministic automata: several conditions on one text at once, written as right-linear rules.

    both = Automaton([Expression(parse_regex("^[a-z]")), Length(2, 5)])
    both.matches("abc")
    write_automaton(both, rules, "name", JSON_STRING, end=literal('"'))

An automaton runs all its conditions side by side over classes of characters that none of them
tells apart. Its states are limited, so that time and memory are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Protocol

from pyllama.errors import GrammarError
from pyllama.grammar import code_points as cp
from pyllama.grammar.gbnf_writer import Rules
from pyllama.grammar.regex_syntax import (
    Anchor,
    Char,
    Chars,
    Choice,
    Group,
    Node,
    Repeat,
    Sequence_,
    length_range,
)
from pyllama.grammar.spelling import PlainText

MAX_STATES = 4000  # of an automaton
MAX_NFA_STATES = 20_000  # of one expression
MAX_LETTERS = 10_000  # of all words
MAX_WORK = 1_000_000  # states of an expression that steps begin or end at
MAX_MINIMIZED = 100  # states; larger automata are right, but not the smallest
MAX_STEPS = 200_000  # from a state by a class of characters, while an automaton is built

Labels = tuple[bool, ...]


class Condition(Protocol):
    """A condition on texts that is checked one character at a time; a state of None has failed."""

    def sets(self) -> Iterator[cp.Ranges]:
        """Yield the sets of characters that it tells apart."""

    def start(self) -> Hashable | None:
        """Return its state before the first character."""

    def step(self, state: Hashable, code: int) -> Hashable | None:
        """Return its state after one more character."""

    def accepts(self, state: Hashable) -> bool:
        """Return whether a text may end here."""


class Length:
    """From ``low`` to ``high`` characters; None is without limit."""

    def __init__(self, low: int, high: int | None) -> None:
        self.low, self.high = low, high

    def sets(self) -> Iterator[cp.Ranges]:
        yield from ()

    def start(self) -> Hashable | None:
        return 0

    def step(self, state: Hashable, code: int) -> Hashable | None:
        assert isinstance(state, int)
        if self.high is not None:
            return state + 1 if state < self.high else None
        return min(state + 1, self.low)

    def accepts(self, state: Hashable) -> bool:
        assert isinstance(state, int)
        return state >= self.low


class Words:
    """One of some words.

    Raises:
        GrammarError: they have more than ``MAX_LETTERS`` characters.
    """

    def __init__(self, words: Sequence[str]) -> None:
        if sum(map(len, words)) > MAX_LETTERS:
            raise GrammarError(
                f"the names have more than {MAX_LETTERS} characters; use fewer names"
            )
        self.words = frozenset(words)
        self.prefixes = {word[:n] for word in words for n in range(len(word) + 1)}

    def sets(self) -> Iterator[cp.Ranges]:
        for char in sorted(set("".join(self.words))):
            yield ((ord(char), ord(char)),)

    def start(self) -> Hashable | None:
        return ""

    def step(self, state: Hashable, code: int) -> Hashable | None:
        assert isinstance(state, str)
        text = state + chr(code)
        return text if text in self.prefixes else None

    def accepts(self, state: Hashable) -> bool:
        return state in self.words


class Multiple:
    """An integer in decimal digits that ``divisor`` divides."""

    def __init__(self, divisor: int) -> None:
        self.divisor = divisor

    def sets(self) -> Iterator[cp.Ranges]:
        for code in range(0x30, 0x3A):
            yield ((code, code),)

    def start(self) -> Hashable | None:
        return 0

    def step(self, state: Hashable, code: int) -> Hashable | None:
        assert isinstance(state, int)
        return (10 * state + code - 0x30) % self.divisor if 0x30 <= code < 0x3A else state

    def accepts(self, state: Hashable) -> bool:
        return state == 0


class Expression:
    """A regular expression: found anywhere in the text, or ``whole``, matching all of it."""

    def __init__(self, node: Node, *, whole: bool = False) -> None:
        self.moves: list[list[tuple[cp.Ranges, int]]] = []
        self.jumps: list[list[tuple[str, int]]] = []  # without a character; "" or an anchor
        first = self._new()
        last = self._build(node, first)
        self.is_search = not whole
        if self.is_search:  # characters before and after the match
            before, after = self._new(), self._new()
            self.moves[before].append((cp.ALL, before))
            self.jumps[before].append(("", first))
            self.jumps[last].append(("", after))
            self.moves[after].append((cp.ALL, after))
            first, last = before, after
        self.first, self.last = first, last
        self._targets: dict[tuple[int, int], tuple[int, ...]] = {}  # state, code point ->
        self._work = 0

    def _new(self) -> int:
        if len(self.moves) >= MAX_NFA_STATES:
            raise GrammarError("a regular expression is too large; use smaller repetitions")
        self.moves.append([])
        self.jumps.append([])
        return len(self.moves) - 1

    def _build(self, node: Node, at: int) -> int:
        """Add the states of a node that starts at a state; return the state of its end."""
        match node:
            case Char(code):
                return self._move(at, ((code, code),))
            case Chars():
                return self._move(at, node.ranges)
            case Anchor(kind):
                return self._jump(at, kind)
            case Group(inner):
                return self._build(inner, at)
            case Sequence_(parts):
                for part in parts:
                    at = self._build(part, at)
                return at
            case Choice(options):
                end = self._new()
                for option in options:
                    self.jumps[self._build(option, self._jump(at, ""))].append(("", end))
                return end
            case Repeat(item, low, high):
                return self._repeat(item, low, high, at)

    def _move(self, at: int, ranges: cp.Ranges) -> int:
        end = self._new()
        self.moves[at].append((ranges, end))
        return end

    def _jump(self, at: int, condition: str) -> int:
        end = self._new()
        self.jumps[at].append((condition, end))
        return end

    def _repeat(self, item: Node, low: int, high: int | None, at: int) -> int:
        if length_range(item)[1] == 0:  # no characters: once is as good as often
            low, high = min(low, 1), 1
        for _ in range(low):
            at = self._build(item, at)
        if high is None:
            loop = self._jump(at, "")
            self.jumps[self._build(item, loop)].append(("", loop))
            return self._jump(loop, "")
        end = self._new()
        self.jumps[at].append(("", end))
        for _ in range(high - low):
            at = self._build(item, at)
            self.jumps[at].append(("", end))
        return end

    def _closure(self, states: Sequence[int], allowed: tuple[str, ...]) -> frozenset[int]:
        found, stack = set(states), list(states)
        while stack:
            for condition, target in self.jumps[stack.pop()]:
                if target not in found and condition in allowed:
                    found.add(target)
                    stack.append(target)
        return frozenset(found)

    def sets(self) -> Iterator[cp.Ranges]:
        for moves in self.moves:
            for ranges, _ in moves:
                yield ranges

    # A state is (NFA states, whether a text may end here). Both anchors are jumps: the start's is
    # open before the first character only, and after the end's no character can follow.
    def start(self) -> Hashable | None:
        return self._state([self.first], ("", "start"))

    def _state(self, states: Sequence[int], allowed: tuple[str, ...]) -> Hashable | None:
        inner = self._closure(states, allowed)
        if self.is_search and self.last in inner:
            return frozenset({self.last}), True  # found: whatever follows
        at_end = self._closure(states, (*allowed, "end"))
        return inner, self.last in at_end

    def step(self, state: Hashable, code: int) -> Hashable | None:
        assert isinstance(state, tuple)
        states: set[int] = set()
        for one in state[0]:
            if (one, code) not in self._targets:
                moves = self.moves[one]
                self._targets[one, code] = tuple(t for r, t in moves if cp.contains(r, code))
            states.update(self._targets[one, code])
        self._work += len(state[0]) + len(states)
        if self._work > MAX_WORK:
            raise GrammarError("a regular expression needs too large an automaton")
        return self._state(sorted(states), ("",)) if states else None

    def accepts(self, state: Hashable) -> bool:
        assert isinstance(state, tuple)
        return bool(state[1])


class Automaton:
    """All conditions side by side.

    Args:
        conditions: what a text must meet.
        accept: whether a text may end, given which conditions it meets; default: all. With it,
            a condition that has failed does not end the text.

    Raises:
        GrammarError: more than ``MAX_STATES`` states.
    """

    def __init__(
        self, conditions: Sequence[Condition], accept: Callable[[Labels], bool] | None = None
    ) -> None:
        self.atoms = cp.atoms(ranges for condition in conditions for ranges in condition.sets())
        self._codes = [atom[0][0] for atom in self.atoms]
        self.next: list[dict[int, int]] = []  # atom -> state
        self.labels: list[Labels] = []
        self._explore(conditions, stop_at_failure=accept is None)
        self.select(accept or all)

    def _explore(self, conditions: Sequence[Condition], stop_at_failure: bool) -> None:
        first = tuple(condition.start() for condition in conditions)
        numbers, states, n_steps = {first: 0}, [first], 0
        for state in states:  # grows
            row: dict[int, int] = {}
            self.next.append(row)
            self.labels.append(
                tuple(
                    part is not None and condition.accepts(part)
                    for condition, part in zip(conditions, state, strict=True)
                )
            )
            if stop_at_failure and None in state:
                continue
            n_steps += len(self._codes)
            if n_steps > MAX_STEPS:
                raise GrammarError("patterns and bounds of a string need too large an automaton")
            for atom, code in enumerate(self._codes):
                after = tuple(
                    None if part is None else condition.step(part, code)
                    for condition, part in zip(conditions, state, strict=True)
                )
                if stop_at_failure and None in after:
                    continue
                if after not in numbers:
                    numbers[after] = len(states)
                    states.append(after)
                    if len(states) > MAX_STATES:
                        raise GrammarError(
                            "the patterns and bounds of a string need more than "
                            f"{MAX_STATES} states; use simpler ones"
                        )
                row[atom] = numbers[after]

    def select(self, accept: Callable[[Labels], bool]) -> None:
        """Choose the texts by the conditions they meet."""
        self.accepting = [accept(labels) for labels in self.labels]
        sources: list[list[int]] = [[] for _ in self.next]
        for state, row in enumerate(self.next):
            for target in row.values():
                sources[target].append(state)
        self.live = set(stack := [s for s, accepts in enumerate(self.accepting) if accepts])
        while stack:
            for source in sources[stack.pop()]:
                if source not in self.live:
                    self.live.add(source)
                    stack.append(source)

    @property
    def is_empty(self) -> bool:
        """Whether no text is accepted."""
        return 0 not in self.live

    def matches(self, text: str) -> bool:
        """Return whether a text is accepted."""
        state = 0
        for char in text:
            atom = next((i for i, a in enumerate(self.atoms) if cp.contains(a, ord(char))), -1)
            if atom not in self.next[state]:
                return False
            state = self.next[state][atom]
        return self.accepting[state]

    def classes(self) -> list[int]:
        """Return for each state a number that is equal for states with the same future."""
        if len(self.next) > MAX_MINIMIZED:
            return list(range(len(self.next)))
        found = [int(accepts) for accepts in self.accepting]
        n_found = 0
        while n_found != (n_found := len(set(found))):
            numbers: dict[Hashable, int] = {}
            found = [
                numbers.setdefault(
                    (
                        found[state],
                        frozenset((a, found[t]) for a, t in row.items() if t in self.live),
                    ),
                    len(numbers),
                )
                for state, row in enumerate(self.next)
            ]
        return found


def write_automaton(
    automaton: Automaton,
    rules: Rules,
    name: str,
    spelling: PlainText,
    *,
    end: str,
    any_char: str = "",
) -> str:
    """Return the GBNF text of an automaton; add its states as rules.

    Args:
        automaton: it must accept at least one text.
        rules: gets a rule for each state.
        name: the states are named after it.
        spelling: how characters are written.
        end: what follows the text.
        any_char: the name of a rule that accepts any character, to be used after the last
            condition is met.
    """
    assert not automaton.is_empty
    same = automaton.classes()
    members = {same[state]: state for state in sorted(automaton.live, reverse=True)}
    ways: dict[int, dict[int, list[int]]] = {}  # class -> class -> atoms
    for number, state in members.items():
        ways[number] = {}
        for atom, target in automaton.next[state].items():
            if target in automaton.live:
                ways[number].setdefault(same[target], []).append(atom)
    names, order = {same[0]: ""}, [same[0]]
    reached = {same[0]}
    for number in order:  # grows
        for target in ways[number]:
            if target not in reached:
                reached.add(target)
                order.append(target)
    first_is_entered = any(same[0] in ways[number] for number in order)
    for index, number in enumerate(order):
        if index or first_is_entered:
            names[number] = rules.hold(f"{name}-s{index}")
    texts = {}
    for number in order:
        state = members[number]
        accepting = automaton.accepting[state]
        to = ways[number]
        is_free = accepting and list(to) == [number] and len(to[number]) == len(automaton.atoms)
        if is_free and any_char:
            texts[number] = f"{any_char}* {end}"
            continue
        options = []
        for target, atoms in to.items():
            ranges = cp.normalize(item for atom in atoms for item in automaton.atoms[atom])
            options += [f"{chars} {names[target]}" for chars in spelling.chars(ranges)]
        texts[number] = " | ".join([*options, end] if accepting else options)
    for number in order:
        if names[number]:
            rules.fill(names[number], texts[number])
    return names[same[0]] or texts[same[0]]
