"""Options of models in an INI file, for a server of several models.

    values = given_values(ctx)                     # {"n_ctx": ("--ctx-size", "4096"), ...}
    presets = read_presets(path, ctx.command)      # of each section, ``[*]`` among them
    arguments({**presets["*"].values, **presets["tiny"].values, **values})

A key is a flag without its dashes, or the name of an environment variable. What belongs to the
router, such as the port, is left out.

Source: llama.cpp, ``common_preset_context::load_from_ini``.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from pyllama.parameters import rows
from pyllama.parameters.serving import Listening

from ..environment import is_on, variables
from ..paths import read_text
from ..tool import given_options
from ..unsupported import why_not

Values = dict[str, tuple[str, ...]]
"""Name of an option -> its flag and values, as on a command line."""
GLOBAL = "*"
_NO_SECTION = "default"  # llama.cpp's name for keys before any section
ROUTERS = frozenset(
    (*(row.name for row in rows(Listening).values() if row.flags), "aliases",
     "allowed_hosts", "api_key_file", "api_keys", "api_prefix",
     "cors_credentials", "cors_headers", "cors_methods", "cors_origins", "cors_proxy",
     "models_autoload", "models_dir", "models_max", "models_preset", "path", "router_child",
     "tools", "ui")
)  # fmt: skip
"""Options that the router sets for its children, or has for itself."""
_SECRETS = frozenset(("hub_token",))
OF_ONE_MODEL = frozenset(("aliases", "hub_file", "hub_repo", "model"))
_TAG = re.compile(r"[-.]([A-Za-z0-9_]+)$")


@dataclass(frozen=True)
class Preset:
    """A section.

    Attributes:
        values: of the server's options.
        own: of the keys that are no options: load-on-startup, stop-timeout, dedup-cache-models.
    """

    values: Values = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)


_OWN = ("load-on-startup", "stop-timeout", "dedup-cache-models")


def given_values(ctx: click.Context) -> Values:
    """The options of the command line, except the router's and the ones that name a model."""
    found: Values = {}
    for option, words in given_options(ctx):
        name = option.name or ""
        if option.multiple and name in found:
            found[name] += tuple(words)
        else:
            found[name] = tuple(words)
    return {name: words for name, words in found.items() if name not in ROUTERS | OF_ONE_MODEL}


def arguments(values: Values) -> tuple[str, ...]:
    """The command line of some values, without the router's."""
    kept = (words for name, words in values.items() if name not in ROUTERS)
    return tuple(word for words in kept for word in words)


def shown_values(values: Values, command: click.Command) -> Values:
    """The values as clients may see them: files by their names, and no secrets."""
    options = {option.name: option for option in command.params}
    found = dict(values)
    for name, (flag, *words) in values.items():
        if name in _SECRETS:
            found[name] = (flag, *("***" for _ in words))
        else:
            is_file = name in options and isinstance(options[name].type, click.Path)
            found[name] = (flag, *(_without_folder(word, is_file) for word in words))
    return found


def _without_folder(word: str, is_file: bool) -> str:
    path = Path(word)
    return path.name if is_file or path.is_absolute() else word


def section_text(name: str, values: Values) -> str:
    """A section with these values."""
    lines = [f"[{name}]"]
    for option, words in values.items():
        if option not in ROUTERS:
            lines.append(f"{words[0].lstrip('-')} = {words[1] if len(words) > 1 else 'true'}")
    return "\n".join(lines) + "\n"


def read_presets(path: Path, command: click.Command) -> dict[str, Preset]:
    """The sections of a file by name; that of all models is always among them.

    Raises:
        OSError: the file cannot be read.
        ModelError: it is not an INI file, or has an unknown key or value.
    """
    parser = configparser.ConfigParser(
        delimiters=("=",), comment_prefixes=(";", "#"), inline_comment_prefixes=(";", "#"),
        interpolation=None, default_section="\n", empty_lines_in_values=False,
    )  # fmt: skip
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    text = read_text(path)
    try:
        parser.read_string(f"[{_NO_SECTION}]\n{text}" if _begins_with_keys(text) else text)
    except configparser.Error as error:
        raise _wrong(path, " ".join(str(error).split())) from None
    keys = _keys(command)
    found = {GLOBAL: Preset()}
    for section in parser.sections():
        name = _canonical(section.strip())
        preset = Preset({}, {})
        for key, value in parser.items(section):
            if key != "version":
                _add(preset, keys, key, value, f"{path}, [{name}]")
        if name != _NO_SECTION or preset.values:
            found[name] = preset
    return found


def _begins_with_keys(text: str) -> bool:
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and line[0] not in ";#"), "[")
    return not first.startswith("[")


def _add(
    preset: Preset, keys: Mapping[str, tuple[click.Option, str]], key: str, value: str, where: str
) -> None:
    """Add one key to a preset. Raises: ModelError."""
    if "\n" in value:
        raise _wrong(where, f"the line after {key} is indented: begin it at the margin")
    if key in _OWN:
        preset.own[key] = value  # type: ignore[index]
        return
    if key not in keys:
        reason = why_not("serve", f"--{key}") or why_not("serve", f"-{key}")
        raise _wrong(where, f"unknown option {key}" + (f": {reason}" if reason else ""))
    option, flag = keys[key]
    name = option.name or ""
    if option.nargs != 1:
        raise _wrong(where, f"{key} has several values, which a preset cannot hold")
    if not option.is_flag:
        preset.values[name] = (flag, value)
        return
    try:
        is_set = is_on(key, value)
    except click.UsageError as error:
        raise _wrong(where, error.message) from None
    opposite = option.secondary_opts if flag in option.opts else option.opts
    if is_set:
        preset.values[name] = (flag,)
    elif opposite:
        preset.values[name] = (opposite[-1],)


def _keys(command: click.Command) -> dict[str, tuple[click.Option, str]]:
    """Each key of a file: its option, and the flag that it stands for."""
    found: dict[str, tuple[click.Option, str]] = {}
    for option in command.params:
        if not isinstance(option, click.Option):
            continue
        for flag in (*option.opts, *option.secondary_opts):
            found[flag.lstrip("-")] = (option, flag)
            found[flag.lstrip("-").replace("-", "_")] = (option, flag)
        for variable in variables(option):
            found[variable] = (option, max(option.opts, key=len))
    return found


def _canonical(name: str) -> str:
    """A section's name with its quantization in capitals: ``user/model:q8_0`` -> ``...:Q8_0``."""
    model, colon, tag = name.rpartition(":")
    if not colon:
        return name
    match = _TAG.search(tag)
    return f"{model}:{(match[1] if match else tag).upper()}"


def _wrong(where: object, message: str) -> ValueError:
    from pyllama.errors import ModelError

    return ModelError(f"{where}: {message}")


def reserved_variables(command: click.Command) -> Iterator[str]:
    """The environment variables that a child must not inherit: those of the router's options."""
    for option in command.params:
        if isinstance(option, click.Option) and option.name in ROUTERS | OF_ONE_MODEL:
            yield from variables(option)
            for flag in option.secondary_opts:
                yield "LLAMA_ARG_" + flag.lstrip("-").upper().replace("-", "_")
