"""ARWKV 7: a Qwen 2 with RWKV 7's time mixing in place of attention.

Source: Yueyu et al. 2025, "ARWKV: Pretrain is not what we need, an RNN-Attention-Based Language
Model Born from Transformer"; llama.cpp, ``llama_model_arwkv7``.
"""

from __future__ import annotations

from functools import partial

from ..graph.rwkv import RWKV7, TIME_MIX7, llama_decoder, states, time_mix7
from ..graph.tensors import GATED_FFN, OUTPUT, tensors
from ..hparams import Values
from ..mapping.rules import Config, Convert, Keys, check_config, float32
from . import llama, rwkv7

HPARAMS: Values = {**RWKV7, "states": states("att_shift")}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.weight": ("n_embd",),
        **TIME_MIX7,
        "blk.{i}.time_mix_ln.weight?": ("n_embd",),
        "blk.{i}.time_mix_ln.bias?": ("n_embd",),
        "blk.{i}.ffn_norm.weight": ("n_embd",),
        **GATED_FFN,
        **OUTPUT,
    }
)

build_graph = partial(llama_decoder, time_mix=time_mix7)


def _keys(config: Config) -> Keys:
    check_config(config, wkv_version=7)
    return {
        "context_length": 1 << 20,  # as in llama.cpp: there is no limit
        "embedding_length": int(config["hidden_size"]),
        "block_count": int(config["num_hidden_layers"]),
        "attention.layer_norm_rms_epsilon": float32(config["rms_norm_eps"]),
        "wkv.head_size": int(config["head_size"]),
        "attention.decay_lora_rank": 64,
        "attention.iclr_lora_rank": 64,
        "attention.value_residual_mix_lora_rank": 32,
        "attention.gate_lora_rank": 128 if config["wkv_has_gate"] else 0,
        "feed_forward_length": int(config["intermediate_size"]),
        "token_shift_count": 1,
        "attention.head_count": 0,
    }


_MIXER = "model.layers.{i}.self_attn.time_mixer"

CONVERT = Convert(
    models=("RwkvHybridForCausalLM",),
    tensors={
        **{k: v for k, v in llama.CONVERT.tensors.items() if "attn_" not in v or "norm" in v},
        **rwkv7.time_mix_names(_MIXER),
    },
    keys=_keys,
    change=rwkv7.change,
    extra=lambda config: rwkv7.first_values(_keys(config)),
    ignored=tuple(f"{_MIXER}.v{k}".replace("{i}", "0") for k in range(3)),
)
