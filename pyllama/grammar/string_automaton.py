"""Deterministic automata: several conditions on one text at once, written as right-linear rules.

    both = Automaton([Expression(parse_regex("^[a-z]")), Length(2, 5)])
    both.matches("abc")
    write_automaton(both, rules, "name", JSON_STRING, end=literal('"'))

An automaton runs all its conditions side by side over classes of characters that none of them
tells apart. Its states are limited, so that time and memory are bounded.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol

from pyllama.errors import GrammarError
from pyllama.grammar import code_points as cp
from pyllama.grammar.gbnf_writer import GrammarRules
from pyllama.grammar.regex_syntax import (
    Anchor,
    Char,
    Group,
    Look,
    Node,
    RegexChars,
    RegexChoice,
    RegexRepeat,
    Sequence_,
    length_range,
)
from pyllama.grammar.spelling import PlainText

MAX_STATES = 4000  # of an automaton
MAX_NFA_STATES = 20_000  # of one expression
MAX_LETTERS = 10_000  # of all words
MAX_WORK = 1_000_000  # states of an expression that steps begin or end at
MAX_MINIMIZED = 100  # states; larger automata are right, but not the smallest
MAX_INLINE = 500  # characters of a class; a longer one gets a rule
MAX_KEPT, MAX_KEPT_STEPS = 32, 20_000  # automata, and steps of each
MAX_STEPS = 200_000  # from a state by a class of characters, while an automaton is built

Labels = tuple[bool, ...]


class Condition(Protocol):
    """A condition on texts that is checked one character at a time.

    States are hashable; one of None has failed.
    """

    def sets(self) -> Iterator[cp.Ranges]:
        """Yield the sets of characters that it tells apart."""

    def start(self) -> Any:
        """Return its state before the first character."""

    def step(self, state: Any, code: int) -> Any:
        """Return its state after one more character."""

    def accepts(self, state: Any) -> bool:
        """Return whether a text may end here."""


class Length:
    """From ``low`` to ``high`` characters; None is without limit."""

    def __init__(self, low: int, high: int | None) -> None:
        self.low, self.high = low, high

    def sets(self) -> Iterator[cp.Ranges]:
        yield from ()

    def start(self) -> Any:
        return 0

    def step(self, state: Any, code: int) -> Any:
        if self.high is not None:
            return state + 1 if state < self.high else None
        return min(state + 1, self.low)

    def accepts(self, state: Any) -> bool:
        return bool(state >= self.low)


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

    def start(self) -> Any:
        return ""

    def step(self, state: Any, code: int) -> Any:
        text = state + chr(code)
        return text if text in self.prefixes else None

    def accepts(self, state: Any) -> bool:
        return state in self.words


class Multiple:
    """A number in decimal digits whose value is a multiple of ``divisor / 10**n_decimals``.

    It has at most ``n_decimals`` digits after the point.
    """

    def __init__(self, divisor: int, n_decimals: int = 0) -> None:
        self.divisor, self.n_decimals = divisor, n_decimals

    def sets(self) -> Iterator[cp.Ranges]:
        for code in (ord("."), *range(0x30, 0x3A)):
            yield ((code, code),)

    # A state is (number of digits after the point, or -1 before it; the remainder).
    def start(self) -> Any:
        return -1, 0

    def step(self, state: Any, code: int) -> Any:
        n, rest = state
        if code == ord("."):
            return 0, rest
        if not 0x30 <= code < 0x3A:
            return state
        if n == self.n_decimals:
            return None
        return n + (n >= 0), (10 * rest + code - 0x30) % self.divisor

    def accepts(self, state: Any) -> bool:
        n, rest = state
        return bool(rest * 10 ** (self.n_decimals - max(n, 0)) % self.divisor == 0)


Obligations = frozenset[tuple[int, int]]  # numbers of a lookahead and of its state
_NONE: Obligations = frozenset()
_NOTHING = -1  # is before the first character and after the last one
_OTHER, _WORD, _EITHER = 0, 1, 2  # a character for \b: _EITHER is a word's in Unicode only


class Expression:
    """A regular expression: found anywhere in the text, or ``whole``, matching all of it.

    Args:
        is_prefix: it matches from the first character on, and anything may follow.
    """

    def __init__(self, node: Node, *, whole: bool = False, is_prefix: bool = False) -> None:
        self.moves: list[list[tuple[cp.Ranges, int]]] = []
        # without a character: after "", an anchor, or the lookahead of a number
        self.jumps: list[list[tuple[str | int, int]]] = []
        self.looks: list[tuple[Expression, bool]] = []  # and whether it must not match
        self.has_boundary = self.asks_at_end = False
        first = self._new()
        last = self._build(node, first)
        self.is_search = not whole
        if self.is_search:  # characters before and after the match
            after = self._new()
            self.jumps[last].append(("", after))
            self.moves[after].append((cp.ALL, after))
            last = after
            if not is_prefix:
                before = self._new()
                self.moves[before].append((cp.ALL, before))
                self.jumps[before].append(("", first))
                first = before
        self.first, self.last = first, last
        self.found = frozenset({(_NONE, frozenset({last}))}), _OTHER, True  # whatever follows
        self._targets: dict[tuple[int, int], tuple[int, ...]] = {}  # state, code point ->
        # of a lookahead: its states by number, where 0 is found and -1 is failed
        self._known: list[Hashable] = [self.found]
        self._numbers: dict[Hashable, int] = {self.found: 0}
        self._next: dict[tuple[int, int], int] = {}  # number, code point ->
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
            case RegexChars():
                return self._move(at, node.ranges)
            case Anchor(kind):
                self.has_boundary = self.has_boundary or kind not in ("start", "end")
                self.asks_at_end = self.asks_at_end or kind != "start"
                return self._jump(at, kind)
            case Look(inner, is_negated):
                look = Expression(inner, is_prefix=True)
                self.has_boundary = self.has_boundary or look.has_boundary
                self.asks_at_end = self.asks_at_end or look.asks_at_end
                self.looks.append((look, is_negated))
                return self._jump(at, len(self.looks) - 1)
            case Group(inner):
                return self._build(inner, at)
            case Sequence_(parts):
                for part in parts:
                    at = self._build(part, at)
                return at
            case RegexChoice(options):
                end = self._new()
                for option in options:
                    self.jumps[self._build(option, self._jump(at, ""))].append(("", end))
                return end
            case RegexRepeat(item, low, high):
                return self._repeat(item, low, high, at)

    def _move(self, at: int, ranges: cp.Ranges) -> int:
        end = self._new()
        self.moves[at].append((ranges, end))
        return end

    def _jump(self, at: int, condition: str | int) -> int:
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

    def sets(self) -> Iterator[cp.Ranges]:
        for moves in self.moves:
            for ranges, _ in moves:
                yield ranges
        for look, _ in self.looks:
            yield from look.sets()
        if self.has_boundary:
            yield from (cp.WORD, cp.unicode_members("w"))

    # A state is (NFA states by the lookaheads that they wait for, what is before the next character
    # if a \b may ask, whether a text may end here). Anchors are jumps: the start's is open before
    # the first character only, after the end's no character can follow, and a \b is open or not
    # when the next character is known.
    def start(self) -> Any:
        return self._begin(_NOTHING)

    def _begin(self, before: int) -> Hashable:
        """The state at a place in a text, where a lookahead may begin."""
        return self._state({_NONE: {self.first}}, before)

    def _state(self, groups: dict[Obligations, set[int]], before: int) -> Hashable:
        self._close(groups, ("",), before)
        if self.is_search and self.last in groups.get(_NONE, ()):
            return self.found
        ended = groups
        if self.asks_at_end:
            ended = {waits: set(states) for waits, states in groups.items()}
            self._close(ended, ("", "end", *_boundary(before, _NOTHING)), before)
        accepts = any(
            self.last in states and self._are_met_at_end(waits) for waits, states in ended.items()
        )
        frozen = frozenset((waits, frozenset(states)) for waits, states in groups.items() if states)
        return frozen, before if self.has_boundary else _OTHER, accepts

    def _close(
        self, groups: dict[Obligations, set[int]], open_: tuple[str, ...], before: int
    ) -> None:
        """Add the states that jumps lead to."""
        open_ = (*open_, "start") if before == _NOTHING else open_
        todo = list(groups)
        while todo:
            waits = todo.pop()
            states = groups[waits]
            stack = list(states)
            while stack:
                for condition, target in self.jumps[stack.pop()]:
                    if condition in open_:
                        if target not in states:
                            states.add(target)
                            stack.append(target)
                    elif isinstance(condition, int):
                        after = self._looking(waits, condition, before)
                        if after is not None and target not in groups.setdefault(after, set()):
                            groups[after].add(target)
                            todo.append(after)
        for few in groups if len(groups) > 1 else ():  # fewer obligations are met as well
            for many, states in groups.items():
                if few < many:
                    states -= groups[few]

    def _looking(self, waits: Obligations, number: int, before: int) -> Obligations | None:
        """The obligations with one more lookahead; None: it fails."""
        look, is_negated = self.looks[number]
        state = look._number(look._begin(before))
        if state == 0:
            return None if is_negated else waits
        return waits | {(number, state)}

    def _number(self, state: Hashable | None) -> int:
        if state is None:
            return -1
        if state not in self._numbers:
            self._numbers[state] = len(self._known)
            self._known.append(state)
        return self._numbers[state]

    def _are_met_at_end(self, waits: Obligations) -> bool:
        looks = ((*self.looks[number], state) for number, state in waits)
        return all(look.accepts(look._known[state]) != negated for look, negated, state in looks)

    def _after(self, waits: Obligations, code: int) -> Obligations | None:
        """The obligations after one more character; None: one has failed."""
        left = set()
        for number, state in waits:
            look, is_negated = self.looks[number]
            after = look._next.get((state, code))
            if after is None:
                after = look._number(look.step(look._known[state], code))
                look._next[state, code] = after
            if after > 0:
                left.add((number, after))
            elif (after < 0) != is_negated:
                return None
        return frozenset(left)

    def step(self, state: Any, code: int) -> Any:
        groups, before, _ = state
        kind = _OTHER
        if self.has_boundary:
            kind = _word_kind(code)
            opened = {waits: set(states) for waits, states in groups}
            self._close(opened, ("", *_boundary(before, kind)), before)
            if self.is_search and self.last in opened.get(_NONE, ()):
                return self.found
            groups = opened.items()
        found: dict[Obligations, set[int]] = {}
        for waits, states in groups:
            targets: set[int] = set()
            for one in states:
                if (one, code) not in self._targets:
                    moves = self.moves[one]
                    self._targets[one, code] = tuple(t for r, t in moves if cp.contains(r, code))
                targets.update(self._targets[one, code])
            self._work += len(states) + len(targets) + len(waits)
            after = self._after(waits, code) if targets else None
            if after is not None:
                found.setdefault(after, set()).update(targets)
        if self._work > MAX_WORK:
            raise GrammarError("a regular expression needs too large an automaton")
        return self._state(found, kind) if found else None

    def accepts(self, state: Any) -> bool:
        return bool(state[2])


def _word_kind(code: int) -> int:
    if cp.contains(cp.WORD, code):
        return _WORD
    return _EITHER if cp.contains(cp.unicode_members("w"), code) else _OTHER


def _boundary(before: int, after: int) -> tuple[str, ...]:
    """The anchors that are open between two characters: words are of ASCII or of Unicode."""
    if before == after == _NOTHING:  # where Python knows neither \b nor \B
        return ("wide inside",)
    before, after = max(before, _OTHER), max(after, _OTHER)
    is_ascii = (before == _WORD) != (after == _WORD)
    is_unicode = (before == _OTHER) != (after == _OTHER)
    if is_ascii != is_unicode:
        return "wide boundary", "wide inside"
    return ("boundary", "wide boundary") if is_ascii else ("inside", "wide inside")


class StringAutomaton:
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


_kept: OrderedDict[tuple[Hashable, ...], StringAutomaton] = OrderedDict()
_lock = threading.Lock()


def string_automaton(
    expressions: tuple[tuple[Node, bool], ...], low: int, high: int | None
) -> StringAutomaton:
    """Return the automaton of some expressions and bounds of the length.

    The last few small ones are kept, since the same schemas come with each request. Their texts
    must not be selected anew.

    Args:
        expressions: each with whether it is of the whole text.

    Raises:
        GrammarError: it is too large.
    """
    key = expressions, low, high
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    conditions: list[Condition] = [Expression(node, whole=whole) for node, whole in expressions]
    if low or high is not None:
        conditions.append(Length(low, high))
    automaton = StringAutomaton(conditions)
    if sum(map(len, automaton.next)) <= MAX_KEPT_STEPS:
        with _lock:
            automaton = _kept.setdefault(key, automaton)
            while len(_kept) > MAX_KEPT:
                _kept.popitem(last=False)
    return automaton


def write_automaton(
    automaton: StringAutomaton,
    rules: GrammarRules,
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
            chars = spelling.chars(ranges)
            if sum(map(len, chars)) > MAX_INLINE:
                chars = [rules.add(f"{name}-chars", " | ".join(chars))]
            options += [f"{one} {names[target]}" for one in chars]
        texts[number] = " | ".join([*options, end] if accepting else options)
    for number in order:
        if names[number]:
            rules.fill(names[number], texts[number])
    return names[same[0]] or texts[same[0]]
