"""INDEXER_TOP_K, BLOCK_TOP_K: scores of a token's keys, then the best keys or blocks; LIST_ROWS.

Scores are sums over the heads in their order, so a key's score depends on its row and the token
alone. Of INDEXER_TOP_K, up to 16 tokens share a launch whose chunks are parts of the keys, and
another one chooses; of more tokens each is computed by one thread, with the scores in its scratch.
The lowest chosen score is found by its bytes, from the highest one on, in four passes.

The records have the sources in the order of FLASH_ATTN_EXT: q, k, weights, two empty ones, cells,
rows, branches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .....compiler.jit import inline, inline_strict, kernel
from .....dtype import GGMLType
from .....rounding import ceil_div, round_up
from .....tensor import Tensor
from ...abi import (
    DST,
    SRC0,
    SRC1,
    SRC2,
    SRC5,
    SRC6,
    data,
    f32_ptr,
    first_row,
    i32_ptr,
    i64_ptr,
    nb,
    ne,
    params_of,
)
from ...compile.lowering import CpuLowering, lowers
from ...simd.attention.attend import TILE_ROWS
from ...simd.element import F32, load_elem
from ...tuning import tuning
from ..rows.reduce import order_key
from .attention import checked_rows, list_begin, list_end, list_entries
from .attention_chunk import (
    CELLS_BYTES,
    CHUNK,
    QK,
    S_STRIDE,
    find_cells,
    key_traits,
    qk_keys,
)

_SPLIT_TOKENS = 16  # with at most so many tokens, threads share the keys of each
_BYTES = 256  # values of a byte


class Indexer(NamedTuple):
    """The values of the kernels."""

    n_keys: int
    block: int
    splits: int  # of the keys of a token
    scores: int  # address of the scores of all tokens, where threads share the keys
    traits: int


class Blocks(NamedTuple):
    """The values of ``block_top_k``."""

    n_blocks: int
    block: int
    n_local: int
    traits: int


@inline
def load_query(node, t, head, out):
    """Copy a query, with zeros up to a multiple of 8 columns."""
    x = f32_ptr(data(node, SRC0) + head * nb(node, SRC0, 1) + t * nb(node, SRC0, 2))
    hd, y = ne(node, SRC0, 0), f32_ptr(out)
    for d in range((hd + 7) // 8 * 8):
        y[d] = x[d] if d < hd else np.float32(0)


@inline
def score_keys(node, t, begin, end, out, scratch):
    """Write the scores of token ``t``'s keys in chunks [begin, end) of its list to ``out``.

    Scratch: cells, scores of a pass of heads, and the queries with zeros up to a multiple of 8.
    """
    hd, n_head = ne(node, SRC0, 0), ne(node, SRC0, 1)
    hd8, traits = (hd + 7) // 8 * 8, params_of(node, Indexer).traits
    k, nb_k = data(node, SRC1), nb(node, SRC1, 1)
    lo, hi = list_begin(node, t), list_end(node, t)
    cells, scores = scratch, scratch + CELLS_BYTES
    queries = scores + TILE_ROWS * S_STRIDE
    for head in range(n_head):
        load_query(node, t, head, queries + head * 4 * hd8)
    weights = f32_ptr(data(node, SRC2) + t * nb(node, SRC2, 1))
    for c in range(begin, end):
        first = c * CHUNK
        n = min(CHUNK, hi - first)
        find_cells(list_entries(node, t, first), first, lo, hi, cells)
        total = f32_ptr(out + 4 * first)
        for j in range(n):
            total[j] = np.float32(0)
        for head in range(0, n_head, TILE_ROWS):
            rows = min(TILE_ROWS, n_head - head)
            query = queries + head * 4 * hd8
            qk_keys(traits, rows, query, hd, k, nb_k, cells, n, scores, head == 0)
            for i in range(rows):
                weight, x = weights[head + i], f32_ptr(scores + i * S_STRIDE)
                for j in range(n):
                    total[j] += weight * max(x[j], np.float32(0))


@inline_strict
def rank(scores, i):
    """An integer of 32 bits that orders like score ``i``."""
    return np.int64(order_key(load_elem(F32, scores, i))) + (1 << 31)


@inline_strict
def lowest_rank(scores, lo, hi, n_keys, counts):
    """The rank of the last of the ``n_keys`` best scores, and how many of this rank are taken."""
    found, left, count = 0, n_keys, i64_ptr(counts)
    for step in range(4):
        shift = 24 - 8 * step
        for byte in range(_BYTES):
            count[byte] = 0
        for i in range(lo, hi):
            key = rank(scores, i)
            if key >> (shift + 8) == found:
                count[key >> shift & (_BYTES - 1)] += 1
        byte = _BYTES - 1
        while count[byte] < left:
            left -= count[byte]
            byte -= 1
        found = found << 8 | byte
    return found, left


@inline_strict
def share_scores(node, t, scores, block):
    """Give the keys of token ``t`` the scores of their blocks' last keys, or infinite ones.

    Returns the number of keys after the last whole block, which have these.
    """
    lo, hi = list_begin(node, t), list_end(node, t)
    x, shared, n_after, is_after = f32_ptr(scores), np.float32(np.inf), 0, 1
    for i in range(hi - 1, lo - 1, -1):
        if i32_ptr(list_entries(node, t, i))[1] % block == block - 1:
            shared, is_after = x[i], 0
        x[i] = shared
        n_after += is_after
    return n_after


@inline_strict
def choose_keys(node, t, scores, counts):
    """Write the list of the keys of token ``t`` with the highest scores."""
    lo, hi, n_keys = list_begin(node, t), list_end(node, t), params_of(node, Indexer).n_keys
    if params_of(node, Indexer).block > 1:
        block = params_of(node, Indexer).block
        n_keys += min(share_scores(node, t, scores, block), block - 1)
    lowest, equal = np.int64(0), hi - lo
    if hi - lo > n_keys:
        lowest, equal = lowest_rank(scores, lo, hi, n_keys, counts)
    y, n = i32_ptr(data(node, DST) + t * nb(node, DST, 2)), 0
    for i in range(lo, hi):
        key = rank(scores, i)
        if key < lowest or (key == lowest and equal == 0):
            continue
        equal -= 1 if key == lowest else 0
        entry = i32_ptr(list_entries(node, t, i))
        y[2 * n], y[2 * n + 1] = entry[0], entry[1]
        n += 1
    for i in range(2 * n, 2 * ne(node, DST, 1)):
        y[i] = -1


@inline
def chunks_of(node, t):
    """The first chunk of token ``t``'s keys, and the number of chunks."""
    lo, hi = list_begin(node, t), list_end(node, t)
    return lo // CHUNK, (hi + CHUNK - 1) // CHUNK - lo // CHUNK if hi > lo else 0


