"""LLaMA: RMS norm, rotary attention with grouped keys and values, SwiGLU.

Also Mistral, SmolLM, TinyLlama and others that GGUF files call ``llama``. Biases are optional, a
missing ``output.weight`` means that the embedding serves twice, ``rope_freqs`` holds llama-3's
frequency factors.
Source: Touvron et al. 2023, "LLaMA"; llama.cpp, ``llm_build_llama``.
"""

from __future__ import annotations

from pyggml import ops
from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder

TENSORS = {  # a layer's weights in the order of their use
    "blk.{i}.attn_norm.weight": ("n_embd",),
    "blk.{i}.attn_q.weight": ("n_embd", "n_embd_q"),
    "blk.{i}.attn_q.bias?": ("n_embd_q",),
    "blk.{i}.attn_k.weight": ("n_embd", "n_embd_kv"),
    "blk.{i}.attn_k.bias?": ("n_embd_kv",),
    "blk.{i}.attn_v.weight": ("n_embd", "n_embd_kv"),
    "blk.{i}.attn_v.bias?": ("n_embd_kv",),
    "blk.{i}.attn_output.weight": ("n_embd_q", "n_embd"),
    "blk.{i}.attn_output.bias?": ("n_embd",),
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    "blk.{i}.ffn_gate.weight": ("n_embd", "n_ff"),
    "blk.{i}.ffn_gate.bias?": ("n_ff",),
    "blk.{i}.ffn_up.weight": ("n_embd", "n_ff"),
    "blk.{i}.ffn_up.bias?": ("n_ff",),
    "blk.{i}.ffn_down.weight": ("n_ff", "n_embd"),
    "blk.{i}.ffn_down.bias?": ("n_embd",),
    "rope_freqs.weight?": ("n_rot/2",),
    "output_norm.weight": ("n_embd",),
    "token_embd.weight": ("n_embd", "n_vocab"),
    "output.weight?": ("n_embd", "n_vocab"),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    hp, ctx = b.hparams, b.ctx
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(hp.n_layer):
        cur = b.rms_norm(inp, f"blk.{i}.attn_norm.weight", f"attn_norm-{i}")
        q = b.linear(cur, f"blk.{i}.attn_q", f"Qcur-{i}")
        k = b.linear(cur, f"blk.{i}.attn_k", f"Kcur-{i}")
        v = b.linear(cur, f"blk.{i}.attn_v", f"Vcur-{i}")
        q = b.rope(ops.reshape_3d(ctx, q, hp.head_dim, hp.n_head, b.n_tokens), f"Qcur-{i}")
        k = b.rope(ops.reshape_3d(ctx, k, hp.head_dim, hp.n_head_kv, b.n_tokens), f"Kcur-{i}")
        cur = b.attention(q, k, v, i)  # [n_embd_q, T]
        if i == hp.n_layer - 1:
            cur, inp = b.select_outputs(cur), b.select_outputs(inp)
        cur = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        inp = cur.set_name(f"ffn_inp-{i}")
        cur = b.rms_norm(inp, f"blk.{i}.ffn_norm.weight", f"ffn_norm-{i}")
        gate = b.linear(cur, f"blk.{i}.ffn_gate", f"ffn_gate-{i}")
        up = b.linear(cur, f"blk.{i}.ffn_up", f"ffn_up-{i}")
        cur = ops.swiglu_split(ctx, gate, up).set_name(f"ffn_swiglu-{i}")
        cur = b.linear(cur, f"blk.{i}.ffn_down", f"ffn_out-{i}", residual=inp)
        inp = cur.set_name(f"l_out-{i}")
    cur = b.rms_norm(inp, "output_norm.weight", "result_norm")
    output = "output" if "output.weight" in b.weights else "token_embd"
    return b.linear(cur, output, "result_output")
