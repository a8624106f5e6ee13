"""What an op is: one declaration that shape checks, reference, tests and docs derive from.

    SCALE = define_op(
        "SCALE", src={"x": source(F32)}, params={"s": 1.0, "b": 0.0}, inplace_ok=True,
        infer=lambda x, s, b: same(x),
        reference=lambda x, s, b: x * s + b,
        cases=lambda: [case(arg(64, 5), s=2.0)],
    )
    def scale(ctx, x, s): return SCALE.build(ctx, x, s=s)

Building a node checks shapes and types and computes nothing. The ops of a family live in one file
of this package; their kernels are in ``backend/<name>/kernels/``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..context import Context
from ..dtype import GGMLType
from ..errors import ShapeError, TypeMismatch
from ..quants import BLOCK_TYPES
from ..tensor import NO_PARAMS, Dims, Tensor

__all__ = ["OPS", "Op", "define_op"]

F32, F16, BF16, I32 = GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.I32
QUANTS = tuple(GGMLType[name] for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"))
OTHER_QUANTS = tuple(t for t in BLOCK_TYPES if t not in QUANTS)  # a few cases of each
WRITTEN_QUANTS = tuple(t for t in OTHER_QUANTS if BLOCK_TYPES[t].encode is not None)
FLOATS = (F32, F16)  # types of ops in a model's hot path
ALL_FLOATS = (F32, F16, BF16)  # types of plain element-wise ops

Array = npt.NDArray[Any]


class Out(NamedTuple):
    """The result of a shape rule: a fresh contiguous tensor."""

    type: GGMLType
    ne: Dims


class View(NamedTuple):
    """The result of a shape rule: a view of a source."""

    src: Tensor
    ne: Dims
    nb: Dims
    offset: int = 0  # bytes


class Cost(NamedTuple):
    """The cost of a node, for profiles: bytes moved and multiply-adds."""

    bytes: int
    macs: int = 0


@dataclass(frozen=True)
class Arg:
    """One random source of a test case.

    Args:
        ne: sizes; ``type``: its type (quantized types are quantized from random floats).
        low, high: uniform range (integers: ``high`` exclusive).
        permute: axes of a ggml ``permute`` that is applied after filling, so strides are odd.
        values: makes the array itself, from a Generator; shape ``ne`` reversed.
    """

    ne: tuple[int, ...]
    type: GGMLType = F32
    low: float = -1.0
    high: float = 1.0
    permute: tuple[int, int, int, int] | None = None
    values: Callable[[np.random.Generator], npt.NDArray[Any]] | None = None


def arg(*ne: int, **kw: Any) -> Arg:
    """``Arg`` with the sizes as positional arguments."""
    return Arg(ne, **kw)


@dataclass(frozen=True)
class Case:
    """One set of sources for the generic test of an op and, with ``perf``, for its benchmark."""

    args: tuple[Arg | None, ...]
    params: Mapping[str, Any] = field(default_factory=lambda: NO_PARAMS)
    perf: bool = False

    @property
    def id(self) -> str:
        parts = [
            "-" if a is None else f"{a.type.name.lower()}[{','.join(map(str, a.ne))}]"
            + ("p" if a.permute else "")
            for a in self.args
        ]  # fmt: skip
        values = (getattr(v, "__name__", v) for v in self.params.values())
        return ",".join(parts + [f"{k}={v}" for k, v in zip(self.params, values, strict=True)])


def case(*args: Arg | None, perf: bool = False, **params: Any) -> Case:
    """``Case`` with sources as positional and parameters as keyword arguments."""
    return Case(args, MappingProxyType(params), perf)


Check = Callable[[str, str, Tensor], None]  # of an op's source: (op, its name, tensor)


def source(*types: GGMLType, gaps: bool = False, quantized: bool = False) -> Check:
    """The check of a source of one of some types: raises ShapeError or TypeMismatch.

    Args:
        gaps: rows may have gaps.
        quantized: it may be of any block format too.
    """

    def check(op: str, name: str, x: Tensor) -> None:
        if not (quantized and x.type.is_quantized):
            require_type(op, name, x, types)
        if not gaps:
            require_rows(op, name, x)

    return check


class OpBuilders:
    """Builders of all ops, by their names in lower case: ``ops.mul(a, b)`` is a MUL of a context.

    Gradients are written with it, so that files of ops do not import each other in circles.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._built: dict[tuple[object, ...], Tensor] = {}

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        return partial(OPS[name.upper()].build, self._ctx)

    def once(self, build: Callable[..., Tensor], *args: Tensor) -> Tensor:
        """``build(ops, *args)``, built once: what the gradients of several sources share."""
        key = (build, *args)
        if key not in self._built:
            self._built[key] = build(self, *args)
        return self._built[key]

    def contiguous(self, x: Tensor) -> Tensor:
        """``x``, or a contiguous copy of it."""
        return x if x.is_contiguous() else self.cont(x)

    def reshaped(self, x: Tensor, like: Tensor) -> Tensor:
        """``x`` with the sizes of a tensor of as many elements."""
        return x if x.ne == like.ne else self.reshape(self.contiguous(x), ne=like.ne)

    def summed_to(self, x: Tensor, like: Tensor) -> Tensor:
        """``x`` summed to the sizes of ``like``, which repeats over it."""
        return x if x.ne == like.ne else self.repeat_back(x, ne=like.ne)


