"""JSON schemas as grammars: llama.cpp's cases, a validator as judge of random documents, errors."""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft4Validator, Draft202012Validator

from pyllama.errors import SchemaError
from pyllama.grammar.schema.json_schema import relaxed_gbnf, schema_to_gbnf
from pyllama.grammar.schema.schema_parts import Unsatisfiable
from pyllama.grammar.schema.string_formats import FORMATS

from ...tiers import some
from .gbnf_texts import Gbnf
from .random_schemas import NAMES, RandomDocument, RandomSchema, texts

DATA = Path(__file__).resolve().parents[2] / "data"
SCHEMAS = sorted((DATA / "json_schemas").glob("*.json"))


def cases(name: str) -> list[dict[str, Any]]:
    path = DATA / "grammar" / f"llama_cpp_{name}.json"
    return list(json.loads(path.read_text(encoding="utf-8"))["cases"])


def validator(schema: Any) -> Any:
    is_draft_4 = isinstance(schema, dict) and "draft-04" in str(schema.get("$schema"))
    kind = Draft4Validator if is_draft_4 else Draft202012Validator
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


def check_samples(schema: Any, n: int, seed: int = 0) -> Gbnf:
    """Random texts of a schema's grammar are JSON documents that the schema admits."""
    grammar = Gbnf(schema_to_gbnf(schema))
    assert grammar.is_productive
    judge, rng = validator(schema), random.Random(seed)
    for _ in range(n):
        text = grammar.sample(rng)
        error = next(judge.iter_errors(json.loads(text)), None)
        assert error is None, f"{text}: {error.message}"
    return grammar


# llama.cpp's cases whose text differs, with the reason
KEYS = "its keys may have control characters and backslashes, or spell a property with \\u"
DIFFERENT = {
    "max -5": "its integers may have zeros in front",
    "exotic formats": "its dates may be the 31st of February",
    "string w/ min length 3": "a pair of surrogate escapes is one character of the document",
    "regexp quote": "its quote has no backslash, so that the string ends there",
    "regexp": "its dot may be a quote, a backslash or a control character",
    "required + additional props": KEYS,
    "optional + additional props": KEYS,
    "required + optional + additional props": KEYS + "; and it refuses the name 'a'",
    "optional props with empty name": "its root is the integer of the property",
    "optional props with nested names": KEYS,
    "optional props with common prefix": KEYS + "; and it refuses the name 'a'",
    "mix of allOf, anyOf and $ref (similar to https://json.schemastore.org/tsconfig.json)": (
        "it requires properties that the schema does not require"
    ),
    "unanchored regexp": "it ignores the pattern",
    "regexp with unsupported shorthand": "it ignores the pattern",
    "unsupported regexp in a property": "it ignores the pattern; here it is an error",
}


@pytest.mark.parametrize("case", cases("schemas"), ids=lambda case: case["name"])
def test_llama_cpp_texts(case: dict[str, Any]) -> None:
    try:
        text = schema_to_gbnf(case["schema"]).rstrip("\n").split("\n")
    except SchemaError as error:
        assert case["grammar"] is None or "lookahead" in str(error)
        return
    if case["name"] in DIFFERENT:
        assert text != case["grammar"]
        if not isinstance(case["schema"].get("items"), list):  # draft 7, which the judge refuses
            check_samples(case["schema"], 30)
    else:
        assert text == case["grammar"]


def test_different_texts_are_of_cases_that_exist() -> None:
    assert DIFFERENT.keys() <= {case["name"] for case in cases("schemas")}


@pytest.mark.parametrize("case", cases("documents"), ids=lambda case: case["name"])
def test_llama_cpp_documents(case: dict[str, Any]) -> None:
    schema = case["schema"]
    if case["name"] == "required props":  # it ignores uniqueItems; here it is an error
        with pytest.raises(SchemaError, match="'uniqueItems'"):
            schema_to_gbnf(schema)
        del schema["properties"]["tags"]["uniqueItems"]
    grammar = Gbnf(schema_to_gbnf(schema))
    assert [text for text in case["passing"] if not grammar.accepts(text)] == []
    assert [text for text in case["failing"] if grammar.accepts(text)] == []


