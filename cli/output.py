"""What the tools print: text as it is made, notes and progress on stderr, errors in one line.

    write("Paris")                                 # stdout, flushed
    note("fetching the demo model")                # stderr
    sys.exit(report(error))                        # "error: ..." on stderr, and the exit code

Only ``write`` and ``click.echo`` touch stdout, so a pipe gets the result and nothing else.
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

INTERRUPTED, USAGE, FAILED = 130, 2, 1


def write(text: str) -> None:
    """Write to stdout now; characters its encoding lacks become ``?``."""
    stream = sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def note(text: str) -> None:
    """One line on stderr."""
    click.echo(text, err=True)


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
                bar = click.progressbar(length=1000, label=label, file=sys.stderr)
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
    message, code = _describe(error)
    with contextlib.suppress(OSError):
        if not isinstance(error, click.ClickException) and _wants_traceback():
            traceback.print_exception(error)
        elif message:
            note("error: " + " ".join(message.split()))
    return code


def _describe(error: BaseException) -> tuple[str, int]:
    if isinstance(error, click.ClickException):  # a slip of the user's: nothing heavy is imported
        return error.format_message(), error.exit_code
    from pyggml.errors import Aborted, PyggmlError

    if isinstance(error, Aborted):
        return "", INTERRUPTED
    if isinstance(error, PyggmlError):
        return str(error) or type(error).__name__, FAILED
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        hint = "; free some space and try again" if error.errno == errno.ENOSPC else ""
        return f"{where}{error.strerror or error}{hint}", FAILED
    if isinstance(error, MemoryError):
        return f"out of memory: {str(error) or 'try a smaller -c or -b'}", FAILED
    kind = type(error).__name__
    return f"internal error: {kind}: {error} (PYLLAMA_TRACEBACK=1 shows where)", FAILED


def _wants_traceback() -> bool:
    from pyggml import env

    return env.TRACEBACK.enabled()
