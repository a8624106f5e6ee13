"""RWKV 6: time mixing with decays that depend on the token, and no attention.

Source: Peng et al. 2024, "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence";
llama.cpp, ``llama_model_rwkv6``.
"""

from __future__ import annotations

from functools import partial

from ..graph.rwkv import NORMED, RWKV6, TIME_MIX6, decoder, states, time_mix6
from ..graph.tensors import tensors
from ..hparams import Key, Values
from ..mapping.rules import Array, Config, Convert, Keys, float32

HPARAMS: Values = {
    **RWKV6,
    "norm_eps": Key("attention.layer_norm_epsilon"),
    "rescale_period": Key("rescale_every_n_layers", 0),
    "n_wkv_head": lambda got: got["n_embd"] // max(got["head_size"], 1),
    "states": states("att_shift", "ffn_shift"),
}

TENSORS = tensors(
    {
        **TIME_MIX6,
        "blk.{i}.time_mix_first.weight": ("head_size", "n_wkv_head"),
        "blk.{i}.channel_mix_lerp_r.weight": ("n_embd",),
        "blk.{i}.channel_mix_receptance.weight": ("n_embd", "n_embd"),
        **NORMED,
    }
)

build_graph = partial(decoder, time_mix=time_mix6)


def _keys(config: Config) -> Keys:
    n = int(config["hidden_size"])
    return {
        "context_length": 1 << 20,  # as in llama.cpp: there is no limit
        "embedding_length": n,
        "block_count": int(config["num_hidden_layers"]),
        "attention.layer_norm_epsilon": float32(config["layer_norm_epsilon"]),
        "rescale_every_n_layers": int(config["rescale_every"]),
        "wkv.head_size": int(config["head_size"]),
        "time_mix_extra_dim": 64 if n == 4096 else 32,
        "time_decay_extra_dim": 128 if n == 4096 else 64,
        "feed_forward_length": int(config.get("intermediate_size") or n * 3.5 // 32 * 32),
        "attention.head_count": 0,
    }


def change(name: str, x: Array, config: Config) -> dict[str, Array]:
    """Transposed matrices, vectors without dimensions of 1, and layers' outputs rescaled."""
    if name.endswith(("mix_w1.weight", "decay_w1.weight", "decay_w2.weight", "mix_w2.weight")):
        x = x.swapaxes(-1, -2)
    elif name.endswith("lerp_fused.weight"):
        x = x.reshape(1, 1, -1)
    elif "_lerp_" in name or name.endswith("decay.weight"):
        x = x.reshape(-1)
    period = int(config.get("rescale_every") or 0)
    if period > 0 and name.endswith(("time_mix_output.weight", "channel_mix_value.weight")):
        x = x / 2 ** (int(name.split(".")[1]) // period)
    return {name: x}


def time_mix_names(prefix: str) -> dict[str, str]:
    """The names of a layer's mixes and decays, by their beginning."""
    mix = f"{prefix}.time_maa"
    return {
        f"{mix}_x": "blk.{i}.time_mix_lerp_x.weight",
        **{
            f"{mix}_{x}": f"blk.{{i}}.time_mix_lerp_fused.weight[{k}]"
            for k, x in enumerate("wkvrg")
        },
        f"{mix}_w1": "blk.{i}.time_mix_w1.weight",
        f"{mix}_w2": "blk.{i}.time_mix_w2.weight",
        f"{prefix}.time_decay": "blk.{i}.time_mix_decay.weight",
        f"{prefix}.time_decay_w1": "blk.{i}.time_mix_decay_w1.weight",
        f"{prefix}.time_decay_w2": "blk.{i}.time_mix_decay_w2.weight",
    }


_L = "rwkv.blocks.{i}"

CONVERT = Convert(
    models=("Rwkv6ForCausalLM",),
    tensors={
        "rwkv.embeddings.weight": "token_embd.weight",
        "rwkv.blocks.0.pre_ln.*": "token_embd_norm.*",
        f"{_L}.ln1.*": "blk.{i}.attn_norm.*",
        f"{_L}.ln2.*": "blk.{i}.attn_norm_2.*",
        **time_mix_names(f"{_L}.attention"),
        f"{_L}.attention.time_faaaa": "blk.{i}.time_mix_first.weight",
        **{
            f"{_L}.attention.{x}.weight": f"blk.{{i}}.time_mix_{x}.weight"
            for x in ("receptance", "key", "value", "gate", "output")
        },
        f"{_L}.attention.ln_x.*": "blk.{i}.time_mix_ln.*",
        f"{_L}.feed_forward.time_maa_k": "blk.{i}.channel_mix_lerp_k.weight",
        f"{_L}.feed_forward.time_maa_r": "blk.{i}.channel_mix_lerp_r.weight",
        **{
            f"{_L}.feed_forward.{x}.weight": f"blk.{{i}}.channel_mix_{x}.weight"
            for x in ("key", "value", "receptance")
        },
        "rwkv.ln_out.*": "output_norm.*",
        "head.weight": "output.weight",
    },
    keys=_keys,
    change=change,
)
