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
from typing import Any, Protocol

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
    if isinstance(error, BrokenPipeError):
        # the reader has gone, as in `| head`; Python must not try to flush at exit
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    message, code = _describe(error)
    with contextlib.suppress(OSError):
        if _wants_traceback():
            traceback.print_exception(error)
        elif message:
            note("error: " + " ".join(message.split()))
    return code


def _describe(error: BaseException) -> tuple[str, int]:
    from pyggml.errors import Aborted, PyggmlError

    if isinstance(error, (KeyboardInterrupt, click.Abort, Aborted)):
        return "", INTERRUPTED
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
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


class Timings(Protocol):
    """llama.cpp's counters of one run; times in milliseconds.

    A decode of one token counts as eval, one of several as prompt eval.
    """

    load_ms: float
    sample_ms: float
    n_sample: int
    prompt_eval_ms: float
    n_prompt_eval: int
    eval_ms: float
    n_eval: int
    total_ms: float
    n_reused: int


def timing_lines(t: Timings) -> list[str]:
    """The timings as llama.cpp prints them.

    Source: llama.cpp, ``llama_perf_sampler_print``, ``llama_perf_context_print``,
    ``common_perf_print``.
    """
    rest = t.total_ms - t.sample_ms - t.prompt_eval_ms - t.eval_ms
    share = 100 * rest / max(t.total_ms, 1e-9)
    sampler, context = "llama_perf_sampler_print: ", "llama_perf_context_print: "
    return [
        f"{sampler}   sampling time = {_rate(t.sample_ms, t.n_sample, 'runs  ')}",
        f"{context}       load time = {t.load_ms:10.2f} ms",
        f"{context}prompt eval time = {_rate(t.prompt_eval_ms, t.n_prompt_eval, 'tokens')}",
        f"{context}       eval time = {_rate(t.eval_ms, t.n_eval, 'runs  ')}",
        f"{context}      total time = {t.total_ms:10.2f} ms / "
        f"{t.n_prompt_eval + t.n_eval:5d} tokens",
        f"{context}unaccounted time = {rest:10.2f} ms / {share:5.1f} %",
        f"{context}   graphs reused = {t.n_reused:10d}",
    ]


def _rate(ms: float, n: int, unit: str) -> str:
    each, per_s = ms / max(n, 1), 1e3 * n / max(ms, 1e-9)
    return (
        f"{ms:10.2f} ms / {n:5d} {unit} ({each:8.2f} ms per token, {per_s:8.2f} tokens per second)"
    )
