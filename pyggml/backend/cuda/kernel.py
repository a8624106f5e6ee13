"""What a GPU kernel is: a Python function with typed parameters, and the code that it becomes.

    @kernel(threads=256)
    def scale_f32(x: F32, y: F32, n: i32, s: f32):
        i = cuda.grid(1)
        if i < n:
            y[i] = s * x[i]

A pointer (``F32`` and so on) is the address of a tensor's data on the device; ``x[i]`` reads its
element i, and nothing is checked. Sizes, strides and parameters are scalars. Kernels of a family
are made by a function that is called once for each set of compile-time constants (a format, a row
length), and named after them.

``KERNELS`` has every kernel by name once ``kernels`` is imported. Importing this module needs
numba-cuda, but no driver and no GPU.
"""

# No ``from __future__ import annotations``: the annotations of kernels are values.

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from numba import types

from ...tensor import Tensor

i32, i64, u32, f32 = types.int32, types.int64, types.uint32, types.float32
F32 = types.CPointer(types.float32)
I32 = types.CPointer(types.int32)
I64 = types.CPointer(types.int64)
U8 = types.CPointer(types.uint8)  # any bytes, read with the loads of ``intrin``
_of_tensor = cache(re.compile(r"(\w+?)(_ne)?([0-3])").fullmatch)
_ONES, _ZEROS = (1,) * 4, (0,) * 4


@dataclass(frozen=True, eq=False)
class GpuKernel:
    """A kernel's source.

    Attributes:
        name: unique; profiles, the cubin's file and error messages have it.
        function: Python, as Numba compiles it.
        parameters: name and Numba type of each.
        threads: of a block, at most; the register allocation relies on it.
        max_registers: a ceiling that a test holds the compiled code to.
        unroll: loops of constant length are unrolled, however long, so that local arrays that they
            index stay in registers.
    """

    name: str
    function: Callable[..., None]
    parameters: tuple[tuple[str, Any], ...]
    threads: int
    max_registers: int
    unroll: bool = False

    def __call__(self, **values: Any) -> "Call":
        """This kernel with a value for each parameter: an address (or what has one), or a number.

        Parameters ``x1`` and ``x_ne1`` without a value are ``nb[1]`` and ``ne[1]`` of the tensor
        ``x``; 0 and 1 if ``x`` is None.

        Raises:
            TypeError: a parameter without a value, or a value without a parameter.
        """
        names = [name for name, _ in self.parameters]
        for name in set(names) - values.keys():
            of = _of_tensor(name)
            x = values.get(of[1], 0) if of else 0
            if of and (x is None or isinstance(x, Tensor)):
                ne, nb = (_ONES, _ZEROS) if x is None else (x.ne, x.nb)
                values[name] = (ne if of[2] else nb)[int(of[3])]
        if values.keys() != set(names):
            raise TypeError(f"kernel {self.name} takes {names}, got {list(values)}")
        return Call(self, tuple(values[name] for name in names))


@dataclass(frozen=True)
class Call:
    """A kernel and the values of its parameters, in order."""

    kernel: GpuKernel
    values: tuple[Any, ...]


@dataclass(frozen=True)
class KernelImage:
    """A compiled kernel, whatever language its source is in.

    Attributes:
        code: a cubin, or PTX for an emulator.
        entry: the name of the function in it.
        parameters: the type of each, one of i32 i64 u32 f32 ptr.
        shared_bytes: static shared memory of a block.
        registers: of a thread; 0 if unknown.
        local_bytes: local memory (spills) of a thread.
    """

    code: bytes
    entry: str
    parameters: tuple[str, ...]
    shared_bytes: int = 0
    registers: int = 0
    local_bytes: int = 0


KERNELS: dict[str, GpuKernel] = {}


def kernel(
    name: str = "", *, threads: int = 256, max_registers: int = 128, unroll: bool = False
) -> Callable[[Callable[..., None]], GpuKernel]:
    """Register a kernel; ``name`` is the function's by default.

    Raises:
        ValueError: the name is taken.
    """

    def register(function: Callable[..., None]) -> GpuKernel:
        made = GpuKernel(
            name or function.__name__,
            function,
            tuple((p, t) for p, t in function.__annotations__.items() if p != "return"),
            threads,
            max_registers,
            unroll,
        )
        if made.name in KERNELS:
            raise ValueError(f"kernel {made.name} is declared twice")
        KERNELS[made.name] = made
        return made

    return register
