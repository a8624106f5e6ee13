"""Numba-CUDA as a compiler: a kernel's Python becomes PTX or a cubin. Nothing is launched by it.

    image = compile_cubin(KERNELS["scale_f32"], (9, 0))
    image.registers, image.local_bytes

Works without a driver and without a GPU. The only module that knows Numba-CUDA's inner workings;
`intrin` and the kernels know its language.
Source: numba-cuda 0.30.4 (in maintenance: this module is what a successor would replace).
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda

from .kernel import Kernel, KernelImage

_NAMES = {"int32": "i32", "int64": "i64", "uint32": "u32", "float32": "f32"}


@cache
def _prepare() -> None:
    """Make compiling work with NumPy 2.5 and without a driver."""
    if not hasattr(np, "row_stack"):  # NumPy 2.5 removed it; numba-cuda looks at it
        np.row_stack = np.vstack  # type: ignore[attr-defined]
    if not cuda.is_available():  # device functions ask the current device for its capability
        from numba.cuda import compiler, dispatcher

        stand_in = SimpleNamespace(compute_capability=(9, 0), id=0, name=b"none")
        dispatcher.get_current_device = compiler.get_current_device = lambda: stand_in


def _compile(kernel: Kernel, cc: tuple[int, int]) -> Any:
    _prepare()
    from numba.cuda import compiler

    types = tuple(t for _, t in kernel.parameters)
    library, _ = compiler._compile_pyfunc_with_fixup(
        kernel.function,
        types,
        device=False,
        abi="numba",
        cc=cc,
        launch_bounds=kernel.threads,
    )
    return library


def _image(kernel: Kernel, library: Any, code: bytes, **numbers: int) -> KernelImage:
    parameters = tuple(_NAMES.get(str(t), "ptr") for _, t in kernel.parameters)
    return KernelImage(code, library._entry_name, parameters, **numbers)


def compile_ptx(kernel: Kernel, cc: tuple[int, int]) -> KernelImage:
    """The PTX that NVVM makes of a kernel, for emulators and tests."""
    library = _compile(kernel, cc)
    return _image(kernel, library, "\n".join(library.get_asm_strs(cc=cc)).encode())


def compile_cubin(kernel: Kernel, cc: tuple[int, int]) -> KernelImage:
    """A kernel's machine code for a compute capability."""
    library = _compile(kernel, cc)
    code = bytes(library.get_cubin(cc=cc).code)
    return _image(kernel, library, code, **cubin_numbers(code, library._entry_name))


def cubin_numbers(code: bytes, entry: str) -> dict[str, int]:
    return {}