@pytest.mark.parametrize("path", some(SCHEMAS, 10), ids=lambda path: path.stem)
def test_documents_of_usual_schemas_are_valid(path: Path) -> None:
    schema = json.loads(path.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    check_samples(schema, 40)
    assert schema_to_gbnf(path.read_text(encoding="utf-8")) == schema_to_gbnf(schema)


def test_there_are_many_usual_schemas() -> None:
    assert len(SCHEMAS) >= 20


@settings(max_examples=80, deadline=None)
@example(seed=302)  # minProperties and maxProperties of an object that requires nothing
@example(seed=1467)  # a pattern ^a|b$
@example(seed=1952)  # anyOf in a definition
@example(seed=3143)  # each alternative of a definition requires the definition itself
@example(seed=4134)  # minProperties, and the only property is the object itself
@example(seed=4790)  # a prefix of which the array itself is a part
@example(seed=7247)  # an email address after a text
@given(seed=st.integers(0, 10**6))
def test_random_schemas(seed: int) -> None:
    schema = RandomSchema(seed).draw()
    # docs/json-schema.md: ^a|b$ is read as ^(a|b)$
    judge = validator(json.loads(json.dumps(schema).replace('"^a|b$"', '"^(a|b)$"')))
    try:
        grammar = check_samples(schema, 10, seed)
    except Unsatisfiable:  # some random schemas contradict themselves
        documents = [RandomDocument(schema, number).draw(schema) for number in range(50)]
        assert not any(map(judge.is_valid, documents))
        return
    for number in range(10):
        document = RandomDocument(schema, number).draw(schema)
        if judge.is_valid(document) and not schema_leaves_freedom(schema):
            assert all(map(grammar.accepts, texts(document))), document


def schema_leaves_freedom(schema: Any) -> bool:
    """Whether a valid document may have properties that the schema does not name, by a branch."""
    found = json.dumps(schema)
    return "anyOf" in found or "allOf" in found or "patternProperties" in found


ACCEPTED: list[tuple[str, Any, list[str], list[str]]] = [
    # name, schema, accepted documents, refused documents
    ("true", True, ["1", '{"a": [null]}'], ["", "x"]),
    ("integer 1.0", {"type": "integer", "enum": [1.0, 2]}, ["1.0", "2"], ["1"]),
    ("const kinds", {"const": {"a": [1, "é"]}}, ['{"a":[1,"é"]}'], ['{"a":[2,"é"]}']),
    ("enum and type", {"enum": ["a", 1, None], "type": ["string", "null"]}, ['"a"', "null"], ["1"]),
    ("enum and pattern", {"enum": ["ab", "b"], "pattern": "^a"}, ['"ab"'], ['"b"']),
    ("enum and bounds", {"enum": [1, 5, "x"], "minimum": 2}, ["5", '"x"'], ["1"]),
    ("enum of objects", {"enum": [{"a": 1}, {}], "required": ["a"]}, ['{"a":1}'], ["{}"]),
    (
        "number bounds",
        {"minimum": 0.5, "exclusiveMaximum": 2},
        ["0.5", "1.99"],
        ["2", "0.4", "2.0"],
    ),
    ("exclusive", {"type": "integer", "exclusiveMinimum": 2.5}, ["3"], ["2"]),
    ("both bounds", {"type": "integer", "minimum": 3, "exclusiveMinimum": 3}, ["4"], ["3"]),
    ("multiple", {"type": "integer", "multipleOf": 7}, ["0", "-14", "21"], ["1", "20", "07"]),
    (
        "multiple in bounds",
        {"type": "number", "multipleOf": 5, "minimum": -7, "maximum": 11},
        ["-5", "0", "5", "10"],
        ["-10", "15", "3"],
    ),
    (
        "multiple with large bounds",
        {"type": "integer", "multipleOf": 3, "minimum": 10, "maximum": 100000},
        ["12", "99999"],
        ["9", "10", "100002"],
    ),
    ("two multiples", {"allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}, ["12", "0"], ["4", "6"]),
    ("implied types", {"minLength": 2, "minimum": 3}, ['"ab"', "3"], ['"a"', "2", "null"]),
    (
        "prefix and items",
        {"prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": {"type": "integer"}},
        ["[null,true]", "[null, true, 1, 2]"],
        ["[null]", "[null,true,null]", "[1]"],
    ),
    (
        "prefix and minItems",
        {"prefixItems": [{"type": "null"}, {"type": "boolean"}], "minItems": 1},
        ["[null]", "[null,true]"],
        ["[]", "[null,true,1]"],
    ),
    ("maxItems in the prefix", {"prefixItems": [True, True], "maxItems": 1}, ["[1]"], ["[1,2]"]),
    ("no items", {"type": "array", "items": False}, ["[]"], ["[1]"]),
    (
        "draft 7 tuple",
        {"items": [{"type": "null"}], "additionalItems": {"type": "boolean"}},
        ["[null]", "[null,true]"],
        ["[null,null]"],
    ),
    (
        "allOf of arrays",
        {"allOf": [{"items": {"minimum": 2}}, {"items": {"maximum": 4}, "maxItems": 2}]},
        ["[2,4]", "[]"],
        ["[5]", "[2,2,2]"],
    ),
    ("required name", {"required": ["x"]}, ['{"x": 1}', '{"x":[]}'], ["{}"]),
    (
        "required names not in properties",
        {"properties": {"a": {"type": "null"}}, "required": ["b", "a"]},
        ['{"a":null,"b":1}'],
        ['{"b":1,"a":null}', '{"a":null}'],
    ),
    (
        "names with special characters",
        {"properties": {'a"b\\': True, "\n": True, "é": True, "]^-": True}, "required": ["é"]},
        ['{"é":1,"a\\"b\\\\":2,"\\n":3,"]^-":4}'],
        ['{"a\\"b\\\\":2}'],
    ),
    (
        "other names than the properties'",
        {"properties": {'a"b': {"type": "null"}, "^": False}, "additionalProperties": True},
        ['{"a\\"b":null,"a":1,"a\\"":2,"a\\"bc":3}', '{"^^":1}', '{"\\t":1}', '{"":1}'],
        ['{"a\\"b":1}', '{"^":1}', '{"\\u005e":1}', '{"a\\u0022b":1}', '{"\t":1}', '{"\\":1}'],
    ),
    (
        "patternProperties",
        {
            "properties": {"x-id": {"type": "integer"}},
            "patternProperties": {"^x-": {"type": ["integer", "string"]}, "y$": {"type": "string"}},
            "additionalProperties": {"type": "null"},
        },
        ['{"x-id":1,"x-a":2,"x-y":"s","zy":"t","q":null}', '{"x-q":"\\"","q":null}'],
        ['{"x-id":"s"}', '{"x-y":1}', '{"zy":1}', '{"q":1}', '{"\\u0078-a":null}'],
    ),
    (
        "patternProperties alone are all",
        {"patternProperties": {"^[a-z]{2}$": {"type": "null"}}},
        ["{}", '{"ab":null,"cd":null}'],
        ['{"a":null}', '{"ab":1}'],
    ),
    (
        "patterns that Python reads in another way",
        {"patternProperties": {"b$": {"type": "null"}, r"\d": {"type": "null"}, "^x": {}}},
        ['{"x":1}', '{"xb":null}'],
        ['{"xb\\n":1}', '{"x٣":1}'],
    ),
    (
        "propertyNames",
        {"propertyNames": {"pattern": "^[a-z]+$", "maxLength": 3}, "additionalProperties": True},
        ['{"abc":1}', "{}"],
        ['{"abcd":1}', '{"A":1}'],
    ),
    (
        "propertyNames as enum",
        {
            "type": "object",
            "propertyNames": {"enum": ["a", "b"]},
            "additionalProperties": {"type": "null"},
        },
        ['{"a":null,"b":null}', '{"b":null}', "{}"],
        ['{"c":null}', '{"a":1}'],
    ),
    (
        "propertyNames and properties",
        {"properties": {"a": True, "bb": True}, "propertyNames": {"maxLength": 1}},
        ['{"a":1}'],
        ['{"bb":1}'],
    ),
    (
        "number of properties",
        {"properties": {"a": True, "b": True, "c": True}, "minProperties": 1, "maxProperties": 2},
        ['{"a":1}', '{"b":1,"c":1}', '{"a": 1, "c": 2}'],
        ["{}", '{"a":1,"b":1,"c":1}'],
    ),
    (
        "number of properties with free ones",
        {
            "properties": {"a": {}},
            "additionalProperties": {},
            "minProperties": 2,
            "maxProperties": 3,
        },
        ['{"a":1,"b":1}', '{"a":1,"b":1,"c":1}'],
        ['{"a":1}', '{"b":1,"c":1}', '{"a":1,"b":1,"c":1,"d":1}'],
    ),
    (
        "a property that cannot be there",
        {"properties": {"a": False, "b": {"type": "null"}}, "additionalProperties": True},
        ['{"b":null,"c":1}'],
        ['{"a":1}'],
    ),
    (
        "required by alternatives",
        {
            "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        ['{"a":null}', '{"b":null}', '{"a":null,"b":null}'],
        ["{}"],
    ),
    (
        "allOf merges properties",
        {
            "allOf": [
                {"properties": {"a": {"type": "number"}, "b": {"type": "null"}}, "required": ["a"]},
                {"properties": {"a": {"minimum": 3}, "c": {"type": "null"}}},
            ]
        },
        ['{"a":3}', '{"a":3.5,"b":null,"c":null}'],
        ['{"a":2}', "{}"],
    ),
    (
        "additionalProperties see their own schema only",
        {
            "allOf": [{"properties": {"a": {"type": "null"}}}],
            "properties": {"b": {"type": "null"}},
            "additionalProperties": False,
        },
        ["{}", '{"b":null}'],
        ['{"a":null}'],
    ),
    (
        "allOf of types",
        {"allOf": [{"type": ["number", "null"]}, {"type": "integer"}]},
        ["1"],
        ["1.5"],
    ),
    ("anyOf drops what nothing matches", {"anyOf": [False, {"type": "null"}]}, ["null"], ["1"]),
    (
        "anyOf and keywords beside it",
        {"anyOf": [{"minLength": 2}, {"const": "x"}], "type": "string", "maxLength": 3},
        ['"x"', '"ab"'],
        ['"abcd"', '"y"'],
    ),
    (
        "$ref and keywords beside it",
        {"$ref": "#/$defs/a", "maximum": 5, "$defs": {"a": {"type": "integer", "minimum": 3}}},
        ["3", "5"],
        ["6", "2"],
    ),
    (
        "$ref with escapes",
        {"$ref": "#/$defs/a~1b%20c~0", "$defs": {"a/b c~": {"type": "null"}}},
        ["null"],
        ["1"],
    ),
    ("$ref to a list", {"anyOf": [{"type": "null"}, {"$ref": "#/anyOf/0"}]}, ["null"], ["1"]),
    (
        "$id and $anchor",
        {
            "$id": "https://example.com/root.json",
            "prefixItems": [
                {"$ref": "https://example.com/item.json#x"},
                {"$ref": "item.json"},
                {"$ref": "item.json#/$defs/z"},
                {"$ref": "#here"},
            ],
            "$defs": {
                "item": {
                    "$id": "item.json",
                    "$defs": {"y": {"$anchor": "x", "type": "null"}, "z": {"type": "boolean"}},
                    "$ref": "#/$defs/z",
                },
                "here": {"$anchor": "here", "type": "integer"},
            },
        },
        ["[null,true,false,1]"],
        ["[true,true,false,1]", "[null,null,true,1]", "[null,true,null,1]"],
    ),
    (
        "recursion with keywords beside $ref",
        {
            "properties": {"next": {"$ref": "#", "required": ["id"]}, "id": {"type": "integer"}},
            "additionalProperties": False,
        },
        ["{}", '{"next":{"id":2,"next":{"id":1}}}', '{"next":{"id":1}}'],
        ['{"next":{}}'],
    ),
    (
        "names of rules that collide",
        {
            "properties": {
                "date_time": {"properties": {"a": {"type": "null"}}},
                "date-time": {"type": "string", "format": "date-time"},
                "string": {"type": "array", "items": {"type": "string"}},
                "space": {"enum": [1]},
                "dot": {"pattern": "^.$"},
            }
        },
        ['{"date_time":{"a":null},"string":["x"],"space":1,"dot":"x"}', '{ "date_time": {} }'],
        ['{"date_time":"x"}', '{"space":2}', '{"dot":""}'],
    ),
    ("two patterns", {"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, ['"ab"', '"b1a"'], ['"a"']),
    (
        "format and pattern",
        {"format": "date", "pattern": "^2024-02"},
        ['"2024-02-29"'],
        ['"2024-02-30"', '"2024-03-01"'],
    ),
    (
        "format and length",
        {"format": "uri", "maxLength": 300, "minLength": 10},
        ['"https://example.com/a/b?c=d#e"'],
        ['"a:b"', '"example"'],
    ),
    ("unknown format", {"type": "string", "format": "phone"}, ['"x"'], ["1"]),
    ("characters", {"type": "string", "maxLength": 1}, ['"é"', '"😀"', '"\\n"', '""'], ['"ab"']),
    (
        "surrogates are one character",
        {"minLength": 2},
        ['"ab"', '"\\u0041b"'],
        ['"\\ud83d\\ude00"'],
    ),
    (
        "an escape of a surrogate counts as one",
        {"type": "string", "maxLength": 1},
        ['"😀"', '"\\u0041"'],
        ['"\\ud83d\\ude00"'],
    ),
    (
        "long strings",
        {"maxLength": 5000, "minLength": 2100},
        [f'"{"x" * 2100}"'],
        [f'"{"x" * 2099}"'],
    ),
    (
        "oneOf: exactly one of two properties",
        {
            "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        ['{"a":null}', '{"b":null}', '{"a":null,"c":null}'],
        ["{}", '{"a":null,"b":null}', '{"c":null}'],
    ),
    (
        "oneOf: of any properties",
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a":1}', '{"b":1,"ab":2,"ba":[]}'],
        ["{}", '{"a":1,"b":2}'],
    ),
    (
        "oneOf: a property that another alternative requires",
        {
            "$defs": {
                "one": {
                    "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
                    "required": ["a"],
                },
            },
            "oneOf": [
                {"$ref": "#/$defs/one"},
                {"properties": {"b": {"type": "null"}}, "required": ["b"]},
            ],
        },
        ['{"a":null}', '{"b":null}'],
        ['{"a":null,"b":null}'],
    ),
    (
        "oneOf: told apart by a value, or by names that are not allowed",
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"t": {"const": "x"}, "b": {"type": "null"}},
                    "required": ["t"],
                },
                {
                    "type": "object",
                    "properties": {"t": {"enum": ["y", "z"]}, "b": {"type": "null"}},
                    "required": ["t", "b"],
                },
                {
                    "type": "object",
                    "properties": {"b": {"type": "null"}, "t": {"type": "integer"}},
                    "required": ["b"],
                    "additionalProperties": False,
                },
                {"type": ["string", "null"]},
            ]
        },
        ['{"t":"x","b":null}', '{"t":"y","b":null}', '{"b":null,"t":1}', "null"],
        ['{"t":"y"}', '{"t":"x","b":1}', '{"t":1}'],
    ),
    (
        "draft 4's exclusive bounds",
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "minimum": 1,
            "exclusiveMinimum": True,
            "maximum": 3,
            "exclusiveMaximum": False,
        },
        ["1.5", "3"],
        ["1", "3.1"],
    ),
    (
        "draft 4's id",
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "id": "http://a.example/s.json",
            "properties": {"a": {"$ref": "s.json#/definitions/id"}},
            "definitions": {"id": {"type": "null"}},
        },
        ['{"a":null}'],
        ['{"a":1}'],
    ),
    (
        "uniqueItems of an enum",
        {"items": {"enum": ["a", "b", 1, 1.0]}, "uniqueItems": True, "minItems": 1, "maxItems": 2},
        ['["a"]', '["b", "a"]', "[1]", '[1.0,"b"]'],
        ["[]", '["a","a"]', "[1,1.0]", '["a","b",1]', '["c"]'],
    ),
    (
        "uniqueItems of alternatives",
        {"items": {"anyOf": [{"const": "x"}, {"type": ["boolean", "null"]}]}, "uniqueItems": True},
        ["[]", '[null,"x",true,false]', '["x"]'],
        ["[null,null]", '["x",true,"x"]'],
    ),
    (
        "uniqueItems of at most one item",
        {"items": {"type": "string"}, "uniqueItems": True, "maxItems": 1},
        ["[]", '["a"]'],
        ['["a","b"]'],
    ),
    (
        "uniqueItems in a const",
        {"enum": [[1, 1], [1, 2], [True, 1]], "uniqueItems": True},
        ["[1,2]", "[true,1]"],
        ["[1,1]"],
    ),
    (
        "dependentRequired",
        {
            "properties": {n: {"type": "null"} for n in "abc"},
            "dependentRequired": {"a": ["b"], "c": []},
        },
        ["{}", '{"b":null}', '{"a":null,"b":null}', '{"b":null,"c":null}', '{"c":null}'],
        ['{"a":null}', '{"a":null,"c":null}'],
    ),
    (
        "dependentRequired of a free object",
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        ["{}", '{"b":1}', '{"x":1}', '{"a":1,"b":2}'],
        ['{"a":1}', '{"x":1,"a":1}'],
    ),
    (
        "draft 7's dependencies, beside closed properties",
        {
            "allOf": [{"properties": {"a": {"type": "null"}, "b": {"type": "integer"}}}],
            "dependencies": {"a": {"properties": {"b": {"minimum": 5}}, "required": ["b"]}},
        },
        ["{}", '{"b":1}', '{"a":null,"b":5}'],
        ['{"a":null}', '{"a":null,"b":4}', '{"x":1}'],
    ),
    ("a maximum that no document has", {"maxItems": 10**12}, ["[1]"], ["1"]),
]


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"), [case[1:] for case in ACCEPTED], ids=[c[0] for c in ACCEPTED]
)
def test_documents(schema: Any, accepted: list[str], refused: list[str]) -> None:
    grammar = Gbnf(schema_to_gbnf(schema))
    assert [text for text in accepted if not grammar.accepts(text)] == []
    assert [text for text in refused if grammar.accepts(text)] == []
    judge = validator(schema)
    if not isinstance(schema, dict) or not isinstance(schema.get("items"), list):  # draft 7
        assert all(judge.is_valid(json.loads(text)) for text in accepted)
        check_samples(schema, 20)


