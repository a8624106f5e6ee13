"""What the attention kernels share: constants, parameters, and loads of keys and values."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import float32, int32, int64

from .....dtype import GGMLType
from .....ops.rows.softmax import alibi_steps
from .....rounding import ceil_div, round_up
from .....tensor import Tensor
from ...codec import FLOAT_TYPES, eight_loader, element_loader
from ...intrin import device, half_to_float, load_u16
from ...lowering import GpuLowering

LOG2E = 1.4426950408889634  # scores are in powers of two
LOG2E_F32 = np.float32(LOG2E)
ZERO, ONE, LOWEST = np.float32(0), np.float32(1), np.float32(-np.inf)
THREADS = 128  # of a block, at most


class AttentionForm(NamedTuple):
    """Compile-time constants of the attention kernels.

    Attributes:
        heads: query heads of a block.
        listed: each token has a range of keys: entries of a list of cells, or keys of a text.
        ranged: they are keys of a text: ``rows`` has its first one in place of a list.
        branched: some tokens are on branches.
        mask: its type, None without one.
        biased: scores have biases by the distance of a key.
        aligned: rows of keys and values begin at multiples of 16 bytes and have whole chunks of 8.
    """

    k: GGMLType
    v: GGMLType
    hd: int
    hdv: int
    heads: int
    listed: bool
    ranged: bool
    branched: bool
    mask: GGMLType | None
    softcap: bool
    alibi: bool
    biased: bool
    aligned: bool

    @property
    def lanes(self) -> int:
        """Threads of a key's row, 8 elements each: a power of two, or whole warps."""
        n = ceil_div(max(self.hd, self.hdv), 8)
        return round_up(n, 32) if n > 32 else max(4, 1 << (n - 1).bit_length())

    @property
    def unroll(self) -> int:
        """Keys of a group of lanes at a time, as registers allow."""
        return 4 if self.mask is None and not self.alibi and not self.biased else 2

    @property
    def n_groups(self) -> int:
        """Keys that a block reads at once."""
        return THREADS // self.lanes

    @property
    def threads(self) -> int:
        """Threads of a block, at most ``THREADS``."""
        return self.n_groups * self.lanes

    @property
    def name(self) -> str:
        """What the kernel's name ends with."""
        flags = {
            "branches": self.branched,
            "cells": self.listed and not self.branched and not self.ranged,
            "ranges": self.ranged,
            "softcap": self.softcap,
            "alibi": self.alibi,
            "distances": self.biased,
            "any": not self.aligned,
        }
        mask = () if self.mask is None else ("mask", self.mask.name.lower())
        sizes = (f"{self.hd}", *((f"{self.hdv}",) if self.hdv != self.hd else ()))
        on = (flag for flag, value in flags.items() if value)
        parts = (self.k.name, self.v.name, *sizes, f"h{self.heads}", *mask, *on)
        return "_".join(parts).lower()


