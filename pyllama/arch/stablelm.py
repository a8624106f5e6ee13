"""StableLM: layer norm, rope on a part of each head, SwiGLU, optional norms of queries and keys.

StableLM 2 12B has attention and feed-forward part in parallel.
Source: Bellagente et al. 2024, "Stable LM 2 1.6B Technical Report"; llama.cpp,
``llm_build_stablelm``.
"""

from __future__ import annotations

from functools import partial

from ..graph.decoder import layer_norm_decoder
from ..graph.tensors import GATED_FFN, OUTPUT, QKV, tensors
from ..hparams import Key, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, float32
from . import qwen2
from .command_r import qkv

HPARAMS: Values = {"norm_eps": Key("attention.layer_norm_epsilon"), "rope_neox": True}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.*": ("n_embd",),
        **QKV,
        "blk.{i}.attn_q_norm.weight?": ("head_dim", "n_head"),
        "blk.{i}.attn_k_norm.weight?": ("head_dim", "n_head_kv"),
        "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.weight?": ("n_embd",),
        "blk.{i}.ffn_norm.bias?": ("n_embd",),
        **GATED_FFN,
        **OUTPUT,
        "output_norm.bias": ("n_embd",),
    }
)

build_graph = partial(layer_norm_decoder, act="silu", qkv=qkv)


def _keys(config: Config) -> Keys:
    keys = base_keys(config, "silu")
    keys.setdefault("attention.layer_norm_epsilon", float32(config.get("norm_eps", 1e-5)))
    return {**keys, "use_parallel_residual": bool(config.get("use_parallel_residual"))}


CONVERT = Convert(
    models=("StableLmForCausalLM", "StableLMEpochForCausalLM", "LlavaStableLMEpochForCausalLM"),
    tensors={
        **qwen2.CONVERT.tensors,
        "model.layers.{i}.input_layernorm.*": "blk.{i}.attn_norm.*",
        "model.layers.{i}.self_attn.q_layernorm.norms.{e}.weight": "blk.{i}.attn_q_norm.weight",
        "model.layers.{i}.self_attn.k_layernorm.norms.{e}.weight": "blk.{i}.attn_k_norm.weight",
        "model.layers.{i}.post_attention_layernorm.*": "blk.{i}.ffn_norm.*",
        "model.norm.*": "output_norm.*",
    },
    defaults={"partial_rotary_factor": 0.25, "rope_theta": 10000.0},
    keys=_keys,
)