ZOD_EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]"
    r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)


@pytest.mark.parametrize("beside", [{}, {"format": "email"}, {"maxLength": 60}], ids=str)
def test_an_email_as_zod_writes_it(beside: Any) -> None:
    grammar = check_samples({"type": "string", "pattern": ZOD_EMAIL, **beside}, 20)
    assert grammar.accepts('"a.b+c@mail.example.com"')
    for text in (".a@b.cd", "a..b@c.de", "a@b", "a@b.c"):
        assert not grammar.accepts(json.dumps(text))


def test_strings_of_equal_patterns_share_their_rules() -> None:
    one = {"type": "string", "format": "email", "pattern": ZOD_EMAIL}
    few, many = (schema_to_gbnf({"properties": {f"p{i}": one for i in range(n)}}) for n in (1, 30))
    assert many.count("\n") < few.count("\n") + 100
    assert Gbnf(many).accepts('{"p0":"a@b.cd","p29":"e@f.gh"}')
    assert not Gbnf(many).accepts('{"p0":"a@b.cd","p29":".e@f.gh"}')


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        ({"multipleOf": 0.01}, ["0", "-0.07", "12.5", "12.50", "1e1"][:4], ["0.001", "1e1"]),
        ({"multipleOf": 0.25}, ["0.75", "-1.5", "10", "3.00"], ["0.3", "0.125", "00.5"]),
        ({"multipleOf": 0.5, "type": "integer"}, ["1", "-7"], ["0.5"]),
        ({"multipleOf": 2.5, "type": "integer"}, ["0", "-5", "10"], ["1", "2.5", "12"]),
        ({"multipleOf": 0.05, "minimum": 0.1, "exclusiveMaximum": 1}, ["0.1", "0.95"], ["1", "0"]),
        ({"allOf": [{"multipleOf": 0.4}, {"multipleOf": 0.6}]}, ["1.2", "-2.4"], ["0.4", "1"]),
        ({"multipleOf": 1e-7, "maximum": 1}, ["0.0000001", "-3"], ["0.00000001", "2"]),
    ],
)
def test_multiples_of_decimals(schema: Any, accepted: list[str], refused: list[str]) -> None:
    """A validator with doubles does not see that 0.07 is a multiple of 0.01: decimals judge."""
    grammar, rng = Gbnf(schema_to_gbnf(schema)), random.Random(1)
    judge = Draft202012Validator(json.loads(json.dumps(schema), parse_float=Decimal))
    assert [text for text in accepted if not grammar.accepts(text)] == []
    assert [text for text in refused if grammar.accepts(text)] == []
    for text in (*accepted, *(grammar.sample(rng) for _ in range(40))):
        assert judge.is_valid(json.loads(text, parse_float=Decimal)), text


