"""BERT, RoBERTa, XLM-RoBERTa, DistilBERT: encoders with learned positions, norms after each part.

Source: Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding"; llama.cpp, ``llama_model_bert``.
"""

from __future__ import annotations

from functools import partial

from ..graph.encoder import post_norm_encoder
from ..graph.tensors import ENCODER, tensors
from ..hparams import Key, Values
from ..mapping.encoders import (
    HEADS,
    NOT_OF_ENCODERS,
    classifier_keys,
    is_classifier,
    with_prefixes,
    without_pooler,
)
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, base_keys, check_config, float32

HPARAMS: Values = {
    "encoder": True,
    "norm_eps": Key("attention.layer_norm_epsilon"),
    "n_rot": 0,
    "n_token_types": Key("tokenizer.ggml.token_type_count", 0, prefixed=False),
    "head_act": Key("classifier.activation", "tanh"),
}

TENSORS = tensors({**ENCODER, "position_embd.weight": ("n_embd", "n_ctx_train")})

build_graph = partial(post_norm_encoder, act="gelu_erf")


_OFFSET = ("roberta", "xlm-roberta", "camembert")  # positions begin after that of padding


def _first_position(config: Config) -> int:
    pad = config.get("pad_token_id", 1)  # transformers' default of these models
    return int(pad) + 1 if config.get("model_type") in _OFFSET and pad is not None else 0


def _keys(config: Config) -> Keys:
    check_config(config, position_embedding_type="absolute", is_decoder=False)
    check_config(config, add_cross_attention=False)
    keys: Keys = {"attention.layer_norm_epsilon": float32(1e-12)}
    keys["attention.causal"] = False
    for key, name in (("embedding_length", "dim"), ("feed_forward_length", "hidden_dim")):
        if name in config:  # DistilBERT
            keys[key] = int(config[name])
    keys |= base_keys(config, "gelu_erf") | classifier_keys(config)
    keys["context_length"] -= _first_position(config)
    if is_classifier(config) and config.get("model_type") == "distilbert":
        keys["classifier.activation"] = "relu"
    return keys


def _change(name: str, x: Array, config: Config) -> Tensors:
    if name == "position_embd.weight":
        return {name: x[_first_position(config) :]}
    return without_pooler(name, x, config)


_LAYERS = {
    "encoder.layer.{i}.attention.self.query.*": "blk.{i}.attn_q.*",
    "encoder.layer.{i}.attention.self.key.*": "blk.{i}.attn_k.*",
    "encoder.layer.{i}.attention.self.value.*": "blk.{i}.attn_v.*",
    "encoder.layer.{i}.attention.output.dense.*": "blk.{i}.attn_output.*",
    "encoder.layer.{i}.attention.output.LayerNorm.*": "blk.{i}.attn_output_norm.*",
    "encoder.layer.{i}.intermediate.dense.*": "blk.{i}.ffn_up.*",
    "encoder.layer.{i}.output.dense.*": "blk.{i}.ffn_down.*",
    "encoder.layer.{i}.output.LayerNorm.*": "blk.{i}.layer_output_norm.*",
}
_DISTILLED = {
    "transformer.layer.{i}.attention.q_lin.*": "blk.{i}.attn_q.*",
    "transformer.layer.{i}.attention.k_lin.*": "blk.{i}.attn_k.*",
    "transformer.layer.{i}.attention.v_lin.*": "blk.{i}.attn_v.*",
    "transformer.layer.{i}.attention.out_lin.*": "blk.{i}.attn_output.*",
    "transformer.layer.{i}.sa_layer_norm.*": "blk.{i}.attn_output_norm.*",
    "transformer.layer.{i}.ffn.lin1.*": "blk.{i}.ffn_up.*",
    "transformer.layer.{i}.ffn.lin2.*": "blk.{i}.ffn_down.*",
    "transformer.layer.{i}.output_layer_norm.*": "blk.{i}.layer_output_norm.*",
}

CONVERT = Convert(
    models=(
        *(
            f"{model}{kind}"
            for model in ("Bert", "Roberta", "XLMRoberta", "Camembert", "DistilBert")
            for kind in ("Model", "ForMaskedLM", "ForSequenceClassification")
        ),
        "BertForPreTraining",
    ),
    accepts=lambda config: not config.get("lora_adaptations"),  # jina-bert-v3
    tensors=with_prefixes(
        {
            "embeddings.word_embeddings.weight": "token_embd.weight",
            "embeddings.position_embeddings.weight": "position_embd.weight",
            "embeddings.token_type_embeddings.weight": "token_types.weight",
            "embeddings.LayerNorm.*": "token_embd_norm.*",
            **_LAYERS,
            **_DISTILLED,
            **HEADS,
        },
        "bert.",
        "roberta.",
        "distilbert.",
    ),
    keys=_keys,
    change=_change,
    ignored=NOT_OF_ENCODERS,
)
