"""Row-sparse matrix products by scores: MUL_MAT_SPARSE, AXPY, MUL_MAT_SIGNS.

    up = mul_mat_sparse(ctx, ffn_up, x, scores, threshold)     # [n_ff, T], 0 where not computed
    out = axpy(ctx, ffn_down_t, up, scores, threshold)         # [n_embd, T]

Neuron j of token t is active where ``scores[t, j] >= threshold``; the others cost nothing and
contribute exact zeros. A NaN score ends the compute with an error. If some of the neurons are on
another device, ``gpu_idx`` marks those that are absent, or ``bucket`` lists those that are present;
the sum of both partial results is the whole.
Source: PowerInfer's ``ggml_mul_mat_idx`` and ``ggml_axpy``; SparseInfer (Shin et al. 2024) for the
signs.
"""

from __future__ import annotations

import math

import numpy as np

from ...context import Context
from ...dtype import GGMLType
from ...rounding import ceil_div
from ...tensor import Tensor
from ..op import (
    ALL_FLOATS,
    F16,
    F32,
    I32,
    OTHER_QUANTS,
    QUANTS,
    Arg,
    Array,
    Case,
    Cost,
    Out,
    arg,
    case,
    define_op,
    require,
    source,
)

__all__ = ["axpy", "mul_mat_signs", "mul_mat_sparse"]


def _check_matrix(op: str, a: Tensor, b: Tensor) -> None:
    require(a.ne[2:] == b.ne[2:] == (1, 1), op, f"a {a.ne} and b {b.ne} must have two dimensions")


def _check_scores(
    op: str, n: int, ne: tuple[int, int, int, int], idx: Tensor | None, placed: Tensor | None,
    threshold: float, bucket: bool,
) -> None:  # fmt: skip
    """``n``: the matrix's rows; ``ne``: the sizes that the scores must have."""
    require(not math.isnan(threshold), op, "the threshold is not a number")
    if idx is not None:
        require(idx.ne == ne, op, f"scores idx '{idx.name}' are {idx.ne}, want {ne}")
    want = n if bucket else ne[0]
    if placed is None:
        require(not bucket, op, "a bucket is asked for and not given")
    else:
        name = f"the placement '{placed.name}' of neurons is {placed.ne}"
        require(placed.ne == (want, 1, 1, 1), op, f"{name}, want {(want, 1, 1, 1)}")
        require(placed.is_contiguous(), op, f"{name} and has gaps")
    require(bucket or n == ne[0], op, f"a has {n} rows, the scores are of {ne[0]} neurons")


def _infer_mul_mat_sparse(
    a: Tensor, b: Tensor, idx: Tensor, placed: Tensor | None, threshold: float, bucket: bool
) -> Out:
    op = "MUL_MAT_SPARSE"
    _check_matrix(op, a, b)
    require(
        a.ne[0] == b.ne[0],
        op,
        f"rows of a '{a.name}' {a.ne} have {a.ne[0]} elements, of b '{b.name}' {b.ne} {b.ne[0]}",
    )
    ne = (idx.ne[0], b.ne[1], 1, 1)
    _check_scores(op, a.ne[1], ne, idx, placed, threshold, bucket)
    return Out(F32, ne)


def _infer_axpy(
    a: Tensor, b: Tensor, idx: Tensor | None, placed: Tensor | None, threshold: float, bucket: bool
) -> Out:
    _check_matrix("AXPY", a, b)
    _check_scores("AXPY", a.ne[1], b.ne, idx, placed, threshold, bucket)
    return Out(F32, (a.ne[0], b.ne[1], 1, 1))


def active(idx: Array, threshold: float) -> Array:
    """Whether each neuron of each token is active. Raises: ValueError: a score is NaN."""
    if np.isnan(idx).any():
        raise ValueError(f"{np.isnan(idx).sum()} sparse scores are not numbers")
    found: Array = idx >= threshold
    return found


def _rows(n_ff: int, placed: Array | None, bucket: bool) -> tuple[Array, Array]:
    """(rows of the matrix that are used, the neurons that they belong to)."""
    if placed is None:
        return np.arange(n_ff), np.arange(n_ff)
    placed = placed.ravel()
    if not bucket:
        here = np.flatnonzero(placed != 1)
        return here, here
    if placed.size and (placed.min() < 0 or placed.max() >= n_ff):
        raise IndexError(f"neuron {placed.min()}..{placed.max()} of {n_ff}")
    return np.arange(len(placed)), placed


