"""Tiny checkpoints of Gemma 4's assistants.

    config, made = head_of(target_config)          # for ``write_files``

tests/data/heads/gemma4_assistant.npz has what transformers computes with them
(``record_heads.py``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .checkpoints import N_VOCAB, weights

Made = dict[str, np.ndarray]


def head_of(target: dict[str, Any], scale: float = 1.0) -> tuple[dict[str, Any], Made]:
    """Configuration and weights of an assistant with three layers."""
    n, n_backbone, n_ff, n_head = 48, target["hidden_size"], 96, 4
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    own = ("architectures", "num_hidden_layers", "num_kv_shared_layers", "use_double_wide_mlp")
    text = {name: value for name, value in target.items() if name not in own} | {
        "model_type": "gemma4_text",
        "hidden_size": n,
        "intermediate_size": n_ff,
        "num_hidden_layers": len(kinds),
        "num_attention_heads": n_head,
        "layer_types": kinds,
        "num_kv_shared_layers": len(kinds),
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
    }
    config = {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": n_backbone,
        "text_config": text,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (N_VOCAB, n),
        "model.norm.weight": (n,),
        "pre_projection.weight": (n, 2 * n_backbone),
        "post_projection.weight": (n_backbone, n),
    }
    norms = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
             "post_feedforward_layernorm")  # fmt: skip
    for i, kind in enumerate(kinds):
        head = target["global_head_dim" if kind == "full_attention" else "head_dim"]
        layer: dict[str, tuple[int, ...]] = {
            **{f"{norm}.weight": (n,) for norm in norms},
            "self_attn.q_proj.weight": (n_head * head, n),
            "self_attn.q_norm.weight": (head,),
            "self_attn.o_proj.weight": (n, n_head * head),
            "mlp.gate_proj.weight": (n_ff, n),
            "mlp.up_proj.weight": (n_ff, n),
            "mlp.down_proj.weight": (n, n_ff),
            "layer_scalar": (1,),
        }
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return config, weights("gemma4_text", shapes, scale)
