"""Random JSON schemas with bounded strings and arrays, and documents for them."""

from __future__ import annotations

import json
import math
import random
import string
from typing import Any

NAMES = ["a", "b", "ab", "name", "id", "x-1", 'q"', "b\\s", "é", "", "date_time", "^", "a]b", "\n"]
PATTERNS = [
    "^[a-z]{2,5}$",
    "^x-",
    "[0-9]",
    r"^\d{3}-\d{2}$",
    "a|b",
    "^a|b$",
    "^(foo|bar)?baz$",
    "^[^a-c]+$",
    r"^\w+ \w+$",
    "^.{1,3}$",
    r'^"\\?$',
    "",
    r"\S$",
]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email", "unknown", "duration"]
# Without @: jsonschema takes any text with one for an email address.
_CHARACTERS = string.printable.replace("@", "") + "é€😀"
VALUES = [None, True, False, 0, 1, 1.0, -2.5, "a", "ab", "", 'q"\\', "\n\x01é", [], [1], {}]


class RandomSchema:
    """Draws schemas that some document matches, mostly."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.defs: dict[str, Any] = {}

    def draw(self) -> Any:
        names = self.rng.sample(["node", "item", "a/b", "p~q"], self.rng.randint(0, 3))
        self.names = names
        root = self.schema(3)
        if names and isinstance(root, dict):
            self.defs = {name: self.schema(2, inside=True) for name in names}
            root = {**root, "$defs": self.defs}
        return root

    def schema(self, depth: int, inside: bool = False) -> Any:
        rng = self.rng
        kinds = ["string", "number", "integer", "boolean", "null", "enum", "const", "any"]
        if depth > 0:
            kinds += ["object"] * 5 + ["array"] * 3 + ["anyOf", "oneOf", "allOf", "types"]
            kinds += ["ref"] * 2 if self.names and not inside else []
        kind = rng.choice(kinds)
        more = (inside,) if kind == "anyOf" else ()
        made = getattr(self, f"draw_{kind}")(depth, *more)
        if isinstance(made, dict) and rng.random() < 0.15:
            made["description"] = "some text"
        return made

    def draw_any(self, depth: int) -> Any:
        return self.rng.choice([True, {}, {"title": "x"}])

    def draw_null(self, depth: int) -> Any:
        return {"type": "null"}

    def draw_boolean(self, depth: int) -> Any:
        return {"type": "boolean"}

    def draw_enum(self, depth: int) -> Any:
        made = {"enum": self.rng.sample(VALUES[3:], self.rng.randint(1, 5))}
        if self.rng.random() < 0.3:
            kinds = {"number": "number", "string": "string", "array": "array", "object": "object"}
            made["type"] = list(kinds)
        return made

    def draw_const(self, depth: int) -> Any:
        return {"const": self.rng.choice(VALUES)}

    def draw_types(self, depth: int) -> Any:
        kinds = self.rng.sample(["string", "number", "null", "boolean", "integer"], 2)
        made: dict[str, Any] = {"type": kinds}
        if "string" in kinds:
            made["maxLength"] = self.rng.randint(0, 8)
        return made

    def draw_string(self, depth: int) -> Any:
        rng = self.rng
        made: dict[str, Any] = {"type": "string"}
        choice = rng.random()
        if choice < 0.35:
            made["pattern"] = rng.choice(PATTERNS)
            if rng.random() < 0.4:
                made["maxLength"] = rng.randint(6, 12)
            if rng.random() < 0.2:
                made["minLength"] = rng.randint(0, 3)
        elif choice < 0.55:
            made["format"] = rng.choice(FORMATS)
        else:
            low = rng.randint(0, 3)
            made["minLength"] = low
            made["maxLength"] = low + rng.randint(0, 6)
        return made

    def bounds(self, scale: float) -> dict[str, Any]:
        rng = self.rng
        low = rng.choice([rng.randint(-200, 200), round(rng.uniform(-20, 20), rng.randint(0, 3))])
        made: dict[str, Any] = {}
        if rng.random() < 0.6:
            made[rng.choice(["minimum", "exclusiveMinimum"])] = low
        if rng.random() < 0.6:
            made[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.choice([3, 10, 250, 1e4])
        return made

    def draw_integer(self, depth: int) -> Any:
        made = {"type": "integer", **self.bounds(1)}
        if self.rng.random() < 0.25:
            made["multipleOf"] = self.rng.choice([1, 2, 3])
        return made

    def draw_number(self, depth: int) -> Any:
        return {"type": "number", **self.bounds(1)}

    def draw_array(self, depth: int) -> Any:
        rng = self.rng
        made: dict[str, Any] = {"type": "array"}
        if rng.random() < 0.3:
            made["prefixItems"] = [self.schema(depth - 1) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.8:
            made["items"] = self.schema(depth - 1)
        low = rng.randint(0, 2)
        if rng.random() < 0.5:
            made["minItems"] = low
        made["maxItems"] = low + rng.randint(0, 3)
        return made

    def draw_object(self, depth: int) -> Any:
        rng = self.rng
        names = rng.sample(NAMES, rng.randint(0, 4))
        made: dict[str, Any] = {
            "type": "object",
            "properties": {name: self.schema(depth - 1) for name in names},
        }
        if names and rng.random() < 0.7:
            made["required"] = rng.sample(names, rng.randint(0, len(names)))
        if rng.random() < 0.1:
            made.setdefault("required", []).append("extra")
        choice = rng.random()
        if choice < 0.3:
            made["additionalProperties"] = self.schema(depth - 1)
        elif choice < 0.5:
            made["additionalProperties"] = False
            if "extra" in made.get("required", ()):
                made["required"].remove("extra")
        if rng.random() < 0.2:
            made["patternProperties"] = {
                pattern: self.schema(depth - 1) for pattern in rng.sample(["^x-", "b$", "[0-9]"], 2)
            }
        if rng.random() < 0.1:
            made["maxProperties"] = len(made.get("required", ())) + rng.randint(0, 2)
        if rng.random() < 0.1:
            made["minProperties"] = min(1, made.get("maxProperties", 1))
        if rng.random() < 0.1 and "additionalProperties" in made:
            made["propertyNames"] = {"maxLength": 6}
        return made

    def draw_anyOf(self, depth: int, inside: bool) -> Any:
        return {"anyOf": [self.schema(depth - 1, inside) for _ in range(self.rng.randint(1, 3))]}

    def draw_oneOf(self, depth: int) -> Any:  # alternatives that exclude each other
        makers = [self.draw_string, self.draw_integer, self.draw_boolean, self.draw_array]
        chosen = self.rng.sample(makers, 2)
        return {"oneOf": [make(max(depth - 1, 1)) for make in chosen]}

    def draw_allOf(self, depth: int) -> Any:
        rng = self.rng
        made = self.draw_object(depth)
        more = {"type": "object", "properties": {"more": self.schema(depth - 1)}}
        extra = {"anyOf": [{"required": [name]} for name in list(made["properties"])[:2]]}
        parts = [made, more, *([extra] if extra["anyOf"] else [])]
        return {"allOf": rng.sample(parts, len(parts))}

    def draw_ref(self, depth: int) -> Any:
        name = self.rng.choice(self.names).replace("~", "~0").replace("/", "~1")
        made = {"$ref": f"#/$defs/{name}"}
        if self.rng.random() < 0.1:
            made["type"] = ["object", "array", "string", "number", "boolean", "null"]
        return made


def bounded(schema: Any) -> Any:
    """A random schema whose strings, arrays and objects have a greatest size, names of keys too.

    A schema of any value becomes one of scalars, and an object of any properties has none.
    """
    if isinstance(schema, bool) or not schema.keys() - {"title", "description"}:
        return {"type": ["boolean", "integer", "null"]}
    made = dict(schema)
    for key in ("properties", "patternProperties", "$defs"):
        if key in made:
            made[key] = {name: bounded(inner) for name, inner in made[key].items()}
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if key in made:
            made[key] = [bounded(inner) for inner in made[key]]
    free = made.get("additionalProperties", False)
    if free is not False:
        made["additionalProperties"] = bounded(free)
    if free is not False or "patternProperties" in made:
        made.setdefault("propertyNames", {"maxLength": 12})
        made.setdefault("maxProperties", len(made.get("properties", ())) + 2)
    kind = made.get("type")
    if kind == "array":
        made["items"] = bounded(made.get("items", True))
    elif kind == "object" and not made["properties"]:
        made.setdefault("additionalProperties", False)
    elif kind == "string" or (isinstance(kind, list) and "string" in kind and "enum" not in made):
        made.setdefault("maxLength", 40)
    return made


class RandomDocument:
    """Draws documents that often match a schema, with properties in its order."""

    def __init__(self, root: Any, seed: int) -> None:
        self.root, self.rng = root, random.Random(seed)

    def draw(self, schema: Any, depth: int = 6) -> Any:
        rng = self.rng
        if isinstance(schema, bool):
            return rng.choice(VALUES)
        if depth < 0:  # no array: one of a prefix would have to be whole
            return rng.choice([value for value in VALUES if not isinstance(value, list)])
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2].replace("~1", "/").replace("~0", "~")
            return self.draw(self.root["$defs"][name], depth - 1)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self.draw(rng.choice(schema[key]), depth - 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        kind = schema.get("type", rng.choice(["string", "integer", "object"]))
        kind = rng.choice(kind) if isinstance(kind, list) else kind
        draw = getattr(self, f"draw_{kind}", None)
        return draw(schema, depth) if draw else rng.choice([None, True, False])

    def draw_null(self, schema: Any, depth: int) -> Any:
        return None

    def draw_boolean(self, schema: Any, depth: int) -> Any:
        return self.rng.random() < 0.5

    def draw_string(self, schema: Any, depth: int) -> Any:
        samples = ["abc", "x-9", "123-45", "foobaz", "baz", "d e", '"', '"\\', "2024-02-29", "b"]
        samples += ["2023-12-31T10:00:00Z", "10:00:00Z", "1.2.3.4", "a@b.c", "P1D", "éé", "\x01"]
        n = self.rng.randint(schema.get("minLength", 0), schema.get("maxLength", 8))
        random_text = "".join(self.rng.choice(_CHARACTERS) for _ in range(n))
        return self.rng.choice([*samples, *[random_text] * 12])

    def draw_integer(self, schema: Any, depth: int) -> Any:
        low = schema.get("minimum", schema.get("exclusiveMinimum", -300))
        high = schema.get("maximum", schema.get("exclusiveMaximum", 300))
        return self.rng.randint(math.floor(low), max(math.ceil(high), math.floor(low)))

    def draw_number(self, schema: Any, depth: int) -> Any:
        value = self.draw_integer(schema, depth) + self.rng.choice([0, 0.5, 0.25, -0.125, 0.001])
        return value

    def draw_array(self, schema: Any, depth: int) -> Any:
        prefix = schema.get("prefixItems", [])
        most = schema.get("maxItems", 4)
        n = self.rng.randint(min(schema.get("minItems", len(prefix)), most), most)
        if "items" not in schema and prefix:
            n = min(n, len(prefix))
        made = [self.draw(item, depth - 1) for item in prefix[:n]]
        return made + [
            self.draw(schema.get("items", True), depth - 1) for _ in range(n - len(made))
        ]

    def draw_object(self, schema: Any, depth: int) -> Any:
        required = schema.get("required", [])
        made = {
            name: self.draw(inner, depth - 1)
            for name, inner in schema.get("properties", {}).items()
            if name in required or self.rng.random() < 0.5
        }
        order = [*[n for n in made if n in required], *[n for n in made if n not in required]]
        made = {name: made[name] for name in order}
        if isinstance(schema.get("additionalProperties"), dict) and self.rng.random() < 0.5:
            for name in self.rng.sample(["zeta", "x-2", "n1", "ac"], 2):
                made.setdefault(name, self.draw(schema["additionalProperties"], depth - 1))
        return made


def texts(value: Any) -> list[str]:
    """A document in two layouts."""
    return [
        json.dumps(value, ensure_ascii=False),
        json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    ]
