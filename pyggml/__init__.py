"""pyggml: ggml-style tensor graphs in Python, computed by kernels that Numba compiles for this host.

    import numpy as np
    import pyggml as ggml

    ctx = ggml.Context()
    a = ctx.from_numpy(np.array([[2, 8], [5, 1], [4, 2], [8, 6]], np.float32))
    b = ctx.from_numpy(np.array([[10, 5], [9, 9], [5, 4]], np.float32))
    result = ggml.mul_mat(ctx, a, b)               # b @ a.T in NumPy's order
    graph = ggml.CGraph()
    graph.build_forward_expand(result)
    ggml.graph_compute_with_ctx(ctx, graph)
    print(result.numpy())

Names are ggml's without the prefix; ``ne[0]`` is the contiguous dimension. Importing this package
loads NumPy and compiles nothing; Numba comes with the first CPU compute.
"""

from .alloc import GraphAllocator, TensorAllocator, alloc_ctx_tensors
from .backend.registry import available, init_backend, register_backend
from .buffer import HOST, HostBufferType
from .cgraph import CGraph
from .compute import graph_compute_with_ctx
from .context import Context
from .dtype import GGMLType
from .errors import (
    Aborted, AllocError, BackendError, ComputeError, GGUFError, PyggmlError, QuantizeError,
    ShapeError, TypeMismatch, UnsupportedOp,
)  # fmt: skip
from .gguf import GGUFFile
from .ops import (
    OPS, Op, RopeMode, abs, add, argmax, cast, ceil, cont, cont_2d, cont_3d, cpy, define_op,
    div, dup, elu, exp, expm1, flash_attn_cells, flash_attn_ext, floor, geglu, geglu_erf,
    geglu_erf_split, geglu_erf_swapped, geglu_quick, geglu_quick_split, geglu_quick_swapped,
    geglu_split, geglu_swapped, gelu, gelu_erf, gelu_quick, get_rows, glu, glu_split,
    hardsigmoid, hardswish, map_custom, mul, mul_mat, neg, permute, reglu, reglu_split,
    reglu_swapped, relu, reshape, reshape_1d, reshape_2d, reshape_3d, reshape_4d, rms_norm,
    rope, rope_ext, round, scale, scale_bias, set_rows, sgn, sigmoid, silu, soft_max,
    soft_max_ext, softplus, step, sub, swiglu, swiglu_split, swiglu_swapped, tanh, transpose,
    trunc, unary, view_1d, view_2d, view_3d, view_4d, xielu,
)  # fmt: skip
from .tensor import Tensor

__version__ = "0.1.0"
__all__ = [
    "Aborted", "AllocError", "BackendError", "CGraph", "ComputeError", "Context", "GGMLType",
    "GGUFError", "GGUFFile", "GraphAllocator", "HOST", "HostBufferType", "OPS", "Op",
    "PyggmlError", "QuantizeError", "RopeMode", "ShapeError", "Tensor", "TensorAllocator",
    "TypeMismatch", "UnsupportedOp", "abs", "add", "alloc_ctx_tensors", "argmax", "available",
    "cast", "ceil", "cont", "cont_2d", "cont_3d", "cpy", "define_op", "div", "dup", "elu",
    "exp", "expm1", "flash_attn_cells", "flash_attn_ext", "floor", "geglu", "geglu_erf",
    "geglu_erf_split", "geglu_erf_swapped", "geglu_quick", "geglu_quick_split",
    "geglu_quick_swapped", "geglu_split", "geglu_swapped", "gelu", "gelu_erf", "gelu_quick",
    "get_rows", "glu", "glu_split", "graph_compute_with_ctx", "hardsigmoid", "hardswish",
    "init_backend", "map_custom", "mul", "mul_mat", "neg", "permute", "register_backend",
    "reglu", "reglu_split", "reglu_swapped", "relu", "reshape", "reshape_1d", "reshape_2d",
    "reshape_3d", "reshape_4d", "rms_norm", "rope", "rope_ext", "round", "scale", "scale_bias",
    "set_rows", "sgn", "sigmoid", "silu", "soft_max", "soft_max_ext", "softplus", "step", "sub",
    "swiglu", "swiglu_split", "swiglu_swapped", "tanh", "transpose", "trunc", "unary",
    "view_1d", "view_2d", "view_3d", "view_4d", "xielu",
]  # fmt: skip
