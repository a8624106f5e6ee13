"""Graphs to draw: a LLaMA by hand with llama.cpp's names, and random ones with odd names."""

from __future__ import annotations

from hypothesis import strategies as st

import pyggml as ops
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor

F16, F32, I32, I64 = GGMLType.F16, GGMLType.F32, GGMLType.I32, GGMLType.I64
N_EMBD, N_HEAD, N_HEAD_KV, HEAD_DIM, N_FF, N_CELLS, N_VOCAB = 576, 9, 3, 64, 1536, 256, 49152


def matmul_graph() -> CGraph:
    """ggml's "simple" example."""
    ctx = Context(no_alloc=True)
    a = ctx.new_tensor_2d(F32, 2, 4).set_name("a")
    b = ctx.new_tensor_2d(F32, 2, 3).set_name("b")
    graph = CGraph()
    graph.build_forward_expand(ops.mul_mat(ctx, a, b))
    return graph


def llama_graph(n_layer: int = 2, n_tokens: int = 5) -> CGraph:
    """A LLaMA's graph on a cache of 256 cells, with a dense mask; nothing has memory."""
    ctx, graph = Context(no_alloc=True), CGraph()

    def given(name: str, type: GGMLType, *ne: int) -> Tensor:
        return ctx.new_tensor(type, ne).set_name(name)

    def norm(x: Tensor, weight: str, name: str) -> Tensor:
        normed = ops.rms_norm(ctx, x).set_name(f"norm_{name}")
        return ops.mul(ctx, normed, given(f"{weight}.weight", F32, N_EMBD)).set_name(name)

    def linear(x: Tensor, weight: str, n_out: int, name: str) -> Tensor:
        w = given(f"{weight}.weight", GGMLType.Q4_0, x.ne[0], n_out)
        return ops.mul_mat(ctx, w, x).set_name(name)

    def heads(x: Tensor) -> Tensor:
        return ops.reshape_3d(ctx, x, HEAD_DIM, x.ne[0] // HEAD_DIM, n_tokens)

    def store(kind: str, layer: int, x: Tensor) -> Tensor:
        """The whole cache after rows are written to it, as attention reads it."""
        n_kv = HEAD_DIM * N_HEAD_KV
        cache = given(f"cache_{kind}_l{layer}", F16, n_kv, N_CELLS)
        rows = ops.reshape_2d(ctx, x, n_kv, n_tokens)
        graph.build_forward_expand(ops.set_rows(ctx, cache, rows, cells))
        sizes, strides = (HEAD_DIM, N_HEAD_KV, N_CELLS), (2 * HEAD_DIM, cache.nb[1])
        view = ops.view_3d(ctx, cache, sizes, strides)
        return ops.permute(ctx, view, 0, 2, 1, 3)

    tokens = given("inp_tokens", I32, n_tokens).set_input()
    positions = given("inp_pos", I32, n_tokens).set_input()
    cells = given("attn_inp_kv_idxs", I64, n_tokens).set_input()
    mask = given("attn_inp_kq_mask", F16, N_CELLS, n_tokens).set_input()
    embd = given("token_embd.weight", GGMLType.Q8_0, N_EMBD, N_VOCAB)
    x = ops.get_rows(ctx, embd, tokens).set_name("inp_embd")
    for i in range(n_layer):
        cur = norm(x, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        q, k, v = (
            linear(cur, f"blk.{i}.attn_{name}", HEAD_DIM * n, f"{name.upper()}cur-{i}")
            for name, n in (("q", N_HEAD), ("k", N_HEAD_KV), ("v", N_HEAD_KV))
        )
        q, k = (
            ops.rope(ctx, heads(t), positions, HEAD_DIM).set_name(f"{t.name[0]}cur_rope-{i}")
            for t in (q, k)
        )
        k, v = store("k", i, k), store("v", i, v)
        q = ops.permute(ctx, q, 0, 2, 1, 3)
        cur = ops.flash_attn_ext(ctx, q, k, v, mask, HEAD_DIM**-0.5).set_name(f"kqv-{i}")
        cur = ops.reshape_2d(ctx, cur, N_EMBD, n_tokens).set_name(f"kqv_out-{i}")
        cur = linear(cur, f"blk.{i}.attn_output", N_EMBD, f"attn_out-{i}")
        x = ops.add(ctx, cur, x).set_name(f"ffn_inp-{i}")
        cur = norm(x, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        gate, up = (linear(cur, f"blk.{i}.ffn_{n}", N_FF, f"ffn_{n}-{i}") for n in ("gate", "up"))
        cur = ops.swiglu_split(ctx, gate, up)  # nameless: its layer follows from its reader
        cur = linear(cur, f"blk.{i}.ffn_down", N_EMBD, f"ffn_out-{i}")
        x = ops.add(ctx, cur, x).set_name(f"l_out-{i}")
    x = norm(x, "output_norm", "result_norm")
    logits = ops.mul_mat(ctx, embd, x).set_name("result_output").set_output()
    graph.build_forward_expand(logits)
    return graph


NAMES = st.text(max_size=12) | st.sampled_from(
    ['"', "\\", "a\nb", "{|}", "<x> y", "x->y", "&amp;", "\\N", "\0\x07", "\ud800", "blk.1.w",
     "a-0", "a-1", "cache_k_l1", "node_1", "a#2", "a@1", "-->", "'", "ü µ", "  ", "\\\""]
)  # fmt: skip


@st.composite
def random_graphs(draw: st.DrawFn) -> CGraph:
    """Any ops on vectors of four, shared leafs, names of every kind, several results."""
    ctx = Context(no_alloc=True)
    tensors = [ctx.new_tensor_1d(F32, 4).set_name(draw(NAMES)) for _ in range(3)]
    ids = ctx.new_tensor_1d(I64, 1).set_name(draw(NAMES)).set_input()

    def any_tensor() -> Tensor:
        return draw(st.sampled_from(tensors))

    graph = CGraph()
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["add", "mul_mat", "silu", "view", "set_rows", "custom"]))
        if kind == "add":
            node = ops.add(ctx, any_tensor(), any_tensor())
        elif kind == "mul_mat":
            node = ops.reshape_1d(ctx, ops.cont(ctx, any_tensor()), 4)
            node = ops.mul(ctx, node, ops.mul_mat(ctx, node, any_tensor()))
        elif kind == "silu":
            node = ops.silu(ctx, any_tensor())
        elif kind == "view":
            node = ops.view_1d(ctx, any_tensor(), 4)
        elif kind == "set_rows":
            node = ops.set_rows(ctx, any_tensor(), any_tensor(), ids)
        else:
            node = ops.map_custom(ctx, lambda dst, *x: None, any_tensor())
        if draw(st.booleans()):
            node.set_name(draw(NAMES))
        if draw(st.booleans()):
            graph.build_forward_expand(node)
            if draw(st.booleans()):
                node.set_name(draw(NAMES))
        tensors.append(node)
    graph.build_forward_expand(tensors[-1])
    return graph