# (ops, node, gradient of the node) -> gradient of a source of the node; None where it is zero.
Gradient = Callable[[OpBuilders, Tensor, Tensor], Tensor | None]
NO_GRADIENTS: Mapping[str, Gradient] = MappingProxyType({})


def _default_cost(node: Tensor) -> Cost:
    return Cost(node.nbytes + sum(s.nbytes for s in node.src if s is not None))


@dataclass(frozen=True, eq=False)
class Op:
    """One op; see ``define_op``."""

    name: str
    src: tuple[str, ...]
    checks: tuple[Check | None, ...]
    params: MappingProxyType[str, Any]
    infer: Callable[..., Out | View]
    reference: Callable[..., Any] | None
    make_cases: Callable[[], Sequence[Case]]
    inplace_ok: bool = False
    max_nmse: float | Callable[[Tensor], float] = 1e-7
    exact: bool = False
    cost: Callable[[Tensor], Cost] = _default_cost
    doc: str = field(default="")
    updates: tuple[str, ...] = ()
    gradients: Mapping[str, Gradient] = field(default_factory=lambda: NO_GRADIENTS)

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """Shapes for the generic test and the benchmark; made when they are first asked for."""
        return tuple(self.make_cases())

    @property
    def is_view(self) -> bool:
        """Whether nodes of this op are views, for which nothing runs."""
        return self.reference is None

    @cached_property
    def n_required(self) -> int:
        return sum(not s.endswith("?") for s in self.src)

    @cached_property
    def _checked(self) -> list[tuple[int, str, Check]]:
        """Number, name and check of each source that has one."""
        named = enumerate(zip(self.src, self.checks, strict=True))
        return [(i, name.removesuffix("?"), check) for i, (name, check) in named if check]

    def updated(self, node: Tensor) -> tuple[Tensor, ...]:
        """The sources that a node writes besides its result, see ``updates``; none for most."""
        if not self.updates or node.src[-1] is None:
            return ()
        sources = (node.src[self.src.index(name)] for name in self.updates)
        return tuple(s for s in sources if s is not None)

    def tolerance(self, node: Tensor) -> float:
        """Largest NMSE of ``node`` against the reference; 0 means equal."""
        if self.exact:
            return 0.0
        return self.max_nmse(node) if callable(self.max_nmse) else self.max_nmse

    def build(self, ctx: Context, *src: Tensor | None, **params: Any) -> Tensor:
        """A new node: parameters completed with defaults, shapes and types checked.

        Raises:
            ShapeError, TypeMismatch: the op's rule refuses the sources.
        """
        params = self.params | params
        if len(params) > len(self.params):
            raise TypeError(f"{self.name} has no parameter {set(params) - set(self.params)}")
        src = (*src, *(None,) * (len(self.src) - len(src)))
        if len(src) > len(self.src) or None in src[: self.n_required]:
            raise TypeError(f"{self.name} takes the sources {self.src}, got {src}")
        for i, name, check in self._checked:
            if (x := src[i]) is not None:
                check(self.name, name, x)
        out = self.infer(*src, **params)
        node = ctx.new_view(*out) if isinstance(out, View) else ctx.new_tensor(*out)
        node.op = self
        node.src = src
        node.op_params = params
        return node


