"""GPT-J: parallel attention and feed-forward with one layer norm, rope of a part of each head.

Source: Wang and Komatsuzaki 2021, "GPT-J-6B"; gguf-py, whose names these are.
"""

from __future__ import annotations

from ..graph.tensors import without
from ..hparams import Key, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, hidden_act
from . import phi2

HPARAMS: Values = {"norm_eps": Key("attention.layer_norm_epsilon")}
_BIASES = {f"blk.{{i}}.attn_{part}.bias" for part in ("q", "k", "v", "output")}
TENSORS = without(phi2.TENSORS, *_BIASES)
build_graph = phi2.build_graph


def _keys(config: Config) -> Keys:
    keys = {"feed_forward_length": 4 * int(config["n_embd"])} | base_keys(config)
    return keys | hidden_act(config, "gelu") | {"rope.dimension_count": int(config["rotary_dim"])}


CONVERT = Convert(
    models=("GPTJForCausalLM",),
    tensors={
        "transformer.wte.weight": "token_embd.weight",
        "transformer.h.{i}.ln_1.*": "blk.{i}.attn_norm.*",
        "transformer.h.{i}.attn.q_proj.weight": "blk.{i}.attn_q.weight",
        "transformer.h.{i}.attn.k_proj.weight": "blk.{i}.attn_k.weight",
        "transformer.h.{i}.attn.v_proj.weight": "blk.{i}.attn_v.weight",
        "transformer.h.{i}.attn.out_proj.weight": "blk.{i}.attn_output.weight",
        "transformer.h.{i}.mlp.fc_in.*": "blk.{i}.ffn_up.*",
        "transformer.h.{i}.mlp.fc_out.*": "blk.{i}.ffn_down.*",
        "transformer.ln_f.*": "output_norm.*",
        "lm_head.*": "output.*",
    },
    keys=_keys,
    defaults={"rotary_dim": 64, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
    ignored=("*.attn.bias", "*.attn.masked_bias", "*.embed_positions"),
)
