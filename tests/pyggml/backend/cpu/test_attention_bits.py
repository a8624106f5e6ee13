"""FLASH_ATTN_EXT: a token's bits depend on its keys alone, for any way to read them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pyggml as ops
from pyggml.backend.cpu import kernels as kernels  # registers the lowerings
from pyggml.backend.cpu.compile.program import compile_program
from pyggml.backend.cpu.compile.work import WorkStore
from pyggml.backend.cpu.kernels.attention import attention
from pyggml.backend.cpu.run.pool import get_pool
from pyggml.backend.cpu.simd.attention.attend_codes import CODES
from pyggml.backend.cpu.simd.kv_row import KINDS
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.quants import from_float, to_float
from pyggml.tensor import Tensor
from tests.tiers import some

Array = npt.NDArray[Any]
HEADS, KV_HEADS, CELLS, LIST, SEQS = 6, 2, 900, 290, 3
F16, Q8_0, BF16, F32 = GGMLType.F16, GGMLType.Q8_0, GGMLType.BF16, GGMLType.F32
Q4_0, Q5_1 = GGMLType.Q4_0, GGMLType.Q5_1
RNG = np.random.default_rng(0)
K, V = (RNG.standard_normal((1, KV_HEADS, CELLS, 100)).astype(np.float32) for _ in range(2))
Q = RNG.standard_normal((14, 24, 100)).astype(np.float32)
LISTS = np.stack(
    [np.stack([RNG.permutation(CELLS)[:LIST], np.arange(LIST)], -1) for _ in range(SEQS)]
).astype(np.int32)
DIRECT, PACKED = 1 << 30, 0


def rows_of(t: int, in_turn: bool) -> list[int]:
    """Tokens at the ends of lists; sequences alternate, or come in runs of eight."""
    end = LIST - 3 * (23 - t) % LIST
    return [t % SEQS if in_turn else t // 8, max(0, end - 270), end, end - 1]


@cache
def cached(kind: GGMLType, values: str, hd: int, widened: bool) -> Tensor:
    """Keys ("k") or values ("v"); widened: the values of ``kind`` as F32."""
    tensor = Context().new_tensor_3d(F32 if widened else kind, hd, CELLS, KV_HEADS)
    x = np.ascontiguousarray({"k": K, "v": V}[values][..., :hd])
    from_float(tensor, to_float(cached(kind, values, hd, False)) if widened else x)
    return tensor


def attend(
    kinds: tuple[GGMLType, GGMLType], tokens: list[int], n_threads: int = 1, in_turn: bool = True,
    dense: bool = False, hd: int = 64, widened: bool = False, heads: int = HEADS,
) -> Array:  # fmt: skip
    """float32[tokens, heads * hd]."""
    ctx = Context()
    caches = [cached(kind, x, hd, widened) for kind, x in zip(kinds, "kv", strict=True)]
    q = ctx.from_numpy(np.ascontiguousarray(Q[:heads, tokens, :hd]))
    if dense:
        mask = np.where(np.arange(CELLS) <= 600 + 9 * np.array(tokens)[:, None], 0, -np.inf)
        last = ctx.from_numpy(mask.astype(np.float32))
        node = ops.flash_attn_ext(ctx, q, *caches, last, 0.125)
    else:
        rows = np.array([rows_of(t, in_turn) for t in tokens], np.int32)
        lists = [ctx.from_numpy(x) for x in (LISTS, rows)]
        node = ops.flash_attn_cells(ctx, q, *caches, *lists, 0.125)
    return computed(node, n_threads).reshape(len(tokens), -1)


def computed(node: Tensor, n_threads: int) -> Array:
    graph = CGraph()
    graph.build_forward_expand(node)
    program = compile_program(graph, n_threads, get_pool().error_slot, WorkStore())
    get_pool().run(program)
    return node.numpy().copy()


@pytest.mark.parametrize(
    ("kinds", "hd"),
    some(
        [
            *(((k, k), 64) for k in KINDS),
            *((p, 64) for p in ((Q8_0, F16), (BF16, Q8_0), (F32, BF16), (Q4_0, F16), (Q5_1, Q4_0))),
            *(((F16, F16), hd) for hd in (20, 46)),
            *(((k, k), 100) for k in (F16, BF16, F32)),
        ],
        7,
    ),
    ids=lambda p: "-".join(k.name for k in p) if isinstance(p, tuple) else str(p),
)
def test_bits_depend_on_the_token_alone(
    kinds: tuple[GGMLType, GGMLType], hd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for in_turn in (True, False):
        alone = np.concatenate([attend(kinds, [t], 1, in_turn, hd=hd) for t in range(24)])
        for limit in (DIRECT, PACKED, 9):
            monkeypatch.setattr(attention, "_DIRECT_ROWS", limit)
            for i, n in enumerate((1, 2, 3, 8, 9, 24, 7, 5)):
                first = 0 if i > 5 else 24 - n  # the first have lists of one chunk
                got = attend(kinds, list(range(first, first + n)), 1 + i % 3, in_turn, hd=hd)
                assert got.tobytes() == alone[first : first + n].tobytes(), (limit, n, in_turn)
            monkeypatch.undo()


def test_a_token_may_have_more_query_rows_than_a_pass() -> None:
    alone = np.concatenate([attend((F16, F16), [t], heads=14) for t in range(24)])
    for n_threads in (1, 2, 3):
        for first, n in ((0, 1), (1, 2), (3, 5), (20, 4)):
            got = attend((F16, F16), list(range(first, first + n)), n_threads, heads=14)
            assert got.tobytes() == alone[first : first + n].tobytes(), (n_threads, first)


def check_many_heads(kinds: tuple[GGMLType, GGMLType], max_nmse: float) -> None:
    """20 heads for each key, which are computed in tiles of 16 rows: their bits and their error."""
    n_heads, before = 20 * KV_HEADS, Q
    queries = np.concatenate([Q, 2 * Q[::-1], Q[:12, ::-1]])
    globals()["Q"] = queries
    try:
        alone = np.concatenate([attend(kinds, [t], heads=n_heads) for t in range(24)])
        for i, n in enumerate((2, 3, 7, 17, 24)):
            for in_turn in (True, False):
                if not in_turn:
                    alone_of = [attend(kinds, [t], 1, False, heads=n_heads) for t in range(24)]
                want = alone if in_turn else np.concatenate(alone_of)
                got = attend(kinds, list(range(24 - n, 24)), 1 + i % 3, in_turn, heads=n_heads)
                assert got.tobytes() == want[24 - n :].tobytes(), (n, in_turn)
    finally:
        globals()["Q"] = before
    keys, values = (
        to_float(cached(kind, x, 64, False))[0].astype(np.float64)
        for kind, x in zip(kinds, "kv", strict=True)
    )
    for t in range(24):
        sequence, begin, end, _ = rows_of(t, True)
        cells = LISTS[sequence][begin:end, 0]
        x = queries[:, t, :64].reshape(KV_HEADS, 20, 64) @ keys[:, cells].swapaxes(1, 2) / 8
        p = np.exp(x - x.max(-1, keepdims=True))
        want = (p / p.sum(-1, keepdims=True) @ values[:, cells]).reshape(-1)
        assert np.sum((alone[t] - want) ** 2) <= max_nmse * np.sum(want**2), t


@pytest.mark.parametrize(
    ("kinds", "max_nmse"),
    [((F16, F16), 1e-9), ((Q8_0, Q4_0), 1e-9), ((BF16, F16), 1e-9), ((F32, F32), 1e-11)],
    ids=str,
)
def test_many_heads_of_a_key(kinds: tuple[GGMLType, GGMLType], max_nmse: float) -> None:
    """The error of products of bfloat16 in two parts is far below that of F16."""
    check_many_heads(kinds, max_nmse)


@pytest.mark.parametrize("kind", [F16, Q8_0], ids=lambda k: k.name)
def test_values_that_are_columns_of_keys(kind: GGMLType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Latent attention: one head of keys of 96 columns, whose first 64 are the values.

    20 query heads share a key, so they are computed in tiles.
    """
    ctx, n = Context(), 4
    queries = np.concatenate([Q, Q[::-1][:6]])
    keys = cached(kind, "k", 96, False)
    k = ops.view_3d(ctx, keys, (96, CELLS, 1), keys.nb[1:3], 0)
    shared = ops.view_3d(ctx, k, (64, CELLS, 1), keys.nb[1:3], 0)
    separate = ctx.new_tensor_3d(kind, 64, CELLS, 1)
    from_float(separate, np.ascontiguousarray(to_float(keys)[:, :1, :, :64]))
    rows = np.array([rows_of(t, True) for t in range(n)], np.int32)

    def attend_to(v: Tensor, tokens: slice, n_threads: int) -> Array:
        q = ctx.from_numpy(np.ascontiguousarray(queries[:, tokens, :96]))
        lists = [ctx.from_numpy(x) for x in (LISTS, np.ascontiguousarray(rows[tokens]))]
        return computed(ops.flash_attn_cells(ctx, q, k, v, *lists, 0.1), n_threads)

    want = attend_to(separate, slice(n), 1).reshape(n, -1)
    for limit in (DIRECT, PACKED):
        monkeypatch.setattr(attention, "_DIRECT_ROWS", limit)
        for tokens, n_threads in ((slice(n), 2), (slice(1), 1), (slice(1), 3), (slice(2, 4), 2)):
            got = attend_to(shared, tokens, n_threads).reshape(-1, want.shape[1])
            assert got.tobytes() == want[tokens].tobytes(), (limit, tokens, n_threads)


