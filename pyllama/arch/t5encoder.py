"""T5's encoder: RMS norms, attention biased by distance, without causality.

T5 1.1 and Flan-T5 have a gate with GELU in the feed-forward part, T5 has ReLU. Weights of attention
include the scale of scores.
Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer"; llama.cpp, ``llama_model_t5encoder``.
"""

from __future__ import annotations

from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph.builder import GraphBuilder
from ..graph.ffn import ffn
from ..hparams import Key, Values
from ..inputs.budget import shown
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config

HPARAMS: Values = {
    "encoder": True,
    "causal": False,
    "n_rot": 0,
    "attn_scale": 1.0,
    "n_rel_buckets": Key("attention.relative_buckets_count"),
}
LAYER = {  # of the encoder and of the decoder
    "attn_norm.weight": ("n_embd",),
    "attn_rel_b.weight?": ("n_head", "n_rel_buckets"),
    "attn_q.weight": ("n_embd", "n_embd_q"),
    "attn_k.weight": ("n_embd", "n_embd_k"),
    "attn_v.weight": ("n_embd", "n_embd_v"),
    "attn_o.weight": ("n_embd_out", "n_embd"),
    "ffn_norm.weight": ("n_embd",),
    "ffn_gate.weight?": ("n_embd", "n_ff"),
    "ffn_up.weight": ("n_embd", "n_ff"),
    "ffn_down.weight": ("n_ff", "n_embd"),
}
LAYERS = {f"enc.blk.{{i}}.{name}": ne for name, ne in LAYER.items()}
TENSORS = {
    **LAYERS,
    "enc.output_norm.weight": ("n_embd",),
    "token_embd.weight": ("n_embd", "n_vocab"),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the embeddings [n_embd, n_embeddings]."""
    return b.output(layers(b, b.hparams.n_layer))


def layers(b: GraphBuilder, n_layer: int) -> Tensor:
    """The encoder's output: [n_embd, n_embeddings]; in a model with a decoder [n_embd, T]."""
    b.use_part("enc.")
    inp, act = b.embed("token_embd.weight"), activation(b)  # [n_embd, T]
    distances = None  # of the last layer that has them; in T5 only the first one does
    for i in range(n_layer):
        if f"blk.{i}.attn_rel_b.weight" in b.weights:
            distances = b.distance_bias(f"blk.{i}.attn_rel_b.weight")
        q, k, v = b.qkv(b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}"), i)
        cur = b.attention(q, k, v, i, distances)
        if not b.encodes:
            cur, inp = b.select_outputs(i, cur, inp)
        inp = b.linear(cur, f"blk.{i}.attn_o", f"ffn_inp-{i}", residual=inp)
        cur = b.rms_norm(inp, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        inp = b.layer_output(ffn(b, cur, i, act, residual=inp), i)
    return b.rms_norm(inp, "output_norm", "result_norm")


def activation(b: GraphBuilder) -> str:
    """The feed-forward activation: GELU with a gate (T5 1.1), else ReLU."""
    return "gelu" if "blk.0.ffn_gate.weight" in b.weights else "relu"


def keys(config: Config) -> Keys:
    """The keys of T5's encoder, and of its decoder."""
    check_config(config, relative_attention_max_distance=128)
    act = config.get("feed_forward_proj", "relu")
    if act not in ("relu", "gated-gelu"):
        raise ModelError(f"config.json: feed_forward_proj is {shown(act)}, not supported")
    eps = config["layer_norm_epsilon"]
    names = {"intermediate_size": "d_ff", "num_attention_heads": "num_heads", "head_dim": "d_kv"}
    usual = {name: config[own] for name, own in names.items()}
    usual |= {"rms_norm_eps": eps, "layer_norm_eps": eps}
    buckets = int(config["relative_attention_num_buckets"])
    found = base_keys({**config, **usual}) | {"attention.relative_buckets_count": buckets}
    return {"context_length": 512, **found}


def layer_names(part: str, index: str, attention: str, ffn: int) -> dict[str, str]:
    """The names of a layer's weights in checkpoints, of the encoder or the decoder.

    Args:
        ffn: the index of its feed-forward part.
    """
    theirs, ours = f"{part}.block.{{i}}.layer", f"{part[:3]}.blk.{{i}}"
    names = {f"{theirs}.{index}.layer_norm.weight": f"{ours}.attn_norm.weight"}
    for letter in "qkv":
        names[f"{theirs}.{index}.{attention}.{letter}.weight"] = f"{ours}.attn_{letter}.weight"
    return {
        **names,
        f"{theirs}.{index}.{attention}.o.weight": f"{ours}.attn_o.weight",
        f"{theirs}.{index}.{attention}.relative_attention_bias.weight": f"{ours}.attn_rel_b.weight",
        f"{theirs}.{ffn}.layer_norm.weight": f"{ours}.ffn_norm.weight",
        f"{theirs}.{ffn}.DenseReluDense.wi.weight": f"{ours}.ffn_up.weight",
        f"{theirs}.{ffn}.DenseReluDense.wi_0.weight": f"{ours}.ffn_gate.weight",
        f"{theirs}.{ffn}.DenseReluDense.wi_1.weight": f"{ours}.ffn_up.weight",
        f"{theirs}.{ffn}.DenseReluDense.wo.weight": f"{ours}.ffn_down.weight",
        f"{part}.final_layer_norm.weight": f"{part[:3]}.output_norm.weight",
    }


CONVERT = Convert(
    models=("T5EncoderModel",),
    tensors={
        "shared.weight": "token_embd.weight",
        "encoder.embed_tokens.weight": "token_embd.weight",
        **layer_names("encoder", "0", "SelfAttention", 1),
    },
    keys=lambda config: keys(config) | {"attention.causal": False},  # else llama.cpp is causal
    shared=("token_embd.weight",),
)