@inline_strict
def find_blocks(node, t, scores, tops, ends):
    """The highest score and the end (in entries) of each block of token ``t``'s keys; how many.

    Those of the last blocks up to the token's are infinite.
    """
    p, lo, hi = params_of(node, Blocks), list_begin(node, t), list_end(node, t)
    position = i32_ptr(data(node, SRC6) + t * nb(node, SRC6, 1))[3]
    x, top, end, n, last = f32_ptr(scores), f32_ptr(tops), i64_ptr(ends), 0, -1
    for i in range(lo, hi):
        block = i32_ptr(list_entries(node, t, i))[1] // p.block
        if n == 0 or block != last:
            top[n] = np.float32(np.inf) if block > position // p.block - p.n_local else x[i]
            last, n = block, n + 1
        elif rank(scores, i) > rank(tops, n - 1):
            top[n - 1] = x[i]
        end[n - 1] = i + 1
    return n


@inline_strict
def choose_blocks(node, t, head, scores, scratch):
    """Write the list of the keys of token ``t`` in the blocks with the highest scores.

    Scratch: the counts of bytes, then the highest scores and the ends of blocks.
    """
    p, n_list, at = params_of(node, Blocks), ne(node, SRC5, 1), list_begin(node, t)
    tops = scratch + 8 * _BYTES
    ends = tops + (4 * n_list + 63) // 64 * 64
    n_blocks = find_blocks(node, t, scores, tops, ends)
    lowest, equal = np.int64(0), n_blocks
    if n_blocks > p.n_blocks:
        lowest, equal = lowest_rank(tops, 0, n_blocks, p.n_blocks, scratch)
    y, n = i32_ptr(data(node, DST) + t * nb(node, DST, 2) + head * nb(node, DST, 3)), 0
    size = ne(node, DST, 1)  # positions that repeat make blocks of more keys
    for b in range(n_blocks):
        key, end = rank(tops, b), i64_ptr(ends)[b]
        if key > lowest or (key == lowest and equal > 0):
            equal -= 1 if key == lowest else 0
            for i in range(at, min(end, at + size - n)):
                entry = i32_ptr(list_entries(node, t, i))
                y[2 * n], y[2 * n + 1] = entry[0], entry[1]
                n += 1
        at = end
    for i in range(2 * n, 2 * size):
        y[i] = -1


