"""The parts of a JSON schema: checked JSON, located subschemas, references, and merged keywords.

    document = Document(schema)
    for shape in document.shapes((document.root,)):     # a value matches one of them
        shape.admits(document, value)

A ``Shape`` is a conjunction of keywords: ``allOf``, ``$ref`` and keywords beside them are merged
into it, and each alternative of ``anyOf`` or ``oneOf`` makes one.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from itertools import combinations, count
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote, urldefrag, urljoin

from pyllama.errors import GrammarError, SchemaError
from pyllama.grammar.gbnf_writer import MAX_BOUND
from pyllama.grammar.regex_syntax import Node, parse_regex
from pyllama.grammar.schema.number_range import Bound
from pyllama.grammar.schema.string_formats import FORMATS
from pyllama.grammar.spelling import json_text
from pyllama.grammar.string_automaton import Expression, StringAutomaton
from pyllama.inputs.bounded_json import MAX_DEPTH, parse_json

MAX_VALUES = 100_000  # values and keys of a schema
MAX_SHAPES = 256  # alternatives after merging
MAX_BITS = 4096  # of an integer

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")

# Keywords by the type whose values they restrict
KEYWORDS = {
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
    ),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf")
DEPENDENT = ("dependentRequired", "dependentSchemas", "dependencies")  # the last one is draft 7's
REFUSED: dict[str, tuple[Any, ...]] = {  # keyword -> its values without an effect
    "not": (False,),
    "if": (),
    "then": (),
    "else": (),
    "contains": (),
    "minContains": (),
    "maxContains": (),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "$dynamicRef": (),
    "$recursiveRef": (),
}
_PROPERTIES = frozenset(("properties", "patternProperties", "additionalProperties"))
MAX_EXCLUSIVE = 64  # alternatives of oneOf that are kept apart
MAX_DEPENDENT = 5  # names with dependencies in an object; each doubles its alternatives
_PLAIN = frozenset(("type", "enum", "const", *(k for group in KEYWORDS.values() for k in group)))

_INDEX = re.compile("[0-9]{1,7}")
_TOO_MANY = f"anyOf, oneOf and allOf make more than {MAX_SHAPES} alternatives; simplify them"

Schema = bool | dict[str, Any]


class Unsatisfiable(SchemaError):
    """No value matches a schema. An alternative, an optional property or item is then left out."""


class Refused(SchemaError):
    """A grammar cannot hold a keyword. A relaxed grammar leaves it out.

    Attributes:
        pointer: JSON pointer to the schema.
        keyword: the keyword; empty if it is the schema as a whole.
    """

    def __init__(self, message: str, pointer: str, keyword: str) -> None:
        super().__init__(f"JSON schema, at {_place(pointer, keyword)}: {message}")
        self.pointer, self.keyword = pointer, keyword


class Located(NamedTuple):
    """A subschema and the JSON pointer to it."""

    schema: Schema
    pointer: str

    def fail(self, message: str, keyword: str = "") -> NoReturn:
        """Raise an error: the schema is invalid."""
        raise SchemaError(f"JSON schema, at {_place(self.pointer, keyword)}: {message}")

    def refuse(self, message: str, keyword: str = "") -> NoReturn:
        """Raise an error: a grammar cannot hold it."""
        raise Refused(message, self.pointer, keyword)

    def nothing(self, message: str) -> NoReturn:
        """Raise an error: no value matches."""
        raise Unsatisfiable(f"JSON schema, at {_place(self.pointer)}: {message}")

    def child(self, *keys: str | int) -> Located:
        """Return the subschema under some keys, checked to be one."""
        value: Any = self.schema
        for key in keys:
            value = value[key]
        path = "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)
        located = Located(value, self.pointer + path)
        if not isinstance(value, bool | dict):
            located.fail(f"a schema must be an object or a boolean, got {value!r:.60}")
        return located

    def is_any(self) -> bool:
        """Return whether every value matches, by the keywords that are there."""
        if not isinstance(self.schema, dict):
            return self.schema
        return not any(_restricts(key, value) for key, value in self.schema.items())


ANYTHING = Located(True, "")


def _place(pointer: str, keyword: str = "") -> str:
    path = f"#{pointer}" + (f"/{keyword}" if keyword else "")
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in path)
    return shown if len(shown) <= 200 else f"{shown[:80]}...{shown[-80:]}"


def _restricts(key: str, value: Any) -> bool:
    """Whether a keyword may have an effect on the values that match."""
    if key in REFUSED:
        return not _is_one_of(value, REFUSED[key])
    if key in ("additionalProperties", "additionalItems"):
        return value is not True and bool(value != {})
    if key == "required":
        return bool(value != [])
    if key == "uniqueItems":
        return value is not False
    if key in DEPENDENT:
        return bool(value != {})
    if key == "format":
        return not isinstance(value, str) or value in FORMATS
    return key in _PLAIN or key in IN_PLACE


def _is_one_of(value: Any, values: Iterable[Any]) -> bool:
    return any(type(value) is type(other) and value == other for other in values)


def same_json(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal: 1 is 1.0, but not true."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_json, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_json(a[key], b[key]) for key in a)
    return bool(a == b)


def types_of(value: Any) -> tuple[str, ...]:
    """Return the JSON types of a value; 1.0 is an integer, as in the standard."""
    if value is None:
        return ("null",)
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int | float):
        return ("number", "integer") if value == math.floor(value) else ("number",)
    if isinstance(value, str):
        return ("string",)
    return ("array",) if isinstance(value, list) else ("object",)


def read_schema(schema: Mapping[str, Any] | bool | str) -> Schema:
    """Return a schema as dictionaries and lists of its own, checked to be JSON.

    Raises:
        SchemaError: it is not JSON, has a name twice, or is over the limits.
    """
    if isinstance(schema, str):
        try:
            value = parse_json(schema.encode(), MAX_VALUES, unique=True)
        except UnicodeEncodeError:
            raise SchemaError("JSON schema: the text has a surrogate") from None
        except ValueError as error:
            raise SchemaError(f"JSON schema: not a JSON text: {error}") from None
    else:
        value = schema
    copied = _copied(value, "", MAX_DEPTH, count(1))
    if not isinstance(copied, bool | dict):
        raise SchemaError(f"JSON schema: must be an object or a boolean, got {schema!r:.60}")
    return copied


def _copied(value: Any, pointer: str, levels: int, counter: Iterator[int]) -> Any:
    """A JSON value copied within limits.

    Args:
        counter: counts the values.
    """
    if next(counter) > MAX_VALUES:
        raise SchemaError(f"JSON schema: more than {MAX_VALUES} values")
    if levels < 0:
        raise SchemaError(f"JSON schema: nested in more than {MAX_DEPTH} levels")
    problem = ""
    if value is None or isinstance(value, bool | int | str):
        if not isinstance(value, int) or value.bit_length() <= MAX_BITS:
            return value
        problem = "a number has too many digits"
    elif isinstance(value, float):
        if math.isfinite(value):
            return value
        problem = f"{value} is not a JSON number"
    elif isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            items = value.items()
            return {k: _copied(v, f"{pointer}/{k}", levels - 1, counter) for k, v in items}
        problem = "a name is not a string"
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_copied(v, f"{pointer}/{i}", levels - 1, counter) for i, v in enumerate(value)]
    problem = problem or f"{value!r:.60} is not a JSON value"
    raise SchemaError(f"JSON schema, at {_place(pointer)}: {problem}")


def check_keywords(located: Located) -> None:
    """Refuse values of wrong types, and keywords and patterns that a grammar cannot express.

    Raises:
        SchemaError: a value is wrong; it names the place and the keyword.
        Refused: a grammar cannot hold a keyword, or a pattern has a syntax error.
    """
    schema = located.schema
    if isinstance(schema, bool):
        return
    for key, value in schema.items():
        if key in REFUSED and not _is_one_of(value, REFUSED[key]):
            located.refuse(
                f"a grammar cannot express {key!r}; remove it, and check documents afterwards", key
            )
        requirement, is_met = _CHECKS.get(key, ("", _is(object)))
        if not is_met(value):
            located.fail(f"must be {requirement}, got {value!r:.60}", key)
        if key in ("minLength", "minItems", "minProperties") and value > MAX_BOUND:
            located.fail(f"must be at most {MAX_BOUND}, got {value!r:.60}", key)
    for low, high in (
        ("minLength", "maxLength"),
        ("minItems", "maxItems"),
        ("minProperties", "maxProperties"),
        ("minimum", "maximum"),
    ):
        if schema.get(low, -math.inf) > schema.get(high, math.inf):
            located.fail(f"{low} {schema[low]} is greater than {high} {schema[high]}", low)
    for key, beside in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if schema.get(key) is True and beside not in schema:
            located.refuse(f"must be a number, or true beside {beside!r} as in draft 4", key)
    if sum(len(schema.get(key, ())) for key in DEPENDENT) > MAX_DEPENDENT:
        key = next(key for key in reversed(DEPENDENT) if schema.get(key))
        located.refuse(f"more than {MAX_DEPENDENT} names have dependencies; use fewer", key)
    if "pattern" in schema:
        parse_pattern(schema["pattern"], located.pointer)
    for pattern in schema.get("patternProperties", ()):
        parse_pattern(pattern, located.pointer, "patternProperties")


def leave_out(schema: dict[str, Any], keyword: str) -> None:
    """Remove the effect of a keyword that a grammar cannot hold; more documents match then."""
    if keyword == "pattern":
        schema[keyword] = ""  # still a string
    elif keyword == "patternProperties":
        schema[keyword] = {}
        schema["additionalProperties"] = True
    else:
        del schema[keyword]


def as_list(value: Any) -> list[Any]:
    """Return a keyword's list, or the list of its only value."""
    return value if isinstance(value, list) else [value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is(kinds: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


_REQUIREMENTS: dict[str, tuple[str, Callable[[Any], bool]]] = {  # keywords -> of their values
    "minLength maxLength minItems maxItems minProperties maxProperties": (
        "an integer of at least 0",
        lambda value: _is_number(value) and value >= 0 and value == math.floor(value),
    ),
    "minimum maximum": ("a number", _is_number),
    "exclusiveMinimum exclusiveMaximum": ("a number", _is(int | float)),
    "multipleOf": ("a number greater than 0", lambda value: _is_number(value) and value > 0),
    "$ref pattern format": ("a string", _is(str)),
    "type": (
        f"one or a list of {', '.join(TYPES)}",
        lambda value: value != [] and all(kind in TYPES for kind in as_list(value)),
    ),
    "enum allOf anyOf oneOf": (
        "a list with at least one item",
        lambda value: isinstance(value, list) and value != [],
    ),
    "required": ("a list of strings", _are_names),
    "properties patternProperties dependentSchemas dependencies": ("an object", _is(dict)),
    "dependentRequired": (
        "an object of lists of strings",
        lambda value: isinstance(value, dict) and all(map(_are_names, value.values())),
    ),
    "uniqueItems": ("true or false", _is(bool)),
    "items prefixItems": ("a schema or a list of schemas", _is(dict | list | bool)),
}
_CHECKS = {key: check for keys, check in _REQUIREMENTS.items() for key in keys.split()}


@dataclass
class ObjectPart:
    """The properties of one schema object."""

    properties: dict[str, Located]
    patterns: list[tuple[str, Located]]
    additional: Located | None  # None: not said


@dataclass
class ArrayPart:
    """The items of one schema object; None: not said."""

    prefix: list[Located] | None
    items: Located | None


_FIELDS = {  # keyword -> the fields of a `Shape` that it sets
    "multipleOf": ("multiples",),
    "pattern": ("patterns",),
    "format": ("formats",),
    "maxLength": ("min_length", "max_length"),
    "uniqueItems": ("is_unique",),
    "minProperties": ("min_properties", "max_properties"),
    "propertyNames": ("property_names",),
}


@dataclass
class Shape:
    """A conjunction of keywords of one or more schema objects."""

    at: Located  # the first object, for errors
    types: list[str] | None = None
    values: list[Any] | None = None  # of enum and const
    is_const: bool = False
    min_length: int = 0
    max_length: int | None = None
    patterns: list[str] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)
    low: Bound | None = None
    high: Bound | None = None
    multiples: list[int | float] = field(default_factory=list)
    arrays: list[ArrayPart] = field(default_factory=list)
    min_items: int | None = None
    max_items: int | None = None
    is_unique: bool = False
    objects: list[ObjectPart] = field(default_factory=list)
    required: dict[str, None] = field(default_factory=dict)  # an ordered set
    forbidden: dict[str, None] = field(default_factory=dict)
    property_names: list[Located] = field(default_factory=list)
    min_properties: int = 0
    max_properties: int | None = None
    restricted: set[str] = field(default_factory=set)  # types that a keyword restricts

    def add(self, located: Located) -> None:
        """Merge the keywords of one more schema object."""
        schema = located.schema
        assert isinstance(schema, dict)
        if "type" in schema:
            self.types = _common_types(self.types, list(dict.fromkeys(as_list(schema["type"]))))
        if "const" in schema:
            self.is_const = self.values is None and "enum" not in schema
            self._keep_values([schema["const"]])
        if "enum" in schema:
            self.is_const = self.is_const and self.values is None
            self._keep_values(schema["enum"])
        for kind, keys in KEYWORDS.items():
            if any(key in schema and _restricts(key, schema[key]) for key in keys):
                self.restricted.add(kind)
        self._add_string(schema)
        self._add_number(schema)
        self._add_array(located, schema)
        self._add_object(located, schema)

    def _keep_values(self, values: list[Any]) -> None:
        if self.values is None:
            self.values = list({json_text(value): value for value in values}.values())
        else:
            self.values = [v for v in self.values if any(same_json(v, w) for w in values)]

    def _add_string(self, schema: dict[str, Any]) -> None:
        self.min_length = max(self.min_length, int(schema.get("minLength", 0)))
        self.max_length = _least(self.max_length, schema.get("maxLength"))
        if "pattern" in schema and schema["pattern"] not in self.patterns:
            self.patterns.append(schema["pattern"])
        name = schema.get("format")
        if name in FORMATS and name not in self.formats:
            self.formats.append(name)

    def _add_number(self, schema: dict[str, Any]) -> None:
        for key, is_open in _bounds(schema, "minimum", "exclusiveMinimum"):
            bound = _exact(schema[key]), is_open
            self.low = bound if self.low is None else max(self.low, bound)
        for key, is_open in _bounds(schema, "maximum", "exclusiveMaximum"):
            value = _exact(schema[key])
            if self.high is None or (value, not is_open) < (self.high[0], not self.high[1]):
                self.high = value, is_open
        if "multipleOf" in schema:
            self.multiples.append(schema["multipleOf"])

    def _add_array(self, located: Located, schema: dict[str, Any]) -> None:
        self.max_items = _least(self.max_items, schema.get("maxItems"))
        self.is_unique = self.is_unique or bool(schema.get("uniqueItems"))
        if "minItems" in schema:
            self.min_items = max(self.min_items or 0, int(schema["minItems"]))
        if "items" not in schema and "prefixItems" not in schema:
            return
        # A list in `items` is draft 7's prefixItems; a schema in `prefixItems` is read as items,
        # as llama.cpp does.
        prefix, items = schema.get("prefixItems"), schema.get("items")
        lists = [key for key in ("prefixItems", "items") if isinstance(schema.get(key), list)]
        rest = [key for key in ("items", "prefixItems") if isinstance(schema.get(key), bool | dict)]
        if isinstance(items, list) and not isinstance(prefix, list) and "additionalItems" in schema:
            rest = ["additionalItems"]
        self.arrays.append(
            ArrayPart(
                [located.child(lists[0], i) for i in range(len(schema[lists[0]]))]
                if lists
                else None,
                located.child(rest[0]) if rest else None,
            )
        )

    def _add_object(self, located: Located, schema: dict[str, Any]) -> None:
        self.min_properties = max(self.min_properties, int(schema.get("minProperties", 0)))
        self.max_properties = _least(self.max_properties, schema.get("maxProperties"))
        self.required.update(dict.fromkeys(schema.get("required", ())))
        if "propertyNames" in schema:
            self.property_names.append(located.child("propertyNames"))
        if {"properties", "patternProperties", "additionalProperties"} & schema.keys():
            self.objects.append(
                ObjectPart(
                    {n: located.child("properties", n) for n in schema.get("properties", ())},
                    [
                        (pattern, located.child("patternProperties", pattern))
                        for pattern in schema.get("patternProperties", ())
                    ],
                    located.child("additionalProperties")
                    if "additionalProperties" in schema
                    else None,
                )
            )

    def step(self) -> Fraction | None:
        """Return the least number that each ``multipleOf`` divides; None: there are none."""
        steps = [Fraction(_exact(multiple)) for multiple in self.multiples]
        if not steps:
            return None
        return Fraction(
            math.lcm(*(step.numerator for step in steps)),
            math.gcd(*(step.denominator for step in steps)),
        )

    def possible_types(self) -> list[str] | None:
        """Return the types of matching values; None: all. A keyword implies its type."""
        if self.types is not None:
            return self.types
        return [kind for kind in TYPES if kind in self.restricted] or None

    def leave_out(self, keyword: str) -> bool:
        """Remove the effect of a keyword that was refused; returns whether it had one."""
        before = replace(self)
        empty = Shape(self.at)
        for name in _FIELDS.get(keyword, ()):
            setattr(self, name, getattr(empty, name))
        if keyword == "patternProperties":
            free = Located(True, self.at.pointer)
            self.objects = [ObjectPart(part.properties, [], free) for part in self.objects]
        return self != before

    def admits(self, document: Document, value: Any) -> bool:
        """Return whether a value of ``enum`` or ``const`` matches the other keywords."""
        kinds = types_of(value)
        if self.types is not None and not set(kinds) & set(self.types):
            return False
        if "string" in kinds:
            long_enough = self.min_length <= len(value) <= or_infinite(self.max_length)
            return long_enough and all(
                condition.matches(value) for condition in map(_matcher, self.string_nodes())
            )
        if "number" in kinds:
            number = _exact(value)
            return (
                (self.low is None or (number, False) >= self.low)
                and (self.high is None or (number, True) <= (self.high[0], not self.high[1]))
                and all(number % _exact(multiple) == 0 for multiple in self.multiples)
            )
        if "array" in kinds:
            return (
                (self.min_items or 0) <= len(value) <= or_infinite(self.max_items)
                and all(document.admits(self.item(index), item) for index, item in enumerate(value))
                and not (
                    self.is_unique and any(same_json(*pair) for pair in combinations(value, 2))
                )
            )
        if "object" in kinds:
            return (
                self.min_properties <= len(value) <= or_infinite(self.max_properties)
                and all(name in value for name in self.required)
                and all(document.admits(tuple(self.property_names), name) for name in value)
                and all(document.admits(self.property(n), item) for n, item in value.items())
            )
        return True

    def string_nodes(self) -> list[tuple[Node, bool]]:
        """Return the patterns and formats, each with whether it is of the whole string.

        Raises:
            SchemaError: a pattern has a syntax error or something that is not supported.
        """
        nodes = [(parse_regex(FORMATS[name]), True) for name in self.formats]
        return [*((parse_pattern(p, self.at.pointer), False) for p in self.patterns), *nodes]

    def item(self, index: int) -> tuple[Located, ...]:
        """Return the schemas of the item at an index."""
        found = []
        for part in self.arrays:
            if part.prefix is not None and index < len(part.prefix):
                found.append(part.prefix[index])
            elif part.items is not None:
                found.append(part.items)
        return tuple(found)

    def property(self, name: str) -> tuple[Located, ...]:
        """Return the schemas of the property of a name."""
        found = [Located(False, f"{self.at.pointer}/not")] if name in self.forbidden else []
        for part in self.objects:
            matched = [
                located
                for pattern, located in part.patterns
                if _matcher((parse_pattern(pattern, self.at.pointer), False)).matches(name)
            ]
            if name in part.properties:
                matched.insert(0, part.properties[name])
            if not matched and part.additional is not None:
                matched = [part.additional]
            found += matched
        return tuple(found)


def _exclusive(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether no object matches both, by its names or by the values of one that both know."""
    closed = other.get("additionalProperties") is False and "patternProperties" not in other
    properties, others = one.get("properties", {}), other.get("properties", {})
    if any(others.get(name, not closed) is False for name in one.get("required", ())):
        return True
    return any(
        _differ(properties[name], others[name])
        for name in (*one.get("required", ()), *other.get("required", ()))
        if name in properties and name in others
    )


def _differ(a: Schema, b: Schema) -> bool:
    """Whether no value matches both, by their enum, const and type."""
    if not isinstance(a, dict) or not isinstance(b, dict):
        return a is False or b is False
    values = [s.get("enum", [s["const"]] if "const" in s else None) for s in (a, b)]
    kinds = [s.get("type", TYPES) for s in (a, b)]
    types = [{kind} if isinstance(kind, str) else set(kind) for kind in kinds]
    for index, found in enumerate(values):
        if found is not None:
            types[index] = {kind for value in found for kind in types_of(value)}
    if values[0] is not None and values[1] is not None:
        return not any(same_json(x, y) for x in values[0] for y in values[1])
    wide = [found | ({"integer"} if "number" in found else set()) for found in types]
    return not wide[0] & wide[1]


def parse_pattern(pattern: str, pointer: str, keyword: str = "pattern") -> Node:
    """Return the tree of a pattern of a schema at a pointer."""
    try:
        return parse_regex(pattern)
    except GrammarError as error:
        raise Refused(str(error), pointer, keyword) from None


def _bounds(schema: dict[str, Any], inclusive: str, exclusive: str) -> list[tuple[str, bool]]:
    """The bounds that a schema has, each with whether it is open; in draft 4 by a boolean."""
    found = [(inclusive, schema.get(exclusive) is True)] if inclusive in schema else []
    is_number = exclusive in schema and not isinstance(schema[exclusive], bool)
    return [*found, (exclusive, True)] if is_number else found


@functools.lru_cache(maxsize=64)
def _matcher(expression: tuple[Node, bool]) -> StringAutomaton:
    node, whole = expression
    return StringAutomaton([Expression(node, whole=whole)])


def _exact(value: float) -> Decimal:
    return Decimal(repr(value))


def _least(a: int | None, b: float | None) -> int | None:
    if b is None or b > MAX_BOUND:  # no document is so long
        return a
    return int(b) if a is None else min(a, int(b))


def or_infinite(value: int | None) -> float:
    """Return a maximum, or infinity for none."""
    return math.inf if value is None else value


def _common_types(a: list[str] | None, b: list[str]) -> list[str]:
    if a is None:
        return b
    both = [kind for kind in a if kind in b or (kind == "integer" and "number" in b)]
    if "number" in a and "integer" in b and "integer" not in both:
        both.append("integer")
    return both


class Document:
    """A whole schema: finds the targets of references, and merges conjunctions into shapes.

    Args:
        schema: a value of ``read_schema``. A relaxed document removes keywords from it.
        is_relaxed: what a grammar cannot hold is left out, and is no error.

    Attributes:
        left_out: JSON pointer of a keyword or schema -> why it is left out.
    """

    def __init__(self, schema: Schema, *, is_relaxed: bool = False) -> None:
        self.root = Located(schema, "")
        self.is_relaxed, self.left_out = is_relaxed, dict[str, str]()
        self.bases: dict[str, str] = {}  # pointer of a schema with an $id -> its URI
        self.resources: dict[str, str] = {}  # URI -> pointer
        self.anchors: dict[tuple[str, str], str] = {}  # pointer of the resource, name -> pointer
        self._expanded: dict[str, list[tuple[Located, ...]]] = {}
        self._forbidden: dict[str, str] = {}  # pointer -> a name that objects must not have
        is_draft_4 = isinstance(schema, dict) and "draft-04" in str(schema.get("$schema"))
        self._id_key = "id" if is_draft_4 else "$id"
        self._index(schema, "", "", "")

    def check(self, located: Located) -> None:
        """Check the keywords of a schema, before anything else is asked about it.

        Raises:
            SchemaError: a value is wrong, or a grammar cannot hold a keyword.
        """
        while True:
            try:
                check_keywords(located)
                if (
                    self.is_relaxed
                    and isinstance(located.schema, dict)
                    and "$ref" in located.schema
                ):
                    self.target(located)
                return
            except Refused as error:
                if not self.is_relaxed or not isinstance(located.schema, dict):
                    raise
                self.note(error)
                leave_out(located.schema, error.keyword)

    def note(self, error: Refused) -> None:
        """Remember that something is left out."""
        key = f"/{error.keyword}" if error.keyword else ""
        self.left_out.setdefault(error.pointer + key, str(error))

    def _index(self, schema: Any, pointer: str, base: str, resource: str) -> None:
        if not isinstance(schema, dict):
            return
        if isinstance(schema.get(self._id_key), str):
            base, resource = urldefrag(urljoin(base, schema[self._id_key])).url, pointer
            self.bases[pointer] = base
            self.resources.setdefault(base, pointer)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(key), str):
                self.anchors.setdefault((resource, schema[key]), pointer)
        for key, value in schema.items():
            inner: Iterator[tuple[str, Any]] | None = None
            if key in ("$defs", "definitions", "properties", "patternProperties", *DEPENDENT):
                inner = iter(value.items()) if isinstance(value, dict) else None
            elif key in (*IN_PLACE, "prefixItems", "items") and isinstance(value, list):
                inner = ((str(index), item) for index, item in enumerate(value))
            if inner is not None:
                for name, item in inner:
                    path = f"{pointer}/{key}/" + name.replace("~", "~0").replace("/", "~1")
                    self._index(item, path, base, resource)
            elif key in ("items", "additionalProperties", "propertyNames", "additionalItems"):
                self._index(value, f"{pointer}/{key}", base, resource)

    def target(self, located: Located) -> Located:
        """Return the schema that the ``$ref`` of a schema refers to.

        Raises:
            SchemaError: it is in another document, or is not there.
        """
        assert isinstance(located.schema, dict)
        ref: str = located.schema["$ref"]
        resource, base = "", self.bases.get("", "")
        pointer = located.pointer
        while self.bases:
            if pointer in self.bases:
                resource, base = pointer, self.bases[pointer]
                break
            if not pointer:
                break
            pointer = pointer.rpartition("/")[0]
        if not ref.startswith("#"):
            url = urldefrag(urljoin(base, ref)).url
            if url not in self.resources:
                located.refuse(
                    f"{ref!r:.80} is in another document; put it into this one, under $defs", "$ref"
                )
            resource = self.resources[url]
        fragment = unquote(ref.partition("#")[2])
        if fragment and not fragment.startswith("/"):
            if (resource, fragment) not in self.anchors:
                located.fail(f"there is no $anchor {fragment!r:.80}", "$ref")
            return self._at(self.anchors[resource, fragment], located, ref)
        return self._at(resource + fragment, located, ref)

    def _at(self, pointer: str, source: Located, ref: str) -> Located:
        value: Any = self.root.schema
        for token in pointer.split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and _INDEX.fullmatch(key) and int(key) < len(value):
                value = value[int(key)]
            else:
                source.fail(f"{ref!r:.80} does not exist: there is no {key!r:.60}", "$ref")
        if not isinstance(value, bool | dict):
            source.fail(f"{ref!r:.80} is not a schema", "$ref")
        return Located(value, pointer)

    def shapes(self, parts: Sequence[Located]) -> list[Shape]:
        """Return the alternatives of a conjunction of schemas; none: nothing matches.

        Raises:
            SchemaError: a keyword is wrong or refused, or there are too many alternatives.
        """
        found: list[tuple[Located, ...]] = [()]
        for part in parts:
            found = self._both(found, self._expand(part, frozenset()), part)
        shapes = []
        for group in found:
            shape = Shape(parts[0] if parts else ANYTHING)
            for located in group:
                if located.pointer in self._forbidden:
                    shape.forbidden[self._forbidden[located.pointer]] = None
                    shape.restricted.add("object")
                else:
                    shape.add(located)
            shapes.append(shape)
        return shapes

    def _both(
        self, a: list[tuple[Located, ...]], b: list[tuple[Located, ...]], at: Located
    ) -> list[tuple[Located, ...]]:
        if len(a) * len(b) > 4 * MAX_SHAPES:
            at.refuse(_TOO_MANY)
        merged: dict[tuple[str, ...], tuple[Located, ...]] = {}
        for left in a:
            for right in b:
                pointers = {located.pointer for located in left}
                both = (*left, *(located for located in right if located.pointer not in pointers))
                merged.setdefault(tuple(sorted({located.pointer for located in both})), both)
        if len(merged) > MAX_SHAPES:
            at.refuse(_TOO_MANY)
        return list(merged.values())

    def _expand(self, part: Located, active: frozenset[str]) -> list[tuple[Located, ...]]:
        """Alternatives of one schema, each as the schema objects whose keywords it must meet."""
        if isinstance(part.schema, bool):
            return [()] if part.schema else []
        if part.pointer in self._expanded:
            return self._expanded[part.pointer]
        self.check(part)
        if part.pointer in active:
            part.fail("the schema refers to itself, without a property or item between")
        active = active | {part.pointer}
        found: list[tuple[Located, ...]] = [()]
        if _PLAIN & part.schema.keys():
            found = [(part,)]
        if "$ref" in part.schema:
            found = self._both(found, self._expand(self.target(part), active), part)
        for index in range(len(part.schema.get("allOf", ()))):
            found = self._both(found, self._expand(part.child("allOf", index), active), part)
        for key in ("anyOf", "oneOf"):
            if key in part.schema:
                options = [
                    (*group, *rest)
                    for child, *rest in self.alternatives(part, key)
                    for group in self._expand(child, active)
                ]
                found = self._both(found, options, part)
        for without, *with_it in self._dependencies(part):
            options = [()]
            for child in with_it:
                options = self._both(options, self._expand(child, active), part)
            found = self._both(found, [(without,), *options], part)
        self._expanded[part.pointer] = found
        return found

    def _dependencies(self, part: Located) -> Iterator[list[Located]]:
        """For each name with dependencies: a place that forbids it, and what holds with it."""
        assert isinstance(part.schema, dict)
        for keyword in DEPENDENT:
            for name, needed in part.schema.get(keyword, {}).items():
                if needed in ([], True, {}):
                    continue
                names = needed if isinstance(needed, list) else []
                inner = [] if isinstance(needed, list) else [part.child(keyword, name)]
                path = part.pointer + f"/{keyword}/" + name.replace("~", "~0").replace("/", "~1")
                self._forbidden[f"{path}/not"] = name
                required = Located({"required": [name, *names]}, f"{path}/required")
                yield [Located({}, f"{path}/not"), required, *inner]

    def alternatives(self, part: Located, keyword: str) -> list[list[Located]]:
        """Return the alternatives of ``anyOf`` or ``oneOf``.

        Each is a schema; an object of ``oneOf`` also has one that forbids a property that another
        alternative requires, unless a document cannot match both anyway. So {"a": 1, "b": 2}
        matches none of two alternatives of which one requires "a" and the other "b".
        """
        assert isinstance(part.schema, dict)
        options = [[part.child(keyword, i)] for i in range(len(part.schema[keyword]))]
        if keyword == "anyOf" or len(options) > MAX_EXCLUSIVE:
            return options
        objects = [self._object_of(option[0]) for option in options]
        outer = part.schema
        for index, one in enumerate(objects):
            if one is None or one.keys() & IN_PLACE:
                continue
            forbidden: dict[str, bool] = {}
            for other in objects[:index] + objects[index + 1 :]:
                if other is None or _exclusive(one, other):
                    continue
                required = {*one.get("required", ()), *outer.get("required", ())}
                names = [name for name in other.get("required", ()) if name not in required]
                if names and forbidden.keys().isdisjoint(names):
                    forbidden[names[0]] = False
            if forbidden:
                schema: dict[str, Any] = {"properties": forbidden}
                if not (one.keys() | outer.keys()) & _PROPERTIES:
                    schema["additionalProperties"] = True
                options[index].append(Located(schema, f"{options[index][0].pointer}/not"))
        return options

    def _object_of(self, part: Located) -> dict[str, Any] | None:
        """The keywords of a schema of objects, after references; None: of something else."""
        for _ in range(MAX_EXCLUSIVE):
            self.check(part)
            schema = part.schema
            if not isinstance(schema, dict):
                return None
            if schema.keys() & set(IN_PLACE) != {"$ref"} or _PLAIN & schema.keys():
                is_object = "type" not in schema and not schema.keys().isdisjoint(
                    KEYWORDS["object"]
                )
                kind = schema.get("type", "object" if is_object else "")
                return schema if kind in ("object", ["object"]) else None
            part = self.target(part)
        return None

    def admits(self, parts: tuple[Located, ...], value: Any) -> bool:
        """Return whether a value matches a conjunction of schemas."""
        for shape in self.shapes(parts):
            values = shape.values
            if (values is None or any(same_json(value, v) for v in values)) and shape.admits(
                self, value
            ):
                return True
        return False
