"""MAP_CUSTOM: a user's jitted kernel runs like ours; a Python callable cuts the program.

    @numba.njit
    def clip(node, chunk, n_chunks, scratch): ...    # see ``abi`` for what a node record holds

A jitted function is compiled once, as a C function; the rules for kernels hold for it (no
exceptions, no allocation, chunks write different bytes).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numba as nb

from ....compiler.jit import KERNEL_SIG, CpuKernel, compiled_once
from ....ops.custom import is_kernel
from ....tensor import Tensor
from ..compile.lowering import CpuLowering, lowers


class UserKernel(CpuKernel):
    """A user's jitted function or C callback as a kernel."""

    def load(self) -> bool:
        """It is not in our cache, and not counted: compiled at its first use."""
        return True

    @compiled_once
    def machine_code(self) -> Any:
        """Something that has the machine code's ``address``."""
        if hasattr(type(self.function), "address"):
            return self.function
        function = self.function

        def call(node, chunk, n_chunks, scratch):
            function(node, chunk, n_chunks, scratch)

        return nb.cfunc(KERNEL_SIG)(call)


@lru_cache(maxsize=256)
def _user_kernel(fun: Callable[..., Any]) -> CpuKernel:
    return fun if isinstance(fun, CpuKernel) else UserKernel(fun)


@lowers("MAP_CUSTOM")
def _lower_map_custom(lowering: CpuLowering, node: Tensor) -> None:
    fun = node.op_params["fun"]
    if is_kernel(fun):
        lowering.launch(_user_kernel(fun), node, chunks=lowering.row_chunks(node))
        return
    arrays = [t.numpy(squeeze=False) for t in (node, *node.src) if t is not None]
    lowering.python(node, lambda: fun(*arrays))
