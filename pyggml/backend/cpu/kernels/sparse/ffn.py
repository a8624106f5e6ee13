"""A sparse feed-forward part as three launches: list of active rows, dot products, AXPY.

    up, gate (MUL_MAT_SPARSE), GLU, AXPY           # a predictor's, signs' or low-rank scores
    gate (MUL_MAT), up, GLU, AXPY                  # the gate's own scores
    up, ADD (a bias), UNARY, AXPY                  # no gate

Nothing is read or written for neurons that are not listed. The bits are those of the single nodes.
"""

from __future__ import annotations

from .....dtype import GGMLType
from .....ops.elementwise.formulas import PARAMETERS
from .....ops.elementwise.glu import ACTIVATIONS
from .....tensor import Tensor
from ...compile.lowering import CpuLowering, fuses
from .axpy import launch_axpy
from .mul_mat import GATE, GATE_ROWS, UP, Form, launch_rows, supports_sparse


def _op(x: Tensor | None) -> str:
    return "" if x is None or x.op is None else x.op.name


def _values(y: Tensor) -> tuple[Form, Tensor, Tensor | None] | None:
    """(form, MUL_MAT_SPARSE, bias or gate) that compute AXPY's values; None if none does."""
    if _op(y) == "GLU":
        gate, up = y.src[0], y.src[1]
        act = ACTIVATIONS.get(y.op_params["kind"])
        if gate is None or up is None or act is None or y.op_params["swapped"]:
            return None
        up_act = ""
        if _op(up) == "UNARY":
            up_act, up = up.op_params["kind"], up.src[0]
        if _op(gate) == "MUL_MAT_SPARSE" and _same_rows_of(gate, up):
            return Form(GATE_ROWS, act, up_act), up, gate
        return Form(GATE, act, up_act), up, gate
    squared = _op(y) == "SQR"
    y = y.src[0] if squared else y
    if _op(y) != "UNARY":
        return None
    up, bias = y.src[0], None
    if _op(up) == "ADD":
        up, bias = up.src[0], up.src[1]
        if bias.ne != (up.ne[0], 1, 1, 1):
            return None
    return Form(UP, y.op_params["kind"], "", squared), up, bias


def _same_rows_of(gate: Tensor, up: Tensor) -> bool:
    """Whether two MUL_MAT_SPARSE are equal except for their weights."""
    return (
        gate.src[1:] == up.src[1:]
        and gate.op_params == up.op_params
        and gate.src[0].type is up.src[0].type
        and supports_sparse(gate)
    )


def _fuse(lowering: CpuLowering, *nodes: Tensor) -> bool:
    """Fuse MUL_MAT_SPARSE, its activation, and AXPY on the same scores."""
    *inner, axpy = nodes
    found = _values(axpy.src[1])
    if found is None:
        return False
    form, up, other = found
    if _op(up) != "MUL_MAT_SPARSE" or not (supports_sparse(up) and supports_sparse(axpy)):
        return False
    if up.src[2:] != axpy.src[2:] or up.op_params != axpy.op_params:
        return False
    if form.act in PARAMETERS or form.up_act in PARAMETERS:
        return False
    in_group = [n for n in inner if _op(n) == "MUL_MAT_SPARSE"]
    if len(in_group) != 1 + (form.kind == GATE_ROWS) or up not in in_group:
        return False
    if other is not None and other.type is not GGMLType.F32:
        return False
    if form.kind == GATE and (other.ne != up.ne or not other.is_contiguous_rows()):
        return False
    values = lowering.take(up.nbytes)
    launch_rows(lowering, up, form, other.src[0] if form.kind == GATE_ROWS else other, values)
    launch_axpy(lowering, axpy, values, None)
    return True


_ROWS = "MUL_MAT_SPARSE"
for _between in (
    (_ROWS, "GLU"),
    (_ROWS, "UNARY", "GLU"),
    ("GLU",),
    ("UNARY", "GLU"),
    ("UNARY",),
    ("ADD", "UNARY"),
    ("UNARY", "SQR"),
    ("ADD", "UNARY", "SQR"),
):
    fuses(_ROWS, *_between, "AXPY")(_fuse)
