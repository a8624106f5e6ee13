"""MPT: layer norm without biases, ALiBi or learned positions, clamped q, k and v, GELU.

Source: MosaicML 2023, "Introducing MPT-7B"; llama.cpp, ``llm_build_mpt``.
"""

from __future__ import annotations

import numpy as np

from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph.builder import GraphBuilder
from ..graph.decoder import layer_norm_decoder
from ..graph.tensors import tensors
from ..hparams import Key, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config, float32

HPARAMS: Values = {
    "norm_eps": Key("attention.layer_norm_epsilon", 1e-5),
    "n_rot": 0,
    "max_alibi_bias": Key("attention.max_alibi_bias", 0.0),
    "clamp_kqv": Key("attention.clamp_kqv", 0.0),
    "attn_scale": Key("attention.scale", 0.0),
}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.*?": ("n_embd",),
        "blk.{i}.attn_qkv.*?": ("n_embd", "n_embd_qkv"),
        "blk.{i}.attn_output.*?": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.*?": ("n_embd",),
        "blk.{i}.ffn_up.*?": ("n_embd", "n_ff"),
        "blk.{i}.ffn_down.*?": ("n_ff", "n_embd"),
        "output_norm.*?": ("n_embd",),
        "position_embd.weight?": ("n_embd", "n_ctx_train"),
        "token_embd.weight": ("n_embd", "n_vocab"),
        "output.weight?": ("n_embd", "n_vocab"),
    }
)


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    if b.hparams.learned_positions:
        inp = b.add_positions(inp)
    return layer_norm_decoder(b, "gelu_erf", inp)


def _keys(config: Config) -> Keys:
    attn = config.get("attn_config") or {}
    check_config(attn, qk_ln=False, rope=False, prefix_lm=False, sliding_window_size=-1)
    check_config(config, logit_scale=None)
    if "rms" in str(config.get("norm_type")):
        raise ModelError(
            f"config.json: norm_type is {config['norm_type']!r:.40}, want a layer norm"
        )
    d_model = int(config["d_model"])
    keys = {
        "feed_forward_length": int(config.get("expansion_ratio", 4) * d_model),
        "attention.layer_norm_epsilon": np.float32(1e-5),
    } | base_keys(config)
    if attn.get("kv_n_heads"):
        keys["attention.head_count_kv"] = int(attn["kv_n_heads"])
    for key, value in (
        ("attention.max_alibi_bias", attn.get("alibi_bias_max", 8) if _alibi(config) else None),
        ("attention.clamp_kqv", attn.get("clip_qkv")),
        ("attention.scale", attn.get("softmax_scale")),
    ):
        if value:
            keys[key] = float32(value)
    return keys


def _alibi(config: Config) -> bool:
    attn = config.get("attn_config") or {}
    alibi = bool(attn.get("alibi", True))
    if not alibi and not config.get("learned_pos_emb", True):
        raise ModelError("config.json: neither alibi nor learned_pos_emb, which this model needs")
    return alibi


CONVERT = Convert(
    models=("MptForCausalLM", "MPTForCausalLM"),
    tensors={
        "transformer.wte.weight": "token_embd.weight",
        "transformer.wpe.weight": "position_embd.weight",
        "transformer.blocks.{i}.norm_1.*": "blk.{i}.attn_norm.*",
        "transformer.blocks.{i}.attn.Wqkv.*": "blk.{i}.attn_qkv.*",
        "transformer.blocks.{i}.attn.out_proj.*": "blk.{i}.attn_output.*",
        "transformer.blocks.{i}.norm_2.*": "blk.{i}.ffn_norm.*",
        "transformer.blocks.{i}.ffn.up_proj.*": "blk.{i}.ffn_up.*",
        "transformer.blocks.{i}.ffn.down_proj.*": "blk.{i}.ffn_down.*",
        "transformer.norm_f.*": "output_norm.*",
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
    prefix="transformer.",
)
