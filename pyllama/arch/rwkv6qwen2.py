"""QRWKV 6: a Qwen 2 with RWKV 6's time mixing, as gated linear attention, in place of attention.

Source: Goldstein et al. 2025, "RADLADS: Rapid Attention Distillation to Linear Attention Decoders
at Scale"; llama.cpp, ``llama_model_rwkv6qwen2``.
"""

from __future__ import annotations

from functools import partial

from ..graph.rwkv import RWKV6, TIME_MIX6, llama_decoder, states, time_mix6
from ..graph.tensors import GATED_FFN, OUTPUT, tensors
from ..hparams import Got, Key, Values
from ..mapping.rules import Array, Config, Convert, Keys, float32, kv_heads
from . import llama, rwkv6


def _n_key(got: Got) -> int:
    return int(got["n_wkv_head_kv"] * got["head_size"] or got["n_embd"])


HPARAMS: Values = {
    **RWKV6,
    "n_wkv_head_kv": Key("attention.head_count_kv", 0),  # 0: as many as there are heads
    "n_head_kv_arr": lambda got: (0,) * got["n_layer"],  # nothing is cached
    "n_key": _n_key,
    "states": states("att_shift"),
}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.weight": ("n_embd",),
        **TIME_MIX6,
        "blk.{i}.time_mix_receptance.bias?": ("n_embd",),
        "blk.{i}.time_mix_key.*?": ("n_embd", "n_key"),
        "blk.{i}.time_mix_value.*?": ("n_embd", "n_key"),
        "blk.{i}.ffn_norm.weight": ("n_embd",),
        **GATED_FFN,
        **OUTPUT,
    }
)

build_graph = partial(llama_decoder, time_mix=time_mix6)


def _keys(config: Config) -> Keys:
    n = int(config["hidden_size"])
    large = 1 + (n >= 4096)
    return {
        "context_length": 1 << 20,  # as in llama.cpp: there is no limit
        "embedding_length": n,
        "block_count": int(config["num_hidden_layers"]),
        "wkv.head_size": n // int(config["num_attention_heads"]),
        "time_mix_extra_dim": int(config.get("lora_rank_tokenshift", 32 * large)),
        "time_decay_extra_dim": int(config.get("lora_rank_decay", 64 * large)),
        "feed_forward_length": int(config["intermediate_size"]),
        "attention.layer_norm_rms_epsilon": float32(config["rms_norm_eps"]),
        "token_shift_count": 1,
        "attention.head_count_kv": kv_heads(config),
        "attention.head_count": 0,
    }


def _change(name: str, x: Array, config: Config) -> dict[str, Array]:
    """As of RWKV 6, with the mixes for r, k, v, w and g in the order w, k, v, r, g."""
    ((name, x),) = rwkv6.change(name, x, config).items()
    if name.endswith(("mix_w1.weight", "mix_w2.weight")):
        x = x.reshape(5, -1, x.shape[-1])[[3, 1, 2, 0, 4]].reshape(x.shape)
    return {name: x}


_MIXER = "model.layers.{i}.self_attn"

CONVERT = Convert(
    models=("RWKV6Qwen2ForCausalLM",),
    tensors={
        **{k: v for k, v in llama.CONVERT.tensors.items() if "attn_" not in v or "norm" in v},
        **rwkv6.time_mix_names(_MIXER),
        f"{_MIXER}.q_proj.*": "blk.{i}.time_mix_receptance.*",
        f"{_MIXER}.k_proj.*": "blk.{i}.time_mix_key.*",
        f"{_MIXER}.v_proj.*": "blk.{i}.time_mix_value.*",
        f"{_MIXER}.gate.weight": "blk.{i}.time_mix_gate.weight",
        f"{_MIXER}.o_proj.weight": "blk.{i}.time_mix_output.weight",
    },
    keys=_keys,
    change=_change,
)
