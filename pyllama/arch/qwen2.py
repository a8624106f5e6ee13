"""Qwen2: LLaMA's graph with biases on queries, keys and values, and rope on halves.

Source: Yang et al. 2024, "Qwen2 Technical Report"; llama.cpp, ``llm_build_qwen2``.
"""

from __future__ import annotations

from collections.abc import Callable

from ..graph.builder import ROPE_FACTORS
from ..graph.tensors import GATED_FFN, OUTPUT, QKV, tensors
from ..hparams import Values, window_values
from ..mapping.rules import HF_MLP, HF_QKV, Config, Convert, Keys, base_keys, window_keys
from . import llama

HPARAMS: Values = {"rope_neox": True, **window_values(0, 0)}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.weight": ("n_embd",),
        **QKV,
        "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.weight": ("n_embd",),
        **GATED_FFN,
        **ROPE_FACTORS,
        **OUTPUT,
    }
)


build_graph = llama.build_graph


def keys(config: Config, slides: Callable[[int], bool] | None = None) -> Keys:
    """The keys of Qwen2, and of architectures with the same config.json.

    Args:
        slides: whether a layer has the window that ``use_sliding_window`` turns on, without
            ``layer_types``; None: those from ``max_window_layers`` on have it.
    """
    found = base_keys(config, "silu")
    if config.get("use_sliding_window"):
        first = int(config.get("max_window_layers", 28))
        found |= windows(config, slides or (lambda i: i >= first))
    return found


def windows(config: Config, slides: Callable[[int], bool]) -> Keys:
    """The keys of a sliding window; {} where no layer has one.

    Args:
        slides: whether a layer has the window, without ``layer_types``.
    """
    kinds = config.get("layer_types") or [
        "sliding_attention" if slides(i) else "full_attention"
        for i in range(int(config["num_hidden_layers"]))
    ]
    if "sliding_attention" not in kinds:
        return {}
    return window_keys({"sliding_window": 4096, **config, "layer_types": kinds}, 0)


CONVERT = Convert(
    models=(
        "Qwen2ForCausalLM",
        "Qwen2Model",
        "AudioFlamingo3ForConditionalGeneration",
        "DotsOCRForCausalLM",
        "Qwen2AudioForConditionalGeneration",
    ),
    tensors={
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.{i}.input_layernorm.weight": "blk.{i}.attn_norm.weight",
        **HF_QKV,
        "model.layers.{i}.self_attn.o_proj.weight": "blk.{i}.attn_output.weight",
        "model.layers.{i}.post_attention_layernorm.weight": "blk.{i}.ffn_norm.weight",
        **HF_MLP,
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    },
    defaults={"rms_norm_eps": 1e-6},
    keys=keys,
    prefix="model.",
)
