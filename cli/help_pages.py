"""Help pages of the tools: options and commands in sections, and examples.

    sampling_options = stack(
        click.option("--temp", type=float),
        click.option("--top-k", type=int),
        section="Sampling",
    )
    write_options(command, ctx, formatter)         # in a command's ``format_options``

The examples of a command are the lines of its module's docstring that begin with its name. No line
is longer than the terminal is wide, if the metavar of each option is short.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

SECTIONS = (
    "Options",
    "Conversation",
    "Reasoning",
    "Model",
    "Context",
    "Adapters",
    "RoPE and activation",
    "CPU",
    "GPU",
    "Sparse inference",
    "Sampling",
    "Grammar",
    "Speculative decoding",
    "Draft model",
    "Drafts of n-grams",
    "Presets",
)
"""The sections of options, in the order of a help page; the first has those of no other."""

_SECTION = "help_section"  # attribute of a parameter


def stack(*decorators: Callable[[Any], Any], section: str | None = None) -> Callable[[F], F]:
    """Combine decorators into one; ``--help`` lists their options in the order written.

    Args:
        section: of the options that are in no other; see `SECTIONS`.
    """
    assert section is None or section in SECTIONS, section

    def decorate(function: F) -> F:
        n_known = len(_params(function))
        for decorator in reversed(decorators):
            function = decorator(function)
        if section is not None:
            for param in _params(function)[n_known:]:
                vars(param).setdefault(_SECTION, section)
        return function

    return decorate


def _params(function: Callable[..., Any]) -> list[click.Parameter]:
    """The parameters that click's decorators have added to a function."""
    params: list[click.Parameter] = getattr(function, "__click_params__", [])
    return params


def in_sections(params: Iterable[click.Parameter]) -> dict[str, list[click.Parameter]]:
    """Return the parameters of each section, without empty sections."""
    found: dict[str, list[click.Parameter]] = {title: [] for title in SECTIONS}
    for param in params:
        found[vars(param).get(_SECTION, SECTIONS[0])].append(param)
    return {title: members for title, members in found.items() if members}


def show_defaults(params: Iterable[click.Parameter]) -> None:
    """Show the default of each option that has one, but neither empty texts nor switches off.

    A help text may name the default itself, as ``[default: ...]``.
    """
    for param in params:
        if isinstance(param, click.Option) and "[default" not in (param.help or ""):
            default = param.default
            has_one = isinstance(default, str | int | float | list | tuple)
            param.show_default = has_one and default is not False and default not in ("", (), [])


def examples(command: click.Command) -> list[str]:
    """Return the examples of a command, a line for each."""
    module = sys.modules[getattr(command.callback, "__module__", __name__)]
    name = {"completion": "cli"}.get(command.name or "", command.name)
    lines = [line.strip() for line in (module.__doc__ or "").splitlines()]
    program = re.compile(rf"pyllama([\w-]*[- ])?{name}(?=\s|$)|{name}(?=\s)")
    return [line for line in lines if program.match(line)]


def write_options(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Write the examples, and the options in sections."""
    lines = examples(command)
    if lines:
        with formatter.section("Examples"):
            formatter.write("".join(f"{'':{formatter.current_indent}}{line}\n" for line in lines))
    options = [p for p in command.get_params(ctx) if isinstance(p, click.Option)]
    for title, params in in_sections(options).items():  # the usage names the arguments
        records = [record for param in params if (record := param.get_help_record(ctx))]
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def write_commands(
    commands: Mapping[str, Mapping[str, click.Command]], formatter: click.HelpFormatter
) -> None:
    """Write the first sentence of each command's help, in sections."""
    width = max(len(name) for members in commands.values() for name in members)
    for title, members in commands.items():
        with formatter.section(title):
            formatter.write_dl(
                [(f"{name:{width}}", c.get_short_help_str(1000)) for name, c in members.items()]
            )
