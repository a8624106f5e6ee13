"""The shape of a LLaMA graph for tests of planning: real ops and sizes, no data.

    graph = llama_graph(n_layer=30, n_tokens=512, n_outputs=1)

Weights and caches have an address that must not be accessed.
"""

from __future__ import annotations

import pyggml as ops
from pyggml.buffer import HOST
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor

F16, F32, I32, I64 = GGMLType.F16, GGMLType.F32, GGMLType.I32, GGMLType.I64


def llama_graph(n_layer: int, n_tokens: int, n_outputs: int) -> CGraph:
    """The shape of SmolLM2-135M's graph: 28 nodes a layer, weights and caches given."""
    n_embd, n_ff, n_head, n_head_kv, n_vocab, n_ctx = 576, 1536, 9, 3, 49152, 2048
    n_rot = n_embd // n_head
    n_kv = n_rot * n_head_kv
    ctx, given = Context(no_alloc=True), Context(no_alloc=True)
    buffer = HOST.alloc_buffer(0)

    def weight(*ne: int, type: GGMLType = F32) -> Tensor:
        tensor = given.new_tensor(type, ne)
        tensor.buffer, tensor.data = buffer, buffer.base  # only the address is needed
        return tensor

    def norm(x: Tensor) -> Tensor:
        return ops.mul(ctx, ops.rms_norm(ctx, x), weight(n_embd))

    def linear(x: Tensor, n_out: int) -> Tensor:
        return ops.mul_mat(ctx, weight(x.ne[0], n_out), x)

    def heads(x: Tensor) -> Tensor:
        return ops.reshape_3d(ctx, x, n_rot, x.ne[0] // n_rot, n_tokens)

    def store(cache: Tensor, x: Tensor) -> Tensor:
        """All heads of a cache after rows are written to it, as attention reads them."""
        rows = ops.reshape_2d(ctx, x, n_kv, n_tokens)
        graph.build_forward_expand(ops.set_rows(ctx, cache, rows, cells))
        view = ops.view_3d(ctx, cache, (n_rot, n_head_kv, n_ctx), (2 * n_rot, cache.nb[1]))
        return ops.permute(ctx, view, 0, 2, 1, 3)

    graph = CGraph()
    tokens, positions = (ctx.new_tensor_1d(I32, n_tokens).set_input() for _ in range(2))
    cells = ctx.new_tensor_1d(I64, n_tokens).set_input()
    out_ids = ctx.new_tensor_1d(I32, n_outputs).set_input()
    mask = ctx.new_tensor_2d(F16, n_ctx, n_tokens).set_input()
    x = ops.get_rows(ctx, weight(n_embd, n_vocab), tokens)
    for layer in range(n_layer):
        cur = norm(x)
        q = ops.rope(ctx, heads(linear(cur, n_embd)), positions, n_rot)
        k = ops.rope(ctx, heads(linear(cur, n_kv)), positions, n_rot)
        v = linear(cur, n_kv)
        k, v = (store(weight(n_kv, n_ctx, type=F16), t) for t in (k, v))
        q = ops.permute(ctx, q, 0, 2, 1, 3)
        cur = ops.flash_attn_ext(ctx, q, k, v, mask, n_rot**-0.5)
        cur = linear(ops.reshape_2d(ctx, cur, n_embd, n_tokens), n_embd)
        if layer == n_layer - 1:
            cur, x = ops.get_rows(ctx, cur, out_ids), ops.get_rows(ctx, x, out_ids)
        x = ops.add(ctx, cur, x)
        cur = norm(x)
        cur = ops.swiglu_split(ctx, linear(cur, n_ff), linear(cur, n_ff))
        x = ops.add(ctx, linear(cur, n_embd), x)
    graph.build_forward_expand(linear(norm(x), n_vocab).set_output())
    return graph
