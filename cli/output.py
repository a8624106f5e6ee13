"""Output of the tools: results on stdout, notes, progress and one-line errors on stderr.

    write("| model | test |\n")                    # stdout, flushed
    write_line(f"{name}: {value}")                 # stdout, always one line
    write_raw("Paris")                             # stdout, text of the model, unescaped
    note("downloading the demo model")             # stderr, one line
    sys.exit(report(error))                        # "error: ..." on stderr, and the exit code

stdout is written only by these functions and ``click.echo``, so a pipe gets only results. Text from
files is escaped (``pyggml.visible``), so that it cannot control the terminal. Only the prompt and
the generated text are printed unescaped, as in llama.cpp.
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

from .interrupt import INTERRUPTED

USAGE, FAILED = 2, 1


_LONGEST_ERROR, _LONGEST_LABEL = 2000, 200  # characters


def visible(text: str, keep: str = "", limit: int | None = None) -> str:
    """Return `pyggml.visible.visible(text)`; avoids the import if nothing needs escaping."""
    plain = text.translate(dict.fromkeys(map(ord, keep))) if keep else text
    if plain.isprintable() and (limit is None or len(text) <= limit):
        return text
    from pyggml.visible import visible

    return visible(text, keep, limit)


def size_text(n_bytes: float) -> str:
    """Return a size in GiB, or in MiB below a tenth of one."""
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**30 / 10 else f"{n_bytes / 2**20:.2f} MiB"


def write(text: str) -> None:
    """Write lines to stdout and flush; escaped in a terminal, unchanged in a pipe or file."""
    write_raw(visible(text, keep="\n\t") if sys.stdout.isatty() else text)


def write_line(text: str) -> None:
    """Write one escaped line to stdout and flush."""
    write_raw(visible(text, keep="\t") + "\n")


def write_raw(text: str) -> None:
    """Write text to stdout unescaped, and flush; unencodable characters become ``?``."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def wants_color(choice: str) -> bool:
    """Return whether to use colours, given ``on``, ``off`` or ``auto``."""
    if choice != "auto":
        return choice == "on"
    from pyggml import env

    terminal = sys.stdout.isatty() and sys.stdin.isatty() and not is_dumb_terminal()
    return terminal and env.NO_COLOR.get() is None


def is_dumb_terminal() -> bool:
    """Return whether the terminal would show escape sequences instead of obeying them."""
    from pyggml import env

    return env.TERM.get() in ("dumb", "unknown")


def note(text: str) -> None:
    """Write one escaped line to stderr."""
    click.echo(visible(text, keep="\t"), err=True)


def visible_logs() -> None:
    """Escape log messages on stderr, one line each."""
    import logging  # slow to import, not needed for --help

    class Formatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            from .flags import in_flags

            return visible(in_flags(super().format(record)), keep="\t")

    for handler in (logging.lastResort, *logging.getLogger().handlers):
        if handler is not None:
            handler.setFormatter(Formatter())


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Callable[[float], None]]:
    """Yield a callback that takes the completed fraction and draws a progress bar on stderr.

    Nothing is drawn in the first half second. If stderr is not a terminal, only the label is
    printed.
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
    """Print an error as one line on stderr and return its exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED  # no imports below: an interrupted import may have left modules broken
    if isinstance(error, BrokenPipeError):
        # the reader closed the pipe, as `| head` does; prevents Python's flush at exit
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
    except Exception:  # imports fail, or memory is exhausted
        with contextlib.suppress(OSError):
            os.write(2, f"error: {type(error).__name__}; is there enough memory?\n".encode())
        return FAILED


def _describe(error: BaseException) -> tuple[str, int]:
    if isinstance(error, click.ClickException):  # before the slow imports
        return error.format_message(), error.exit_code
    from pyggml.errors import Aborted, PyggmlError

    if isinstance(error, Aborted):
        return "", INTERRUPTED
    if isinstance(error, PyggmlError):
        from .flags import in_flags

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
        return f"{error}; is the installation complete, and is there enough memory?", FAILED
    kind = type(error).__name__
    return f"internal error: {kind}: {error} (PYLLAMA_TRACEBACK=1 prints the traceback)", FAILED


def _wants_traceback() -> bool:
    from pyggml import env
    from pyggml.errors import PyggmlError

    try:
        return env.TRACEBACK.enabled()
    except PyggmlError as error:
        note(str(error))
        return False
