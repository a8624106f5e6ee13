"""What the tools print: text as it is made, notes and progress on stderr, errors in one line.

    write("| model | test |\n")                    # stdout, flushed
    write_line(f"{name}: {value}")                 # one line, whatever a name holds
    write_raw("Paris")                             # what a model says, as it is
    note("fetching the demo model")                # stderr, one line
    sys.exit(report(error))                        # "error: ..." on stderr, and the exit code

Only these and ``click.echo`` touch stdout, so a pipe gets the result and nothing else. What a file
says is shown with escapes where a terminal would obey it (``pyggml.visible``); only the text that a
model generates, and the prompt before it, go to a terminal as they are, as in llama.cpp.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import click

from .flags import in_flags
from .interrupt import INTERRUPTED

USAGE, FAILED = 2, 1


_LONGEST_ERROR, _LONGEST_LABEL = 2000, 200  # characters


def visible(text: str, keep: str = "", limit: int | None = None) -> str:
    """`pyggml.visible.visible`, which is imported only where something is to be changed."""
    plain = text.translate(dict.fromkeys(map(ord, keep))) if keep else text
    if plain.isprintable() and (limit is None or len(text) <= limit):
        return text
    from pyggml.visible import visible

    return visible(text, keep, limit)


def write(text: str) -> None:
    """Write lines to stdout now; in a terminal with escapes, in a pipe or file as they are."""
    write_raw(visible(text, keep="\n\t") if sys.stdout.isatty() else text)


def write_line(text: str) -> None:
    """Write one line to stdout now, with escapes wherever it goes."""
    write_raw(visible(text, keep="\t") + "\n")


def write_raw(text: str) -> None:
    """Write to stdout now, as it is; characters its encoding lacks become ``?``."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def note(text: str) -> None:
    """One line on stderr."""
    click.echo(visible(text, keep="\t"), err=True)


def visible_logs() -> None:
    """What is logged, which goes to stderr, has escapes too: one line each."""
    import logging  # slow to import, and every tool that does something has it

    class Formatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return visible(in_flags(super().format(record)), keep="\t")

    for handler in (logging.lastResort, *logging.getLogger().handlers):
        if handler is not None:
            handler.setFormatter(Formatter())


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Callable[[float], None]]:
    """A bar on stderr, driven by a callback that takes the fraction done.

    What is done within half a second shows none. Where stderr is not a terminal the label is one
    line.
    """
    bars: list[Any] = []
    start = time.monotonic()
    with contextlib.ExitStack() as stack:

        def update(fraction: float) -> None:
            if not bars and time.monotonic() - start < 0.5:
                return
            if not bars:
                shown = visible(label, limit=_LONGEST_LABEL)
                bar = click.progressbar(length=1000, label=shown, file=sys.stderr)
                bars.append(stack.enter_context(bar))
            bars[0].update(round(min(fraction, 1.0) * 1000) - bars[0].pos)

        yield update


def report(error: BaseException) -> int:
    """Say in one line on stderr what went wrong, and return the exit code for it."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED  # maybe of an import: what is half there must not be imported again
    if isinstance(error, BrokenPipeError):
        # the reader has gone, as in `| head`; Python must not try to flush at exit
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    try:
        message, code = _describe(error)
        with contextlib.suppress(OSError):
            if not isinstance(error, click.ClickException) and _wants_traceback():
                lines = "".join(traceback.format_exception(error))
                click.echo(visible(lines, keep="\n\t"), err=True, nl=False)
            elif message:
                note(visible("error: " + " ".join(message.split()), limit=_LONGEST_ERROR))
        return code
    except Exception:  # nothing can be imported, or no memory is left to say more
        with contextlib.suppress(OSError):
            os.write(2, f"error: {type(error).__name__}; is there enough memory?\n".encode())
        return FAILED


def _describe(error: BaseException) -> tuple[str, int]:
    if isinstance(error, click.ClickException):  # a slip of the user's: nothing heavy is imported
        return error.format_message(), error.exit_code
    from pyggml.errors import Aborted, PyggmlError

    if isinstance(error, Aborted):
        return "", INTERRUPTED
    if isinstance(error, PyggmlError):
        return in_flags(str(error)) or type(error).__name__, FAILED
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        hint = "; free some space and try again" if error.errno == errno.ENOSPC else ""
        return f"{where}{error.strerror or error}{hint}", FAILED
    if isinstance(error, MemoryError):
        return f"out of memory: {str(error) or 'try a smaller --ctx-size or --batch-size'}", FAILED
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return f"{error}: allow more memory or processes (ulimit -v, -u)", FAILED
    if isinstance(error, ImportError):
        return f"{error}; is the installation whole, and is there enough memory?", FAILED
    kind = type(error).__name__
    return f"internal error: {kind}: {error} (PYLLAMA_TRACEBACK=1 shows where)", FAILED


def _wants_traceback() -> bool:
    from pyggml import env

    return env.TRACEBACK.enabled()