@kernel
def indexer_scores(node, chunk, n_chunks, scratch):
    """Parts of the keys of a token, in order."""
    p = params_of(node, Indexer)
    t, part = chunk // p.splits, chunk % p.splits
    first, n = chunks_of(node, t)
    begin, end = first + n * part // p.splits, first + n * (part + 1) // p.splits
    score_keys(node, t, begin, end, p.scores + 4 * t * ne(node, SRC5, 1), scratch)


@kernel
def indexer_choose(node, chunk, n_chunks, scratch):
    """Tokens. Reads a token's scores five times."""
    p = params_of(node, Indexer)
    for t in range(first_row(ne(node, DST, 2), chunk, n_chunks),
                   first_row(ne(node, DST, 2), chunk + 1, n_chunks)):  # fmt: skip
        choose_keys(node, t, p.scores + 4 * t * ne(node, SRC5, 1), scratch)


@kernel
def indexer_top_k(node, chunk, n_chunks, scratch):
    """Tokens. Scratch: the counts of bytes, scores of all keys, then that of ``score_keys``."""
    scores = scratch + 8 * _BYTES
    rest = scores + (4 * ne(node, SRC5, 1) + 63) // 64 * 64
    for t in range(first_row(ne(node, DST, 2), chunk, n_chunks),
                   first_row(ne(node, DST, 2), chunk + 1, n_chunks)):  # fmt: skip
        first, n = chunks_of(node, t)
        score_keys(node, t, first, first + n, scores, rest)
        choose_keys(node, t, scores, scratch)


@kernel
def block_top_k(node, chunk, n_chunks, scratch):
    """Tokens, of each the heads. Scratch: scores of all keys, then that of both steps."""
    n_head = ne(node, SRC0, 1)
    t, head, n_list = chunk // n_head, chunk % n_head, ne(node, SRC5, 1)
    rest = scratch + (n_list + CHUNK - 1) // CHUNK * 4 * CHUNK
    first, n = chunks_of(node, t)
    hd, lo, hi = ne(node, SRC0, 0), list_begin(node, t), list_end(node, t)
    load_query(node, t, head, rest + CELLS_BYTES)
    for c in range(first, first + n):
        begin = c * CHUNK
        find_cells(list_entries(node, t, begin), begin, lo, hi, rest)
        qk_keys(
            params_of(node, Blocks).traits, 1, rest + CELLS_BYTES, hd, data(node, SRC1),
            nb(node, SRC1, 1), rest, min(CHUNK, hi - begin), scratch + 4 * begin, True,
        )  # fmt: skip
    choose_blocks(node, t, head, scratch, rest)


