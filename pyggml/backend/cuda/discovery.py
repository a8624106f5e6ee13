"""Which NVIDIA GPUs there are, asked of the driver library alone: importing this is cheap.

devices()                                      # ("cuda0", "cuda1"); () without a GPU
why_none()                                     # "no NVIDIA driver (libcuda.so.1) was found"
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib.util import find_spec

from ..interface import Backend, BackendFactory

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_NEEDED = {"numba_cuda": "numba-cuda", "cuda.bindings": "cuda-bindings"}
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@cache
def _found() -> tuple[int, str]:
    """The number of GPUs that can be used, and why there is none."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return 0, f"no NVIDIA driver ({_LIBRARY}) was found"
    code, count = library.cuInit(0), ctypes.c_int(0)
    if code == 0:
        code = library.cuDeviceGetCount(ctypes.byref(count))
    if code == _NO_DEVICE or (code == 0 and count.value == 0):
        return 0, "the NVIDIA driver sees no GPU (is CUDA_VISIBLE_DEVICES set?)"
    if code != 0:
        return 0, f"the NVIDIA driver does not start (error {code})"
    missing = [package for module, package in _NEEDED.items() if not _installed(module)]
    if missing:
        return 0, (
            f"{count.value} NVIDIA GPU{'s' if count.value > 1 else ''} found, but "
            f"{' and '.join(missing)} not: pip install 'pyggml[cuda]'"
        )
    return count.value, ""


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def devices() -> tuple[str, ...]:
    """The names of the GPUs that can be used."""
    return tuple(f"cuda{i}" for i in range(_found()[0]))


def why_none() -> str:
    """Why ``devices`` is empty; "" if it is not."""
    return _found()[1]


def factory(name: str) -> BackendFactory:
    """What starts the backend of one of ``devices()``."""

    def start(*, n_threads: int | None = None) -> Backend:
        """The backend; threads are the CPU's. Raises: BackendError."""
        from .backend import CudaBackend
        from .bindings import open_driver

        return CudaBackend(open_driver(int(name.removeprefix("cuda"))), name)

    return start
