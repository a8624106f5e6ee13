"""Qwen3-VL-MoE (text): Qwen3-MoE, with multi-section rope.

Source: Bai et al. 2025, "Qwen3-VL Technical Report"; llama.cpp, ``llama_model_qwen3vlmoe``.
"""

from __future__ import annotations

from ..hparams import Values
from ..mapping.rules import Array, Config, Convert, Tensors, text_of_vision
from . import qwen3moe, qwen3vl

HPARAMS: Values = qwen3moe.HPARAMS

TENSORS = qwen3moe.TENSORS

build_graph = qwen3moe.build_graph


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


CONVERT = Convert(
    models=("Qwen3VLMoeForConditionalGeneration",),
    tensors=text_of_vision(
        {
            **qwen3moe.CONVERT.tensors,
            "model.layers.{i}.mlp.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
            "model.layers.{i}.mlp.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
        }
    ),
    other_media=("visual.*", "model.visual.*"),
    keys=qwen3vl.keys_of_text(qwen3moe.CONVERT.keys),
    change=split_experts,
    defaults={"num_experts_per_tok": 4, "rms_norm_eps": 1e-6, "rope_theta": 500000.0},
)
