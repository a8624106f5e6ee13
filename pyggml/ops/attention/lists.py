"""Lists of cells: which keys of a cache each token reads (see ``attention``)."""

from __future__ import annotations

import numpy as np

from ...tensor import Tensor
from ..op import I32, Arg, Array, require, require_type


def check_tables(
    op: str, n_tokens: int, cells: Tensor | None, rows: Tensor, branches: Tensor | None
) -> None:
    """Raise ShapeError or TypeMismatch unless an op can read these tables."""
    require_type(op, "rows", rows, (I32,))
    for name, lists in (("cells", cells), ("branches", branches)):
        if lists is not None:
            require_type(op, name, lists, (I32,))
            require(
                lists.ne[0] == 2 and lists.ne[3] == 1 and lists.is_contiguous(),
                op,
                f"{name} {lists.ne} must be [2, entries, lists] without gaps",
            )
    n = 4 if branches is None else 6
    require(
        rows.ne == (n, n_tokens, 1, 1) and rows.is_contiguous(),
        op,
        f"rows {rows.ne} must be [{n}, {n_tokens}] without gaps: one for each token",
    )


def check_lists(n_cells: int, cells: Array, rows: Array, branches: Array | None) -> None:
    """Raise IndexError for lists that break a promise of the module."""
    n_seq, n_list, _ = cells.shape
    n_branches, n_entries = (0, 0) if branches is None else branches.shape[:2]
    for t, (seq, begin, end, _, *rest) in enumerate(rows):
        if begin >= end:
            continue
        cut, branch = rest if rest and rest[1] else (n_list, 0)
        known = 0 <= seq < n_seq and 0 <= branch <= n_branches
        if not known or begin < 0 or end > n_list:
            raise IndexError(
                f"token {t}: keys {begin}..{end - 1} of list {seq}, branch {branch}; there are "
                f"{n_seq} lists of {n_list} entries and {n_branches} branches"
            )
        if branch and not (0 <= cut <= n_list and cut % 256 == 0 and end - cut <= n_entries):
            raise IndexError(
                f"token {t}: cut {cut} and end {end} of a branch of {n_entries} entries; a cut is "
                f"a multiple of 256 up to {n_list}"
            )
        found = cells[seq, begin : min(end, cut), 0]
        if branches is not None and branch:
            after = slice(max(begin - cut, 0), max(end - cut, 0))
            found = np.concatenate([found, branches[branch - 1, after, 0]])
        if found.min() < 0 or found.max() >= n_cells:
            raise IndexError(f"token {t}: cell {found.min()}..{found.max()} of {n_cells}")


def entries_of(row: Array, cells: Array, branches: Array | None) -> Array:
    """The entries (cell, position) that a token reads.

    Args:
        row: of the token, (seq, begin, end, pos, cut, branch) or the first four.
    """
    seq, begin, end, _, *rest = row
    if begin >= end:
        return np.empty((0, 2), np.int32)
    entries = cells[seq]
    if branches is not None and rest and rest[1]:
        cut, branch = rest
        entries = np.concatenate([entries[:cut], branches[branch - 1]])
    found: Array = entries[begin:end]
    return found


def listed(n_list: int, n_cells: int, n_seq: int) -> Arg:
    """Random cells for each sequence at positions 0, 1, 2..."""

    def values(rng: np.random.Generator) -> Array:
        cells = [rng.permutation(n_cells)[:n_list] for _ in range(n_seq)]
        return np.stack([np.stack([c, np.arange(n_list)], -1) for c in cells])

    return Arg((2, n_list, n_seq), I32, values=values)


def token_rows(n_tokens: int, n_list: int, n_seq: int, window: int = 1 << 30) -> Arg:
    """Tokens at the ends of the lists, one sequence after the other; the last one is padding."""

    def values(rng: np.random.Generator) -> Array:
        end = np.maximum(n_list - np.arange(n_tokens) // n_seq, 1)
        rows = np.stack(
            [np.arange(n_tokens) % n_seq, np.maximum(end - window, 0), end, end - 1], -1
        )
        if n_tokens > 2:
            rows[-1] = (0, 0, 0, 0)
        return rows

    return Arg((4, n_tokens), I32, values=values)


def branched_lists(
    n_tokens: int, prefix: int, n_cells: int, window: int = 1 << 30
) -> tuple[Arg, Arg, Arg]:
    """Lists, rows and branches of tokens on a tree that continues ``prefix`` entries.

    A chain of a third of the tokens, branches of it, one of another sequence, and padding. Odd
    branches begin after the chain's end, the others after its first token.
    """
    cut, chain = prefix // 256 * 256, n_tokens // 3
    depths = [
        *range(1, chain + 1),
        *(chain + 1 if i % 2 else 2 for i in range(chain, n_tokens - 2)),
    ]

    def entries(cells: Array) -> Array:
        return np.stack([cells, np.arange(len(cells))], -1)

    def lists(rng: np.random.Generator) -> Array:
        cells = rng.permutation(n_cells)[: prefix + chain + 1]
        return np.stack([entries(cells), entries(cells[::-1])])

    def branches(rng: np.random.Generator) -> Array:
        size, after_cut = prefix - cut + chain + 1, np.array([0, cut])
        return np.stack(
            [entries(rng.permutation(n_cells)[:size]) + after_cut for _ in range(n_tokens)]
        )

    rows = np.zeros((n_tokens, 6))
    for i, depth in enumerate(depths):
        end = prefix + depth
        branch = (cut, i + 1) if i >= chain else (0, 0)
        rows[i] = (0, max(0, end - window), end, end - 1, *branch)
    rows[n_tokens - 2] = (1, 0, prefix, prefix - 1, 0, 0)
    return (
        Arg((2, prefix + chain + 1, 2), I32, values=lists),
        Arg((6, n_tokens), I32, values=lambda rng: rows),
        Arg((2, prefix - cut + chain + 1, n_tokens), I32, values=branches),
    )
