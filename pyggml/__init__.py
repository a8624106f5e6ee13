"""pyggml: ggml-style tensor graphs in Python; Numba compiles the kernels for this host.

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
loads NumPy and compiles nothing; Numba comes with the first CPU compute. Builders of nodes raise
ShapeError or TypeMismatch if sizes or types do not fit. ``a as a`` marks a public name for type
checkers; ``__all__`` of an op's file names its builders.
"""

from .alloc import (
    GraphAllocator as GraphAllocator,
    TensorAllocator as TensorAllocator,
    alloc_ctx_tensors as alloc_ctx_tensors,
)
from .backend.registry import (
    available as available,
    init_backend as init_backend,
    register_backend as register_backend,
)
from .backward import build_backward_expand as build_backward_expand
from .buffer import (
    HOST as HOST,
    HostBufferType as HostBufferType,
)
from .cgraph import CGraph as CGraph
from .compute import graph_compute_with_ctx as graph_compute_with_ctx
from .context import Context as Context
from .dtype import GGMLType as GGMLType
from .errors import (
    Aborted as Aborted,
    AllocError as AllocError,
    BackendError as BackendError,
    ComputeError as ComputeError,
    GGUFError as GGUFError,
    PyggmlError as PyggmlError,
    QuantizeError as QuantizeError,
    ShapeError as ShapeError,
    TypeMismatch as TypeMismatch,
    UnsupportedOp as UnsupportedOp,
)
from .gguf import GGUFFile as GGUFFile
from .ops.attention.attention import *
from .ops.attention.attention_back import *
from .ops.attention.indexer import *
from .ops.attention.mask import *
from .ops.attention.rope import *
from .ops.custom import *
from .ops.elementwise.binary import *
from .ops.elementwise.fill import *
from .ops.elementwise.glu import *
from .ops.elementwise.math import *
from .ops.elementwise.scale import *
from .ops.elementwise.unary import *
from .ops.images.conv import *
from .ops.images.conv_transpose import *
from .ops.images.image import *
from .ops.images.pool import *
from .ops.images.timestep import *
from .ops.matrix.experts import *
from .ops.matrix.hadamard import *
from .ops.matrix.lora import *
from .ops.matrix.matmul import *
from .ops.matrix.out_prod import *
from .ops.matrix.solve_tri import *
from .ops.matrix.sparse import *
from .ops.matrix.sparse_experts import *
from .ops.movement.cpy import *
from .ops.movement.pad import *
from .ops.movement.region import *
from .ops.movement.repeat import *
from .ops.movement.rows import *
from .ops.movement.view import *
from .ops.recurrent.conv import *
from .ops.recurrent.delta_net import *
from .ops.recurrent.gated_pool import *
from .ops.recurrent.linear_attn import *
from .ops.recurrent.rwkv import *
from .ops.recurrent.scan import *
from .ops.rows.norm import *
from .ops.rows.reduce import *
from .ops.rows.softmax import *
from .ops.rows.sinkhorn import *
from .ops.rows.sort import *
from .ops.training.loss import *
from .ops.training.optimizer import *
from .ops.op import *
from .sched import Sched as Sched
from .tensor import Tensor as Tensor

__version__ = "0.1.0"
