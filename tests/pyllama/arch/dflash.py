"""Tiny checkpoints of DFlash heads.

    config, made = head_of(target_config, "muse")  # for ``write_files``

tests/data/heads/dflash_<kind>.npz has what transformers computes with them (``record_heads.py``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .checkpoints import weights
from .eagle3 import N_DRAFTED, vocabulary

Made = dict[str, np.ndarray]
BLOCK, MASK, WINDOW, LAYERS = 5, 3, 16, [0, 1]
KINDS: dict[str, dict[str, Any]] = {
    "dflash": {  # as its authors write it
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": BLOCK,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": LAYERS},
    },
    "muse": {  # of Muse Glimmer, with windows
        "architectures": ["MuseGlimmerAssistantModel"],
        "model_type": "muse_glimmer_assistant",
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "target_layer_ids": LAYERS,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
DSPARK: dict[str, dict[str, Any]] = {
    "dspark": {  # the first token drafts too
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "target_layer_ids": LAYERS,
    },
    "speculator": {  # tokens of its own
        "architectures": ["DSparkSpeculator"],
        "model_type": "dspark",
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "aux_hidden_state_layer_ids": [layer + 1 for layer in LAYERS],
        "draft_vocab_size": N_DRAFTED,
    },
}
RANK = 8


def head_of(target: dict[str, Any], kind: str) -> tuple[dict[str, Any], Made]:
    """Configuration and weights of a head with two layers, of ``KINDS`` or ``DSPARK``.

    The layers of a DSpark head are those of "dflash".
    """
    n, n_layer, n_head, head_dim = target["hidden_size"], 2, 4, 16
    config = (KINDS | DSPARK)[kind]
    layer = {
        "hidden_size": n,
        "intermediate_size": 96,
        "num_hidden_layers": n_layer,
        "num_attention_heads": n_head,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "max_position_embeddings": 256,
        "vocab_size": target["vocab_size"],
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "hidden_act": "silu",
    }
    config = config | ({"transformer_layer_config": layer} if kind == "speculator" else layer)
    own = {
        "input_layernorm": (n,),
        "self_attn.q_proj": (n_head * head_dim, n),
        "self_attn.k_proj": (2 * head_dim, n),
        "self_attn.v_proj": (2 * head_dim, n),
        "self_attn.o_proj": (n, n_head * head_dim),
        "self_attn.q_norm": (head_dim,),
        "self_attn.k_norm": (head_dim,),
        "post_attention_layernorm": (n,),
        "mlp.gate_proj": (96, n),
        "mlp.up_proj": (96, n),
        "mlp.down_proj": (n, 96),
    }
    fc, norm = "fc", "hidden_norm"
    if kind == "muse":
        fc, norm = "encoder.fc", "encoder.output_norm_enc"
    shapes: dict[str, tuple[int, ...]] = {
        f"layers.{i}.{name}.weight": shape for i in range(n_layer) for name, shape in own.items()
    }
    shapes |= {f"{fc}.weight": (n, len(LAYERS) * n), f"{norm}.weight": (n,), "norm.weight": (n,)}
    n_drafted = config.get("draft_vocab_size", target["vocab_size"])
    if kind in DSPARK:
        shapes |= {
            "markov_head.markov_w1.weight": (target["vocab_size"], RANK),
            "markov_head.markov_w2.weight": (n_drafted, RANK),
            "confidence_head.proj.weight": (1, n + RANK),
            "confidence_head.proj.bias": (1,),
            "lm_head.weight": (n_drafted, n),
        }
    made = weights("llama", shapes, 1.0)
    if kind == "speculator":
        made |= vocabulary(np.arange(4, 4 + 2 * N_DRAFTED, 2))
    return config, made


def copying(config: dict[str, Any], kind: str, noise: float) -> tuple[dict[str, Any], Made]:
    """A head whose masks all predict what follows the block's first token.

    They attend to that token only: the first column of its embedding is positive, and that of the
    mask's is negative. Its embedding is copied, plus ``noise`` times a random projection.
    """
    head, made = head_of(config, kind)
    n, head["num_key_value_heads"] = config["hidden_size"], 4
    slow = np.zeros((4, 16, n))
    slow[:, 7, 0] = 1  # of the pair of columns that rope rotates least
    copies = np.eye(n) + noise * np.random.default_rng(3).normal(0, 1 / 8, (n, n))
    layer = {
        "input_layernorm": np.ones(n),
        "self_attn.q_proj": -slow.reshape(n, n),
        "self_attn.k_proj": slow.reshape(n, n),
        "self_attn.v_proj": copies,
        "self_attn.o_proj": np.eye(n),
        "self_attn.q_norm": np.full(16, 30.0),
        "self_attn.k_norm": np.ones(16),
        "mlp.down_proj": np.zeros((n, 96)),
    }
    made |= {f"layers.0.{name}.weight": x for name, x in layer.items()}
    ends = ("layers.1.self_attn.o_proj.weight", "layers.1.mlp.down_proj.weight", "fc.weight")
    made |= {name: np.zeros_like(x) for name, x in made.items() if name.endswith(ends)}
    for name in ("self_attn.k_proj", "self_attn.v_proj"):
        made[f"layers.1.{name}.weight"] = np.zeros((n, n))
    return head, {name: x.astype(np.float32) for name, x in made.items()}
