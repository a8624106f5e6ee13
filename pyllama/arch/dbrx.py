"""DBRX: layer norms without biases, clamped queries, keys and values, experts in one matrix each.

Source: Databricks 2024, "Introducing DBRX"; llama.cpp, ``llama_model_dbrx``.
"""

from __future__ import annotations

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.ffn import ffn
from ..graph.tensors import EXPERTS, OUTPUT
from ..hparams import Key, Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, base_keys, check_config, float32

HPARAMS: Values = {
    "rope_neox": True,
    "norm_eps": Key("attention.layer_norm_epsilon"),
    "clamp_kqv": Key("attention.clamp_kqv"),
}

TENSORS = {  # in the order of their use
    "blk.{i}.attn_norm.weight": ("n_embd",),
    "blk.{i}.attn_qkv.weight": ("n_embd", "n_embd_qkv"),
    "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
    "blk.{i}.attn_output_norm.weight": ("n_embd",),
    **EXPERTS,
    **OUTPUT,
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        cur = b.layer_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        cur = b.self_attention(cur, i)
        cur, inp = b.select_outputs(i, cur, inp)
        inp = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        cur = b.layer_norm(inp, f"blk.{i}.attn_output_norm", f"attn_out_norm-{i}")
        inp = b.layer_output(ffn(b, cur, i, "silu", residual=inp), i)
    return b.output(b.layer_norm(inp, "output_norm", "result_norm"))


def _keys(config: Config) -> Keys:
    attn, ffn = config["attn_config"], config["ffn_config"]
    check_config(ffn, ffn_act_fn={"name": "silu"}, moe_normalize_expert_weights=1)
    return base_keys({"rope_theta": attn.get("rope_theta", 10000.0), **config}) | {
        "feed_forward_length": int(ffn["ffn_hidden_size"]),
        "attention.head_count_kv": int(attn["kv_n_heads"]),
        "attention.clamp_kqv": float32(attn["clip_qkv"]),
        "attention.layer_norm_epsilon": float32(1e-5),
        "expert_count": int(ffn["moe_num_experts"]),
        "expert_used_count": int(ffn["moe_top_k"]),
    }


def _change(name: str, x: Array, config: Config) -> Tensors:
    """Experts of checkpoints are rows of one matrix; that of ``down`` is transposed."""
    if "_exps." not in name:
        return {name: x}
    x = x.reshape(int(config["ffn_config"]["moe_num_experts"]), -1, x.shape[-1])
    return {name: x.swapaxes(1, 2) if "down" in name else x}


_BLOCK = "transformer.blocks.{i}"
CONVERT = Convert(
    models=("DbrxForCausalLM",),
    tensors={
        "transformer.wte.weight": "token_embd.weight",
        f"{_BLOCK}.norm_attn_norm.norm_1.weight": "blk.{i}.attn_norm.weight",
        f"{_BLOCK}.norm_attn_norm.attn.Wqkv.weight": "blk.{i}.attn_qkv.weight",
        f"{_BLOCK}.norm_attn_norm.attn.out_proj.weight": "blk.{i}.attn_output.weight",
        f"{_BLOCK}.norm_attn_norm.norm_2.weight": "blk.{i}.attn_output_norm.weight",
        f"{_BLOCK}.ffn.router.layer.weight": "blk.{i}.ffn_gate_inp.weight",
        f"{_BLOCK}.ffn.experts.mlp.w1": "blk.{i}.ffn_gate_exps.weight",
        f"{_BLOCK}.ffn.experts.mlp.v1": "blk.{i}.ffn_up_exps.weight",
        f"{_BLOCK}.ffn.experts.mlp.w2": "blk.{i}.ffn_down_exps.weight",
        "transformer.norm_f.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
    change=_change,
)
