"""OLMo 2 and 3: norms after attention and feed-forward part only, norms of whole queries and keys.

OLMo 3 has a window in three of four layers, whose rope is not scaled.
Source: OLMo Team 2025, "2 OLMo 2 Furious"; llama.cpp, ``llm_build_olmo2``.
"""

from __future__ import annotations

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.builder import ROPE_FACTORS, GraphBuilder
from ..graph.ffn import ffn
from ..graph.tensors import GATED_FFN, OUTPUT, QKV, tensors, without
from ..hparams import Key, Values, window_values
from ..mapping.rules import Convert, base_keys, window_keys
from . import qwen2

HPARAMS: Values = {
    "rope_neox": True,
    **window_values(4, 0),
    "yarn_attn_factor": 1.0,  # files of llama.cpp's converter have another, which it never reads
    "swa_base": Key("rope.freq_base_swa", 0.0),
    "rope_freq_base_swa": lambda got: got["swa_base"] or got["rope_freq_base"],
}

TENSORS = tensors(
    {
        **QKV,
        "blk.{i}.attn_q_norm.weight": ("n_embd_q",),
        "blk.{i}.attn_k_norm.weight": ("n_embd_k",),
        "blk.{i}.attn_output.*?": ("n_embd_out", "n_embd"),
        "blk.{i}.post_attention_norm.weight": ("n_embd",),
        **GATED_FFN,
        "blk.{i}.post_ffw_norm.weight": ("n_embd",),
        **ROPE_FACTORS,
        **OUTPUT,
    }
)


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        cur = b.self_attention(inp, i)
        cur, inp = b.select_outputs(i, cur, inp)
        cur = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}")
        cur = b.rms_norm(cur, f"blk.{i}.post_attention_norm", f"attn_post_norm-{i}")
        inp = ops.add(b.ctx, cur, inp).set_name(f"ffn_inp-{i}")
        cur = ffn(b, inp, i, "silu")
        cur = b.rms_norm(cur, f"blk.{i}.post_ffw_norm", f"ffn_post_norm-{i}")
        inp = b.layer_output(ops.add(b.ctx, cur, inp), i)
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


CONVERT = Convert(
    models=("Olmo2ForCausalLM", "Olmo3ForCausalLM"),
    tensors={
        **without(qwen2.CONVERT.tensors, "input_layernorm"),
        "model.layers.{i}.self_attn.o_proj.*": "blk.{i}.attn_output.*",
        "model.layers.{i}.self_attn.q_norm.weight": "blk.{i}.attn_q_norm.weight",
        "model.layers.{i}.self_attn.k_norm.weight": "blk.{i}.attn_k_norm.weight",
        "model.layers.{i}.post_attention_layernorm.weight": "blk.{i}.post_attention_norm.weight",
        "model.layers.{i}.post_feedforward_layernorm.weight": "blk.{i}.post_ffw_norm.weight",
    },
    keys=lambda config: base_keys(config, "silu") | window_keys(config, 4),
    of_class={"Olmo3ForCausalLM": {"rope_theta": 500000.0, "sliding_window": 4096}},
)
