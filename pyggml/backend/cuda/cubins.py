"""Compiled kernels on disk: a cubin is found by the digest of all that it depends on.

    image = compiled(KERNELS["scale_f32"], (9, 0))     # compiles once for a capability
    image = carried.get(...)                           # or was brought along, see ``carry``

A machine that has the cubins needs no compiler. The digest covers the sources of the kernel and all
that it imports, its parameters, the capability and the compiler's versions.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from ... import env
from ...compiler.code_cache import CodeCache
from ...compiler.sources import Sources, digest
from .kernel import GpuKernel, KernelImage

_PACKAGES = ("numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink")


@cache
def _cache() -> CodeCache:
    return CodeCache(env.code_dir() / "cuda")


@cache
def _sources() -> Sources:
    return Sources()


@cache
def _versions() -> str:
    """What compiles: packages, or the CUDA toolkit of the machine where they are not installed."""
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} of the system")
    return " ".join(found)


def entry(kernel: GpuKernel, cc: tuple[int, int]) -> str:
    """The name under which what is compiled of a kernel for a capability is kept."""
    module = kernel.function.__module__
    key = digest(_sources().closure(module), kernel.name, repr(kernel.parameters),
                 repr((cc, kernel.threads)), _versions())  # fmt: skip
    return f"{kernel.name}-sm{cc[0]}{cc[1]}-{key}"


def compiled(kernel: GpuKernel, cc: tuple[int, int]) -> KernelImage:
    """A kernel's cubin for a compute capability, from disk if it is there.

    Raises:
        BackendError: there is no compiler here.
    """
    name = f"{entry(kernel, cc)}.cubin"
    data = _cache().read(name)
    if data is None:
        with _cache().claim(name):
            data = _cache().read(name)  # another process may have compiled it meanwhile
            if data is None:
                from .numba_compiler import compile_cubin

                data = encode(compile_cubin(kernel, cc))
                _cache().write(name, data)
    return decode(data)


def encode(image: KernelImage) -> bytes:
    """An image as an entry of the cache."""
    head = {name: value for name, value in vars(image).items() if name != "code"}
    return json.dumps(head).encode() + b"\n" + image.code


def decode(data: bytes) -> KernelImage:
    """The image of an entry."""
    text, code = data.split(b"\n", 1)
    head = json.loads(text)
    return KernelImage(code, **head | {"parameters": tuple(head["parameters"])})