@pytest.mark.parametrize("name", some(FORMATS, 8))
def test_formats(name: str) -> None:
    check_samples({"type": "string", "format": name}, 60)
    check_samples({"type": "string", "format": name, "minLength": 5, "maxLength": 40}, 20)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "date",
            ["2024-02-29", "2000-02-29", "0001-12-31"],
            ["2023-02-29", "1900-02-29", "0000-01-01"],
        ),
        ("time", ["23:59:59Z", "00:00:00.123456+01:30"], ["24:00:00Z", "00:00:00"]),
        ("date-time", ["2024-01-01T00:00:00Z"], ["2024-01-01 00:00:00Z", "2024-13-01T00:00:00Z"]),
        ("duration", ["P1Y2M3DT4H5M6S", "P4W", "PT1M"], ["P", "PT", "P1D1Y", "1D"]),
        ("email", ["a.b+c@example.com", "x@localhost"], ["a", "@a", "a@", "a b@c.d"]),
        ("hostname", ["example.com", "a-b.c"], ["-a", "a..b", "a_b", ""]),
        ("ipv4", ["0.0.0.0", "255.1.20.199"], ["256.1.1.1", "1.1.1", "01.1.1.1"]),
        ("ipv6", ["::", "::1", "fe80::1:2", "1:2:3:4:5:6:7:8"], ["1:2", ":::", "1::2::3", "g::"]),
        (
            "uri",
            ["https://a.b/c?d#e", "mailto:a@b.c", "urn:x:y"],
            ["/a", "a", "http://[a", "a b:c"],
        ),
        ("uri-reference", ["", "/a/b", "a?b", "#c", "//h/p", "http://h"], ["a b", "\\", "%zz"]),
        ("uuid", ["12345678-1234-1234-1234-1234567890aB"], ["12345678123412341234123456789012"]),
        ("json-pointer", ["", "/a/0", "/~0~1", "/é"], ["a", "/~2"]),
        ("relative-json-pointer", ["0", "1/a", "12#"], ["-1", "01", "/a"]),
        ("uri-template", ["/a/{b}", "{?x,y*}", "x{+p*}"], ["{", "{a b}"]),
    ],
)
def test_strings_of_formats(name: str, good: list[str], bad: list[str]) -> None:
    grammar = Gbnf(schema_to_gbnf({"format": name}))
    assert [
        text for text in good if not grammar.accepts(json.dumps(text, ensure_ascii=False))
    ] == []
    assert [text for text in bad if grammar.accepts(json.dumps(text, ensure_ascii=False))] == []


