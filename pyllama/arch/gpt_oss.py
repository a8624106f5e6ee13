"""gpt-oss: experts with biases and SwiGLU with limits, attention sinks, windows in half the layers.

Source: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card"; Xiao et al. 2023, "Efficient Streaming
Language Models with Attention Sinks"; llama.cpp, ``llama_model_openai_moe``.
"""

from __future__ import annotations

from functools import partial

from ..activation import SWIGLU_OAI
from ..errors import ModelError
from ..graph.tensors import OUTPUT, QKV, tensors, without
from ..hparams import GATINGS, Key, Values, window_values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, base_keys, check_config
from . import llama, qwen2

NAME = "gpt-oss"

HPARAMS: Values = {
    "rope_neox": True,
    "yarn_truncate": Key("rope.scaling.yarn_truncate", False),
    **window_values(2),
    "expert_gating": GATINGS.index("softmax_weight"),
    "expert_weights_norm": False,
}

TENSORS = tensors(
    {  # in the order of their use
        "blk.{i}.attn_norm.weight": ("n_embd",),
        **QKV,
        "blk.{i}.attn_sinks.weight": ("n_head",),
        "blk.{i}.attn_output.*?": ("n_embd_out", "n_embd"),
        "blk.{i}.post_attention_norm.weight": ("n_embd",),
        "blk.{i}.ffn_gate_inp.*": ("n_embd", "n_expert"),
        "blk.{i}.ffn_gate_exps.*": ("n_embd", "n_ff_exp", "n_expert"),
        "blk.{i}.ffn_up_exps.*": ("n_embd", "n_ff_exp", "n_expert"),
        "blk.{i}.ffn_down_exps.*": ("n_ff_exp", "n_embd", "n_expert"),
        **OUTPUT,
    }
)

build_graph = partial(llama.decoder, act=SWIGLU_OAI, ffn_norm="post_attention_norm")


def _keys(config: Config) -> Keys:
    check_config(config, hidden_act="silu", swiglu_alpha=1.702, swiglu_limit=7.0)
    n_layer = int(config["num_hidden_layers"])
    kinds = [("sliding_attention", "full_attention")[i % 2] for i in range(n_layer)]
    check_config(config, layer_types=kinds)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return base_keys(config) | {
        "attention.sliding_window": int(config["sliding_window"]),
        "expert_feed_forward_length": int(config["intermediate_size"]),
        "rope.scaling.yarn_truncate": bool(rope.get("truncate", True)),
    }


def _change(name: str, x: Array, config: Config) -> Tensors:
    """Experts' matrices of checkpoints are transposed; columns of gate and up alternate."""
    if "_exps." not in name:
        return {name: x}
    if name.endswith(".weight"):
        x = x.swapaxes(-1, -2)  # [n_expert, rows, columns]
    if "gate_up" not in name:
        return {name: x}
    axis = 1  # of outputs, with and without columns
    if x.shape[axis] % 2:
        raise ModelError(f"{x.shape[axis]} rows of gate and up, want an even number")
    return {
        name.replace("gate_up", part): x[:, start::2] for start, part in enumerate(("gate", "up"))
    }


CONVERT = Convert(
    models=("GptOssForCausalLM",),
    tensors={
        **without(qwen2.CONVERT.tensors, ".mlp."),
        "model.layers.{i}.self_attn.sinks": "blk.{i}.attn_sinks.weight",
        "model.layers.{i}.self_attn.o_proj.*": "blk.{i}.attn_output.*",
        "model.layers.{i}.post_attention_layernorm.weight": "blk.{i}.post_attention_norm.weight",
        "model.layers.{i}.mlp.router.*": "blk.{i}.ffn_gate_inp.*",
        "model.layers.{i}.mlp.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
        "model.layers.{i}.mlp.experts.gate_up_proj_bias": "blk.{i}.ffn_gate_up_exps.bias",
        "model.layers.{i}.mlp.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
        "model.layers.{i}.mlp.experts.down_proj_bias": "blk.{i}.ffn_down_exps.bias",
    },
    keys=_keys,
    change=_change,
    defaults={
        "head_dim": 64,
        "num_experts_per_tok": 4,
        "rope_theta": 150000.0,
        "sliding_window": 128,
    },
    prefix="model.",
)
