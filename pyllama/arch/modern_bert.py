"""ModernBERT: rope, norms before each part, GEGLU in one matrix, windows in two of three layers.

The first layer has no norm before attention, since the embedding has one.
Source: Warner et al. 2024, "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder for
Fast, Memory Efficient, and Long Context Finetuning and Inference"; llama.cpp,
``llama_model_modern_bert``.
"""

from __future__ import annotations

from pyggml.tensor import Tensor

from ..graph.builder import ROPE_FACTORS, GraphBuilder
from ..graph.decoder import layer_norm_decoder
from ..graph.tensors import tensors
from ..hparams import POOLINGS, Got, Key, Values, window_values
from ..mapping.encoders import NOT_OF_ENCODERS, classifier_keys, is_classifier, without_pooler
from ..mapping.rules import (
    Config,
    Convert,
    Keys,
    base_keys,
    check_config,
    float32,
    hidden_act,
    window_keys,
)

NAME = "modern-bert"


_ACTS = {"gelu": "gelu_erf", "gelu_pytorch_tanh": "gelu", "silu": "silu", "relu": "relu"}


def _hidden_act(got: Got) -> str:
    """The activation, of which these files have config.json's name."""
    given = str(got["activation"])
    return _ACTS.get(given, given)


HPARAMS: Values = {
    "encoder": True,
    "rope_neox": True,
    "norm_eps": Key("attention.layer_norm_epsilon"),
    "swa_symmetric": True,
    **window_values(3, 0, base=0.0),
    "swa_dense_first": True,
    "activation": Key("hidden_activation", "gelu"),
    "hidden_act": _hidden_act,
    "head_act": Key("classifier.activation", "gelu_erf"),
    "head_pooling": Key("classifier.pooling_type", POOLINGS.index("mean")),
}

TENSORS = tensors(
    {
        "token_embd.weight": ("n_embd", "n_vocab"),
        "token_embd_norm.*?": ("n_embd",),
        "blk.{i}.attn_norm.weight?": ("n_embd",),
        "blk.{i}.attn_norm.bias?": ("n_embd",),
        "blk.{i}.attn_qkv.*?": ("n_embd", "n_embd_qkv"),
        "blk.{i}.attn_output.*?": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.*?": ("n_embd",),
        "blk.{i}.ffn_up.*?": ("n_embd", "2*n_ff"),
        "blk.{i}.ffn_down.*?": ("n_ff", "n_embd"),
        **ROPE_FACTORS,
        "output_norm.*?": ("n_embd",),
    }
)


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the embeddings [n_embd, n_embeddings]."""
    inp = b.layer_norm(b.embed("token_embd.weight"), "token_embd_norm", "inp_norm")
    return layer_norm_decoder(b, "gelu_erf", inp)


def _bases(config: Config) -> dict[str, float]:
    """The bases of rope in layers without and with a window, as older configurations have them."""
    return {
        "rope.freq_base": float(config.get("global_rope_theta") or 160000.0),
        "rope.freq_base_swa": float(config.get("local_rope_theta") or 10000.0),
    }


def _windows(config: Config) -> Keys:
    """The size of windows, and the layers that have one: all but each n-th, from the first on."""
    period = int(config.get("global_attn_every_n_layers") or 3)
    n_layer, given = int(config["num_hidden_layers"]), config.get("layer_types")
    usual = [f"{'sliding' if i % period else 'full'}_attention" for i in range(n_layer)]
    size = int(config["local_attention"])
    if given and given != usual:
        return window_keys({**config, "sliding_window": size}, period)
    return {"attention.sliding_window": size, "attention.sliding_window_pattern": period}


def _keys(config: Config) -> Keys:
    act = hidden_act(config, "gelu_erf").get("hidden_act", "gelu_erf")
    eps = float32(config.get("norm_eps") or 1e-5)
    none = {"rope.scaling.type": "none"}
    return none | _bases(config) | base_keys(config) | _windows(config) | {
        "attention.causal": False,
        "attention.layer_norm_epsilon": eps,
        "attention.layer_norm_rms_epsilon": eps,
        "hidden_activation": next(theirs for theirs, ours in _ACTS.items() if ours == act),
    } | _head(config)  # fmt: skip


def _head(config: Config) -> Keys:
    """The keys of a classifier's head; {} of other models."""
    if not is_classifier(config):
        return {}
    check_config(config, classifier_activation="gelu")
    pooling = POOLINGS.index(str(config.get("classifier_pooling") or "cls"))
    return classifier_keys(config) | {"classifier.pooling_type": pooling}


CONVERT = Convert(
    models=("ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"),
    tensors={
        "model.embeddings.tok_embeddings.weight": "token_embd.weight",
        "model.embeddings.norm.*": "token_embd_norm.*",
        "model.layers.{i}.attn_norm.*": "blk.{i}.attn_norm.*",
        "model.layers.{i}.attn.Wqkv.*": "blk.{i}.attn_qkv.*",
        "model.layers.{i}.attn.Wo.*": "blk.{i}.attn_output.*",
        "model.layers.{i}.mlp_norm.*": "blk.{i}.ffn_norm.*",
        "model.layers.{i}.mlp.Wi.*": "blk.{i}.ffn_up.*",
        "model.layers.{i}.mlp.Wo.*": "blk.{i}.ffn_down.*",
        "model.final_norm.*": "output_norm.*",
        "head.dense.*": "cls.*",
        "head.norm.*": "cls.norm.*",
        "classifier.*": "cls.output.*",
    },
    keys=_keys,
    change=without_pooler,
    ignored=(*NOT_OF_ENCODERS, "decoder.*"),
    prefix="model.",
)