NESTED: Any = {}
for _ in range(100):
    NESTED = {"properties": {"a": NESTED}}


@pytest.mark.parametrize(
    ("schema", "place", "message"),
    [
        *[
            (
                {"properties": {"a/b": {key: value}}},
                f"#/properties/a~1b/{key}",
                "dependencies"
                if key in ("dependentRequired", "dependencies")
                else "'not'"
                if key == "dependentSchemas"
                else f"{key!r}",
            )
            for key, value in {
                "not": {},
                "if": {},
                "then": {},
                "else": {},
                "uniqueItems": True,
                "contains": {},
                "minContains": 1,
                "dependentRequired": {f"a{i}": ["b"] for i in range(6)},
                "dependentSchemas": {"a": {"not": {}}},
                "dependencies": {f"a{i}": ["b"] for i in range(6)},
                "unevaluatedProperties": False,
                "unevaluatedItems": False,
                "$dynamicRef": "#a",
                "$recursiveRef": "#",
            }.items()
        ],
        ({"$ref": "http://example.com/a.json"}, "#/$ref", "another document"),
        ({"$ref": "a.json#/b"}, "#/$ref", "another document"),
        ({"$ref": "#/$defs/a"}, "#/$ref", "does not exist"),
        ({"$ref": "#a"}, "#/$ref", "no $anchor"),
        ({"$ref": "#/$defs", "$defs": 5}, "#/$ref", "not a schema"),
        ({"$ref": 5}, "#/$ref", "a string"),
        ({"type": "kaboom"}, "#/type", "one or a list of"),
        ({"type": 123}, "#/type", "one or a list of"),
        ({"type": []}, "#/type", "one or a list of"),
        ({"items": {"minLength": -1}}, "#/items/minLength", "at least 0"),
        ({"maxLength": "3"}, "#/maxLength", "at least 0"),
        ({"maxItems": 1.5}, "#/maxItems", "at least 0"),
        ({"minItems": 10**9}, "#/minItems", "at most"),
        ({"minimum": "1"}, "#/minimum", "a number"),
        ({"exclusiveMinimum": True}, "#/exclusiveMinimum", "a number"),
        ({"multipleOf": 0}, "#/multipleOf", "greater than 0"),
        ({"multipleOf": 0.777}, "#/multipleOf", "got 0.777; use another number"),
        ({"multipleOf": 1e-17}, "#/multipleOf", "at most 15 decimals"),
        ({"items": {"enum": list(range(9))}, "uniqueItems": True}, "#/uniqueItems", "9 values"),
        ({"uniqueItems": "yes"}, "#/uniqueItems", "true or false"),
        ({"dependentRequired": {"a": "b"}}, "#/dependentRequired", "lists of strings"),
        ({"dependencies": {"a": [1]}}, "#/dependencies/a", "a list of strings"),
        ({"pattern": r"\p{Script=Han}"}, "#/pattern", "general categories"),
        ({"patternProperties": {"(?<=a)b": {}}}, "#/patternProperties", "lookbehind"),
        ({"type": "integer", "multipleOf": 12345}, "#/multipleOf", "at most 1000"),
        ({"minimum": 1e200}, "#", "beyond"),
        ({"enum": []}, "#/enum", "at least one"),
        ({"enum": 5}, "#/enum", "a list"),
        ({"anyOf": {}}, "#/anyOf", "a list"),
        ({"allOf": [5]}, "#/allOf/0", "a schema must be"),
        ({"properties": []}, "#/properties", "an object"),
        ({"properties": {"a": 5}}, "#/properties/a", "a schema must be"),
        ({"required": "a"}, "#/required", "a list of strings"),
        ({"additionalProperties": 5}, "#/additionalProperties", "a schema must be"),
        ({"items": 5}, "#/items", "a schema"),
        ({"pattern": 5}, "#/pattern", "a string"),
        ({"pattern": "^(a$"}, "#/pattern", "column 2"),
        ({"format": 5}, "#/format", "a string"),
        (
            {"minLength": 5, "maxLength": 3},
            "#/minLength",
            "minLength 5 is greater than maxLength 3",
        ),
        ({"properties": {"a": {"minimum": 2, "maximum": 1}}}, "#/properties/a", "is greater than"),
        ({"additionalProperties": True, "minProperties": 2}, "#/minProperties", "several names"),
        (
            {
                "additionalProperties": {},
                "propertyNames": {"anyOf": [{"minLength": 1}, {"const": 1}]},
            },
            "#/propertyNames",
            "alternatives",
        ),
        ({"$ref": "#"}, "#", "refers to itself"),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "#", "refers to itself"),
        ({"allOf": [{"$ref": "#"}]}, "#", "refers to itself"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "#", "without end"),
        ({"enum": [1, 2], "type": "string"}, "#", "no value of enum"),
        ({"const": 1, "enum": [2]}, "#", "no value of enum"),
        ({"allOf": [{"type": "string"}, {"type": "number"}]}, "#", "no type"),
        ({"allOf": [{"maximum": 1}, {"minimum": 2}]}, "#", "between the bounds"),
        ({"allOf": [{"maxLength": 1}, {"minLength": 2}]}, "#", "between the bounds"),
        ({"allOf": [{"pattern": "^a$"}, {"pattern": "b"}]}, "#", "no string meets"),
        (
            {"exclusiveMinimum": 1, "exclusiveMaximum": 2, "type": "integer"},
            "#",
            "between the bounds",
        ),
        (
            {"properties": {"a": False}, "required": ["a"]},
            "#",
            "no value is valid by the schema false",
        ),
        ({"items": False, "minItems": 1}, "#", "no value is valid by the schema false"),
        (False, "#", "no value is valid by the schema false; use true or {} for any value"),
        ({"required": ["a"], "additionalProperties": False}, "#", "false"),
        ({"properties": {"a": {}}, "minProperties": 2}, "#", "minProperties is 2"),
        ({"type": "object", "required": ["a", "b"], "maxProperties": 1}, "#", "more properties"),
        ({"const": float("nan")}, "#/const", "not a JSON number"),
        ({"const": b"x"}, "#/const", "not a JSON value"),
        ({"const": 10**5000}, "#/const", "too many digits"),
        ({"properties": {"a\nb": {"not": {}}}}, r"#/properties/a\nb/not", "'not'"),
        ({1: 2}, "#", "not a string"),
        ("{", "JSON schema", "not a JSON text"),
        ("[1]", "JSON schema", "must be an object or a boolean"),
        (5, "JSON schema", "must be an object or a boolean"),
        ('{"properties": {"a": {}, "a": {}}}', "JSON schema", "'a' occurs twice"),
        (NESTED, "JSON schema", "64 levels"),
        (json.dumps(NESTED), "JSON schema", "64 levels"),
    ],
)
def test_errors_name_place_and_reason(schema: Any, place: str, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        schema_to_gbnf(schema)
    text = str(caught.value)
    assert place in text and message in text and "\n" not in text and len(text) < 400


def tower(keyword: str, n: int) -> dict[str, Any]:
    """Definitions that each have the next one twice."""
    defs: dict[str, Any] = {
        f"a{i}": {keyword: [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(n)
    }
    return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{n}": {"type": "null"}}}


HOSTILE = [
    tower("allOf", 50),
    tower("anyOf", 50),
    {"allOf": [{"anyOf": [{"minimum": 10 * i + j} for j in range(4)]} for i in range(9)]},
    {"pattern": "(a{1000}){1000}"},
    {"pattern": "^(((a{100}){100}){100}){100}$"},
    {"pattern": "(a|b)*a(a|b){25}", "maxLength": 100},
    {"pattern": "(){1000000}((){1000000}){1000000}"},
    {"pattern": "(a?){100000}$"},
    {"enum": list(range(30000))},
    {"properties": {f"p{i}": {} for i in range(2000)}, "additionalProperties": {}},
    {"properties": {"a" * 5000: {}}, "additionalProperties": {}},
    {"properties": {f"p{i}": {} for i in range(300)}, "maxProperties": 100},
    {"patternProperties": {f"^.*{char}.*$": {} for char in "abcdefgh"}},
    {"format": "uri", "pattern": "^https", "maxLength": 2048},
    {"pattern": "".join(map(chr, range(0x4E00, 0x9000)))},
    {"pattern": "|".join(map(chr, range(0x4E00, 0x6000)))},
    {"properties": {"x" * 50_000: {}}, "patternProperties": {"a": {}}},
    {"properties": {f"{i:0190}": {} for i in range(500)}, "patternProperties": {"a": {}}},
    {"minItems": 2_000_000},
    {"type": "integer", "minimum": -(10**1000)},
    {"pattern": "^" + "".join(f"(?=.*{chr(0x4E00 + i)})" for i in range(40))},
    {"pattern": "((?!(a|b)*c(a|b){9}).)*"},
    {"pattern": r"^(\p{L}\p{N}?){1000}$"},
    {"pattern": "(?i)" + "|".join(map(chr, range(0x400, 0x4FF)))},
    {"pattern": r"(\b.\b|\B..\B){500}"},
    {"items": {"enum": list(range(100))}, "uniqueItems": True, "maxItems": 2},
    {"multipleOf": 0.0001, "minimum": -1e14, "maximum": 1e14},
    {
        "properties": {f"p{i}": {} for i in range(500)},
        "dependentRequired": {f"p{i}": [f"p{i + 9}"] for i in range(5)},
    },
]


@pytest.mark.parametrize("schema", some(HOSTILE, 3))
def test_hostile_schemas_take_bounded_time(schema: Any) -> None:
    start = time.process_time()
    try:
        assert len(schema_to_gbnf(schema)) <= (1 << 20) + 10
    except SchemaError as error:
        assert "\n" not in str(error)
    assert time.process_time() - start < 10


# keyword -> a value that a grammar does not hold
UNHELD: dict[str, Any] = {
    "not": {"type": "null"},
    "if": {"required": ["a"]},
    "then": {"required": ["b"]},
    "else": False,
    "contains": {"type": "null"},
    "minContains": 2,
    "maxContains": 3,
    "unevaluatedItems": False,
    "unevaluatedProperties": False,
    "$dynamicRef": "#a",
    "$recursiveRef": "#",
    "dependentRequired": {f"a{i}": ["b"] for i in range(6)},
}
OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def left_out(schema: Any) -> list[str]:
    """What a relaxed grammar leaves out; without it, the schema makes the same grammar."""
    return list(relaxed_gbnf(schema)[1])


@pytest.mark.parametrize("key", UNHELD)
def test_a_relaxed_grammar_leaves_out_what_it_cannot_hold(key: str) -> None:
    inner = {**OBJECT, key: UNHELD[key]}
    for wrap, pointer in (
        (lambda one: one, ""),
        (lambda one: {"properties": {"x/y": one}}, "/properties/x~1y"),
        (lambda one: {"items": {"anyOf": [one, {"type": "null"}]}}, "/items/anyOf/0"),
        (lambda one: {"$ref": "#/here/0", "here": [one]}, "/here/0"),
        (lambda one: {"allOf": [one, {"properties": {"b": {}}}]}, "/allOf/0"),
    ):
        text, found = relaxed_gbnf(wrap(inner))
        assert text == schema_to_gbnf(wrap(OBJECT))
        assert list(found) == [f"{pointer}/{key}"]
        (reason,) = found.values()
        with pytest.raises(SchemaError) as caught:
            schema_to_gbnf(wrap(inner))
        assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("schema", "pointer", "accepted", "refused"),
    [
        ({"type": "string", "pattern": "(?<=a)b"}, "/pattern", ['"ab"', '"x"'], ["1"]),
        ({"pattern": "(", "maxLength": 2}, "/pattern", ['"ab"'], ['"abc"', "1"]),
        ({"enum": ["a", 1], "pattern": "(?<=a)b"}, "/pattern", ['"a"', "1"], ['"b"']),
        ({"minimum": 2, "multipleOf": 12345}, "/multipleOf", ["2", "7.5"], ["1", '"a"']),
        ({"minimum": 1e200}, "", ["1", "1e200"], ['"a"']),
        ({"exclusiveMinimum": True}, "/exclusiveMinimum", ["1"], []),
        (
            {"items": {"type": "integer"}, "uniqueItems": True, "minItems": 1},
            "/uniqueItems",
            ["[1]", "[1,1]"],
            ["[]", '["a"]'],
        ),
        ({"$ref": "http://a.example/b.json"}, "/$ref", ["1", '{"a":1}'], []),
        ({"properties": {"a": {"$ref": "b.json"}}}, "/properties/a/$ref", ['{"a":1}'], ['{"b":1}']),
        (
            {"patternProperties": {"(?<=a)b": {"type": "null"}}, "additionalProperties": False},
            "/patternProperties",
            ['{"ab":null}', '{"x":1}'],
            ["1"],
        ),
        (
            {
                "properties": {"a": {"type": "null"}},
                "patternProperties": {c: {} for c in "123456789"},
            },
            "/patternProperties",
            ['{"a":null,"1":1}'],
            ['{"a":1}'],
        ),
        (
            {"type": "object", "propertyNames": {"anyOf": [{"minLength": 1}, {"const": 1}]}},
            "/propertyNames",
            ['{"a":1}'],
            ["1"],
        ),
        ({"additionalProperties": True, "minProperties": 2}, "/minProperties", ['{"a":1}'], ["1"]),
        (
            {"properties": {"x" * 300: {"type": "null"}}, "additionalProperties": {"type": "null"}},
            "",
            ['{"a":null}', json.dumps({"x" * 300: None})],
            ["1"],
        ),
        (
            {"pattern": "(a|b)*a(a|b){25}", "allOf": [{"pattern": "b"}]},
            "/pattern",
            ['"ab"'],
            ["1"],
        ),
        (
            {"type": ["object", "null"], "allOf": [{"anyOf": [{"minimum": i}] * 99} for i in "ab"]},
            "/allOf/0/anyOf/0/minimum",
            [],
            [],
        ),
    ],
)  # fmt: skip
def test_a_relaxed_grammar_accepts_more(
    schema: Any, pointer: str, accepted: list[str], refused: list[str]
) -> None:
    if not accepted:  # a wrong value is no keyword that a grammar cannot hold
        with pytest.raises(SchemaError, match=pointer):
            relaxed_gbnf(schema)
        return
    text, found = relaxed_gbnf(schema)
    assert list(found) == [pointer]
    grammar = Gbnf(text)
    assert grammar.is_productive
    assert [one for one in accepted if not grammar.accepts(one)] == []
    assert [one for one in refused if grammar.accepts(one)] == []
    with pytest.raises(SchemaError):
        schema_to_gbnf(schema)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_relaxed_grammar_of_a_random_schema_is_the_strict_one(seed: int) -> None:
    schema, rng = RandomSchema(seed).draw(), random.Random(seed)
    try:
        text = schema_to_gbnf(schema)
    except SchemaError as error:
        with pytest.raises(SchemaError, match=re.escape(str(error))):
            relaxed_gbnf(schema)
        return
    assert relaxed_gbnf(schema) == (text, {})
    n_put = 0

    def put(value: Any) -> Any:
        """The schema with what cannot be held, where it has properties."""
        nonlocal n_put
        if (
            isinstance(value, dict)
            and "properties" in value
            and isinstance(value["properties"], dict)
        ):
            value = {
                k: {n: put(v) for n, v in x.items()} if k == "properties" else x
                for k, x in value.items()
            }
            if rng.random() < 0.5:
                n_put += 1
                value["not"] = {"required": ["zzz"]}
        return value

    changed = put(schema)
    found, left_out = relaxed_gbnf(changed)
    assert found == text
    assert len(left_out) <= n_put


@pytest.mark.parametrize(
    "schema",
    [
        *some(HOSTILE, 1),
        {"properties": {f"p{i}": {"not": {}, "pattern": "(?<=a)b"} for i in range(10_000)}},
        {
            "properties": {
                f"p{i}": {"multipleOf": 12345, "pattern": "(a{1000}){1000}"} for i in range(50)
            }
        },
        {"properties": {"a" * i: {"enum": ["x" * 200 + c for c in NAMES]} for i in range(1, 200)}},
    ],
)  # fmt: skip
def test_relaxed_grammars_take_bounded_time(schema: Any) -> None:
    start = time.process_time()
    with contextlib.suppress(Unsatisfiable):
        assert len(relaxed_gbnf(schema)[0]) <= (1 << 20) + 10
    assert time.process_time() - start < 10


def test_levels_of_what_is_left_out_take_bounded_time() -> None:
    schema: Any = {"type": "null"}
    for _ in range(30):
        schema = {
            "properties": {"a": schema, "b" * 300: {"multipleOf": 12345}},
            "additionalProperties": True,
            "propertyNames": {"anyOf": [{"minLength": 1}, {"const": 1}]},
            "minProperties": 9,
            "not": {},
        }
    start = time.process_time()
    assert len(relaxed_gbnf(schema)[1]) > 60
    assert time.process_time() - start < 10
