"""Fixtures: the installed module `llama_cpp`, and llama-cpp-python's sources."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pyggml import env
from pyggml.files import working_folder
from pyllama import compat

RELEASE = "llama_cpp_python-0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"


@pytest.fixture
def llama_cpp() -> Iterator[ModuleType]:
    """`pyllama.compat` as `llama_cpp`, for one test."""
    yield compat.install()
    for name in [name for name in sys.modules if name.partition(".")[0] == "llama_cpp"]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def sources(request: pytest.FixtureRequest) -> Path:
    """The unpacked sources of llama-cpp-python; ``pytest -m compat`` downloads them once (70 MB).

    The environment variable ``LLAMA_CPP_PYTHON_SOURCES`` names a folder to use instead.
    """
    if given := os.environ.get("LLAMA_CPP_PYTHON_SOURCES"):
        return Path(given)
    folder = env.user_cache_dir("pyllama")
    if not (folder / RELEASE).is_dir():
        if "compat" not in request.config.getoption("-m"):
            pytest.skip("no sources of llama-cpp-python: `pytest -m compat` downloads them")
        folder.mkdir(parents=True, exist_ok=True)
        with working_folder(folder, "sources-") as temporary:
            _fetch(temporary)
            os.replace(temporary / RELEASE, folder / RELEASE)
    return folder / RELEASE


def _fetch(folder: Path) -> None:
    """Download and unpack the source distribution; nothing of it is built."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"llama-cpp-python==0.3.36 --hash=sha256:{SHA256}\n")
    command = [
        sys.executable,
        "-I",
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary=:all:",
    ]
    command += ["--require-hashes", "-d", str(folder), "-r", str(requirements)]
    subprocess.run(command, check=True)
    with tarfile.open(folder / f"{RELEASE}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
