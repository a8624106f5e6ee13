"""Atomic operations on int64 addresses, the spin-wait hint and calls by address; for jitted code.

Source: LLVM ``atomicrmw``, ``cmpxchg`` and atomic loads and stores.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types

from ...compiler.jit import intrinsic_from_ir
from ...compiler.numba_internals import cgutils

i64 = ir.IntType(64)
_X86 = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")


def _pointer(b: Any, address: Any) -> Any:
    return b.inttoptr(address, i64.as_pointer())


@intrinsic_from_ir(result=types.int64)
def atomic_add(b: Any, address: Any, value: Any) -> Any:
    """Add, and return the value before."""
    return b.atomic_rmw("add", _pointer(b, address), value, "acq_rel")


@intrinsic_from_ir(result=types.boolean)
def atomic_cas(b: Any, address: Any, expected: Any, value: Any) -> Any:
    """Store ``value`` if the memory has ``expected``; returns whether it had."""
    pair = b.cmpxchg(_pointer(b, address), expected, value, "acq_rel", "acquire")
    return b.extract_value(pair, 1)


@intrinsic_from_ir(result=types.int64)
def atomic_load(b: Any, address: Any) -> Any:
    """Load with acquire order."""
    return b.load_atomic(_pointer(b, address), "acquire", 8)


@intrinsic_from_ir
def atomic_store(b: Any, address: Any, value: Any) -> None:
    """Store with release order."""
    b.store_atomic(value, _pointer(b, address), "release", 8)


@intrinsic_from_ir
def pause(b: Any) -> None:
    """Tell the core that the thread spins."""
    if _X86:
        function = ir.FunctionType(ir.VoidType(), [])
        b.call(cgutils.get_or_insert_function(b.module, function, "llvm.x86.sse2.pause"), [])


@intrinsic_from_ir(
    typed=lambda at, some: types.void(types.int64, types.UniTuple(types.int64, len(some)))
)
def call_address(b: Any, address: Any, arguments: Any) -> None:
    """Call a C function of int64 arguments, given as a tuple, by its address."""
    n = arguments.type.count
    function = ir.FunctionType(ir.VoidType(), [i64] * n).as_pointer()
    b.call(b.inttoptr(address, function), cgutils.unpack_tuple(b, arguments, n))


@intrinsic_from_ir(result=types.int64)
def cycles(b: Any) -> Any:
    """The core's time-stamp counter (0 where it has none)."""
    function, name = ir.FunctionType(i64, []), "llvm.readcyclecounter"
    return b.call(cgutils.get_or_insert_function(b.module, function, name), [])
