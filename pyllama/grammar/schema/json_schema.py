"""JSON schemas as grammars of the documents that match.

    schema_to_gbnf({"type": "array", "items": {"type": "integer"}, "maxItems": 3})

The text is that of llama.cpp's converter where that one's documents are valid, and follows its
choices: properties come in the order of the schema, there are no others unless
``additionalProperties`` allows them, and a keyword that is for one type implies that type.
``docs/json-schema.md`` lists the keywords. Nothing is dropped silently: a keyword that a grammar
cannot express is an error, or is named by `relaxed_gbnf`. Time and memory are bounded. Thread-safe.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

from pyllama.errors import GrammarError, SchemaError
from pyllama.grammar.gbnf_writer import GrammarRules, class_items, literal, sanitize
from pyllama.grammar.regex import GbnfWriter
from pyllama.grammar.regex_syntax import (
    Group,
    Node,
    RegexChars,
    RegexChoice,
    RegexRepeat,
    Sequence_,
    has_anchor,
    has_empty_loop,
    length_range,
    parse_regex,
    strip_anchors,
)
from pyllama.grammar.schema.number_range import Bound, integer_range, number_range
from pyllama.grammar.schema.schema_parts import (
    ANYTHING,
    Document,
    Located,
    Refused,
    Shape,
    Unsatisfiable,
    as_list,
    or_infinite,
    parse_pattern,
    read_schema,
    same_json,
    types_of,
)
from pyllama.grammar.schema.string_formats import FORMATS
from pyllama.grammar.spelling import JSON_STRING, PLAIN_TEXT, json_text
from pyllama.grammar.string_automaton import (
    Condition,
    Expression,
    Labels,
    Length,
    Multiple,
    StringAutomaton,
    Words,
    string_automaton,
    write_automaton,
)

MAX_LEVELS = 64  # of properties, items and references in each other
MAX_MULTIPLE = 1000
MAX_DECIMALS = 15
MAX_SUBSETS = 256  # of the values of an array with uniqueItems
MAX_ENUMERATED = 200  # multiples between two bounds that are listed
MAX_INTEGER = 10**30  # greater bounds count as none
MAX_COUNTED = 5000  # rules of an object whose number of properties is bounded
MAX_PATTERN_PROPERTIES = 8
MAX_EXACT = 8000  # states of a pattern times maxLength; beyond, its repetitions are limited
SHORTER = (1000, 700, 500, 350, 250, 180, 120, 90, 60, 45, 30, 25, 20, 15, 10, 7, 5, 4, 3, 2, 1)
# Names that do not match a pattern, in ECMAScript's reading of it nor in Python's
ONE_LINE, ASCII_NAME = r"^[^\x00-\x1f\u2028\u2029]*$", "^[ -~]*$"
MAX_NAME = 200  # characters of a property, if there are additional ones
MAX_NESTED_NAMES = 10  # groups in groups for names that begin alike; then a rule

SPACE_RULE = r'| " " | "\n"{1,2} [ \t]{0,20}'
COMMA = '"," space'
PRIMITIVES = {  # name -> text, and the rules it needs
    "boolean": ('("true" | "false")', ()),
    "decimal-part": ("[0-9]{1,16}", ()),
    "integral-part": ("[0] | [1-9] [0-9]{0,15}", ()),
    "number": (
        '("-"? integral-part) ("." decimal-part)? ([eE] [-+]? integral-part)?',
        ("integral-part", "decimal-part"),
    ),
    "integer": ('("-"? integral-part)', ("integral-part",)),
    "value": (
        "object | array | string | number | boolean | null",
        ("object", "array", "string", "number", "boolean", "null"),
    ),
    "object": (
        '"{" space ( string ":" space value ("," space string ":" space value)* )? space "}"',
        ("string", "value"),
    ),
    "array": ('"[" space ( value ("," space value)* )? space "]"', ("value",)),
    "char": (
        r"""[^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4})""",
        (),
    ),
    # No surrogates: two of them are one character, and one alone is none.
    "whole-char": (
        r"""[^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" """
        r"([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))",
        (),
    ),
    "string": (r'"\"" char* "\""', ("char",)),
    "null": ('"null"', ()),
}
SMALL_TYPES: dict[str, tuple[Any, ...]] = {"boolean": (True, False), "null": (None,)}
QUOTE = literal('"')
RESERVED = {"root", "space", "dot", *PRIMITIVES, *FORMATS, *(f"{name}-string" for name in FORMATS)}


def schema_to_gbnf(schema: Mapping[str, Any] | bool | str) -> str:
    """Return a grammar of the JSON documents that match a schema.

    Args:
        schema: a JSON schema (draft 2020-12) or its JSON text.

    Raises:
        SchemaError: the schema is invalid, matches nothing, is over the limits, or has a keyword
            that a grammar cannot express; the message has the place in the schema.
    """
    return _convert(Document(read_schema(schema)))


def relaxed_gbnf(schema: Mapping[str, Any] | bool | str) -> tuple[str, Mapping[str, str]]:
    """Return a grammar of a schema that leaves out what a grammar cannot hold.

    Args:
        schema: as for `schema_to_gbnf`.

    Returns:
        The grammar of the documents that match and of others, and JSON pointers of keywords and
        schemas that it does not hold -> the reason.

    Raises:
        SchemaError: the schema is invalid, or matches nothing.
    """
    read = read_schema(schema)
    types = read.get("type", "object") if isinstance(read, dict) else "object"
    document = Document(read, is_relaxed=True)
    try:
        return _convert(document), document.left_out
    except Refused as error:  # too much as a whole
        document.note(error)
        return schema_to_gbnf({"type": types}), document.left_out


