"""Qwen2-MoE: Qwen2 with a mixture of experts, and a shared expert with a gate of its own.

Source: Qwen Team 2024, "Qwen1.5-MoE" and "Qwen2 Technical Report"; llama.cpp,
``llama_model_qwen2moe``.
"""

from __future__ import annotations

from ..graph.tensors import EXPERTS, SHARED_EXPERTS
from ..hparams import Key, Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, check_config
from . import qwen2

HPARAMS: Values = {
    **qwen2.HPARAMS,
    "expert_weights_norm": Key("expert_weights_norm", False),
    "n_ff_shexp": Key("expert_shared_feed_forward_length"),
}

TENSORS = {
    **qwen2.TENSORS,
    **EXPERTS,
    **SHARED_EXPERTS,
    "blk.{i}.ffn_gate_inp_shexp.weight": ("n_embd",),
}

build_graph = qwen2.build_graph

ROUTED = {  # names of checkpoints with experts in ``mlp``
    "model.layers.{i}.mlp.gate.weight": "blk.{i}.ffn_gate_inp.weight",
    "model.layers.{i}.mlp.experts.{e}.gate_proj.weight": "blk.{i}.ffn_gate_exps.weight",
    "model.layers.{i}.mlp.experts.{e}.up_proj.weight": "blk.{i}.ffn_up_exps.weight",
    "model.layers.{i}.mlp.experts.{e}.down_proj.weight": "blk.{i}.ffn_down_exps.weight",
}


STACKED = {  # names of transformers' own matrices of all experts, for ``split_experts``
    "model.layers.{i}.mlp.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
    "model.layers.{i}.mlp.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
}


def split_experts(name: str, x: Array, config: Config) -> Tensors:
    """Split gate and up of all experts; transpose the matrices that are stored [in, out].

    transformers writes them in either order.

    Shape:
        NumPy order, gate_up [n_expert, n_embd, 2 * n_ff_exp], down [n_expert, n_ff_exp, n_embd]
    """
    if x.ndim < 3:
        return {name: x}
    gates = "gate_up" in name
    if x.shape[1 if gates else 2] == config["hidden_size"]:
        x = x.swapaxes(1, 2)
    if not gates:
        return {name: x}
    n_ff = x.shape[1] // 2
    parts = {"gate": x[:, :n_ff], "up": x[:, n_ff:]}
    return {name.replace("gate_up", part): y for part, y in parts.items()}


def shared(module: str) -> dict[str, str]:
    """Names of the shared experts' matrices in checkpoints that have them in ``module``."""
    return {
        f"model.layers.{{i}}.mlp.{module}.{part}_proj.weight": f"blk.{{i}}.ffn_{part}_shexp.weight"
        for part in ("gate", "up", "down")
    }


DEEPSEEK = {  # names of routed and shared experts, with the bias of their choice
    **ROUTED,
    "model.layers.{i}.mlp.gate.e_score_correction_bias": "blk.{i}.exp_probs_b.bias",
    **shared("shared_experts"),
}


def norm_keys(config: Config) -> Keys:
    """The key of weights that sum to 1, where a model has them; llama.cpp does not know it."""
    return {"expert_weights_norm": True} if config.get("norm_topk_prob") else {}


def _keys(config: Config) -> Keys:
    check_config(config, mlp_only_layers=[], decoder_sparse_step=1)
    n_ff = int(config["shared_expert_intermediate_size"])
    n = int(config.get("max_window_layers", 28))
    keys = qwen2.keys(config, slides=lambda i: i % 2 == 0 and i < n) | norm_keys(config)
    return keys | {"expert_shared_feed_forward_length": n_ff}


CONVERT = Convert(
    models=("Qwen2MoeForCausalLM",),
    tensors={
        **qwen2.CONVERT.tensors,
        **ROUTED,
        **STACKED,
        **shared("shared_expert"),
        "model.layers.{i}.mlp.shared_expert_gate.weight": "blk.{i}.ffn_gate_inp_shexp.weight",
    },
    defaults={"num_experts_per_tok": 4, "rms_norm_eps": 1e-6},
    keys=_keys,
    change=split_experts,
)
