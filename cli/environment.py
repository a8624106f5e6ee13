"""Options from the environment: ``LLAMA_ARG_CTX_SIZE=4096`` sets ``--ctx-size 4096``.

    bind_environment(command)                      # at the start of a tool
    ignored(command)                               # {"LLAMA_ARG_LORA": "adapters are not ..."}
    LLAMA_ARG_NO_MMAP=1 pyllama-cli ...            # the flag that switches an option off

Every long flag has a variable; if llama.cpp uses another name, both work. The command line takes
precedence. Nothing is read at import.
"""

from __future__ import annotations

import os

import click

from .unsupported import why_not

PREFIX = "LLAMA_ARG_"  # not in pyggml.env, which would import NumPy for --help; see docs/env.md
_OTHER_NAMES = {  # llama.cpp's names that differ from the flag
    "--predict": "N_PREDICT",
    "--batch-size": "BATCH",
    "--ubatch-size": "UBATCH",
    "--parallel": "N_PARALLEL",
    "--gpu-layers": "N_GPU_LAYERS",
    "--spec-draft-hf": "SPEC_DRAFT_HF_REPO",
    "--spec-draft-type-k": "SPEC_DRAFT_CACHE_TYPE_K",
    "--spec-draft-type-v": "SPEC_DRAFT_CACHE_TYPE_V",
}
_TRUE = {"1", "true", "on", "yes", "enabled"}
_FALSE = {"0", "false", "off", "no", "disabled"}
_NEVER = {"--help", "--version", "--list-devices"}


def variables(option: click.Option) -> list[str]:
    """Return the names of an option's environment variables."""
    flags = [flag for flag in option.opts if flag.startswith("--") and flag not in _NEVER]
    names = [_OTHER_NAMES[flag] for flag in flags if flag in _OTHER_NAMES]
    named = [PREFIX + name for name in names]
    return list(dict.fromkeys([*named, *map(variable_of, flags)]))


def bind_environment(command: click.Command) -> dict[str, object]:
    """Return the values of environment variables, for click's ``default_map``.

    Raises:
        click.UsageError: the variable of a switch is neither on nor off.
    """
    found: dict[str, object] = {}
    given = _given()
    names = _all_variables(command) if given else {}
    for name, (option, is_opposite) in names.items():
        key = option.name or ""
        if name in given and is_opposite:
            found[key] = not is_on(name, given[name])
        elif name in given:
            found.setdefault(key, _value(option, name, given[name]))
    return found


def _given() -> dict[str, str]:
    return {name: text for name, text in sorted(os.environ.items()) if name.startswith(PREFIX)}


def _all_variables(command: click.Command) -> dict[str, tuple[click.Option, bool]]:
    """Return the option of each variable, and whether the variable switches it off."""
    found: dict[str, tuple[click.Option, bool]] = {}
    for option in (one for one in command.params if isinstance(one, click.Option)):
        found |= dict.fromkeys(variables(option), (option, False))
        opposite = (flag for flag in option.secondary_opts if flag.startswith("--"))
        found |= {variable_of(flag): (option, True) for flag in opposite}
    return found


def ignored(command: click.Command) -> dict[str, str]:
    """Return the variables that look like ours and change nothing, with the reason."""
    found: dict[str, str] = {}
    given = _given()
    names = _all_variables(command) if given else {}
    for name in given:
        if name not in names:
            flag = "--" + name.removeprefix(PREFIX).lower().replace("_", "-")
            found[name] = why_not(command.name, flag) or f"{command.name} has no {flag}"
    if any(name.startswith(("PYGGML_", "PYLLAMA_")) for name in os.environ):
        from pyggml import env  # imports NumPy

        found |= dict.fromkeys(env.unknown(), "there is no such variable, see docs/env.md")
    return found


def variable_of(flag: str) -> str:
    """Return the name of the environment variable of a long flag."""
    return PREFIX + flag.lstrip("-").upper().replace("-", "_")


def _value(option: click.Option, name: str, text: str) -> object:
    if option.is_flag:
        return is_on(name, text)
    return [text] if option.multiple else text


def is_on(name: str, text: str) -> bool:
    """Return the value of a switch. Raises: click.UsageError."""
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise click.UsageError(f"{name}={text!r} is neither on nor off: use 1 or 0")
    return word in _TRUE