def _convert(document: Document) -> str:
    try:
        return _Converter(document).convert()
    except SchemaError:
        raise
    except GrammarError as error:
        document.root.refuse(str(error))
    except RecursionError:
        document.root.refuse("nested too deeply")


@dataclass
class _Visit:
    """A conjunction that is being converted."""

    level: int  # of properties and items around it
    is_certain: bool  # all of the way from its conversion to the current place must be taken
    name: str
    held: str = ""


class _Converter:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.rules = GrammarRules()
        self.rules.add("space", SPACE_RULE)
        self.active: dict[tuple[str, ...], _Visit] = {}
        self.done: dict[tuple[str, ...], str] = {}
        self.strings: dict[StringAutomaton, str] = {}
        self.level = 0

    def convert(self) -> str:
        root = self.visit((self.document.root,), "")
        if root != "root":
            self.rules.add("root", root)
        return self.rules.text()

    # Rules

    def primitive(self, name: str) -> str:
        """Add a rule that is the same in all grammars, and those that it needs."""
        if name not in self.rules.texts:
            text, needed = PRIMITIVES[name]
            self.rules.add(name, text)
            for other in needed:
                self.primitive(other)
        return name

    def primitive_body(self, name: str, rule_name: str) -> tuple[str, bool]:
        if rule_name != "root":
            return self.primitive(name), True
        text, needed = PRIMITIVES[name]
        for other in needed:
            self.primitive(other)
        return text, False

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Remove what was added inside if nothing matches."""
        n_rules, n_done, n_strings = len(self.rules.texts), len(self.done), len(self.strings)
        try:
            yield
        except Unsatisfiable:
            self.rules.rewind(n_rules)
            for visit in self.active.values():
                visit.held = visit.held if visit.held in self.rules.texts else ""
            while len(self.done) > n_done:
                self.done.popitem()
            while len(self.strings) > n_strings:
                self.strings.popitem()
            raise

    @contextmanager
    def optional(self) -> Iterator[None]:
        """Inside, references to schemas around need not be followed."""
        before = [(visit, visit.is_certain) for visit in self.active.values()]
        for visit, _ in before:
            visit.is_certain = False
        try:
            yield
        finally:
            for visit, was_certain in before:
                visit.is_certain = was_certain

    def visit_if_any(self, parts: Sequence[Located], name: str) -> str | None:
        """The rule of a value that need not be there; None: nothing matches."""
        try:
            with self.attempt(), self.optional():
                return self.inner(parts, name)
        except Unsatisfiable:
            return None

    def inner(self, parts: Sequence[Located], name: str) -> str:
        """The rule of a property or item."""
        self.level += 1
        try:
            if self.level > MAX_LEVELS and parts:
                return self.too_deep(parts[0])
            return self.visit(parts, name)
        finally:
            self.level -= 1

    def too_deep(self, part: Located) -> str:
        """The rule of a value under too many levels."""
        message = f"more than {MAX_LEVELS} levels of properties, items and references"
        error = Refused(message, part.pointer, "")
        if not self.document.is_relaxed:
            raise error
        self.document.note(error)
        return self.primitive("value")

    # Conjunctions of schemas

    def visit(self, parts: Sequence[Located], name: str) -> str:
        """Add the rules of a conjunction, and return the name of its rule."""
        unique = {part.pointer: part for part in parts}
        for part in unique.values():
            self.document.check(part)
            if part.schema is False:
                part.nothing("no value is valid by the schema false; use true or {} for any value")
        key = tuple(sorted(unique))
        parts = [part for part in unique.values() if not part.is_any()]
        if key in self.done:
            return self.done[key]
        if key in self.active:
            return self.recursive(key, parts)
        rule_name = "root" if not name and not self.level else sanitize(name) or "-"
        if rule_name in RESERVED and (name or self.level):
            rule_name += "-"
        visit = self.active[key] = _Visit(self.level, True, rule_name)
        try:
            text, is_name = self.body(parts, name, rule_name)
        except Refused as error:
            if not self.document.is_relaxed or not self.level:
                raise
            self.document.note(error)
            text, is_name = self.primitive("value"), True
        finally:
            del self.active[key]
        if visit.held:
            self.rules.fill(visit.held, text)
            if not self.rules.ends(visit.held):
                parts[0].nothing("the schema requires itself without end")
            found = visit.held
        else:
            found = text if is_name else self.rules.add(rule_name, text)
        self.done[key] = found
        return found

    def recursive(self, key: tuple[str, ...], parts: Sequence[Located]) -> str:
        visit = self.active[key]
        if visit.level == self.level:
            parts[0].fail("the schema refers to itself, without a property or item between")
        if visit.is_certain:
            parts[0].nothing("the schema requires itself without end")
        visit.held = visit.held or self.rules.hold(visit.name)
        return visit.held

    def body(self, parts: list[Located], name: str, rule_name: str) -> tuple[str, bool]:
        """The text of a conjunction's rule, and whether it is the name of a rule."""
        if not parts:
            return self.primitive("value"), False
        if len(parts) == 1 and isinstance(parts[0].schema, dict):
            only = parts[0]
            keyword = self.only_keyword(only)
            if keyword == "$ref":
                return self.reference(self.document.target(only)), False
            if keyword:
                return self.union(self.document.alternatives(only, keyword), name), False
        shapes = self.document.shapes(parts)
        if not shapes:
            parts[0].nothing("nothing matches")
        if len(shapes) == 1:
            return self.shape(shapes[0], name, rule_name)
        return self.union(shapes, name), False

    def only_keyword(self, part: Located) -> str:
        """``$ref``, ``anyOf`` or ``oneOf``, if the keywords beside it have no effect."""
        schema = part.schema
        assert isinstance(schema, dict)
        rest = {key: value for key, value in schema.items() if key in ("$ref", "anyOf", "oneOf")}
        if len(rest) != 1:
            return ""
        (keyword,) = rest
        others = {k: v for k, v in schema.items() if k not in (keyword, "type")}
        if not Located(others, part.pointer).is_any():
            return ""
        if "type" in schema:
            types = as_list(schema["type"])
            inner = self.generated_types(Located(rest, part.pointer), set())
            if inner is None or not inner <= {*types, *(["integer"] if "number" in types else [])}:
                return ""
        return keyword

    def generated_types(self, part: Located, seen: set[str]) -> set[str] | None:
        """The types of the values that a schema's rule generates; None: all, or not known."""
        schema = part.schema
        self.document.check(part)
        if not isinstance(schema, dict) or part.is_any():
            return None
        if "$ref" in schema:
            target = self.document.target(part)
            if target.pointer in seen:
                return set()  # its types are counted already
            seen.add(target.pointer)
            return self.generated_types(target, seen)
        for key in ("anyOf", "oneOf"):
            if key in schema and "type" not in schema:
                found: set[str] = set()
                for index in range(len(schema[key])):
                    types = self.generated_types(part.child(key, index), seen)
                    if types is None:
                        return None
                    found |= types
                return found
        if "allOf" in schema:
            return None
        shape = Shape(part)
        shape.add(part)
        if shape.values is not None:
            return {types_of(value)[-1] for value in shape.values}
        possible = shape.possible_types()
        return None if possible is None else set(possible)

    def reference(self, target: Located) -> str:
        key = (target.pointer,)
        if key in self.done:
            return self.done[key]
        if len(self.active) > 2 * MAX_LEVELS:
            return self.too_deep(target)
        return self.visit((target,), "ref" + sanitize(target.pointer))

    def union(self, options: Sequence[Sequence[Located] | Shape], name: str) -> str:
        return self.alternatives(
            [
                partial(self.add_shape, option)
                if isinstance(option, Shape)
                else partial(self.visit, option)
                for option in options
            ],
            name,
        )

    def alternatives(self, rules: Sequence[Callable[[str], str]], name: str) -> str:
        """Return alternatives of rules, without those that match nothing.

        Args:
            rules: functions that add a rule under the given name, and return the rule's name.
            name: prefix of the rules' names.

        Raises:
            Unsatisfiable: no rule matches anything.
        """
        found: dict[str, None] = {}
        reason = None
        for index, add in enumerate(rules):
            try:
                with self.attempt(), self.optional():
                    found[add(f"{name or 'alternative'}-{index}")] = None
            except Unsatisfiable as error:
                reason = error
        if reason is not None and not found:
            raise reason
        return " | ".join(found)

    # Values of one shape

    def add_shape(self, shape: Shape, name: str) -> str:
        text, is_name = self.shape(shape, name, sanitize(name))
        return text if is_name else self.rules.add(name, text)

    def add_typed(self, kind: str, shape: Shape, name: str) -> str:
        text, is_name = self.typed(kind, shape, name, sanitize(name))
        return text if is_name else self.rules.add(name, text)

    def shape(self, shape: Shape, name: str, rule_name: str) -> tuple[str, bool]:
        if shape.values is not None:
            values = [value for value in shape.values if shape.admits(self.document, value)]
            if not values:
                shape.at.nothing("no value of enum or const matches the rest")
            text = " | ".join(literal(json_text(value)) for value in values)
            return (text if shape.is_const else f"({text})"), False
        types = shape.possible_types()
        if types is None:
            return self.primitive("value"), False
        if not types:
            shape.at.nothing("no type is allowed by all")
        if len(types) == 1:
            return self.typed(types[0], shape, name, rule_name)
        return self.alternatives(
            [partial(self.add_typed, kind, shape) for kind in types], name
        ), False

    def typed(self, kind: str, shape: Shape, name: str, rule_name: str) -> tuple[str, bool]:
        while True:
            try:
                return self.of_type(kind, shape, name, rule_name)
            except Refused as error:
                if not self.document.is_relaxed:
                    raise
                self.document.note(error)
                if not shape.leave_out(error.keyword):
                    return self.primitive_body(kind, rule_name)

    def of_type(self, kind: str, shape: Shape, name: str, rule_name: str) -> tuple[str, bool]:
        match kind:
            case "object":
                return self.object(shape, name, rule_name)
            case "array":
                return self.array(shape, name, rule_name)
            case "string":
                return self.string(shape, rule_name)
            case "number" | "integer":
                return self.number(shape, kind, rule_name)
        return self.primitive_body(kind, rule_name)

    # Numbers

    def number(self, shape: Shape, kind: str, rule_name: str) -> tuple[str, bool]:
        low, high = shape.low, shape.high
        low = None if low and low[0] < -MAX_INTEGER else low
        high = None if high and high[0] > MAX_INTEGER else high
        if any(bound and abs(bound[0]) > MAX_INTEGER for bound in (low, high)):
            shape.at.refuse(f"a bound is beyond {MAX_INTEGER:.0e}; use a smaller one")
        step = shape.step()
        if step is not None and kind == "integer":
            step = Fraction(step.numerator)
        if step is not None and step.denominator > 1:
            return self.decimal_multiple(shape, step, (low, high), rule_name), False
        if kind == "number" and not shape.multiples:
            if low is None and high is None:
                return self.primitive_body("number", rule_name)
            text = number_range(low, high)
            if text is None:
                shape.at.nothing("no number is between the bounds")
            if "decimal-part" in text:
                self.primitive("decimal-part")
            return f"({text})", False
        first = low and (math.floor(low[0]) + 1 if low[1] else math.ceil(low[0]))
        last = high and (math.ceil(high[0]) - 1 if high[1] else math.floor(high[0]))
        if first is not None and last is not None and first > last:
            shape.at.nothing("no number is between the bounds")
        if step is not None and step != 1:
            return self.multiple(shape, step.numerator, first, last, rule_name)
        if first is None and last is None:
            return self.primitive_body("integer", rule_name)
        return f"({integer_range(first, last)})", False

    def multiple(
        self, shape: Shape, divisor: int, first: int | None, last: int | None, rule_name: str
    ) -> tuple[str, bool]:
        if first is not None and last is not None:
            values = range(-(-first // divisor) * divisor, last + 1, divisor)
            if not values:
                shape.at.nothing("no number is between the bounds")
            if len(values) <= MAX_ENUMERATED:
                return "(" + " | ".join(literal(str(value)) for value in values) + ")", False
        if divisor > MAX_MULTIPLE:
            shape.at.refuse(
                f"at most {MAX_MULTIPLE} is supported for so many values, got {divisor}; "
                "add bounds or use a smaller number",
                "multipleOf",
            )
        if first is None and last is None:
            pattern = "-?(0|[1-9][0-9]*)"
        else:  # its text without quotes and blanks is a regular expression
            pattern = integer_range(first, last).replace('"', "").replace(" ", "")
        automaton = StringAutomaton(
            [Expression(parse_regex(pattern), whole=True), Multiple(divisor)]
        )
        if automaton.is_empty:
            shape.at.nothing("no number is between the bounds")
        return write_automaton(automaton, self.rules, rule_name, PLAIN_TEXT, end='""'), False

    def decimal_multiple(
        self, shape: Shape, step: Fraction, bounds: tuple[Bound | None, Bound | None], name: str
    ) -> str:
        """Multiples of a step that is no integer, with as many decimals as it has."""
        n_decimals = next(
            (n for n in range(MAX_DECIMALS + 1) if (step * 10**n).denominator == 1), 0
        )
        divisor = int(step * 10**n_decimals)
        if divisor * (n_decimals + 2) > MAX_MULTIPLE or not n_decimals:
            shape.at.refuse(
                f"at most {MAX_DECIMALS} decimals and {MAX_MULTIPLE // (n_decimals + 2)} of the "
                f"last of them are supported, got {float(step)}; use another number",
                "multipleOf",
            )
        text = f'"-"? ([0] | [1-9] [0-9]{{0,15}}) ("." [0-9]{{1,{n_decimals}}})?'
        if bounds != (None, None):
            text = number_range(*bounds) or shape.at.nothing("no number is between the bounds")
        pattern = text.replace('"."', r"\.").replace("decimal-part", "[0-9]{1,16}")
        pattern = pattern.replace('"', "").replace(" ", "")
        numbers = Expression(parse_regex(pattern), whole=True)
        automaton = StringAutomaton([numbers, Multiple(divisor, n_decimals)])
        if automaton.is_empty:
            shape.at.nothing("no number is between the bounds")
        return write_automaton(automaton, self.rules, name, PLAIN_TEXT, end='""')

    # Strings

    def string(self, shape: Shape, rule_name: str) -> tuple[str, bool]:
        low, high = shape.min_length, shape.max_length
        if high is not None and low > high:
            shape.at.nothing("no length is between the bounds")
        if not shape.patterns and not shape.formats:
            if low == 0 and high is None:
                return self.primitive_body("string", rule_name)
            char = self.primitive("char" if low < 2 else "whole-char")
            return f"{QUOTE} {self.rules.repeat(char, low, high)} {QUOTE}", False
        nodes = shape.string_nodes()
        if len(nodes) == 1:
            text = self.one_pattern(nodes[0], shape, rule_name)
            if text:
                return text, text == "uuid" and rule_name != "root"
        expressions = [Expression(node, whole=whole) for node, whole in nodes]
        n_states = sum(len(expression.moves) for expression in expressions)
        if high is not None and n_states * high > MAX_EXACT:
            nodes, high = _limit_one(nodes, high)
        automaton = self.automaton(nodes, low, high, shape)
        if automaton.is_empty:
            shape.at.nothing("no string meets all patterns, formats and lengths")
        return f"{QUOTE} ({self.states(automaton, rule_name)})", False

    def automaton(
        self, nodes: Sequence[tuple[Node, bool]], low: int, high: int | None, shape: Shape
    ) -> StringAutomaton:
        """Some patterns and bounds of the length at once."""
        try:
            return string_automaton(tuple(nodes), low, high)
        except GrammarError as error:
            keyword = "pattern" if shape.patterns else "format" if shape.formats else "maxLength"
            shape.at.refuse(
                f"{error}; use a simpler pattern or smaller bounds of the length", keyword
            )

    def states(self, automaton: StringAutomaton, name: str) -> str:
        """The rest of a string; strings of one automaton share the rules of its states."""
        if automaton not in self.strings:
            char = self.primitive("char")
            self.strings[automaton] = write_automaton(
                automaton, self.rules, name, JSON_STRING, end=QUOTE, any_char=char
            )
        return self.strings[automaton]

    def one_pattern(self, expression: tuple[Node, bool], shape: Shape, rule_name: str) -> str:
        """The text of one pattern or format, by its structure; empty: it needs an automaton."""
        low, high = shape.min_length, shape.max_length
        node, whole = expression
        anchored = (node, True) if whole else _anchored(node)
        if anchored is None:
            if low or high is not None:
                return ""
            try:
                automaton = string_automaton(((node, False),), 0, None)
            except GrammarError:  # too large: the pattern itself, anything around it
                if has_anchor(node) or has_empty_loop(node):
                    return ""
                inner = GbnfWriter(self.rules, rule_name, JSON_STRING).write(node)
                char = self.primitive("char")
                return f"{QUOTE} {char}* ({inner}) {char}* {QUOTE}"
            return "" if automaton.is_empty else f"{QUOTE} ({self.states(automaton, rule_name)})"
        tree, is_whole = anchored
        least, most = length_range(tree)
        is_met = least >= low and (high is None or (is_whole and most is not None and most <= high))
        if is_met and whole:
            return self.format(shape.formats[0])
        if not is_met:
            bounded = _bounded(tree, low, high) if is_whole else None
            if bounded is None:
                return ""
            tree = bounded
        text = GbnfWriter(self.rules, rule_name, JSON_STRING).write(tree)
        rest = "" if is_whole else f" {self.primitive('char')}*"
        return f"{QUOTE} ({text}){rest} {QUOTE}"

    def format(self, name: str) -> str:
        name = "uuid" if name.startswith("uuid") else name
        rule = name if name == "uuid" else f"{name}-string"
        if rule not in self.rules.texts:
            inner = GbnfWriter(self.rules, rule, JSON_STRING).write(parse_regex(FORMATS[name]))
            self.rules.add(rule, f"{QUOTE} ({inner}) {QUOTE}")
        return rule

    # Arrays

    def array(self, shape: Shape, name: str, rule_name: str) -> tuple[str, bool]:
        prefix_name = f"{name}-" if name else ""
        n_prefix = max((len(part.prefix or ()) for part in shape.arrays), default=0)
        is_closed = n_prefix > 0 and all(part.items is None for part in shape.arrays)
        if shape.is_unique and (shape.max_items is None or shape.max_items > 1):
            return self.distinct_items(shape, n_prefix, name), False
        low = shape.min_items
        high = n_prefix if is_closed else None
        if shape.max_items is not None:
            high = shape.max_items if high is None else min(high, shape.max_items)
        names: list[str] = []
        n_whole = n_prefix  # the first items, which are there if low is None
        for index in range(n_prefix if high is None else min(n_prefix, high)):
            parts = shape.item(index)
            item_name = f"{prefix_name}tuple-{index}"
            if index >= (n_whole if low is None else low):
                item = self.visit_if_any(parts, item_name)
            else:
                item = self.required_item(parts, item_name, low)
                if item is None:  # a whole prefix would hold the schema itself without end
                    item, n_whole = self.visit_if_any(parts, item_name), index
            if item is None:
                high = index
                break
            names.append(item)
        least = low if low is not None else n_whole if high is None else min(n_whole, high)
        rest = ""
        if not is_closed and (high is None or high >= n_prefix):
            parts = shape.item(n_prefix)
            is_any = all(part.is_any() for part in parts)
            if is_any and not n_prefix and not least and high is None:
                return self.primitive_body("array", rule_name)
            if not parts:
                rest = self.primitive("value")
            elif least > n_prefix:
                rest = self.inner(parts, f"{prefix_name}item")
            else:
                rest = self.visit_if_any(parts, f"{prefix_name}item") or ""
            if not rest:
                high = n_prefix
        if high is not None and least > high:
            shape.at.nothing("no number of items is allowed")
        n_rest = max(least - len(names), 0), None if high is None else max(high - len(names), 0)
        return f'"[" space {self.items(names, rest, least, n_rest)} space "]"', False

    def required_item(self, parts: Sequence[Located], name: str, low: int | None) -> str | None:
        """The rule of an item that must be there, or that is there by default (low is None)."""
        if low is not None:
            return self.inner(parts, name) if parts else self.primitive("value")
        try:
            with self.attempt():
                return self.inner(parts, name) if parts else self.primitive("value")
        except Unsatisfiable:
            return None

    def items(
        self, names: Sequence[str], rest: str, low: int, n_rest: tuple[int, int | None]
    ) -> str:
        """Items of their own rules, then more of one rule; the first ``low`` are not optional."""
        if not names:
            return self.rules.repeat(rest, *n_rest, COMMA) if rest else ""
        more = self.rules.repeat(f"({COMMA} {rest})", *n_rest) if rest and n_rest[1] != 0 else ""
        text = more
        for index in reversed(range(len(names))):
            comma = f"{COMMA} " if index else ""
            text = f"{comma}{names[index]} {text}".rstrip()
            if index >= low:
                text = f"({text})?"
        return text

    def distinct_items(self, shape: Shape, n_prefix: int, name: str) -> str:
        """An array of different values, by a rule for each set of those that it has so far."""
        values = None if n_prefix else self.few_values(shape.item(0))
        if values is None:
            shape.at.refuse(
                "a grammar cannot express 'uniqueItems' of other items than values of an enum; "
                "remove it, and check documents afterwards",
                "uniqueItems",
            )
        low, high = shape.min_items or 0, min(len(values), or_infinite(shape.max_items))
        if low > high:
            shape.at.nothing(f"minItems is {low}, but there are only {high} different items")
        if sum(math.comb(len(values), n) for n in range(int(high) + 1)) > MAX_SUBSETS:
            shape.at.refuse(
                f"'uniqueItems' of {len(values)} values are too many for a grammar; use fewer, or "
                "a smaller maxItems",
                "uniqueItems",
            )
        base = f"{name}-" if name else ""
        items = [self.rules.add(f"{base}item-{i}", text) for i, text in enumerate(values)]
        rests: dict[frozenset[int], str] = {}  # numbers of the values so far -> what may follow

        def rest(used: frozenset[int]) -> str:
            if used not in rests:
                comma = f"{COMMA} " if used else ""
                left = [i for i in range(len(items)) if i not in used and len(used) < high]
                options = [f"{comma}{items[i]} {rest(used | {i})}".rstrip() for i in left]
                options += ['""'] if len(used) >= low and (options or not used) else []
                text = " | ".join(options)
                rests[used] = self.rules.add(f"{base}items-{len(used)}", text) if text else ""
            return rests[used]

        return f'"[" space {rest(frozenset())} space "]"'

    def few_values(self, parts: Sequence[Located]) -> list[str] | None:
        """The different values of a schema, each as the text of its spellings; None: too many."""
        found: list[tuple[Any, list[str]]] = []
        for shape in self.document.shapes(parts) if parts else [Shape(ANYTHING)]:
            values = shape.values
            if values is None and shape.types and {*shape.types} <= SMALL_TYPES.keys():
                values = [value for kind in shape.types for value in SMALL_TYPES[kind]]
            if values is None:
                return None
            for value in values:
                if shape.admits(self.document, value):
                    text = literal(json_text(value))
                    same = next((texts for v, texts in found if same_json(v, value)), None)
                    if same is None:
                        found.append((value, [text]))
                    elif text not in same:
                        same.append(text)
                if len(found) > MAX_SUBSETS:
                    return None
        return [" | ".join(texts) for _, texts in found]

    # Objects

    def object(self, shape: Shape, name: str, rule_name: str) -> tuple[str, bool]:
        prefix_name = f"{name}-" if name else ""
        names = list(dict.fromkeys([*(n for p in shape.objects for n in p.properties)]))
        patterns = list(dict.fromkeys(pattern for p in shape.objects for pattern, _ in p.patterns))
        is_open = any(part.additional is not None for part in shape.objects) or (
            not names and not patterns
        )
        key_shape = self.key_shape(shape)
        if key_shape is not None and key_shape.values is not None:
            only = [v for v in key_shape.values if isinstance(v, str)]
            if is_open or patterns:
                names += [n for n in only if n not in names]
            is_open, patterns = False, []
        names += [n for n in (*shape.required, *shape.forbidden) if n not in names]
        is_plain = not names and not patterns and is_open and not shape.property_names
        is_bounded = shape.min_properties or shape.max_properties is not None
        if is_plain and not is_bounded and all(part.is_any() for part in shape.property("")):
            return self.primitive("object"), False
        pairs: dict[str, str] = {}
        for key in names:
            pair = self.pair(shape, key, prefix_name)
            if pair is not None:
                pairs[key] = pair
        free = self.free_pair(shape, names, patterns, is_open, key_shape, prefix_name)
        return self.members(shape, pairs, free, prefix_name), False

    def key_shape(self, shape: Shape) -> Shape | None:
        """What ``propertyNames`` say, or None."""
        if not shape.property_names:
            return None
        shapes = self.document.shapes(shape.property_names)
        if len(shapes) != 1:
            shape.at.refuse(
                "alternatives are not supported; use one pattern or enum", "propertyNames"
            )
        only = shapes[0]
        if only.values is not None:
            only.values = [value for value in only.values if only.admits(self.document, value)]
        if only.types is not None and "string" not in only.types:
            only.values = []
        return only

    def pair(self, shape: Shape, key: str, prefix_name: str) -> str | None:
        """The rule of a property with its name; None: it cannot be there."""
        is_required = key in shape.required
        parts = shape.property(key)
        rule_name = f"{prefix_name}{key}"
        if not self.document.admits(tuple(shape.property_names), key):
            value = None
        elif is_required:
            value = self.inner(parts, rule_name) if parts else self.primitive("value")
        else:
            value = self.visit_if_any(parts, rule_name)
        if value is None:
            if is_required:
                shape.at.nothing(f"the required property {key!r:.60} is not allowed")
            return None
        name = literal(json_text(key))
        return self.rules.add(f"{rule_name}-kv", f'{name} space ":" space {value}')

    def free_pair(
        self,
        shape: Shape,
        names: Sequence[str],
        patterns: Sequence[str],
        is_open: bool,
        key_shape: Shape | None,
        prefix_name: str,
    ) -> str | None:
        """The rule of a property whose name is not in the schema; None: there are none."""
        if not is_open and not patterns:
            return None
        longest = max(map(len, names), default=0)
        if longest > MAX_NAME:
            shape.at.refuse(
                f"a property's name has {longest} characters; at most {MAX_NAME} are possible "
                "beside additionalProperties and patternProperties"
            )
        sub_name = f"{prefix_name}additional"
        if not patterns and key_shape is None:
            parts = tuple(part.additional for part in shape.objects if part.additional is not None)
            value = self.visit_value(parts, f"{sub_name}-value")
            if value is None:
                return None
            if not names:
                key = self.primitive("string")
            else:
                key = self.rules.add(f"{sub_name}-k", self.other_names(names, sub_name))
            return self.rules.add(f"{sub_name}-kv", f'{key} ":" space {value}')
        return self.pattern_pairs(shape, names, patterns, is_open, key_shape, sub_name)

    def visit_value(self, parts: Sequence[Located], name: str) -> str | None:
        if all(part.is_any() for part in parts):
            return self.primitive("value")
        return self.visit_if_any(parts, name)

    def pattern_pairs(
        self,
        shape: Shape,
        names: Sequence[str],
        patterns: Sequence[str],
        is_open: bool,
        key_shape: Shape | None,
        sub_name: str,
    ) -> str | None:
        """Properties by pattern: names that match the same patterns have the same schemas."""
        if len(patterns) > MAX_PATTERN_PROPERTIES:
            shape.at.refuse(
                f"{len(patterns)} patterns, at most {MAX_PATTERN_PROPERTIES} are supported",
                "patternProperties",
            )
        after = 1 + len(patterns)

        def is_free(labels: Labels) -> bool:
            is_word, matched, is_clear = labels[0], labels[1:after], labels[after]
            in_scope = (is_open or any(matched)) and (is_clear or all(matched))
            return not is_word and in_scope and all(labels[after + 1 :])

        try:
            conditions: list[Condition] = [Words(names)]
            conditions += [Expression(parse_pattern(p, shape.at.pointer)) for p in patterns]
            has_sets = any(re.search(r"\\[dws]", pattern, re.IGNORECASE) for pattern in patterns)
            conditions.append(Expression(parse_regex(ASCII_NAME if has_sets else ONE_LINE)))
            if key_shape is not None:
                conditions += [Expression(node, whole=w) for node, w in key_shape.string_nodes()]
                conditions.append(Length(key_shape.min_length, key_shape.max_length))
            automaton = StringAutomaton(conditions, is_free)
        except SchemaError:
            raise
        except GrammarError as error:
            shape.at.refuse(str(error), "patternProperties")
        groups = sorted(
            {labels[1:after] for labels in automaton.labels if is_free(labels)},
            reverse=True,
        )
        pairs = []
        for index, group in enumerate(groups):
            parts = self.group_parts(shape, patterns, group)
            group_name = f"{sub_name}-{index}" if len(groups) > 1 else sub_name
            value = self.visit_value(parts, f"{group_name}-value")
            if value is None:
                continue

            def is_in_group(labels: Labels, group: Labels = group) -> bool:
                return is_free(labels) and labels[1:after] == group

            automaton.select(is_in_group)
            if automaton.is_empty:
                continue
            char = self.primitive("char")
            text = write_automaton(
                automaton, self.rules, f"{group_name}-k", JSON_STRING, end=QUOTE, any_char=char
            )
            key = self.rules.add(f"{group_name}-k", f"{QUOTE} ({text})")
            pairs.append(self.rules.add(f"{group_name}-kv", f'{key} ":" space {value}'))
        if len(pairs) < 2:
            return pairs[0] if pairs else None
        return self.rules.add(f"{sub_name}-kv", " | ".join(pairs))

    def group_parts(
        self, shape: Shape, patterns: Sequence[str], group: Labels
    ) -> tuple[Located, ...]:
        """The schemas of names that match certain patterns."""
        matched = {pattern for pattern, is_in in zip(patterns, group, strict=True) if is_in}
        found = []
        for part in shape.objects:
            inner = [located for pattern, located in part.patterns if pattern in matched]
            if not inner and part.additional is not None:
                inner = [part.additional]
            found += inner
        return tuple(found)

    def other_names(self, names: Sequence[str], sub_name: str) -> str:
        r"""A JSON string that is none of some names.

        A trie of the names; a name that leaves it has any characters after. Until then no ``\u``
        is allowed, so that no name is spelled with it.
        """
        trie: dict[str, Any] = {}
        for name in names:
            node = trie
            for char in name:
                node = node.setdefault(char, {})
            node[""] = {}
        char_rule = self.primitive("char")

        def options(node: dict[str, Any], depth: int) -> str:
            found = []
            children = sorted(char for char in node if char)
            for char in children:
                inner = [key for key in node[char] if key]
                is_surrogate = "\ud800" <= char <= "\udfff"
                chars = (
                    JSON_STRING.literal(char)
                    if is_surrogate
                    else JSON_STRING.chars([(ord(char), ord(char))])[0]
                )
                if inner:
                    end = "" if "" in node[char] else "?"
                    more = f"({options(node[char], depth + 1)}){end}"
                    if depth % MAX_NESTED_NAMES == MAX_NESTED_NAMES - 1:
                        more = self.rules.add(f"{sub_name}-k-more", more)
                    found.append(f"{chars} {more}")
                else:
                    found.append(f"{chars} {char_rule}+")
            raw = class_items((ord(c), ord(c)) for c in children if c not in '"\\' and c >= " ")
            found.append(rf'[^"\\\x7F\x00-\x1F{raw}] {char_rule}*')
            letters = [letter for letter, code in JSON_STRING.SHORT if chr(code) not in children]
            if letters:
                text = "".join(letters).replace("\\", r"\\")
                found.append(rf"[\\] [{text}] {char_rule}*")
            return " | ".join(found)

        end = "" if "" in trie else "?"
        return f'["] ( {options(trie, 0)} ){end} ["]'

    def members(
        self, shape: Shape, pairs: Mapping[str, str], free: str | None, prefix_name: str
    ) -> str:
        """The text of an object: required properties, then optional ones, then free ones."""
        required = [key for key in pairs if key in shape.required]
        optional = [key for key in pairs if key not in shape.required]
        low, high = shape.min_properties, shape.max_properties
        if high is not None and (len(required) > high or low > high):
            shape.at.nothing("more properties are required than maxProperties allow")
        if low > len(required) or (high is not None and (free or high < len(pairs))):
            return self.counted(shape, required, optional, pairs, free, prefix_name)
        if not pairs and free is None:
            return '"{" space "}"'
        text = '"{" space ' + f" {COMMA} ".join(pairs[key] for key in required)
        rules = [(key, pairs[key], "?") for key in optional]
        if free is not None:
            rules.append(("*", free, "*"))
        if rules:
            text += f" ({' ' + COMMA + ' ( ' if required else ''}"
            rests = self.rests(rules, prefix_name)
            texts = []
            for (_, rule, times), rest in zip(rules, rests, strict=True):
                more = f" ( {COMMA} {rule} )*" if times == "*" else ""
                texts.append(f"{rule}{more}" + (f" {rest}" if rest else ""))
            last = texts[-1] + ("" if required or free is not None or rests[-1] else " ")
            text += " | ".join([*texts[:-1], last])
            text = text if required or last.endswith(" ") else text + " "
            text += f"{' )' if required else ''} )?" if required else ")?"
        return text + ' space "}"'

    def rests(self, rules: Sequence[tuple[str, str, str]], prefix_name: str) -> list[str]:
        """For each optional property the name of the rule of what may follow it."""
        rest, found = "", [""]
        for (key, _, _), (_, rule, times) in reversed(list(pairwise(rules))):
            text = f"( {COMMA} {rule} ){times}" + (f" {rest}" if rest else "")
            rest = self.rules.add(f"{prefix_name}{key}-rest", text)
            found.append(rest)
        return found[::-1]

    def counted(
        self,
        shape: Shape,
        required: Sequence[str],
        optional: Sequence[str],
        pairs: Mapping[str, str],
        free: str | None,
        prefix_name: str,
    ) -> str:
        """The text of an object with a bounded number of properties, by a rule for each number.

        Names that are not in the schema may repeat, so they count as one for ``minProperties``.
        """
        low, high = shape.min_properties, shape.max_properties
        most = len(pairs) + (free is not None)
        if low > most:
            if free is None:
                shape.at.nothing(f"minProperties is {low}, but there are only {most}")
            shape.at.refuse(
                f"{low} needs several names that are not in the schema, which a grammar cannot "
                "keep different; name more properties",
                "minProperties",
            )
        order = [*required, *optional]
        if len(order) * min(len(order), high or len(order)) > MAX_COUNTED:
            shape.at.refuse(
                f"minProperties and maxProperties with {len(order)} properties are too much for a "
                "grammar; remove them"
            )
        base = f"{prefix_name}count"
        tails: dict[tuple[int, int], str | None] = {}
        for count in range(len(order) + 1):
            tails[len(order), count] = self.free_tail(count, low, high, free)
        for index in reversed(range(len(order))):
            key = order[index]
            for count in range(index + 1):
                comma = f"{COMMA} " if count else ""
                after = tails[index + 1, count + 1]
                with_it = None if after is None or count == high else f"{comma}{pairs[key]} {after}"
                without = None if key in shape.required else tails[index + 1, count]
                options = [text.strip() or '""' for text in (with_it, without) if text is not None]
                tails[index, count] = (
                    self.rules.add(f"{base}-{index}-{count}", " | ".join(options))
                    if options
                    else None
                )
        first = tails[0, 0]
        if first is None:
            shape.at.nothing("no number of properties is allowed")
        return f'"{{" space {first} space "}}"'

    def free_tail(self, count: int, low: int, high: int | None, free: str | None) -> str | None:
        """The end of an object after ``count`` properties; None: it cannot end."""
        missing = max(low - count, 0)
        left = None if high is None else high - count
        if missing > (free is not None) or (left is not None and left < missing):
            return None
        if free is None or left == 0:
            return ""
        if count:
            return self.rules.repeat(f"( {COMMA} {free} )", missing, left)
        return self.rules.repeat(free, missing, left, COMMA)


def _anchored(node: Node) -> tuple[Node, bool] | None:
    """The tree of a pattern that begins with ^, without anchors, and whether it ends with $.

    None: it has other anchors, or loops that GBNF does not allow.
    """
    options = node.options if isinstance(node, RegexChoice) else (node,)
    inner, starts, ends = zip(*map(strip_anchors, options), strict=True)
    if any(map(has_anchor, inner)) or any(map(has_empty_loop, inner)):
        return None
    tree: Node = RegexChoice(inner) if len(inner) > 1 else inner[0]
    # ^a|b|c$ is read as ^(a|b|c)$, as llama.cpp does: all of its strings match
    if starts[0] and ends[-1] and not any((*starts[1:], *ends[:-1])):
        return tree, True
    if not all(starts) or (any(ends) and not all(ends)):
        return None
    return tree, all(ends)


def _bounded(node: Node, low: int, high: int | None) -> Node | None:
    """A whole tree with bounds of its length, if its structure can keep them."""
    least, most = length_range(node)
    if least >= low and (high is None or (most is not None and most <= high)):
        return node
    if high is not None and high * len(Expression(node).moves) > MAX_EXACT:
        short = _shortened(node, high)
        return short if short and length_range(short)[0] >= low else None
    inner = node.inner if isinstance(node, Group) else node
    if isinstance(inner, RegexRepeat) and isinstance(inner.item, RegexChars):
        first = max(inner.low, low)
        last = inner.high if high is None else high if inner.high is None else min(high, inner.high)
        if last is None or first <= last:
            return RegexRepeat(inner.item, first, last)
    return None


def _limit_one(
    nodes: Sequence[tuple[Node, bool]], high: int
) -> tuple[list[tuple[Node, bool]], int | None]:
    """Conditions that one whole pattern keeps to ``high`` characters; its repetitions are limited.

    Its strings are a part of those that match: an exact automaton would be too large.
    """
    found = list(nodes)
    for index, (node, whole) in enumerate(nodes):
        tree, is_whole = (node, True) if whole else _anchored(node) or (node, False)
        short = _shortened(tree, high) if is_whole else None
        if short is not None:
            found[index] = short, True
            return found, None
    return found, high


def _shortened(node: Node, high: int) -> Node | None:
    """A whole tree whose repetitions are limited so that it has at most ``high`` characters."""
    for n in SHORTER:
        tree = _limited(node, n)
        most = length_range(tree)[1]
        if most is not None and most <= high:
            return tree
    return None


def _limited(node: Node, n: int) -> Node:
    """A tree whose repetitions are at most ``n`` times, if their minimum allows."""
    match node:
        case Group(inner):
            return Group(_limited(inner, n))
        case Sequence_(parts):
            return Sequence_(tuple(_limited(part, n) for part in parts))
        case RegexChoice(options):
            return RegexChoice(tuple(_limited(option, n) for option in options))
        case RegexRepeat(item, low, high):
            return RegexRepeat(
                _limited(item, n), low, max(low, n if high is None else min(n, high))
            )
    return node
