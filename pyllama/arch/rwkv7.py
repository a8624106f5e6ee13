"""RWKV 7: time mixing with a state that is a matrix for each head, and no attention.

Source: Peng et al. 2025, "RWKV-7 Goose with Expressive Dynamic State Evolution"; llama.cpp,
``llama_model_rwkv7``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..graph.rwkv import NORMED, RWKV7, TIME_MIX7, decoder, states, time_mix7
from ..graph.tensors import tensors
from ..hparams import Key, Values
from ..mapping.rules import Array, Config, Convert, Keys, float32

HPARAMS: Values = {
    **RWKV7,
    "norm_eps": Key("attention.layer_norm_epsilon"),
    "states": states("att_shift", "ffn_shift"),
}

TENSORS = tensors({**TIME_MIX7, **NORMED})

build_graph = partial(decoder, time_mix=time_mix7)


def _keys(config: Config) -> Keys:
    n = int(config["hidden_size"])

    def rank(name: str, of_fla: str, power: float, factor: float) -> int:
        given = config.get(name) or config.get(of_fla)
        return int(given or max(1, round(n**power * factor / 32)) * 32)

    return {
        "context_length": 1 << 20,  # as in llama.cpp: there is no limit
        "embedding_length": n,
        "block_count": int(config["num_hidden_layers"]),
        "attention.layer_norm_epsilon": float32(
            config["layer_norm_epsilon"] if "layer_norm_epsilon" in config else config["norm_eps"]
        ),
        "wkv.head_size": int(config.get("head_size") or config["head_dim"]),
        "attention.decay_lora_rank": rank("lora_rank_decay", "decay_low_rank_dim", 0.5, 1.8),
        "attention.iclr_lora_rank": rank("lora_rank_iclr", "a_low_rank_dim", 0.5, 1.8),
        "attention.value_residual_mix_lora_rank": rank(
            "lora_rank_value_residual_mix", "v_low_rank_dim", 0.5, 1.3
        ),
        "attention.gate_lora_rank": rank("lora_rank_gate", "gate_low_rank_dim", 0.8, 0.6),
        "feed_forward_length": int(config.get("intermediate_size") or 4 * n),
        "attention.head_count": 0,
    }


def change(name: str, x: Array, config: Config) -> dict[str, Array]:
    """Vectors without dimensions of 1; matrices that are no ``Linear`` are transposed."""
    if name.endswith(".transposed"):
        return {name.replace(".transposed", ".weight"): x.T}
    if name.endswith("lerp_fused.weight"):  # of one mix, or of all
        n = int(config["hidden_size"])
        return {name: x.reshape((1, 1, n) if x.size == n else (-1, 1, 1, n))}
    vectors = ("0.weight", "k_k.weight", "k_a.weight", "r_k.weight", "lerp_k.weight")
    return {name: x.reshape(-1) if name.endswith(vectors) else x}


def first_values(keys: Keys) -> dict[str, Array]:
    """The value residual of the first layer, which llama.cpp loads and does not use."""
    n, rank = keys["embedding_length"], keys["attention.iclr_lora_rank"]
    shapes = ((n,), (rank, n), (n, rank))
    return {f"blk.0.time_mix_v{k}.weight": np.zeros(x, np.float32) for k, x in enumerate(shapes)}


def time_mix_names(prefix: str) -> dict[str, str]:
    """The names of a layer's time mixing in RWKV's own code, by their beginning."""
    ours = "blk.{i}.time_mix_"
    return {
        **{f"{prefix}.x_{x}": f"{ours}lerp_fused.weight[{k}]" for k, x in enumerate("rwkvag")},
        **{f"{prefix}.{x}0": f"{ours}{x}0.weight" for x in "wav"},
        **{f"{prefix}.{x}{k}": f"{ours}{x}{k}.transposed" for x in "wavg" for k in (1, 2)},
        **{f"{prefix}.{x}": f"{ours}{x}.weight" for x in ("k_k", "k_a", "r_k")},
        **{
            f"{prefix}.{x}.weight": f"{ours}{x}.weight"
            for x in ("receptance", "key", "value", "output")
        },
        f"{prefix}.ln_x.*": f"{ours}ln.*",
    }


_LAYER = "model.layers.{i}"
_FLA = {  # names of flash-linear-attention
    "model.layers.0.pre_norm.*": "token_embd_norm.*",
    f"{_LAYER}.attn_norm.*": "blk.{i}.attn_norm.*",
    f"{_LAYER}.ffn_norm.*": "blk.{i}.attn_norm_2.*",
    **{
        f"{_LAYER}.attn.x_{x}": f"blk.{{i}}.time_mix_lerp_fused.weight[{k}]"
        for k, x in enumerate("rwkvag")
    },
    f"{_LAYER}.attn.x_x": "blk.{i}.time_mix_lerp_fused.weight",
    **{f"{_LAYER}.attn.{x}": f"blk.{{i}}.time_mix_{x}.weight" for x in ("k_k", "k_a", "r_k")},
    **{
        f"{_LAYER}.attn.{x[0]}_proj.weight": f"blk.{{i}}.time_mix_{x}.weight"
        for x in ("receptance", "key", "value", "output")
    },
    **{
        f"{_LAYER}.attn.{x}_lora.lora.{k}.weight": f"blk.{{i}}.time_mix_{x}{1 + k // 2}.weight"
        for x in "wavg"
        for k in (0, 2)
    },
    **{f"{_LAYER}.attn.{x}_lora.lora.2.bias": f"blk.{{i}}.time_mix_{x}0.weight" for x in "wav"},
    f"{_LAYER}.attn.g_norm.*": "blk.{i}.time_mix_ln.*",
    f"{_LAYER}.ffn.x_k": "blk.{i}.channel_mix_lerp_k.weight",
    f"{_LAYER}.ffn.key.weight": "blk.{i}.channel_mix_key.weight",
    f"{_LAYER}.ffn.value.weight": "blk.{i}.channel_mix_value.weight",
    "model.norm.*": "output_norm.*",
    "lm_head.weight": "output.weight",
}

CONVERT = Convert(
    models=("RWKV7ForCausalLM", "Rwkv7ForCausalLM"),
    tensors={
        "model.embeddings.weight": "token_embd.weight",
        "model.pre_ln.*": "token_embd_norm.*",
        f"{_LAYER}.ln1.*": "blk.{i}.attn_norm.*",
        f"{_LAYER}.ln2.*": "blk.{i}.attn_norm_2.*",
        **time_mix_names(f"{_LAYER}.attention"),
        f"{_LAYER}.feed_forward.x_k": "blk.{i}.channel_mix_lerp_k.weight",
        f"{_LAYER}.feed_forward.key.weight": "blk.{i}.channel_mix_key.weight",
        f"{_LAYER}.feed_forward.value.weight": "blk.{i}.channel_mix_value.weight",
        "model.ln_out.*": "output_norm.*",
        "head.weight": "output.weight",
        **_FLA,
    },
    keys=_keys,
    change=change,
    extra=lambda config: first_values(_keys(config)),
    ignored=tuple(
        f"model.layers.0.{x}"
        for x in ("attn.v_lora.*", "attention.v0", "attention.v1", "attention.v2")
    ),
)