def _mul_mat_sparse(
    a: Array, b: Array, idx: Array, placed: Array | None, threshold: float, bucket: bool
) -> Array:
    rows, neurons = _rows(idx.shape[3], placed, bucket)
    dots = b[0, 0] @ a[0, 0][rows].T  # [T, rows]
    out = np.zeros(idx.shape, np.float32)
    out[0, 0][:, neurons] = np.where(active(idx[0, 0], threshold)[:, neurons], dots, 0)
    return out


def _axpy(
    a: Array, b: Array, idx: Array | None, placed: Array | None, threshold: float, bucket: bool
) -> Array:
    rows, neurons = _rows(b.shape[3], placed, bucket)
    x = b[0, 0]
    if idx is not None:
        x = np.where(active(idx[0, 0], threshold), x, 0)
    out: Array = x[:, neurons] @ a[0, 0][rows]
    return out[None, None]


def _cost(node: Tensor) -> Cost:
    """The cost if all neurons are active, since their number is data."""
    a, b = node.src[0], node.src[1]
    assert a is not None and b is not None
    return Cost(node.nbytes + sum(s.nbytes for s in node.src if s), a.nelements * b.ne[1])


def _bucket(n: int, n_ff: int) -> Arg:
    return Arg((n,), I32, values=lambda rng: np.sort(rng.permutation(n_ff)[:n]))


_SHAPES = (  # n_embd, n_ff, n_tokens, threshold of scores in -1..1
    (64, 33, 1, 0.0), (64, 100, 1, 0.8), (96, 160, 2, 0.5), (64, 17, 3, 0.0), (64, 70, 4, 0.9),
    (64, 40, 9, 0.8), (128, 300, 33, 0.8), (64, 48, 5, math.inf), (64, 48, 5, -math.inf),
    (32, 5, 17, 0.0), (32, 1, 1, -math.inf), (64, 33, 1, math.inf),
)  # fmt: skip


def _cases(transposed: bool) -> list[Case]:
    def one(
        k: int, f: int, n: int, type: GGMLType = F32, threshold: float = 0.0, *,
        placed: Arg | None = None, rows: int | None = None, perf: bool = False,
    ) -> Case:  # fmt: skip
        return case(
            arg(k, f if rows is None else rows, type=type),
            arg(f if transposed else k, n),
            arg(f, n),
            placed,
            threshold=threshold,
            bucket=rows is not None,
            perf=perf,
        )

    cases = [one(3, 17, 1, threshold=0.5), one(17, 65, 5), one(65, 33, 17, F16)]
    marks = Arg((100,), I32, values=lambda rng: rng.integers(0, 2, 100))
    for type in (*ALL_FLOATS, *QUANTS):
        cases += [one(k, f, n, type, threshold) for k, f, n, threshold in _SHAPES]
        for n in (1, 6):
            cases.append(one(64, 100, n, type, 0.2, placed=marks))
            cases.append(one(64, 100, n, type, 0.2, placed=_bucket(30, 100), rows=30))
    for type in OTHER_QUANTS:
        cases += [one(512, 100, n, type, 0.2) for n in (1, 3)]
    cases += [one(256, 70, n, GGMLType.IQ3_S, 0.9) for n in (4, 33)]
    cases += [one(64, 20, 2, placed=_bucket(0, 20), rows=0)]
    for type in (F16, GGMLType.Q4_0, GGMLType.Q8_0):
        for threshold in (0.9, 0.8, 0.6, 0.0):
            cases += [one(4096, 11008, n, type, threshold, perf=True) for n in (1, 4, 8, 64)]
    return cases


_MATRIX = {"a": source(*ALL_FLOATS, quantized=True), "b": source(F32)}
_PARAMS = {"threshold": 0.0, "bucket": False}

MUL_MAT_SPARSE = define_op(
    "MUL_MAT_SPARSE",
    src={**_MATRIX, "idx": source(F32), "placed?": source(I32, gaps=True)},
    params=_PARAMS,
    infer=_infer_mul_mat_sparse,
    reference=_mul_mat_sparse,
    cases=lambda: _cases(transposed=False),
    max_nmse=lambda node: 1e-7 if node.src[0].type == F32 else 5e-4,
    cost=_cost,
    doc="`MUL_MAT` where the score `idx` reaches the threshold, zero elsewhere.",
)

