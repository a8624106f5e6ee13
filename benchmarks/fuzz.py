"""Fuzzing: damaged files of every type must be read or refused within time and memory limits.

    python -m benchmarks.fuzz                                # the types
    python -m benchmarks.fuzz safetensors --count 20000      # mutations 0 to 19999
    python -m benchmarks.fuzz safetensors --count 20000 --resume fuzz.json   # goes on where it was
    python -m benchmarks.fuzz safetensors --start 4711 --count 1 --keep DIR  # one, with its files

A **type** is a ``FileType`` in the ``TYPES`` of one of ``MODULES``:

- ``seeds()``: folders as they should be, each a dictionary of bytes by file name; made once;
- ``mutate(files, rng)``: the same with damage (``benchmarks.mutate`` has mutators). ``rng`` is
  seeded with the type's name and the mutation's number alone, so any is made again by its number;
- ``read(folder)``: reads the damaged files in a folder. It may return or raise ``refusals``.

Mutations run in child processes of a bounded address space, many in each. A finding is anything
else: another exception, a warning, a message of more than a few lines, a flood of log messages,
more than ``MAX_SECONDS`` or ``MAX_BYTES`` of resident memory, a crash, or a child that hangs, which
is killed. Its number is printed and the next one follows. Exit code 1 if there were any.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import click

MODULES = ("benchmarks.fuzz_convert", "benchmarks.fuzz_gguf")
MAX_SECONDS = 10.0  # of the processor, so that a busy machine makes no findings
MAX_BYTES = 2 << 30  # resident
MAX_MESSAGE = 2000  # characters
MAX_LOG = 64  # messages
_GRACE = 50.0  # seconds without a result after which a child is killed
_START_SECONDS = 120.0  # a child imports, and compiles for the first time
_BATCH = 2000  # mutations that a child runs, before another takes over

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class FileType:
    """How files of one type are made, damaged and read.

    Attributes:
        seeds: folders as they should be: bytes by file name.
        mutate: the files of a folder, with damage.
        read: reads a folder.
        refusals: exceptions with a one-line message about the fault.
    """

    name: str
    seeds: Callable[[], Sequence[Files]]
    mutate: Callable[[Files, Random], Files]
    read: Callable[[Path], Any]
    refusals: tuple[type[BaseException], ...]


@dataclass
class Report:
    """What came of mutations.

    Attributes:
        counts: by ``read`` and ``refused``.
        findings: number of the mutation, and what happened.
        seconds: of the slowest.
        peak_bytes: resident memory of a child, at most.
    """

    counts: dict[str, int] = field(default_factory=lambda: {"read": 0, "refused": 0})
    findings: list[tuple[int, str]] = field(default_factory=list)
    seconds: float = 0.0
    peak_bytes: int = 0


def types() -> dict[str, FileType]:
    """All types by name."""
    return {one.name: one for name in MODULES for one in importlib.import_module(name).TYPES}


def fuzz(
    name: str, start: int, count: int, progress: Callable[[int], None] | None = None
) -> Report:
    """Run the mutations ``start`` to ``start + count - 1`` of a type in child processes."""
    report = Report()
    at, stop = start, start + count
    while at < stop:
        for number, line in _child(name, at, min(stop, at + _BATCH)):
            at = number + 1
            _note(report, number, line)
            if progress is not None:
                progress(at)
    return report


def _note(report: Report, number: int, line: Mapping[str, Any]) -> None:
    report.seconds = max(report.seconds, line.get("seconds", 0.0))
    report.peak_bytes = max(report.peak_bytes, line.get("peak", 0))
    if line["what"] in report.counts:
        report.counts[line["what"]] += 1
    else:
        report.findings.append((number, line["what"]))


def _child(name: str, start: int, stop: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Numbers and results of one child, which ends early where it crashes or hangs."""
    command = [sys.executable, "-P", "-c", _CHILD, name, str(start), str(stop)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment) as child,
    ):
        assert child.stdout is not None
        at, wait, buffer = start, _START_SECONDS, b""
        try:
            while at < stop:
                ready, _, _ = select.select([child.stdout], [], [], wait)
                data = os.read(child.stdout.fileno(), 1 << 16) if ready else b""
                if not data:
                    break
                *lines, buffer = (buffer + data).split(b"\n")
                for line in filter(None, lines):
                    wait = _GRACE
                    result = json.loads(line)
                    if result["what"] != "ready":
                        yield at, result
                        at += 1
        finally:
            child.kill()
        code = child.wait()
        if at < stop:
            errors.seek(0)
            last = errors.read()[-2000:].decode("utf-8", "replace").strip()
            what = f"crash, exit code {code}" if ready else "hangs, and does not hear signals"
            yield at, {"what": f"{what}: {last}"}


