"""Converts special tokens, the flags that add BOS and EOS, and chat templates.

    keys, ids = special_keys(folder, config, vocabulary, tokens)
    keys["tokenizer.ggml.bos_token_id"]

Precedence: tokenizer_config.json, special_tokens_map.json, config.json, generation_config.json, the
tokenizer's own file.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import ModelError
from ...inputs.budget import MAX_TEMPLATE_BYTES, shown
from ...inputs.text import decode_text
from ...mapping.rules import Config
from ...tokenizer.special import find_eog
from ..files.folder import Folder, objects, unreadable
from .rwkv import CHAT_TEMPLATE
from .tokens import FileVocabulary

log = logging.getLogger(__name__)

_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",  # GGUF's spelling
    "pad": "padding_token_id",
    "mask": "mask_token_id",
}
_ADDITIONAL = "additional_chat_templates"
_NAMED = ("bos", "eos", "unk", "sep", "pad", "mask")  # roles in Hugging Face's files


def special_keys(
    folder: Folder, config: Config, vocabulary: FileVocabulary, tokens: Sequence[str]
) -> tuple[dict[str, Any], set[int]]:
    """Return the metadata keys, and the ids of all special tokens. Raises: ModelError."""
    ids = {text: i for i, text in enumerate(tokens)}
    settings = folder.json("tokenizer_config.json")
    texts = (settings, folder.json("special_tokens_map.json"))
    numbers = (config, folder.json("generation_config.json"))
    template = _template(folder)

    def named(role: str) -> Iterator[Any]:
        names = [_text(file.get(f"{role}_token")) for file in texts]
        yield from (ids.get(name) for name in [*names, template.get(role)] if name is not None)
        for file in numbers:
            value = file.get(f"{role}_token_id")
            yield from value if isinstance(value, list) else [value]
        yield vocabulary.roles.get(role)

    roles: dict[str, int] = {}
    if vocabulary.model == "rwkv":  # other files have the numbers of other vocabularies
        roles = vocabulary.roles
    else:
        for role in _NAMED:
            for i in named(role):
                if type(i) is int and 0 <= i < len(tokens):
                    roles.setdefault(role, i)
        _add_ends(roles, [i for i in named("eos") if type(i) is int], tokens, ids)
    keys: dict[str, Any] = {f"tokenizer.ggml.{_KEYS[role]}": i for role, i in roles.items()}
    for role in ("bos", "eos"):
        add = settings.get(f"add_{role}_token")
        if not isinstance(add, bool) and role in template:
            add = ids.get(template[role]) == roles.get(role)
        if isinstance(add, bool):
            keys[f"tokenizer.ggml.add_{role}_token"] = add
    if "between" in template:
        keys["tokenizer.ggml.add_sep_token"] = template["between"] == "2"
    templates = _chat_templates(folder, settings)
    if vocabulary.model == "rwkv" and not templates:
        templates = {"tokenizer.chat_template": CHAT_TEMPLATE}
    return keys | templates, set(roles.values())


def _text(token: Any) -> str | None:
    """Return the text of a token given as a string or an object; None for anything else."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _template(folder: Folder) -> dict[str, str]:
    """Return the special tokens that tokenizer.json adds to a text, by role (bos, eos).

    ``between`` is the number of tokens between the texts of a pair.
    """
    found: dict[str, str] = {}
    for processor in objects(folder.json("tokenizer.json").get("post_processor")):
        for part in [processor, *objects(processor.get("processors"))]:
            if part.get("type") in ("BertProcessing", "RobertaProcessing"):
                for role, name in (("bos", "cls"), ("eos", "sep")):
                    match part.get(name):
                        case [str(text), int()]:
                            found[role] = text
                found["between"] = "2" if part["type"] == "RobertaProcessing" else "1"
            single, pair = objects(part.get("single")), objects(part.get("pair"))
            at = [i for i, piece in enumerate(pair) if "Sequence" in piece]
            if len(at) == 2 and at[1] - at[0] > 1:
                found["between"] = str(at[1] - at[0] - 1)
            if part.get("type") != "TemplateProcessing" or len(single) < 2:
                continue
            for role, piece in (("bos", single[0]), ("eos", single[-1])):
                for token in objects(piece.get("SpecialToken")):
                    if isinstance(token.get("id"), str):
                        found[role] = token["id"]
    return found


def _add_ends(
    roles: dict[str, int], ends: list[int], tokens: Sequence[str], ids: dict[str, int]
) -> None:
    """Assign the roles eot and eom to further end tokens that are not recognised by their text."""
    free, dropped = ["eot", "eom"], list[str]()
    for i in dict.fromkeys(i for i in ends if 0 <= i < len(tokens)):
        if i in find_eog(roles, ids):
            continue
        if free:
            roles[free.pop(0)] = i
        else:
            dropped.append(tokens[i])
    if dropped:
        more = f" and {len(dropped) - 1} more are" if len(dropped) > 1 else " is"
        log.warning("%s%s lost as end-of-text: GGUF has no key left", shown(dropped[0]), more)


def _chat_templates(folder: Folder, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of the default chat template and of those with other names."""
    template = settings.get("chat_template")
    if template is None and folder.has("chat_template.jinja"):
        template = _read_template(folder, "chat_template.jinja")
    if template is None:
        template = folder.json("chat_template.json").get("chat_template")
    keys: dict[str, Any] = {}
    for name, text in (*_named_templates(template), *_additional_templates(folder)):
        if max(len(name), len(text)) > MAX_TEMPLATE_BYTES:
            raise ModelError(
                f"{folder.path}: the chat template {shown(name)} has {len(text)} characters, "
                f"the limit is {MAX_TEMPLATE_BYTES}"
            )
        name = re.sub(r"[^A-Za-z0-9]", "_", name)
        suffix = "" if name == "default" else f".{name}"
        keys.setdefault(f"tokenizer.chat_template{suffix}", text)
    others = [key.rpartition(".")[2] for key in keys if key != "tokenizer.chat_template"]
    return keys | ({"tokenizer.chat_templates": others} if others else {})


def _named_templates(template: Any) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of a template, or of several: a list of objects, or an object by name."""
    if isinstance(template, str):
        yield "default", template
    pairs = [(entry.get("name"), entry.get("template")) for entry in objects(template)]
    if isinstance(template, dict) and "template" not in template:
        pairs = list(template.items())
    for name, text in pairs:
        if isinstance(name, str) and name and isinstance(text, str):
            yield name, text


def _additional_templates(folder: Folder) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the files in ``additional_chat_templates``."""
    path = folder.path / _ADDITIONAL
    if not path.is_dir():
        return
    try:
        names = sorted(file.name for file in path.iterdir() if file.suffix == ".jinja")
    except OSError as error:
        raise unreadable(path, error) from None
    folder.budget.take("values", len(names), path)
    for name in names:
        yield name.removesuffix(".jinja"), _read_template(folder, f"{_ADDITIONAL}/{name}")


def _read_template(folder: Folder, name: str) -> str:
    """Return the text of a template's file. Raises: ModelError."""
    try:
        return decode_text(folder.read(name, MAX_TEMPLATE_BYTES), "strict")
    except UnicodeDecodeError as error:
        raise ModelError(f"{folder.path / name}: not UTF-8 ({error})") from None