@cache
def chunk_loader(type: GGMLType, n: int, aligned: bool) -> Any:
    """A device function: (pointer, byte offset of a row, j) -> elements j .. j + 7 as float32.

    Args:
        n: the row's length; elements after it are 0.
        aligned: j is a multiple of 8, rows begin at multiples of 16 bytes and n is a multiple of 8.
    """
    if aligned and type in FLOAT_TYPES:
        return eight_loader(type)
    if type is GGMLType.Q8_0:
        block_bytes = type.type_size

        @device
        def codes(w):
            low, high = int32(w) & 255, int32(w) >> 8
            return float32(int32((low ^ 128) - 128)), float32(int32((high ^ 128) - 128))

        @device
        def load_8_q8_0(p, row, j):
            block = row + int64(j >> 5) * block_bytes
            d = half_to_float(load_u16(p, block))
            at = block + 2 + (j & 31)
            a0, a1 = codes(load_u16(p, at))
            a2, a3 = codes(load_u16(p, at + 2))
            b0, b1 = codes(load_u16(p, at + 4))
            b2, b3 = codes(load_u16(p, at + 6))
            return d * a0, d * a1, d * a2, d * a3, d * b0, d * b1, d * b2, d * b3

        return load_8_q8_0
    if type is GGMLType.Q4_0:
        block_bytes = type.type_size

        @device
        def nibbles(w, shift):
            low, high = int32(w) >> shift, int32(w) >> (shift + 8)
            return float32(int32((low & 15) - 8)), float32(int32((high & 15) - 8))

        @device
        def load_8_q4_0(p, row, j):
            block = row + int64(j >> 5) * block_bytes
            d = half_to_float(load_u16(p, block))
            at, shift = block + 2 + (j & 15), (j & 16) >> 2
            a0, a1 = nibbles(load_u16(p, at), shift)
            a2, a3 = nibbles(load_u16(p, at + 2), shift)
            b0, b1 = nibbles(load_u16(p, at + 4), shift)
            b2, b3 = nibbles(load_u16(p, at + 6), shift)
            return d * a0, d * a1, d * a2, d * a3, d * b0, d * b1, d * b2, d * b3

        return load_8_q4_0
    load = element_loader(type)
    whole = n % 8 == 0

    @device
    def guarded(p, row, j):
        return load(p, row, j) if whole or j < n else ZERO

    @device
    def load_8(p, row, j):
        return (
            guarded(p, row, j),
            guarded(p, row, j + 1),
            guarded(p, row, j + 2),
            guarded(p, row, j + 3),
            guarded(p, row, j + 4),
            guarded(p, row, j + 5),
            guarded(p, row, j + 6),
            guarded(p, row, j + 7),
        )

    return load_8


@device
def in_lists(sequence, begin, end, cut, branch, n_seq, n_list, n_entries, n_branches):
    """Whether a token's keys lie inside of the lists that it names; they are not read yet."""
    if sequence < 0 or sequence >= n_seq or begin < 0 or end > n_list:
        return False
    if branch == 0:
        return True
    known = branch > 0 and branch <= n_branches and cut >= 0 and cut <= n_list
    return known and (cut & 255) == 0 and int32(end - cut) <= n_entries


def attention_values(lowering: GpuLowering, node: Tensor) -> dict[str, Any]:
    """The values of the parameters that both kernels have."""
    names = ("q", "k", "v", "m", "sinks", "cells", "rows", "branches")
    found = dict(zip(names, (*node.src, *(None,) * 8), strict=False))
    q, k, p = found["q"], found["k"], node.op_params
    cells, branches = found["cells"], found["branches"]
    n_list, n_seq = (k.ne[1], k.ne[1]) if cells is None else cells.ne[1:3]
    n_entries, n_branches = (0, 0) if branches is None else branches.ne[1:3]
    n2, step_0, step_1 = alibi_steps(q.ne[2], p["max_bias"])
    cap, log2e = p["logit_softcap"], 1.0 if found["rows"] is None else LOG2E
    return {
        **found, "y": node, "n_tokens": q.ne[1], "n_kv": k.ne[1], "n_rep": q.ne[2] // k.ne[2],
        "r3": q.ne[3] // k.ne[3], "scale": p["scale"] / cap if cap else p["scale"] * LOG2E,
        "softcap": cap * LOG2E, "n2": n2, "step_0": step_0, "step_1": step_1,
        "bias_scale": p["bias_scale"] * log2e, "has_sinks": int(found["sinks"] is not None),
        "n_seq": n_seq, "n_list": n_list, "n_entries": n_entries, "n_branches": n_branches,
        "cells2": 1 if cells is None else cells.nb[2],  # without lists: where a text begins
        "error": lowering.error, "code": lowering.error_code(node),
    }  # fmt: skip


@device
def finite(top):
    """A maximum that may be subtracted: 0 where all scores are -inf."""
    return top if top > LOWEST else ZERO
