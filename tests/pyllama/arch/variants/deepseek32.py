"""Tiny checkpoints of ``deepseek32``."""

from __future__ import annotations

from . import deepseek2

CHOSEN = {"index_topk": 12, "index_n_heads": 8}  # of more tokens; few scores are exactly 0
_V32 = {
    **deepseek2.V3,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "index_n_heads": 4,
    "index_head_dim": 64,
    "index_topk": 64,
    "num_nextn_predict_layers": 0,
}
VARIANTS = {"deepseek32": _V32, "deepseek32_chosen": {**_V32, **CHOSEN}}

LLAMA_CPP = ("deepseek32", "deepseek32_chosen")
