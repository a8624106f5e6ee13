"""The appearance of tensors: op families, colours and symbols.

    painter = by_family(written)
    painter(node).paint.fill                       # "#d0ebff"
    symbol(node)                                   # "X*Y" of MUL_MAT, "rope(x, pos)" of ROPE

Colours are pale so that black text reads on them; a family's line colour is its strong twin.
Source: ggml, ``GGML_OP_SYMBOL`` and ``ggml_graph_dump_dot`` (symbols, pink leafs).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from ..dtype import GGMLType
from ..tensor import Flag, Tensor


class Paint(NamedTuple):
    """Colours of a box."""

    fill: str
    line: str


class Look(NamedTuple):
    """A category of tensors; sorts in the legend's order."""

    order: int
    name: str
    paint: Paint


Painter = Callable[[Tensor], Look]

FAMILIES = {  # in the legend's order
    "input": Paint("#fff3bf", "#e67700"),
    "weight": Paint("#ffdeeb", "#d6336c"),
    "matmul": Paint("#d0ebff", "#1971c2"),
    "convolution": Paint("#c3fae8", "#099268"),
    "norm": Paint("#d3f9d8", "#2f9e44"),
    "rope": Paint("#ffe8cc", "#e8590c"),
    "cache": Paint("#c5f6fa", "#0c8599"),
    "cache write": Paint("#99e9f2", "#0b7285"),
    "attention": Paint("#e5dbff", "#6741d9"),
    "element-wise": Paint("#e9ecef", "#495057"),
    "copy, gather": Paint("#f3ead9", "#8a6d3b"),
    "other op": Paint("#e9fac8", "#5c940d"),
    "view": Paint("#ffffff", "#adb5bd"),
    "backward": Paint("#ffe3e3", "#c92a2a"),
}
UNALLOCATED = Paint("#ffffff", "#868e96")
BUFFERS = tuple(
    FAMILIES[name]
    for name in ("matmul", "weight", "cache", "input", "norm", "attention", "rope", "copy, gather")
)  # used cyclically

_FAMILY_OF_OP = {
    **dict.fromkeys(["MUL_MAT", "MUL_MAT_ID", "OUT_PROD"], "matmul"),
    **dict.fromkeys(["CONV_2D", "CONV_2D_DW", "IM2COL", "POOL_1D", "POOL_2D"], "convolution"),
    **dict.fromkeys(["CONV_TRANSPOSE_1D", "CONV_TRANSPOSE_2D"], "convolution"),
    **dict.fromkeys(["NORM", "RMS_NORM", "GROUP_NORM", "L2_NORM"], "norm"),
    **dict.fromkeys(["FLASH_ATTN_EXT", "SOFT_MAX"], "attention"),
    **dict.fromkeys(["ROPE"], "rope"),
    **dict.fromkeys(["ADD", "ADD1", "ADD_ID", "ACC", "SUB", "MUL", "DIV"], "element-wise"),
    **dict.fromkeys(["SCALE", "UNARY", "GLU", "CLAMP", "LEAKY_RELU"], "element-wise"),
    **dict.fromkeys(["SQR", "SQRT", "LOG", "SIN", "COS"], "element-wise"),
    **dict.fromkeys(["CPY", "CONT", "DUP", "GET_ROWS", "SET_ROWS", "SET"], "copy, gather"),
    **dict.fromkeys(["CONCAT", "REPEAT", "PAD", "PAD_REFLECT_1D", "ROLL"], "copy, gather"),
    **dict.fromkeys(["WIN_PART", "WIN_UNPART"], "copy, gather"),
}
_SYMBOLS = {
    "ADD": "x+y",
    "SUB": "x-y",
    "MUL": "x*y",
    "DIV": "x/y",
    "MUL_MAT": "X*Y",
    "MUL_MAT_ID": "X[i]*Y",
    "SCALE": "x*v",
    "CPY": "x->y",
}
_INTEGERS = (GGMLType.I8, GGMLType.I16, GGMLType.I32, GGMLType.I64)


def family(tensor: Tensor, written: Collection[Tensor]) -> str:
    """Return the key of ``FAMILIES`` for a tensor.

    Args:
        written: the leafs that nodes of the graph write into, such as a KV cache.
    """
    if tensor.op is None:
        if tensor in written:
            return "cache"
        given = tensor.flags & Flag.INPUT or tensor.type in _INTEGERS
        return "input" if given else "weight"
    if tensor.op.is_view:
        return "view"
    if tensor.view_src in written:
        return "cache write"
    return _FAMILY_OF_OP.get(tensor.op.name, "other op")


def by_family(written: Collection[Tensor], backward: Iterable[Tensor] = ()) -> Painter:
    """Return the look of a tensor's op family; see ``family``.

    Args:
        backward: the nodes of the backward part, which is a family of its own.
    """
    looks = {name: Look(i, name, paint) for i, (name, paint) in enumerate(FAMILIES.items())}
    gradients = set(backward)
    return lambda tensor: looks["backward" if tensor in gradients else family(tensor, written)]


def symbol(node: Tensor) -> str:
    """Return the op as a formula: ggml's symbol, or a call with the names of its sources."""
    op = node.op
    if op is None:
        return "parameter"
    if op.name in _SYMBOLS:
        return _SYMBOLS[op.name]
    name = node.op_params.get("kind")  # silu of UNARY, swiglu of GLU
    if op.name == "MAP_CUSTOM":
        name = getattr(node.op_params.get("fun"), "__name__", None)
    given = zip(op.src, node.src, strict=False)
    sources = (name.removesuffix("?") for name, src in given if src is not None)
    return f"{name if isinstance(name, str) else op.name.lower()}({', '.join(sources)})"


def shape(tensor: Tensor) -> str:
    """Return type and sizes such as ``f32 [64, 9]``, in ne order without trailing ones."""
    return f"{tensor.type.name.lower()} {list(tensor.ne[: tensor.n_dims])}"
