"""The public names: those of the builders in the families of ops, and a few others."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import pyggml
from pyggml import ops

OTHERS = {
    "Aborted", "AllocError", "BackendError", "CGraph", "ComputeError", "Context", "GGMLType",
    "GGUFError", "GGUFFile", "GraphAllocator", "HOST", "HostBufferType", "OPS", "Op",
    "PyggmlError", "QuantizeError", "RopeMode", "Sched", "ShapeError", "Tensor", "TensorAllocator",
    "TypeMismatch", "UnsupportedOp", "alloc_ctx_tensors", "available",
    "build_backward_expand", "define_op",
    "graph_compute_with_ctx", "init_backend", "register_backend",
}  # fmt: skip


def public(module: ModuleType) -> set[str]:
    names = vars(module).items()
    return {name for name, value in names if name[0] != "_" and not inspect.ismodule(value)}


def builders() -> set[str]:
    """The functions of the families whose first parameter is a context."""
    found = set()
    for info in pkgutil.walk_packages(ops.__path__, "pyggml.ops."):
        for name, function in inspect.getmembers(
            importlib.import_module(info.name), inspect.isfunction
        ):
            first = next(iter(inspect.signature(function).parameters), "")
            if function.__module__ == info.name and name[0] != "_" and first == "ctx":
                found.add(name)
    return found


def test_public_names() -> None:
    assert public(pyggml) == builders() | OTHERS
