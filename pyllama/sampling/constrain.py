"""Logits restricted to the tokens of a bit set.

restricted = np.empty_like(logits)
argmax = constrain(logits, bits, restricted)    # all other tokens get -inf
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from pyggml.jit import compiled
from pyggml.pointers import f32_ptr, i32_ptr
from pyllama.sampling.top import Floats


def constrain(logits: Floats, bits: NDArray[np.uint32], restricted: Floats) -> int:
    """Copy the logits of a set of tokens, and write -inf for all others and for NaN.

    Args:
        logits: float32[n_vocab], contiguous.
        bits: uint32[n_words], a bit per token, the lowest first; tokens without a bit are not in
            the set.
        restricted: float32[n_vocab], contiguous, is overwritten.

    Returns:
        The index of the largest logit of the set, the first of equal ones; -1 if all are -inf.
    """
    argmax: int = _constrain(
        logits.ctypes.data, logits.size, bits.ctypes.data, bits.size, restricted.ctypes.data
    )
    return argmax


@compiled(types.int64(*[types.int64] * 5))
def _constrain(logits, n, bits, n_words, restricted):  # type: ignore[no-untyped-def]
    logits, bits, restricted = f32_ptr(logits), i32_ptr(bits), f32_ptr(restricted)
    nothing = np.float32(-np.inf)
    top, argmax = nothing, -1
    for word in range((n + 31) // 32):
        first = 32 * word
        last = min(first + 32, n)
        set_bits = np.int64(bits[word]) if word < n_words else np.int64(0)
        if set_bits == 0:
            for i in range(first, last):
                restricted[i] = nothing
            continue
        block = nothing
        for i in range(first, last):
            logit = logits[i] if (set_bits >> (i - first)) & 1 else nothing
            logit = logit if logit == logit else nothing
            restricted[i] = logit
            block = max(block, logit)
        if block > top:
            top, argmax = block, first
            while restricted[argmax] != top:
                argmax += 1
    return argmax