AXPY = define_op(
    "AXPY",
    src={**_MATRIX, "idx?": source(F32), "placed?": source(I32, gaps=True)},
    params=_PARAMS,
    infer=_infer_axpy,
    reference=_axpy,
    cases=lambda: (
        _cases(transposed=True) + [case(arg(64, 40, type=t), arg(40, 3)) for t in (F32, F16)]
    ),
    cost=_cost,
    doc="Sums of the rows of `a`, each times its value in `b`, where the score reaches the "
    "threshold.",
)


def mul_mat_sparse(
    ctx: Context, a: Tensor, b: Tensor, idx: Tensor, threshold: float = 0.0, *,
    gpu_idx: Tensor | None = None, bucket: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``mul_mat(a, b)`` of active neurons, exact zeros for the others.

    Shape:
        a [E, F], b F32 [E, T], idx F32 [F, T] -> F32 [F, T]
        gpu_idx I32 [F]: neurons marked 1 are computed elsewhere, and zero here
        bucket I32 [k]: a is [E, k] and has the rows of these neurons; all others are zero
    """
    placed = gpu_idx if bucket is None else bucket
    params = {"threshold": float(threshold), "bucket": bucket is not None}
    return MUL_MAT_SPARSE.build(ctx, a, b, idx, placed, **params)


def axpy(
    ctx: Context, a: Tensor, b: Tensor, idx: Tensor | None = None, threshold: float = 0.0, *,
    gpu_idx: Tensor | None = None, bucket: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Sum over active neurons of ``b[t, j] * a[j]``, in the order of the neurons.

    Shape:
        a [E, F], b F32 [F, T], idx F32 [F, T] (None: all are active) -> F32 [E, T]
        gpu_idx, bucket: as for ``mul_mat_sparse``; b and idx have all neurons
    """
    placed = gpu_idx if bucket is None else bucket
    params = {"threshold": float(threshold), "bucket": bucket is not None}
    return AXPY.build(ctx, a, b, idx, placed, **params)


def pack_signs(w: Array) -> Array:
    """Sign bits of float32 [m, n] as int32 [m, ceil(n / 32)]; bit i of word j: column 32 j + i."""
    bits = np.signbit(np.asarray(w, np.float32))
    bits = np.pad(bits, [(0, 0), (0, -bits.shape[1] % 32)])
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32)


def _infer_mul_mat_signs(signs: Tensor, x: Tensor) -> Out:
    op = "MUL_MAT_SIGNS"
    require(
        signs.ne[2:] == x.ne[2:] == (1, 1) and signs.ne[0] == ceil_div(x.ne[0], 32),
        op,
        f"signs '{signs.name}' {signs.ne} must be [{ceil_div(x.ne[0], 32)}, n] for x {x.ne}",
    )
    return Out(F32, (signs.ne[1], x.ne[1], 1, 1))


def _mul_mat_signs(signs: Array, x: Array) -> Array:
    words = np.ascontiguousarray(signs[0, 0]).view(np.uint8)
    bits = np.unpackbits(words, axis=1, bitorder="little")[:, : x.shape[3]]
    out: Array = (1.0 - 2.0 * np.signbit(x[0, 0])) @ (1.0 - 2.0 * bits).T
    return out[None, None]


def _signs(n: int, rows: int) -> Arg:
    return Arg(
        (ceil_div(n, 32), rows),
        I32,
        values=lambda rng: pack_signs(rng.standard_normal((rows, n)).astype(np.float32)),
    )


MUL_MAT_SIGNS = define_op(
    "MUL_MAT_SIGNS",
    src={"signs": source(I32), "x": source(F32)},
    infer=_infer_mul_mat_signs,
    reference=_mul_mat_signs,
    cases=lambda: [
        case(_signs(n, rows), arg(n, tokens), perf=n == 4096)
        for n, rows, tokens in (
            (32, 5, 1), (64, 33, 3), (65, 17, 2), (31, 4, 1), (576, 100, 9), (4096, 11008, 1),
        )
    ],
    exact=True,
    doc="How many more signs of a row and of `x` agree than differ, by XOR and a count of bits.",
)  # fmt: skip


def mul_mat_signs(ctx: Context, signs: Tensor, x: Tensor) -> Tensor:
    """Dot products of signs (+1, -1; those of zeros count) of packed rows and of ``x``.

    Shape:
        signs I32 [ceil(n / 32), m] from ``pack_signs``, x F32 [n, T] -> F32 [m, T], from -n to n
    """
    return MUL_MAT_SIGNS.build(ctx, signs, x)