@pytest.mark.parametrize("n_threads", [2, 3])
def test_heads_that_several_threads_merge(n_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And quantize, for the matrix that reads them."""
    ctx = Context()
    matrix = ctx.new_tensor_2d(Q8_0, HEADS * 64, 9)
    from_float(matrix, np.linspace(-1, 1, 9 * HEADS * 64, dtype=np.float32).reshape(1, 1, 9, -1))
    caches = [cached(F16, x, 64, False) for x in "kv"]
    q = ctx.from_numpy(np.ascontiguousarray(Q[:HEADS, :1, :64]))
    lists = [ctx.from_numpy(x) for x in (LISTS, np.array([[0, 0, LIST, LIST - 1]], np.int32))]
    found = []
    for least in (1 << 40, 0):
        monkeypatch.setattr(attention, "_MERGED_BYTES", least)
        attended = ops.flash_attn_cells(ctx, q, *caches, *lists, 0.125)
        node = ops.mul_mat(ctx, matrix, ops.reshape_2d(ctx, attended, HEADS * 64, 1))
        found.append(computed(node, n_threads).tobytes() + attended.numpy().tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", [F16, Q8_0], ids=lambda k: k.name)
@pytest.mark.parametrize("max_bias", [0.0, 8.0])
def test_branches_have_the_bits_of_whole_lists(
    kind: GGMLType, max_bias: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sequences with three branches each, in runs of one to nine tokens, some on no branch."""
    n, cuts = 24, (256, 0)
    number = np.array([*[0] * 4, *[1] * 9, 2, 0, 3, 1, 4, 4, 4, 0, 5, 6, 5])  # of the branch
    seqs = np.array([0] * 17 + [1] * 7)
    branches = np.stack(
        [
            np.stack([RNG.permutation(CELLS)[:LIST], cut + np.arange(LIST)], -1)
            for cut in np.repeat(cuts, 3)
        ]
    ).astype(np.int32)
    ends = LIST - 9 + np.arange(n) % 9
    rows = np.array(
        [
            [seq, 30 * (t % 3), end, end - 1, cuts[seq] if b else 0, b]
            for t, (seq, b, end) in enumerate(zip(seqs, number, ends, strict=True))
        ],
        np.int32,
    )
    whole = [
        np.concatenate([LISTS[seq][: cuts[seq]], branches[b - 1]])[:LIST] if b else LISTS[seq]
        for seq, b in zip(seqs, number, strict=True)
    ]
    ctx = Context()
    caches = [cached(kind, x, 64, False) for x in "kv"]

    def attend_to(tokens: slice, *lists: Array, n_threads: int, tree: bool) -> Array:
        q = ctx.from_numpy(np.ascontiguousarray(Q[:HEADS, tokens, :64]))
        cells, to, *other = (ctx.from_numpy(np.ascontiguousarray(x)) for x in lists)
        branched = other[0] if tree else None
        node = ops.flash_attn_cells(ctx, q, *caches, cells, to, 0.125, max_bias, branches=branched)
        return computed(node, n_threads).reshape(tokens.stop - tokens.start, -1)

    own = np.stack([0 * number, *rows[:, 1:4].T], -1).astype(np.int32)  # each in list 0
    alone = np.concatenate(
        [
            attend_to(slice(t, t + 1), whole[t][None], own[t : t + 1], n_threads=1, tree=False)
            for t in range(n)
        ]
    )
    for limit in (DIRECT, PACKED, 9):
        monkeypatch.setattr(attention, "_DIRECT_ROWS", limit)
        for first, n_threads in ((0, 1), (0, 2), (9, 3), (20, 2)):
            part = slice(first, n)
            got = attend_to(part, LISTS, rows[part], branches, n_threads=n_threads, tree=True)
            assert got.tobytes() == alone[part].tobytes(), (limit, first)


@pytest.mark.parametrize("hd", [32, 64, 20])
@pytest.mark.parametrize(
    ("max_bias", "window", "farthest"),
    [(0.0, 1 << 20, 0), (8.0, 1 << 20, 0), (0.0, 80, 0), (0.0, 1 << 20, 40)],
)
def test_texts_have_the_bits_of_each_alone(
    hd: int, max_bias: float, window: int, farthest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts without a cache, whatever is before and after them."""

    def attend_to(texts: list[Array], n_threads: int) -> list[Array]:
        lengths = [x.shape[2] for x in texts]
        rows = []
        for first, n in zip(np.cumsum([0, *lengths[:-1]]), lengths, strict=True):
            i = np.arange(n)
            ends = np.maximum(0, i - window // 2), np.minimum(n, i + window // 2 + 1)
            rows.append(np.stack([0 * i + first, *ends, i], -1))
        ctx = Context()
        qkv = np.concatenate(texts, axis=2)  # [3, heads, T, hd]
        *sources, to = (ctx.from_numpy(x) for x in (*qkv, np.concatenate(rows).astype(np.int32)))
        bias = ctx.from_numpy(distances) if farthest else None
        node = ops.flash_attn_ranges(ctx, *sources, to, 0.2, max_bias, distances=bias)
        made = computed(node, n_threads).reshape(sum(lengths), -1)
        return np.split(made, np.cumsum(lengths)[:-1])

    rng = np.random.default_rng(hd)
    distances = rng.standard_normal((4, 2 * farthest + 1)).astype(np.float32)
    texts = [rng.standard_normal((3, 4, n, hd)).astype(np.float32) for n in (3, 300, 1, 33, 520, 9)]
    alone = [attend_to([x], 1)[0] for x in texts]
    for limit in (DIRECT, PACKED, 9):
        monkeypatch.setattr(attention, "_DIRECT_ROWS", limit)
        for order, n_threads in (([0, 1, 2, 3, 4, 5], 1), ([5, 4, 3, 2, 1, 0], 2), ([2, 3, 0], 3)):
            got = attend_to([texts[i] for i in order], n_threads)
            for i, x in zip(order, got, strict=True):
                assert x.tobytes() == alone[i].tobytes(), (i, limit, n_threads)


@pytest.mark.parametrize(
    "kind", some([k for k in KINDS if k not in CODES], 4), ids=lambda k: k.name
)
@pytest.mark.parametrize("limit", [DIRECT, PACKED], ids=["direct", "packed"])
def test_quantized_cache_equals_its_values_in_f32(
    kind: GGMLType, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_DIRECT_ROWS", limit)
    tokens = list(range(24))
    exact = attend((kind, kind), tokens, widened=True)
    assert attend((kind, kind), tokens).tobytes() == exact.tobytes()


@pytest.mark.parametrize("limit", [DIRECT, PACKED], ids=["direct", "packed"])
@pytest.mark.parametrize("hd", [32, 64, 96])
def test_error_of_caches_read_as_codes(
    hd: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding to 16 bits adds a thousandth of the cache's own error to that of sums of floats."""
    monkeypatch.setattr(attention, "_DIRECT_ROWS", limit)
    (kind,) = CODES
    got = attend((kind, kind), list(range(24)), hd=hd)
    keys, values = (to_float(cached(kind, x, hd, False))[0].astype(np.float64) for x in "kv")
    whole_keys, whole_values = (x[0, ..., :hd].astype(np.float64) for x in (K, V))

    def exact(t: int, keys: Array, values: Array) -> Array:
        sequence, begin, end, _ = rows_of(t, True)
        cells = LISTS[sequence][begin:end, 0]
        queries = Q[:HEADS, t, :hd].reshape(KV_HEADS, -1, hd)
        x = queries @ keys[:, cells].swapaxes(1, 2) / 8
        p = np.exp(x - x.max(-1, keepdims=True))
        return (p / p.sum(-1, keepdims=True) @ values[:, cells]).reshape(-1)

    for t, found in enumerate(got):
        want = exact(t, keys, values)
        own = np.sum((want - exact(t, whole_keys, whole_values)) ** 2)
        assert np.sum((found - want) ** 2) <= own / 1000


@pytest.mark.parametrize("limit", [DIRECT, PACKED], ids=["direct", "packed"])
def test_codes_of_rows_that_are_hard_to_round(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of zeros gives the mean of the values, a NaN is one of its own row alone."""
    monkeypatch.setattr(attention, "_DIRECT_ROWS", limit)
    (kind,) = CODES
    tokens = list(range(5))
    clean = attend((kind, kind), tokens).reshape(5, HEADS, 64)
    queries = Q.copy()
    queries[1, 2] = 0
    queries[4, 3, 17] = np.nan
    monkeypatch.setitem(globals(), "Q", queries)
    got = attend((kind, kind), tokens).reshape(5, HEADS, 64)
    sequence, begin, end, _ = rows_of(2, True)
    values = to_float(cached(kind, "v", 64, False))[0][0, LISTS[sequence][begin:end, 0]]
    np.testing.assert_allclose(got[2, 1], values.mean(0), rtol=0, atol=2e-5)
    assert np.isnan(got[3, 4]).all()
    kept = np.ones((5, HEADS), bool)
    kept[2, 1] = kept[3, 4] = False
    assert got[kept].tobytes() == clean[kept].tobytes()


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_dense_bits_depend_on_the_token_alone(
    kind: GGMLType, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = np.concatenate([attend((kind, kind), [t], dense=True) for t in range(24)])
    for limit in (DIRECT, PACKED, 9):
        monkeypatch.setattr(attention, "_DIRECT_ROWS", limit)
        for n_threads, n in ((1, 5), (2, 9), (3, 24)):
            got = attend((kind, kind), list(range(n)), n_threads, dense=True)
            assert got.tobytes() == alone[:n].tobytes(), (limit, n)


@pytest.mark.parametrize("limit", [DIRECT, PACKED], ids=["direct", "packed"])
@pytest.mark.parametrize("n", [1, 12])
def test_nan_of_a_query_propagates(limit: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_DIRECT_ROWS", limit)
    clean = attend((F16, F16), list(range(n)))
    queries = Q.copy()
    queries[4, n // 2, 17] = np.nan
    monkeypatch.setitem(globals(), "Q", queries)
    got = attend((F16, F16), list(range(n))).reshape(n, HEADS, 64)
    assert np.isnan(got[n // 2, 4]).all()
    got[n // 2, 4] = clean.reshape(n, HEADS, 64)[n // 2, 4]
    assert got.tobytes() == clean.tobytes()