@kernel
def list_rows(node, chunk, n_chunks, scratch):
    """Lists of tokens and heads; a list's end is searched by halves. Sources: lists, rows."""
    n, n_tokens = ne(node, SRC0, 1), ne(node, SRC0, 2)
    for head in range(ne(node, SRC0, 3)):
        for t in range(n_tokens):
            cells = i32_ptr(data(node, SRC0) + t * nb(node, SRC0, 2) + head * nb(node, SRC0, 3))
            begin, end = 0, n
            while begin < end:
                middle = (begin + end) // 2
                if cells[2 * middle] < 0:
                    end = middle
                else:
                    begin = middle + 1
            y = i32_ptr(data(node, DST) + t * nb(node, DST, 1) + head * nb(node, DST, 2))
            position = i32_ptr(data(node, SRC1) + t * nb(node, SRC1, 1))[3]
            y[0], y[1], y[2], y[3] = t, 0, begin, position


def _supports(node: Tensor) -> bool:
    return node.src[0].ne[0] >= 8


@lowers("INDEXER_TOP_K", _supports)
def _lower_indexer_top_k(lowering: CpuLowering, node: Tensor) -> None:
    q, k, weights, cells, rows, branches = (*node.src, None)[:6]
    hd, n_head, n_tokens = q.ne[:3]
    n_list = cells.ne[1]
    n_splits = min(lowering.n_threads, ceil_div(n_list, CHUNK))
    shared = n_tokens <= _SPLIT_TOKENS
    checked = checked_rows(lowering, node, cells, rows, branches)
    scores = lowering.take(4 * n_list * n_tokens) if shared else None
    params = Indexer(
        **node.op_params,
        splits=n_splits,
        scores=scores.address if scores else 0,
        traits=lowering.traits(key_traits(int(k.type), hd % 8, tuning()), QK),
    )
    src = (q, k, weights, None, None, cells, rows, branches)
    scratch = CELLS_BYTES + TILE_ROWS * S_STRIDE + 4 * n_head * round_up(hd, 8) + 64
    variant = GGMLType(k.type).name.lower()
    if scores is None:
        scratch += 8 * _BYTES + round_up(4 * n_list, 64)
        lowering.launch(
            indexer_top_k, node, params, n_tokens,
            src=src, work=[checked], scratch=scratch, variant=variant,
        )  # fmt: skip
        return
    lowering.launch(
        indexer_scores, node, params, n_tokens * n_splits,
        src=src, work=[checked], writes=scores, scratch=scratch, variant=variant,
    )  # fmt: skip
    lowering.launch(
        indexer_choose, node, params, n_tokens,
        src=src, work=[scores], scratch=8 * _BYTES,
    )  # fmt: skip


@lowers("BLOCK_TOP_K", _supports)
def _lower_block_top_k(lowering: CpuLowering, node: Tensor) -> None:
    q, k, cells, rows, branches = (*node.src, None)[:5]
    hd, n_head, n_tokens = q.ne[:3]
    n_list = cells.ne[1]
    checked = checked_rows(lowering, node, cells, rows, branches)
    traits = lowering.traits(key_traits(int(k.type), hd % 8, tuning()), QK)
    step = CELLS_BYTES + 4 * round_up(hd, 8)  # of scores, or of choosing
    step = max(step, 8 * _BYTES + round_up(4 * n_list, 64) + 8 * n_list)
    lowering.launch(
        block_top_k, node, Blocks(**node.op_params, traits=traits), n_tokens * n_head,
        src=(q, k, None, None, None, cells, rows, branches), work=[checked],
        scratch=4 * round_up(n_list, CHUNK) + step,
        variant=GGMLType(k.type).name.lower(),
    )  # fmt: skip


@lowers("LIST_ROWS")
def _lower_list_rows(lowering: CpuLowering, node: Tensor) -> None:
    lowering.launch(list_rows, node)
