"""Codebooks in jitted code: constants of the compiled code, looked up when it is compiled.

    entry = values_of(IQ2_XXS) + 8 * code          # the address of 8 levels

The IQ codebooks come from the ``gguf`` package, which only a compilation imports: code from the
cache has them in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from ....quants import iq4_nl, mxfp4
from ....quants.grids import entries
from ..abi import i8, i64

_VALUES = {GGMLType.IQ4_NL: iq4_nl.VALUES, GGMLType.MXFP4: mxfp4.VALUES}


def _address(b: Any, name: str, values: npt.NDArray[Any]) -> Any:
    """Emit the address of constant bytes."""
    made = b.module.globals.get(name)
    if made is None:
        data = bytearray(values.tobytes())
        made = ir.GlobalVariable(b.module, ir.ArrayType(i8, len(data)), name)
        made.linkage, made.global_constant, made.align = "internal", True, 64
        made.initializer = ir.Constant(made.value_type, data)
    return b.ptrtoint(made, i64)


@intrinsic(prefer_literal=True)
def values_of(typingctx: Any, kind: Any) -> Any:
    """The address of a format's values as int8, 16, or of the levels of its codebook's entries."""
    if not isinstance(kind, types.IntegerLiteral):
        return None
    type = GGMLType(kind.literal_value)

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        values = np.asarray(_VALUES[type] if type in _VALUES else entries(type), np.int8)
        return _address(b, f"pyggml.values.{type.name}", values)

    return types.int64(kind), codegen


@intrinsic
def iq4_limits(typingctx: Any) -> Any:
    """The address of 15 float32: from each on, the next of IQ4_NL's values is the nearest."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        values = np.array(iq4_nl.VALUES, np.float32)
        return _address(b, "pyggml.limits.IQ4_NL", (values[1:] + values[:-1]) / np.float32(2))

    return types.int64(), codegen
