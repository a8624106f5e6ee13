"""Gemma 2: Gemma 3 with soft caps on scores and logits, and a window in every second layer.

Source: Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size"; llama.cpp,
``llm_build_gemma2_iswa``.
"""

from __future__ import annotations

from functools import partial

from ..graph.tensors import without
from ..hparams import Key, Values, window_values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config
from . import gemma3

HPARAMS: Values = {
    "rope_neox": True,
    "embedding_scale": gemma3.HPARAMS["embedding_scale"],
    **window_values(2, 4096),
    "attn_scale": Key("attention.scale", 0.0),
    "attn_logit_softcap": Key("attn_logit_softcapping", 50.0),
    "final_logit_softcap": Key("final_logit_softcapping", 30.0),
}

TENSORS = without(gemma3.TENSORS, "_q_norm", "_k_norm")
_LAYERS_27B = 46

build_graph = partial(gemma3.decoder, act="gelu", layers_27b=_LAYERS_27B)


def _keys(config: Config) -> Keys:
    check_config(config, attention_bias=False)
    caps = {
        key: float(config[key] or 0)
        for key in ("attn_logit_softcapping", "final_logit_softcapping")
    }
    keys = base_keys(config, "gelu") | gemma3.windows(config, 2) | caps
    return {**keys, "attention.scale": float(config["query_pre_attn_scalar"]) ** -0.5}


CONVERT = Convert(
    models=("Gemma2ForCausalLM",),
    tensors=without(gemma3.NAMES, "q_norm", "k_norm"),
    defaults=gemma3.DEFAULTS
    | {
        "vocab_size": 256000,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "rope_theta": 10000.0,
    },
    keys=_keys,
    change=gemma3.add_one,
)
