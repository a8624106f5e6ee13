"""Changes metadata: a number or bool in place, or any key in a copy.

    change = plan_change(file, "tokenizer.ggml.add_bos_token", "false")
    change.apply(file)                             # one byte of the file

    metadata = whole_metadata(file)
    set_chat_template(metadata, "{{ messages }}")
    copy_gguf(file, "y.gguf", metadata)

Source: gguf-py, ``gguf_set_metadata`` and ``gguf_new_metadata``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyggml.files import open_regular
from pyggml.gguf import GGUFError, GGUFFile, GGUFStrings, ValueType
from pyggml.gguf.header import ALIGNMENT_KEY
from pyggml.gguf.parts import SPLIT_KEYS
from pyggml.gguf.types import parse_value

from ..inputs.bounded_json import parse_json

_MAX_VALUES = 4 << 20  # of an array in a setting
CHAT_TEMPLATE = "tokenizer.chat_template"
_TEMPLATE_NAMES = "tokenizer.chat_templates"
_TOKENS = "tokenizer.ggml.tokens"
SPECIAL_TOKENS = (  # GGUF's spelling
    *("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask"),
    *("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep", "prefix", "suffix"),
    "middle",
)
_TYPES = {
    **{f"u{n}": ValueType[f"UINT{n}"] for n in (8, 16, 32, 64)},
    **{f"i{n}": ValueType[f"INT{n}"] for n in (8, 16, 32, 64)},
    **{f"f{n}": ValueType[f"FLOAT{n}"] for n in (32, 64)},
    "bool": ValueType.BOOL,
    "str": ValueType.STRING,
}


@dataclass(frozen=True)
class Change:
    """The replacement of a value by another of the same size."""

    key: str
    kind: ValueType
    old: Any
    new: Any
    offset: int

    def apply(self, file: GGUFFile) -> None:
        """Write the new value. Raises: GGUFError: the file cannot be written."""
        data = self.kind.dtype.type(self.new).tobytes()
        try:
            with open_regular(file.path, update=True) as out:
                out.seek(self.offset)
                out.write(data)
        except OSError as error:
            raise GGUFError(f"{file.path}: cannot be written: {error.strerror or error}") from error


def plan_change(file: GGUFFile, key: str, text: str) -> Change:
    """Return the change that sets ``key`` to ``text``; nothing is written.

    Raises:
        GGUFError: there is no such key, its value is an array or string, or ``text`` is not of its
            type.
    """
    kind = file.value_types.get(key)
    if kind is None:
        raise GGUFError(
            f"{file.path}: there is no metadata key {key!r}; pyllama gguf new can add it"
        )
    if not kind.code:
        raise GGUFError(
            f"{file.path}: {key!r} is of type {kind.name}, only numbers and bools can be set in "
            f"place; make a copy with pyllama gguf new"
        )
    if key in (ALIGNMENT_KEY, *SPLIT_KEYS):
        raise GGUFError(
            f"{file.path}: {key!r} describes the layout of the file and cannot be changed in "
            "place; use pyllama gguf new, split or merge instead"
        )
    try:
        new = parse_value(kind, text)
    except ValueError as error:
        raise GGUFError(f"{file.path}: {key!r} cannot be set: {error}") from None
    return Change(key, kind, file.metadata[key], new, file.value_offsets[key])


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse ``KEY=TYPE:VALUE`` and return the key and a value for ``write_gguf``.

    ``TYPE`` is u8 ... u64, i8 ... i64, f32, f64, bool or str; in brackets, as in ``[i32]``, the
    value is a JSON array.

    Raises:
        ValueError: the text is invalid, or the key is a ``split.*`` key.
    """
    match = re.fullmatch(r"([^=]+)=(\[?)(\w+)(\]?):(.*)", text, re.DOTALL)
    if match is None or match[3] not in _TYPES or bool(match[2]) != bool(match[4]):
        raise ValueError(f"{text!r} is not KEY=TYPE:VALUE with a TYPE of {', '.join(_TYPES)}")
    key, kind = match[1], _TYPES[match[3]]
    if key in SPLIT_KEYS:
        raise ValueError(f"{key!r} describes the split of a file: use pyllama-gguf split or merge")
    if not match[2]:
        value = parse_value(kind, match[5])
        return key, value if kind is ValueType.STRING else kind.dtype.type(value)
    try:
        items = parse_json(match[5].encode("utf-8", "surrogateescape"), _MAX_VALUES)
    except ValueError:
        items = None
    if not isinstance(items, list):
        raise ValueError(f"{text!r}: {match[5]!r} is not a JSON array")
    if kind is ValueType.STRING:
        if not all(isinstance(item, str) for item in items):
            raise ValueError(f"{text!r}: not all items are strings")
        return key, items
    values = [parse_value(kind, json.dumps(item)) for item in items]
    return key, np.array(values, kind.dtype)


def special_token_key(name: str) -> str:
    """Return the metadata key of a special token's id.

    Raises:
        GGUFError: there is no such special token.
    """
    if name not in SPECIAL_TOKENS:
        have = ", ".join(SPECIAL_TOKENS)
        raise GGUFError(f"unknown special token {name!r}; known are {have}")
    return f"tokenizer.ggml.{name}_token_id"


def token_ids(file: GGUFFile, text: str) -> list[int]:
    """Return the ids of the tokens with a text. Raises: GGUFError: there is none."""
    ids = [i for i, token in enumerate(_tokens(file)) if token == text]
    if not ids:
        raise GGUFError(f"{file.path}: no token of the vocabulary is {text!r}")
    return ids


def check_token_id(file: GGUFFile, id: int) -> str:
    """Return the text of a token. Raises: GGUFError: there is no such id."""
    tokens = _tokens(file)
    if not 0 <= id < len(tokens):
        raise GGUFError(f"{file.path}: there is no token {id}, the vocabulary has {len(tokens)}")
    return tokens[id]


def _tokens(file: GGUFFile) -> GGUFStrings:
    return file.get_strings(_TOKENS)


def set_chat_template(
    metadata: dict[str, Any], template: str | Sequence[Mapping[str, Any]]
) -> None:
    """Replace all chat templates in the metadata by one text or a list of named templates.

    Raises:
        GGUFError: ``template`` is invalid, or an entry has no name or no template.
    """
    if not isinstance(template, Sequence):
        raise GGUFError(
            f"a chat template is {template!r:.40}, must be a text or a list of named templates"
        )
    for key in [k for k in metadata if k.startswith(CHAT_TEMPLATE)]:
        del metadata[key]
    if isinstance(template, str):
        metadata[CHAT_TEMPLATE] = template
        return
    names = []
    default = None
    for entry in template:
        found = entry if isinstance(entry, Mapping) else {}
        name, text = found.get("name"), found.get("template")
        if not (isinstance(name, str) and name and isinstance(text, str)):
            raise GGUFError("a list of chat templates needs a name and a template in each entry")
        name = re.sub(r"[^a-zA-Z0-9]", "_", name)
        if name == "default":
            default = text
        else:
            names.append(name)
            metadata[f"{CHAT_TEMPLATE}.{name}"] = text
    if names:
        metadata[_TEMPLATE_NAMES] = names
    if default is not None:
        metadata[CHAT_TEMPLATE] = default
