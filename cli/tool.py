"""Command-line programs that behave like llama.cpp's, on top of click.

    @click.command("bench", cls=Program)
    @click.option("-n", "--n-gen", type=int)
    def command(n_gen): ...

    command()                                      # parses sys.argv, runs, exits with a code

Additions to click:

- Flags must be written in full: ``-n3`` is not ``-n 3``. An unknown flag suggests the nearest one,
  or says why a flag of llama.cpp's is not supported.
- Every error is one line on stderr. Exit codes: 2 for a wrong command line, 130 after Ctrl-C, 143
  after SIGTERM, 1 for other errors.
- Flags of llama.cpp's that have no effect are accepted, with a note.
"""

from __future__ import annotations

import atexit
import difflib
import gc
import importlib
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

from . import interrupt
from .environment import PREFIX, bind_environment, ignored, variables
from .help_pages import show_defaults, write_commands, write_options
from .interrupt import INTERRUPTED
from .output import note, report, visible_logs
from .programs import COMMANDS, PROGRAM_NAMES
from .unsupported import why_not

F = TypeVar("F", bound=Callable[..., Any])
_GIVEN = "pyllama.tool.given"  # key of the arguments in click's context
_GC_THRESHOLD = 100_000  # objects between garbage collections: imports make many, without cycles
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Program(click.Command):
    """One command-line tool: strict flags, errors as one line and an exit code."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = {**_SETTINGS, **kwargs.get("context_settings", {})}
        super().__init__(*args, **kwargs)
        show_defaults(self.params)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Check that flags are written in full, then parse; variables give the defaults."""
        if not ctx.resilient_parsing:
            args = _checked_flags(self.name, _flags(self, ctx), args)
            ctx.meta[_GIVEN] = list(args)
            ctx.default_map = {**(ctx.default_map or {}), **bind_environment(self)}
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as e:
            option = e.param
            given = option and ctx.get_parameter_source(option.name or "")
            if isinstance(option, click.Option) and given is ParameterSource.DEFAULT_MAP:
                names = " or ".join(variables(option))
                text = f"{e.message} The value comes from the environment: {names}."
                raise click.BadParameter(text, ctx, option) from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Apply the machine options (CPUs, priority), name variables without effect, and run."""
        from .machine import apply  # `--help` and lists of commands need no table of parameters

        apply(ctx)
        visible_logs()
        for name, reason in ignored(self).items():
            note(f"{name} is ignored: {reason}")
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, and the options in sections."""
        write_options(self, ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the note on environment variables."""
        formatter.write_paragraph()
        formatter.write_text(
            f"Environment variables set options too: {PREFIX}CTX_SIZE for --ctx-size."
        )

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run the command and exit with its code."""
        _main(super().main, *args, **kwargs)


class LazyGroup(click.Group):
    """A command with sub-commands that are imported on first use.

    Args:
        sections: for each section of the help page, maps a sub-command to ``module:attribute``,
            with the module relative to this package.
    """

    def __init__(
        self, *args: Any, sections: Mapping[str, Mapping[str, str]], **kwargs: Any
    ) -> None:
        super().__init__(*args, context_settings=_SETTINGS, **kwargs)
        self.sections = sections
        self.table = {name: path for table in sections.values() for name, path in table.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the table's order."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of that name."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name].partition(":")
        command = getattr(importlib.import_module(module, __package__), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a sub-command as click does; for an unknown name suggest the nearest."""
        name = args[0]
        if not ctx.resilient_parsing and name not in self.table:
            raise click.UsageError(f"no such command {name}{_suggestion(name, self.table)}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse unknown flags before the sub-command; without arguments show the help."""
        if args and args[0].startswith("-"):
            _checked_flags(self.name, _flags(self, ctx), args[:1])
        return super().parse_args(ctx, args or ["--help"])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, the options, and the commands in sections."""
        write_options(self, ctx, formatter)
        commands = {
            title: {name: found for name in table if (found := self.get_command(ctx, name))}
            for title, table in self.sections.items()
        }
        write_commands(commands, formatter)

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run the command and exit with its code."""
        _main(super().main, *args, **kwargs)


def ignored_option(
    *flags: str, takes_value: bool = False, why: str | None = None
) -> Callable[[F], F]:
    """Accept a flag of llama.cpp's that has no effect here.

    Args:
        takes_value: whether the flag has an argument.
        why: reason for the note on stderr; None for no note, if the flag asks for the default.
    """

    def callback(ctx: click.Context, param: click.Parameter, value: object) -> None:
        if value and why is not None:
            note(f"{flags[0]} is ignored: {why}")

    kind: dict[str, Any] = {} if takes_value else {"is_flag": True}
    return click.option(*flags, hidden=True, expose_value=False, callback=callback, **kind)


def version_option() -> Callable[[F], F]:
    """Declare ``--version``; it imports none of the packages that it lists."""

    def callback(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            click.echo(version_text())
            ctx.exit()

    return click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=callback,
        help="Show the versions of pyggml and its dependencies, and exit.",
    )


def version_text() -> str:
    """Return one line with the versions of pyggml, numba, llvmlite, numpy and Python."""
    names = ("pyggml", "numba", "llvmlite", "numpy")
    found = ", ".join(f"{name} {_version(name)}" for name in names)
    return f"{found}, Python {platform.python_version()} on {platform.machine()} {sys.platform}"


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # running from a checkout that is not installed
        return "(not installed)"


def _main(run: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
    kwargs["standalone_mode"] = False
    _open_closed_streams()
    gc.set_threshold(_GC_THRESHOLD)
    atexit.register(gc.freeze)  # skips the garbage collection at exit
    try:
        with interrupt.raised(), _ended_by_sigterm():
            try:
                code = run(*args, **kwargs)
                sys.stdout.flush()
            except Exception as error:
                code = INTERRUPTED if interrupt.happened() else report(error)
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that incomplete files are removed."""

    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _open_closed_streams() -> None:
    """Open /dev/null for streams closed by the shell (``>&-``), to reserve descriptors 0 to 2."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (stays open)


def _flags(command: click.Command, ctx: click.Context) -> dict[str, click.Parameter]:
    return {f: p for p in command.get_params(ctx) for f in (*p.opts, *p.secondary_opts)}


def _checked_flags(
    tool: str | None, known: Mapping[str, click.Parameter], args: Sequence[str]
) -> list[str]:
    """Return the arguments with dashes for underscores in long flags, as llama.cpp reads them.

    Raises:
        click.UsageError: the command does not have a flag.
    """
    checked = list(args)
    for i, name, _ in _flags_of(args, known):
        if name not in known:
            raise click.UsageError(_unknown(tool, name, known))
        checked[i] = name + args[i][len(name) :]
    return checked


def given_options(ctx: click.Context) -> Iterator[tuple[click.Option, list[str]]]:
    """Yield the options of a tool's command line, each with its flag and its values."""
    known = _flags(ctx.command, ctx)
    for _, name, values in _flags_of(ctx.meta[_GIVEN], known):
        param = known[name]
        if isinstance(param, click.Option):
            yield param, [name, *values]


def _flags_of(
    args: Sequence[str], known: Mapping[str, click.Parameter]
) -> Iterator[tuple[int, str, Sequence[str]]]:
    """Yield the index of each flag, its name with dashes, and its values."""
    i = 0
    while i < len(args) and args[i] != "--":
        arg = args[i]
        i += 1
        if len(arg) < 2 or not arg.startswith("-"):
            continue  # not a flag: click checks it
        name, is_one, value = arg.partition("=") if arg.startswith("--") else (arg, "", "")
        if name not in known and name.startswith("--"):
            name = name.replace("_", "-")
        n = 0 if is_one or name not in known else _n_values(known[name], args[i : i + 1])
        yield i - 1, name, [value] if is_one else args[i : i + n]
        i += n


def _unknown(tool: str | None, name: str, known: Mapping[str, object]) -> str:
    """Return the error message for a flag that a tool does not have."""
    reason = why_not(tool, name)
    if reason is not None:
        return f"llama.cpp's {name} is not supported: {reason}"
    tools = [program for program, flags in all_flags() if name in flags]
    if tools:
        more = f" and {len(tools) - 3} more" if len(tools) > 3 else ""
        return f"no such option {name} in this tool; it belongs to {', '.join(tools[:3])}{more}"
    return f"no such option {name}{_suggestion(name, known)}"


def all_flags() -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield each program with its flags; imports all of them."""

    def walk(words: str, group: LazyGroup) -> Iterator[tuple[str, Mapping[str, object]]]:
        ctx = click.Context(group)
        for name in group.table:
            program = PROGRAM_NAMES.get(name, f"{words}{name}")
            command = group.get_command(ctx, name)
            if isinstance(command, LazyGroup):
                yield from walk(f"{program} ", command)
            elif command is not None:
                yield program, _flags(command, ctx)

    return walk("pyllama-", LazyGroup("pyllama", sections=COMMANDS))


def _n_values(param: click.Parameter, following: Sequence[str]) -> int:
    """Return how many of the following arguments are values of ``param``."""
    assert isinstance(param, click.Option)
    if param.is_flag or param.count:
        return 0
    if param._flag_needs_value and (not following or following[0].startswith("-")):
        return 0
    return param.nargs


def _suggestion(name: str, known: Mapping[str, object]) -> str:
    """Return `` (did you mean --temp?)``, or `` (see --help)`` if no name is similar."""
    bare = {flag.lstrip("-").lower(): flag for flag in known}
    word = name.lstrip("-").rstrip("0123456789.").lower()  # -n24 was meant as -n 24
    near = difflib.get_close_matches(word, bare, n=1, cutoff=0.55)
    return f" (did you mean {bare[near[0]]}?)" if near else " (see --help)"
