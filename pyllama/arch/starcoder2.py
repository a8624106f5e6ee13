"""StarCoder2: layer norm, rope on halves, GELU, biases everywhere.

Source: Lozhkov et al. 2024, "StarCoder 2 and The Stack v2"; llama.cpp, ``llm_build_starcoder2``.
"""

from __future__ import annotations

from functools import partial

from ..graph.decoder import layer_norm_decoder
from ..graph.tensors import QKV, tensors
from ..hparams import Key, Values
from ..mapping.rules import HF_QKV, Config, Convert, Keys, base_keys

HPARAMS: Values = {
    "norm_eps": Key("attention.layer_norm_epsilon"),
    "rope_neox": True,
    "n_swa": Key("attention.sliding_window", 0),
    "swa_period": 0,
}

TENSORS = tensors(
    {  # in the order of their use
        "blk.{i}.attn_norm.*": ("n_embd",),
        **QKV,
        "blk.{i}.attn_output.*?": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.*": ("n_embd",),
        "blk.{i}.ffn_up.*?": ("n_embd", "n_ff"),
        "blk.{i}.ffn_down.*?": ("n_ff", "n_embd"),
        "output_norm.*": ("n_embd",),
        "token_embd.weight": ("n_embd", "n_vocab"),
        "output.weight?": ("n_embd", "n_vocab"),
    }
)

build_graph = partial(layer_norm_decoder, act="gelu")


def _keys(config: Config) -> Keys:
    window = {"attention.sliding_window": int(config.get("sliding_window") or 0)}
    return base_keys(config, "gelu") | window


CONVERT = Convert(
    models=("Starcoder2ForCausalLM",),
    tensors={
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.{i}.input_layernorm.*": "blk.{i}.attn_norm.*",
        **HF_QKV,
        "model.layers.{i}.self_attn.o_proj.*": "blk.{i}.attn_output.*",
        "model.layers.{i}.post_attention_layernorm.*": "blk.{i}.ffn_norm.*",
        "model.layers.{i}.mlp.c_fc.*": "blk.{i}.ffn_up.*",
        "model.layers.{i}.mlp.c_proj.*": "blk.{i}.ffn_down.*",
        "model.norm.*": "output_norm.*",
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
    defaults={"norm_epsilon": 1e-5, "num_key_value_heads": 2},
)