_CHILD = "import sys; from benchmarks.fuzz import run_child; run_child(*sys.argv[1:])"


def run_child(name: str, start: str, stop: str) -> None:
    """Run mutations in this process; a line of JSON for each on stdout."""
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what libraries print
    warnings.simplefilter("error")
    log = _Log()
    logging.getLogger().addHandler(log)
    logging.raiseExceptions = True
    type = types()[name]
    seeds = type.seeds()
    _limit_memory()
    signal.signal(signal.SIGPROF, _too_long)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "x"
        _run(type, write(folder, seeds[0]), log)  # imports, and compiles
        print(json.dumps({"what": "ready"}), file=out, flush=True)
        for number in range(int(start), int(stop)):
            result = _run(type, write(folder, damaged(type, seeds, number)), log)
            print(json.dumps(result), file=out, flush=True)


def damaged(type: FileType, seeds: Sequence[Files], number: int) -> Files:
    """The files of a mutation."""
    rng = random.Random(f"{type.name}/{number}")
    return type.mutate(rng.choice(list(seeds)), rng)


def write(folder: Path, files: Files) -> Path:
    """A folder with these files and no others."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


class _TooLong(BaseException):
    """The time of a mutation is over."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise _TooLong


def _run(type: FileType, folder: Path, log: _Log) -> dict[str, Any]:
    log.n = 0
    _reset_peak()
    start, what = time.process_time(), "read"
    try:
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        try:
            type.read(folder)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except type.refusals as error:
        what = "refused"
        if len(str(error)) > MAX_MESSAGE:
            what = f"a message of {len(str(error))} characters: {str(error)[:200]}"
    except _TooLong:
        what = f"takes more than {MAX_SECONDS} s: {_last_line()}"
    except BaseException as error:
        what = f"{error.__class__.__name__}: {str(error)[:200]}: {_last_line()}"
    if log.n > MAX_LOG:
        what = f"{log.n} log messages, such as {log.last[:200]}"
    peak = _peak_bytes()
    if peak > MAX_BYTES and what in ("read", "refused"):
        what = f"takes {peak} bytes"
    return {"what": what, "seconds": time.process_time() - start, "peak": peak}


def _last_line() -> str:
    """Where an exception is from."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    return " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in frames[:-6:-1])


class _Log(logging.Handler):
    """Counts messages."""

    def __init__(self) -> None:
        super().__init__()
        self.n, self.last = 0, ""

    def emit(self, record: logging.LogRecord) -> None:
        self.n, self.last = self.n + 1, record.getMessage()


def _limit_memory() -> None:
    """Limit memory to what is mapped now plus the budget; beyond it, allocations fail."""
    with contextlib.suppress(ImportError, OSError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MAX_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    """Resident memory, at most since ``_reset_peak``; where that is not known, of all time."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("type", nargs="*")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--resume", type=Path, help="file with the progress of each type")
    parser.add_argument("--keep", type=Path, help="write the damaged files here")
    args = parser.parse_args()
    known, end, failed = types(), time.monotonic() + args.seconds, False
    if not args.type:
        print("\n".join(known))
    for name in args.type:
        done = json.loads(args.resume.read_text()) if args.resume and args.resume.exists() else {}
        at, stop = args.start + done.get(name, 0), args.start + args.count
        if args.keep:
            for number in range(at, stop):
                if (args.keep / str(number)).exists():
                    parser.error(f"{args.keep / str(number)} exists: --keep wants an empty folder")
                write(args.keep / str(number), damaged(known[name], known[name].seeds(), number))
        with click.progressbar(length=stop, label=name, file=sys.stderr) as bar:
            bar.update(at)
            total = Report()
            while at < stop and time.monotonic() < end:
                n = min(_BATCH, stop - at)
                report = fuzz(name, at, n, lambda number: bar.update(number - bar.pos))
                at += n
                _add(total, report)
                if args.resume:
                    done[name] = at - args.start
                    args.resume.write_text(json.dumps(done))
        for number, what in total.findings:
            print(f"{name} {number}: {what}")
        print(
            f"{name}: {at - args.start} of {args.count} from {args.start} are done; this time "
            f"{total.counts['read']} read, {total.counts['refused']} refused, "
            f"{len(total.findings)} findings; the slowest {total.seconds:.2f} s, "
            f"{total.peak_bytes / 2**20:.0f} MiB"
        )
        failed |= bool(total.findings)
    sys.exit(failed)


def _add(total: Report, report: Report) -> None:
    for what, n in report.counts.items():
        total.counts[what] += n
    total.findings += report.findings
    total.seconds = max(total.seconds, report.seconds)
    total.peak_bytes = max(total.peak_bytes, report.peak_bytes)


if __name__ == "__main__":
    main()
