"""Tiny checkpoints of ``deci``."""

from __future__ import annotations

from typing import Any

from . import llama, xverse

_BASE = {
    **llama.VARIANTS["llama"],
    "architectures": ["DeciLMForCausalLM"],
    "model_type": "deci",
    "num_hidden_layers": 3,
}
_BASE.pop("num_key_value_heads")


def _block(group: int | None, ffn_mult: float | None, linear: bool = False) -> dict[str, Any]:
    attention = {"n_heads_in_group": group, "replace_with_linear": linear}
    return {"attention": attention, "ffn": {"ffn_mult": ffn_mult}}


_BLOCKS = [
    _block(2, 2.0), _block(None, 8.0, linear=True), _block(4, 2.0), _block(None, 2.0),
    _block(None, None), _block(1, 2.0),
]  # fmt: skip
VARIANTS = {
    "deci": {**_BASE, "num_key_value_heads_per_layer": [4, 1, 2]},
    "deci_blocks": {**_BASE, "num_hidden_layers": 6, "block_configs": _BLOCKS},
}

_MLP = {
    "gate_proj": lambda n: [n, 64],
    "up_proj": lambda n: [n, 64],
    "down_proj": lambda n: [64, n],
}
_WHOLE = {k: v for k, v in xverse.SHAPES["xverse"].items() if "{i}" not in k}


def _layer(i: int, heads_kv: int | None, n_ff: int, linear: bool = False) -> dict[str, list[int]]:
    """A layer with heads of keys (None: without attention) and neurons (0: without them)."""
    found = {}
    if heads_kv is not None:
        found |= {"self_attn.q_proj": [64, 64], "self_attn.o_proj": [64, 64]}
        found |= {f"self_attn.{part}_proj": [16 * heads_kv, 64] for part in "kv"}
    if linear:
        found["self_attn.linear_attn"] = [64, 64]
    if found:
        found["input_layernorm"] = [64]
    if n_ff:
        found |= {f"mlp.{name}": shape(n_ff) for name, shape in _MLP.items()}
        found["post_attention_layernorm"] = [64]
    return {f"model.layers.{i}.{name}.weight": shape for name, shape in found.items()}


SHAPES = {
    "deci": {**_layer(0, 4, 160), **_layer(1, 1, 160), **_layer(2, 2, 160), **_WHOLE},
    "deci_blocks": {
        **_layer(0, 2, 256),
        **_layer(1, None, 512, linear=True),
        **_layer(2, 1, 256),
        **_layer(3, None, 256),
        **_layer(5, 4, 256),
        **_WHOLE,
    },
}
LLAMA_CPP = ("deci", "deci_blocks")