OPS: dict[str, Op] = {}


def define_op(
    name: str,
    *,
    src: Mapping[str, Check | None] | Sequence[str],
    infer: Callable[..., Out | View],
    reference: Callable[..., Any] | None,
    params: Mapping[str, Any] = NO_PARAMS,
    cases: Callable[[], Sequence[Case]] = tuple,
    **kw: Any,
) -> Op:
    """Declare an op and register it under its ggml name.

    Args:
        src: names of the sources in ggml's order, a trailing ``?`` marks an optional one; with what
            they must be (``source``), unless ``infer`` checks that.
        params: parameter names with their defaults.
        infer: ``infer(*src, **params) -> Out | View``; optional sources may be None.
        reference: ``reference(*arrays, **params) -> array`` on NumPy arrays of four dimensions in
            NumPy's order (``ne`` reversed), where F16, BF16 and quantized sources come as
            float32 and absent ones as None; the result is converted to the node's type. None for
            an op that makes views. A result that is a view of a source (CPY, SET_ROWS)
            returns the new content of that view.
        cases: makes the shapes for the generic test.
        kw: ``inplace_ok`` (the result may take the place of the first source), ``max_nmse`` (a
            number, or a function of the node) or ``exact`` (tolerance against the reference, as
            sum of squared errors by sum of squares), ``cost``, ``doc``, ``updates`` (names of
            sources that nodes which have the last source also write; the reference then returns
            a tuple: the result, and the new content of each), ``gradients`` (by source: a
            function of ``OpBuilders``, a node and its gradient that returns the source's
            gradient, of the source's sizes, or None if it is always zero; a source without one,
            such as an index, has no gradient).
    """
    if name in OPS:
        raise ValueError(f"op {name} is declared twice")
    checks = tuple(src.values()) if isinstance(src, Mapping) else (None,) * len(src)
    params = MappingProxyType(dict(params))
    op = Op(name, tuple(src), checks, params, infer, reference, cases, **kw)
    OPS[name] = op
    return op


def same(x: Tensor, type: GGMLType | None = None) -> Out:
    """The shape rule of element-wise ops: the source's sizes (and type)."""
    return Out(x.type if type is None else type, x.ne)


def require(ok: bool, op: str, message: str) -> None:
    """Raise ShapeError with the op's name unless ``ok``.

    The message is formatted on each call. Ops that every layer has raise ShapeError themselves
    instead, which makes building a graph about 10 % faster.
    """
    if not ok:
        raise ShapeError(f"{op}: {message}")


def require_type(op: str, source: str, x: Tensor, types: Collection[GGMLType]) -> None:
    """Raise TypeMismatch with the op's name unless ``x`` has one of ``types``."""
    if x.type not in types:
        want = " or ".join(t.name for t in types)
        raise TypeMismatch(f"{op}: {source} '{x.name}' is {x.type.name}, want {want}")


def require_rows(op: str, source: str, x: Tensor) -> None:
    """Raise ShapeError with the op's name unless the rows of ``x`` have no gaps."""
    if not x.is_contiguous_rows():
        raise ShapeError(
            f"{op}: {source} '{x.name}' {x.ne} has rows with gaps (strides {x.nb}); "
            "use cont() first"
        )


def half_nmse(node: Tensor) -> float:
    """1e-7, but 1e-6 for a result that is rounded to 16 bits."""
    return 1e-6 if node.type in (F16, BF16) else 1e-7


def derive_name(node: Tensor, src: Tensor, what: str) -> Tensor:
    """Name ``node`` after its source as ggml does: ``X (view)``; nothing for a nameless one."""
    return node.set_name(f"{src.name} ({what})") if src.name else node
