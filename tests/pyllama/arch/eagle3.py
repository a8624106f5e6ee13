"""Tiny checkpoints of EAGLE-3 heads, and what such a head computes.

    config, made = head_of(target_config, "authors")       # for ``write_files``
    logits, states = computed(config, made, tokens, fused)

The reference is in float64, after the authors' ``cnets.py``: ``d2t`` has differences of ids, and
the fused hidden states are those of the target or the head's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .checkpoints import N_VOCAB, weights

Made = dict[str, np.ndarray]
N_DRAFTED = 200  # tokens of heads with a vocabulary of their own
KINDS: dict[str, dict[str, Any]] = {
    # the target's width, embedding, output matrix and vocabulary
    "shared": {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": N_VOCAB},
    # names of the authors, tokens of its own
    "authors": {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": N_DRAFTED},
    # all that a speculator may have
    "speculator": {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": N_DRAFTED,
        "norm_before_residual": True,
        "norm_before_fc": True,
        "eagle_aux_hidden_state_layer_ids": [3, 1, 2],
    },
}


def head_of(target: dict[str, Any], kind: str) -> tuple[dict[str, Any], Made]:
    """Configuration and weights of a head, one of ``KINDS``, for a target of three layers."""
    n_read = target["hidden_size"]
    n = n_read if kind != "speculator" else 48
    layer = {
        "model_type": "llama",
        "hidden_size": n,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "vocab_size": N_VOCAB,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,  # in heads of tied targets, which have a matrix all the same
    }
    config = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], **KINDS[kind]}
    config |= {"transformer_layer_config": layer} if kind == "speculator" else layer
    own = {
        "input_layernorm": (n,),
        "hidden_norm": (n,),
        "self_attn.q_proj": (64, 2 * n),
        "self_attn.k_proj": (32, 2 * n),
        "self_attn.v_proj": (32, 2 * n),
        "self_attn.o_proj": (n, 64),
        "post_attention_layernorm": (n,),
        "mlp.gate_proj": (96, n),
        "mlp.up_proj": (96, n),
        "mlp.down_proj": (n, 96),
    }
    prefix = {"shared": "model.layers.0", "authors": "midlayer", "speculator": "layers.0"}[kind]
    shapes = {f"{prefix}.{name}.weight": shape for name, shape in own.items()}
    shapes |= {"fc.weight": (n, 3 * n_read), "norm.weight": (n,)}
    if kind != "shared":
        shapes["lm_head.weight"] = (N_DRAFTED, n)
    if kind == "speculator":
        shapes |= {"embed_tokens.weight": (N_VOCAB, n), "input_norm.weight": (3 * n_read,)}
    made = weights("llama", shapes, 1.0)
    if kind != "shared":
        made |= vocabulary(np.sort(np.random.default_rng(5).permutation(N_VOCAB)[:N_DRAFTED]))
    return config, made


def vocabulary(ids: np.ndarray) -> Made:
    """The tables of a head that drafts these tokens of the target, ascending."""
    drafted = np.zeros(N_VOCAB, bool)
    drafted[ids] = True
    return {"d2t": ids - np.arange(len(ids)), "t2d": drafted}


def computed(
    config: dict[str, Any], made: Made, tokens: list[int], fused: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Logits by the target's ids, float64[n, N_VOCAB], and hidden states, of a text's tokens.

    Args:
        made: also the target's tensors that the head lacks.
        fused: the fused hidden states before each token, [n, hidden_size].
    """
    config = {**config, **config.get("transformer_layer_config", {})}
    w = {name: x.astype(np.float64) for name, x in made.items()}
    for prefix in ("model.layers.0.", "midlayer.", "layers.0.", "model."):
        w |= {name.removeprefix(prefix): x for name, x in w.items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        mean = (x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]
        scaled: np.ndarray = x / np.sqrt(mean) * w[f"{name}.weight"]
        return scaled

    hidden = norm(fused.astype(np.float64), "hidden_norm")
    residual = hidden if config.get("norm_before_residual") else fused
    x = np.concatenate([norm(w["embed_tokens.weight"][tokens], "input_layernorm"), hidden], 1)
    x = residual + _attention(config, w, x) @ w["self_attn.o_proj.weight"].T
    y = norm(x, "post_attention_layernorm")
    gate, up = y @ w["mlp.gate_proj.weight"].T, y @ w["mlp.up_proj.weight"].T
    x = x + (gate / (1 + np.exp(-gate)) * up) @ w["mlp.down_proj.weight"].T
    drafted = norm(x, "norm") @ w["lm_head.weight"].T
    if "d2t" not in made:
        return drafted, x
    logits = np.full((len(tokens), N_VOCAB), -np.inf)
    logits[:, made["d2t"] + np.arange(len(made["d2t"]))] = drafted
    return logits, x


def _attention(config: dict[str, Any], w: Made, x: np.ndarray) -> np.ndarray:
    """Causal attention with rope on pairs half a head apart: [n, n_head * head_dim]."""
    n, d = len(x), config["head_dim"]
    q, k, v = (
        (x @ w[f"self_attn.{part}_proj.weight"].T).reshape(n, -1, d).swapaxes(0, 1)
        for part in "qkv"
    )
    angles = np.arange(n)[:, None] * config["rope_theta"] ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angles), np.sin(angles)

    def rotated(x: np.ndarray) -> np.ndarray:
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    repeat = len(q) // len(k)
    k, v = rotated(k).repeat(repeat, 0), v.repeat(repeat, 0)
    scores = rotated(q) @ k.swapaxes(1, 2) / np.sqrt(d)
    scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(n, -1)
