"""T5: an encoder reads the text, a decoder attends to it and generates; also FLAN, mT5 and UMT5.

The cells of the text hold keys and values for the decoder's cross-attention, the cells after them
the decoder's own. UMT5 has a bias by distance in each layer. With tied embeddings the output's
input is scaled, as in transformers; llama.cpp does not scale it, with the same greedy tokens.
Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer"; llama.cpp, ``llama_model_t5``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.ffn import ffn
from ..graph.tensors import only_in, without
from ..hparams import Got, Key, Values
from ..mapping.rules import Config, Convert, Keys
from . import t5encoder


def _layers(key: str) -> Callable[[Got], tuple[int, ...]]:
    """For each layer, 1 if it is below the number of layers in ``key``, else 0."""

    def layers(got: Got) -> tuple[int, ...]:
        n = got[key] or got["n_layer_enc"]
        return tuple(int(i < n) for i in range(got["n_layer"]))

    return layers


HPARAMS: Values = {
    **without(t5encoder.HPARAMS, "encoder", "causal"),
    "has_encoder": True,
    "n_layer_enc": Key("block_count"),
    "n_layer_dec": Key("decoder_block_count", 0),  # 0: as many
    "in_encoder": _layers("n_layer_enc"),
    "in_decoder": _layers("n_layer_dec"),
    "decoder_start": Key("decoder_start_token_id", 0),
}
_CROSS = {
    "cross_attn_norm.weight": ("n_embd",),
    "cross_attn_rel_b.weight?": ("n_head", "n_rel_buckets"),  # in old files, unused
    "cross_attn_q.weight": ("n_embd", "n_embd_q"),
    "cross_attn_k.weight": ("n_embd", "n_embd_k"),
    "cross_attn_v.weight": ("n_embd", "n_embd_v"),
    "cross_attn_o.weight": ("n_embd_out", "n_embd"),
}
_DECODER = {f"dec.blk.{{i}}.{name}": ne for name, ne in (t5encoder.LAYER | _CROSS).items()}
TENSORS = {
    **only_in("in_encoder", t5encoder.LAYERS),
    **only_in("in_decoder", _DECODER),
    "enc.output_norm.weight": ("n_embd",),
    "dec.output_norm.weight": ("n_embd",),
    "token_embd.weight": ("n_embd", "n_vocab"),
    "output.weight?": ("n_embd", "n_vocab"),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch of the encoder or of the decoder, see ``GraphBuilder.encodes``."""
    return _encode(b) if b.encodes else _decode(b)


def _encode(b: GraphBuilder) -> Tensor:
    """The encoder; keys and values of its output for each layer of the decoder go to the cache."""
    hp = b.hparams
    x = t5encoder.layers(b, sum(hp.own["in_encoder"]))  # [n_embd, T]
    for i in range(sum(hp.own["in_decoder"])):
        k, v = (
            b.linear(x, f"dec.blk.{i}.cross_attn_{part}", f"{part.upper()}cross-{i}")
            for part in "kv"
        )
        k = ops.reshape_3d(b.ctx, k, hp.head_dim, hp.n_head_kv, b.n_tokens)
        v = ops.reshape_3d(b.ctx, v, hp.head_dim_v, hp.n_head_kv, b.n_tokens)
        b.store(k, v, i)
    return b.output(b.of_outputs(x))


def _decode(b: GraphBuilder) -> Tensor:
    hp = b.hparams
    b.use_part("dec.")
    inp, act = b.embed("token_embd.weight"), t5encoder.activation(b)  # [n_embd, T]
    distances, last = None, sum(hp.own["in_decoder"]) - 1
    for i in range(last + 1):
        if f"blk.{i}.attn_rel_b.weight" in b.weights:
            distances = b.distance_bias(f"blk.{i}.attn_rel_b.weight")
        q, k, v = b.qkv(b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}"), i)
        cur = b.attention(q, k, v, i, distances)
        inp = b.linear(cur, f"blk.{i}.attn_o", f"cross_inp-{i}", residual=inp)
        cur = b.rms_norm(inp, f"blk.{i}.cross_attn_norm", f"attn_norm_cross-{i}")
        q = b.linear(cur, f"blk.{i}.cross_attn_q", f"Qcross-{i}")
        q = ops.reshape_3d(b.ctx, q, hp.head_dim, hp.n_head, b.n_tokens)
        cur = b.cross_attention(q, i)  # [n_embd_out, T]
        if i == last:
            cur, inp = b.of_outputs(cur), b.of_outputs(inp)
        inp = b.linear(cur, f"blk.{i}.cross_attn_o", f"ffn_inp-{i}", residual=inp)
        cur = b.rms_norm(inp, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        inp = b.layer_output(ffn(b, cur, i, act, residual=inp), i)
    x = b.rms_norm(inp, "output_norm", "result_norm")
    if "output.weight" not in b.weights:
        x = ops.scale(b.ctx, x, 1 / math.sqrt(hp.n_embd)).set_name("result_norm_scaled")
    return b.output(x)


def _keys(config: Config) -> Keys:
    keys = t5encoder.keys(config)
    if config.get("num_decoder_layers") is not None:
        keys["decoder_block_count"] = int(config["num_decoder_layers"])
    start = config.get("decoder_start_token_id", config.get("pad_token_id"))
    return keys | {"decoder_start_token_id": int(start or 0)}


def _cross_names() -> dict[str, str]:
    theirs, ours = "decoder.block.{i}.layer.1", "dec.blk.{i}.cross_attn"
    names = {
        f"{theirs}.EncDecAttention.{letter}.weight": f"{ours}_{letter}.weight" for letter in "qkvo"
    }
    return {
        **names,
        f"{theirs}.layer_norm.weight": f"{ours}_norm.weight",
        f"{theirs}.EncDecAttention.relative_attention_bias.weight": f"{ours}_rel_b.weight",
    }


CONVERT = Convert(
    models=(
        "T5ForConditionalGeneration", "T5WithLMHeadModel", "MT5ForConditionalGeneration",
        "UMT5ForConditionalGeneration", "UMT5Model",
    ),
    tensors={
        **t5encoder.CONVERT.tensors,
        "decoder.embed_tokens.weight": "token_embd.weight",
        **t5encoder.layer_names("decoder", "0", "SelfAttention", 2),
        **_cross_names(),
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
    shared=("token_embd.weight",),
)  # fmt: skip
