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
loads NumPy and compiles nothing; Numba comes with the first CPU compute. ``a as a`` marks a public
name for type checkers; a test compares the names here with the builders of the ops.
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
from .ops.attention.attention import (
    flash_attn_cells as flash_attn_cells,
    flash_attn_ext as flash_attn_ext,
)
from .ops.attention.mask import (
    diag as diag,
    diag_mask_inf as diag_mask_inf,
    diag_mask_zero as diag_mask_zero,
    tri as tri,
)
from .ops.attention.rope import (
    RopeMode as RopeMode,
    rope as rope,
    rope_ext as rope_ext,
)
from .ops.custom import map_custom as map_custom
from .ops.elementwise.binary import (
    add as add,
    add1 as add1,
    add_cast as add_cast,
    div as div,
    mul as mul,
    sub as sub,
)
from .ops.elementwise.fill import (
    arange as arange,
    fill as fill,
)
from .ops.elementwise.glu import (
    geglu as geglu,
    geglu_erf as geglu_erf,
    geglu_erf_split as geglu_erf_split,
    geglu_erf_swapped as geglu_erf_swapped,
    geglu_quick as geglu_quick,
    geglu_quick_split as geglu_quick_split,
    geglu_quick_swapped as geglu_quick_swapped,
    geglu_split as geglu_split,
    geglu_swapped as geglu_swapped,
    glu as glu,
    glu_split as glu_split,
    reglu as reglu,
    reglu_split as reglu_split,
    reglu_swapped as reglu_swapped,
    swiglu as swiglu,
    swiglu_clamp as swiglu_clamp,
    swiglu_oai as swiglu_oai,
    swiglu_split as swiglu_split,
    swiglu_swapped as swiglu_swapped,
)
from .ops.elementwise.math import (
    clamp as clamp,
    cos as cos,
    leaky_relu as leaky_relu,
    log as log,
    sin as sin,
    sqr as sqr,
    sqrt as sqrt,
)
from .ops.elementwise.scale import (
    scale as scale,
    scale_bias as scale_bias,
)
from .ops.elementwise.unary import (
    abs as abs,
    ceil as ceil,
    elu as elu,
    exp as exp,
    expm1 as expm1,
    floor as floor,
    gelu as gelu,
    gelu_erf as gelu_erf,
    gelu_quick as gelu_quick,
    hardsigmoid as hardsigmoid,
    hardswish as hardswish,
    neg as neg,
    relu as relu,
    round as round,
    sgn as sgn,
    sigmoid as sigmoid,
    silu as silu,
    softplus as softplus,
    step as step,
    tanh as tanh,
    trunc as trunc,
    unary as unary,
    xielu as xielu,
)
from .ops.images.conv import (
    conv_1d as conv_1d,
    conv_2d as conv_2d,
    conv_2d_direct as conv_2d_direct,
    conv_2d_dw_direct as conv_2d_dw_direct,
    conv_2d_s1_ph as conv_2d_s1_ph,
    conv_2d_sk_p0 as conv_2d_sk_p0,
    im2col as im2col,
)
from .ops.images.conv_transpose import (
    conv_transpose_1d as conv_transpose_1d,
    conv_transpose_2d_p0 as conv_transpose_2d_p0,
)
from .ops.images.image import (
    interpolate as interpolate,
    upscale as upscale,
    win_part as win_part,
    win_unpart as win_unpart,
)
from .ops.images.pool import (
    pool_1d as pool_1d,
    pool_2d as pool_2d,
)
from .ops.images.timestep import timestep_embedding as timestep_embedding
from .ops.matrix.experts import (
    add_id as add_id,
    mul_mat_id as mul_mat_id,
)
from .ops.matrix.hadamard import hadamard as hadamard
from .ops.matrix.matmul import mul_mat as mul_mat
from .ops.matrix.out_prod import out_prod as out_prod
from .ops.matrix.sparse import (
    axpy as axpy,
    mul_mat_signs as mul_mat_signs,
    mul_mat_sparse as mul_mat_sparse,
)
from .ops.movement.cpy import (
    cast as cast,
    cont as cont,
    cont_2d as cont_2d,
    cont_3d as cont_3d,
    cpy as cpy,
    dup as dup,
)
from .ops.movement.pad import (
    pad as pad,
    pad_circular as pad_circular,
    pad_ext as pad_ext,
    pad_reflect_1d as pad_reflect_1d,
    roll as roll,
)
from .ops.movement.region import (
    acc as acc,
    acc_inplace as acc_inplace,
    set as set,
    set_1d as set_1d,
    set_1d_inplace as set_1d_inplace,
    set_2d as set_2d,
    set_2d_inplace as set_2d_inplace,
    set_inplace as set_inplace,
)
from .ops.movement.repeat import (
    concat as concat,
    repeat as repeat,
    repeat_4d as repeat_4d,
)
from .ops.movement.rows import (
    get_rows as get_rows,
    set_rows as set_rows,
)
from .ops.movement.view import (
    permute as permute,
    reshape as reshape,
    reshape_1d as reshape_1d,
    reshape_2d as reshape_2d,
    reshape_3d as reshape_3d,
    reshape_4d as reshape_4d,
    transpose as transpose,
    view_1d as view_1d,
    view_2d as view_2d,
    view_3d as view_3d,
    view_4d as view_4d,
)
from .ops.rows.norm import (
    group_norm as group_norm,
    l2_norm as l2_norm,
    norm as norm,
    rms_norm as rms_norm,
)
from .ops.rows.reduce import (
    argmax as argmax,
    count_equal as count_equal,
    cumsum as cumsum,
    mean as mean,
    sum as sum,
    sum_rows as sum_rows,
)
from .ops.rows.softmax import (
    soft_max as soft_max,
    soft_max_ext as soft_max_ext,
)
from .ops.rows.sort import (
    argsort as argsort,
    argsort_top_k as argsort_top_k,
    top_k as top_k,
)
from .ops.op import (
    OPS as OPS,
    Op as Op,
    define_op as define_op,
)
from .sched import Sched as Sched
from .tensor import Tensor as Tensor

__version__ = "0.1.0"
