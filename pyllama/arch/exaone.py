"""EXAONE 3: LLaMA with rope on halves.

Source: LG AI Research 2024, "EXAONE 3.0 7.8B Instruction Tuned Language Model"; llama.cpp,
``llm_build_exaone``.
"""

from __future__ import annotations

from ..mapping.rules import Config, Convert, Keys, float32
from . import llama, qwen2

HPARAMS = qwen2.HPARAMS
TENSORS = qwen2.TENSORS
build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    eps = float32(config.get("layer_norm_epsilon", 1e-5))
    return llama.keys(config) | {"attention.layer_norm_rms_epsilon": eps}


CONVERT = Convert(
    models=("ExaoneForCausalLM",),
    tensors={
        "transformer.wte.weight": "token_embd.weight",
        "transformer.h.{i}.ln_1.weight": "blk.{i}.attn_norm.weight",
        "transformer.h.{i}.attn.attention.q_proj.*": "blk.{i}.attn_q.*",
        "transformer.h.{i}.attn.attention.k_proj.*": "blk.{i}.attn_k.*",
        "transformer.h.{i}.attn.attention.v_proj.*": "blk.{i}.attn_v.*",
        "transformer.h.{i}.attn.attention.out_proj.weight": "blk.{i}.attn_output.weight",
        "transformer.h.{i}.ln_2.weight": "blk.{i}.ffn_norm.weight",
        "transformer.h.{i}.mlp.c_fc_0.weight": "blk.{i}.ffn_gate.weight",
        "transformer.h.{i}.mlp.c_fc_1.weight": "blk.{i}.ffn_up.weight",
        "transformer.h.{i}.mlp.c_proj.weight": "blk.{i}.ffn_down.weight",
        "transformer.ln_f.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
)
