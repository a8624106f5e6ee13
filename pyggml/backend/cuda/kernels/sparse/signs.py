"""MUL_MAT_SIGNS: the number of equal signs of a row and the activations, minus the unequal ones.

A first launch packs the activations' signs as bits; a row is then XOR and a count of bits.
Access: a warp packs 32 columns, or has a row for up to 8 tokens, a word a lane.
"""

from functools import cache

from numba import cuda, float32, int32, int64, uint32

from .....rounding import ceil_div
from .....tensor import Tensor
from ...driver import Grid
from ...intrin import divide, float_to_bits, load_f32, load_u32, store_f32, store_u32, u32
from ...kernel import U8, GpuKernel, i32, i64, kernel
from ...lowering import GpuLowering, Work, blocks, lowers
from ..matrix.matmul import WARPS, token_chunks
from ..warp import FULL


@kernel()
def pack_signs(x: U8, y: U8, n: i32, words: i32, n_words: i64, x1: i64):
    """The sign bits of tokens' rows of ``n`` columns, in ``words`` words each."""
    lane = int32(cuda.threadIdx.x & 31)
    word = (int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x) >> 5
    if word >= n_words:
        return
    token = int64(divide(word, words))
    j = int32(word - token * words) * 32 + lane
    negative = False
    if j < n:
        negative = float_to_bits(load_f32(x, token * x1 + int64(4) * j)) >> uint32(31) != 0
    bits = cuda.ballot_sync(FULL, negative)
    if lane == 0:
        store_u32(y, 4 * word, u32(bits))


@cache
def mul_mat_signs(n_tokens: int) -> GpuKernel:
    """The kernel of up to ``n_tokens`` tokens."""

    @kernel(f"mul_mat_signs_{n_tokens}", threads=32 * WARPS)
    def signs(
        a: U8, x: U8, y: U8, n: i32, words: i32, rows: i32, a1: i64, first: i32, tokens: i32,
        y1: i64,
    ):  # fmt: skip
        lane = int32(cuda.threadIdx.x & 31)
        row = int32(cuda.blockIdx.x) * WARPS + int32(cuda.threadIdx.x >> 5)
        if row >= rows:
            return
        differ = cuda.local.array(n_tokens, int32)
        for t in range(n_tokens):
            differ[t] = int32(0)
        j = lane
        while j < words:
            bits = load_u32(a, row * a1 + int64(4) * j)
            for t in range(n_tokens):
                at = int64(first + min(t, tokens - 1)) * words + j
                differ[t] += int32(cuda.popc(u32(bits ^ load_u32(x, 4 * at))))
            j += 32
        for t in range(n_tokens):
            step = 16
            while step > 0:
                differ[t] += cuda.shfl_xor_sync(FULL, differ[t], step)
                step >>= 1
            if lane == 0 and t < tokens:
                equal = float32(int32(n - 2 * differ[t]))
                store_f32(y, (first + t) * y1 + int64(4) * row, equal)

    return signs


@lowers("MUL_MAT_SIGNS")
def _lower_mul_mat_signs(lowering: GpuLowering, node: Tensor) -> None:
    a, x = node.src[:2]
    n, n_tokens, words = x.ne[0], x.ne[1], a.ne[0]

    def make(work: Work) -> None:
        n_words = words * n_tokens
        call = pack_signs(x=x, y=work, n=n, words=words, n_words=n_words)
        lowering.launch(call, blocks(n_words, 8))

    bits = lowering.shared("signs", x, 4 * words * n_tokens, make)
    for first, tokens, size in token_chunks(n_tokens):
        call = mul_mat_signs(size)(
            a=a, x=bits, y=node, n=n, words=words, rows=a.ne[1], first=first, tokens=tokens,
        )  # fmt: skip
        lowering.launch(call, Grid(ceil_div(a.ne[1], WARPS)))
