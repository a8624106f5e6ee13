"""Atomic operations on int64 addresses, the spin-wait hint and calls by address; for jitted code.

Source: LLVM ``atomicrmw``, ``cmpxchg`` and atomic loads and stores.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...numba_internals import cgutils

i64 = ir.IntType(64)
_X86 = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")


def _pointer(b: Any, address: Any) -> Any:
    return b.inttoptr(address, i64.as_pointer())


@intrinsic
def atomic_add(typingctx: Any, address: Any, value: Any) -> Any:
    """Add, and return the value before."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.atomic_rmw("add", _pointer(b, args[0]), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_cas(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
    """Store ``value`` if the memory has ``expected``; returns whether it had."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        pair = b.cmpxchg(_pointer(b, args[0]), args[1], args[2], "acq_rel", "acquire")
        return b.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic
def atomic_load(typingctx: Any, address: Any) -> Any:
    """Load with acquire order."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.load_atomic(_pointer(b, args[0]), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def atomic_store(typingctx: Any, address: Any, value: Any) -> Any:
    """Store with release order."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        b.store_atomic(args[1], _pointer(b, args[0]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def pause(typingctx: Any) -> Any:
    """Tell the core that the thread spins."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        if _X86:
            function = ir.FunctionType(ir.VoidType(), [])
            b.call(cgutils.get_or_insert_function(b.module, function, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call_address(typingctx: Any, address: Any, arguments: Any) -> Any:
    """Call a C function of int64 arguments, given as a tuple, by its address."""
    n = len(arguments)

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        function = ir.FunctionType(ir.VoidType(), [i64] * n).as_pointer()
        b.call(b.inttoptr(args[0], function), cgutils.unpack_tuple(b, args[1], n))
        return context.get_dummy_value()

    return types.void(types.int64, types.UniTuple(types.int64, n)), codegen


@intrinsic
def cycles(typingctx: Any) -> Any:
    """The core's time-stamp counter (0 where it has none)."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        function = ir.FunctionType(i64, [])
        name = "llvm.readcyclecounter"
        return b.call(cgutils.get_or_insert_function(b.module, function, name), [])

    return types.int64(), codegen
