"""The ops, i.e. the nodes that a graph can have, and the functions that build them.

    from pyggml import ops
    y = ops.mul_mat(ctx, w, x)
    ops.OPS["MUL_MAT"].doc

Builders have ggml's names without the prefix. There is a file for each family of ops; ``op.py``
says what an op is. ``a as a`` marks a public name for type checkers; a test compares the names here
and in ``pyggml`` with the builders of the families.
"""

from .attention.attention import (
    flash_attn_cells as flash_attn_cells,
    flash_attn_ext as flash_attn_ext,
)
from .attention.mask import (
    diag as diag,
    diag_mask_inf as diag_mask_inf,
    diag_mask_zero as diag_mask_zero,
    tri as tri,
)
from .attention.rope import (
    RopeMode as RopeMode,
    rope as rope,
    rope_ext as rope_ext,
)
from .custom import map_custom as map_custom
from .elementwise.binary import (
    add as add,
    add1 as add1,
    add_cast as add_cast,
    div as div,
    mul as mul,
    sub as sub,
)
from .elementwise.fill import (
    arange as arange,
    fill as fill,
)
from .elementwise.glu import (
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
from .elementwise.math import (
    clamp as clamp,
    cos as cos,
    leaky_relu as leaky_relu,
    log as log,
    sin as sin,
    sqr as sqr,
    sqrt as sqrt,
)
from .elementwise.scale import (
    scale as scale,
    scale_bias as scale_bias,
)
from .elementwise.unary import (
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
from .images.conv import (
    conv_1d as conv_1d,
    conv_2d as conv_2d,
    conv_2d_direct as conv_2d_direct,
    conv_2d_dw_direct as conv_2d_dw_direct,
    conv_2d_s1_ph as conv_2d_s1_ph,
    conv_2d_sk_p0 as conv_2d_sk_p0,
    im2col as im2col,
)
from .images.conv_transpose import (
    conv_transpose_1d as conv_transpose_1d,
    conv_transpose_2d_p0 as conv_transpose_2d_p0,
)
from .images.image import (
    interpolate as interpolate,
    upscale as upscale,
    win_part as win_part,
    win_unpart as win_unpart,
)
from .images.pool import (
    pool_1d as pool_1d,
    pool_2d as pool_2d,
)
from .images.timestep import timestep_embedding as timestep_embedding
from .matrix.experts import (
    add_id as add_id,
    mul_mat_id as mul_mat_id,
)
from .matrix.hadamard import hadamard as hadamard
from .matrix.matmul import mul_mat as mul_mat
from .matrix.out_prod import out_prod as out_prod
from .matrix.sparse import (
    axpy as axpy,
    mul_mat_signs as mul_mat_signs,
    mul_mat_sparse as mul_mat_sparse,
    pack_signs as pack_signs,
)
from .movement.cpy import (
    cast as cast,
    cont as cont,
    cont_2d as cont_2d,
    cont_3d as cont_3d,
    cpy as cpy,
    dup as dup,
)
from .movement.pad import (
    pad as pad,
    pad_circular as pad_circular,
    pad_ext as pad_ext,
    pad_reflect_1d as pad_reflect_1d,
    roll as roll,
)
from .movement.region import (
    acc as acc,
    acc_inplace as acc_inplace,
    set as set,
    set_1d as set_1d,
    set_1d_inplace as set_1d_inplace,
    set_2d as set_2d,
    set_2d_inplace as set_2d_inplace,
    set_inplace as set_inplace,
)
from .movement.repeat import (
    concat as concat,
    repeat as repeat,
    repeat_4d as repeat_4d,
)
from .movement.rows import (
    get_rows as get_rows,
    set_rows as set_rows,
)
from .movement.view import (
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
from .op import (
    OPS as OPS,
    Op as Op,
)
from .rows.norm import (
    group_norm as group_norm,
    l2_norm as l2_norm,
    norm as norm,
    rms_norm as rms_norm,
)
from .rows.reduce import (
    argmax as argmax,
    count_equal as count_equal,
    cumsum as cumsum,
    mean as mean,
    sum as sum,
    sum_rows as sum_rows,
)
from .rows.softmax import (
    soft_max as soft_max,
    soft_max_ext as soft_max_ext,
)
from .rows.sort import (
    argsort as argsort,
    argsort_top_k as argsort_top_k,
    top_k as top_k,
)
