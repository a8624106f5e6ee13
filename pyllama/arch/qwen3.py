"""Qwen3: LLaMA's graph with a norm of each head's queries and keys, whose size is its own.

Source: Yang et al. 2025, "Qwen3 Technical Report"; llama.cpp, ``llm_build_qwen3``.
"""

from __future__ import annotations

from pyggml.tensor import Tensor

from ..convert.mapping import Convert
from ..graph.builder import GraphBuilder
from ..hparams import Values
from . import qwen2

HPARAMS: Values = {"rope_neox": True}

TENSORS = {
    **qwen2.TENSORS,
    "blk.{i}.attn_q_norm.weight": ("head_dim",),
    "blk.{i}.attn_k_norm.weight": ("head_dim",),
    "blk.{i}.attn_output.bias?": ("n_embd",),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    n_layer = b.hparams.n_layer
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(n_layer):
        cur = b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        q, k, v = b.qkv(cur, i)
        q = b.rms_norm(q, f"blk.{i}.attn_q_norm", f"Qcur_normed-{i}")
        k = b.rms_norm(k, f"blk.{i}.attn_k_norm", f"Kcur_normed-{i}")
        cur = b.attention(b.rope(q, f"Qcur-{i}", i), b.rope(k, f"Kcur-{i}", i), v, i)
        if i == n_layer - 1:
            cur, inp = b.select_outputs(cur), b.select_outputs(inp)
        cur = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        inp = cur.set_name(f"ffn_inp-{i}")
        cur = b.rms_norm(inp, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        inp = b.ffn(cur, i, "silu", residual=inp).set_name(f"l_out-{i}")
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


CONVERT = Convert(
    models=("Qwen3ForCausalLM",),
    tensors={
        **qwen2.CONVERT.tensors,
        "model.layers.{i}.self_attn.o_proj.*": "blk.{i}.attn_output.*",
        "model.layers.{i}.self_attn.q_norm.weight": "blk.{i}.attn_q_norm.weight",
        "model.layers.{i}.self_attn.k_norm.weight": "blk.{i}.attn_k_norm.weight",
    },
    keys=qwen2.CONVERT.keys,
)
_TINY = {
    **qwen2.TINY["qwen2"],
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 32,
}
TINY = {
    "qwen3": _TINY,
    "qwen3-biases": {**_TINY, "attention_bias": True, "tie_word_embeddings": True},
}
