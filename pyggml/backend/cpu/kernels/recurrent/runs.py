"""Which tokens and states belong together, in both forms of a recurrent op, for its kernel.

    first, n, slot = run_of(runs, r, n_t, ids)     # in a kernel
    after = states + size * slot_after(slots, first + n - 1)

``ops.recurrent.runs`` has the two forms.
"""

from __future__ import annotations

from .....compiler.jit import inline
from .....tensor import Tensor
from ...abi import f32_ptr, i32_ptr


@inline
def run_of(runs, r, n_t, ids):
    """(first token, number of tokens, slot of the state before them) of run ``r``.

    Args:
        runs: address of the runs; 0 in ggml's form.
        n_t: of ggml's form, tokens of a sequence.
        ids: of ggml's form, address of the state of each sequence; 0: in order.
    """
    if runs != 0:
        entry = i32_ptr(runs + 12 * r)
        return entry[0] + 0, entry[1] + 0, entry[2] + 0
    slot = i32_ptr(ids + 4 * r)[0] + 0 if ids != 0 else r
    return r * n_t, n_t, slot


@inline
def slot_after(slots, t):
    """The slot of the state after a token, -1 for none."""
    return i32_ptr(slots + 4 * t)[0] + 0


@inline
def n_used(runs, n_runs):
    """Tokens of all runs."""
    end = 0
    for r in range(n_runs):
        entry = i32_ptr(runs + 12 * r)
        if entry[1] > 0:
            end = entry[0] + entry[1]
    return end + 0


@inline
def clear(address, n_bytes):
    """Write zeros to float32."""
    x = f32_ptr(address)
    for i in range(n_bytes // 4):
        x[i] = 0


@inline
def copy(source, target, n_bytes):
    """Copy float32."""
    x, y = f32_ptr(source), f32_ptr(target)
    for i in range(n_bytes // 4):
        y[i] = x[i]


def gap_free_rows(node: Tensor) -> bool:
    """Whether the rows of all sources have no gaps."""
    return all(t is None or t.is_contiguous_rows() for t in node.src)
