"""Merges adjacent symbols in the order of ranks, for BPE and SPM.

    merge(list("hello"), {"l l": 0, "h e": 1}, glue=" ")     # ['he', 'll', 'o']

Time is O(n log n) in the number of symbols, for any text.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise

# Up to this length a scan of all pairs in C is faster than a heap in Python.
SHORT = 64
_NEVER = sys.maxsize


def merge(symbols: list[str], ranks: Mapping[str, int], glue: str) -> list[str]:
    """Replace the adjacent pair of lowest rank by its concatenation until no pair has a rank.

    Args:
        symbols: the symbols; the list may be modified.
        ranks: rank by left + glue + right; the leftmost of equal ranks is merged first.
        glue: " " for BPE, with ranks of pairs; "" for SPM, with ranks of results.

    Source: llama.cpp, ``llm_tokenizer_bpe_session`` and ``llm_tokenizer_spm_session``.
    """
    if len(symbols) > SHORT:
        return _merge_long(symbols, ranks, glue)
    get = ranks.get
    found = [get(left + glue + right, _NEVER) for left, right in pairwise(symbols)]
    while found and (lowest := min(found)) < _NEVER:
        i = found.index(lowest)
        symbols[i] += symbols.pop(i + 1)
        del found[i]
        if i:
            found[i - 1] = get(symbols[i - 1] + glue + symbols[i], _NEVER)
        if i < len(found):
            found[i] = get(symbols[i] + glue + symbols[i + 1], _NEVER)
    return symbols


def _merge_long(symbols: list[str], ranks: Mapping[str, int], glue: str) -> list[str]:
    """`merge` with a heap of pairs and a linked list of the remaining symbols."""
    n = len(symbols)
    get = ranks.get
    before, after = list(range(-1, n - 1)), list(range(1, n + 1))
    # rank * n + position sorts like the tuple (rank, position), at a third of the cost
    heap = [
        rank * n + i
        for i, (left, right) in enumerate(pairwise(symbols))
        if (rank := get(left + glue + right)) is not None
    ]
    heapify(heap)
    while heap:
        rank, i = divmod(heappop(heap), n)
        j = after[i]
        # An entry is stale if its symbol was merged, or the pair there has another rank now.
        if not symbols[i] or j == n or get(symbols[i] + glue + symbols[j]) != rank:
            continue
        symbols[i] += symbols[j]
        symbols[j] = ""
        h, k = before[i], after[j]
        after[i] = k
        if k < n:
            before[k] = i
            if (new := get(symbols[i] + glue + symbols[k])) is not None:
                heappush(heap, new * n + i)
        if h >= 0 and (new := get(symbols[h] + glue + symbols[i])) is not None:
            heappush(heap, new * n + h)
    return [symbol for symbol in symbols if symbol]
