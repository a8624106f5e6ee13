"""Per-layer embeddings: each layer adds a vector that depends on the token and on the embedding.

    inputs = per_layer_inputs(b, inp)              # [n_embd_per_layer, T, n_layer]
    cur = per_layer_output(b, cur, inputs, i)      # [n_embd, T]

The number of columns is the architecture's ``n_embd_per_layer``, 0 if it has none.
Source: Google 2025, "Gemma 3n"; llama.cpp, ``build_inp_per_layer`` of gemma3n.
"""

from __future__ import annotations

import math

import pyggml as ops
from pyggml.tensor import Tensor

from ..activation import activate
from ..hparams import Key, Values
from .builder import GraphBuilder

PER_LAYER = {
    "blk.{i}.inp_gate.weight": ("n_embd", "n_embd_per_layer"),
    "blk.{i}.proj.weight": ("n_embd_per_layer", "n_embd"),
    "blk.{i}.post_norm.weight": ("n_embd_per_layer_norm",),
    "per_layer_token_embd.weight": ("n_layer*n_embd_per_layer", "n_vocab"),
    "per_layer_model_proj.weight": ("n_embd", "n_layer*n_embd_per_layer"),
    "per_layer_proj_norm.weight": ("n_embd_per_layer",),
}
PER_LAYER_SIZES: Values = {
    "n_embd_per_layer": Key("embedding_length_per_layer_input", 256),
    "n_embd_per_layer_norm": lambda got: got["n_embd"] if got["n_embd_per_layer"] else 0,
}


def per_layer_inputs(b: GraphBuilder, x: Tensor) -> Tensor:
    """The vectors of all layers: a projection of the token's embedding, plus vectors of its own.

    EmbeddingGemma 2 has the projection alone.

    Shape:
        x [n_embd, T] -> [n_embd_per_layer, T, n_layer]
    """
    ctx, n = b.ctx, b.hparams.own["n_embd_per_layer"]
    vectors = b.linear(x, "per_layer_model_proj", "per_layer_model_proj")
    n_layer = vectors.ne[0] // n  # a context may run fewer layers than the file has
    vectors = ops.scale(ctx, vectors, 1 / math.sqrt(b.hparams.n_embd))
    vectors = ops.reshape_3d(ctx, vectors, n, n_layer, b.n_tokens)
    vectors = b.rms_norm(vectors, "per_layer_proj_norm", "per_layer_proj")
    if "per_layer_token_embd.weight" in b.weights:
        own = ops.scale(ctx, b.embed("per_layer_token_embd.weight"), math.sqrt(n))
        own = ops.reshape_3d(ctx, own.set_name("inp_per_layer_selected"), n, n_layer, b.n_tokens)
        vectors = ops.scale(ctx, ops.add(ctx, vectors, own), 1 / math.sqrt(2))
    return ops.cont(ctx, ops.permute(ctx, vectors, 0, 2, 1, 3)).set_name("inp_per_layer")


def per_layer_output(b: GraphBuilder, x: Tensor, inputs: Tensor, i: int) -> Tensor:
    """The normalized output for layer ``i``, gated by ``x``.

    Shape:
        x [n_embd, T], inputs [n_embd_per_layer, T] of the layer -> [n_embd, T]
    """
    ctx = b.ctx
    gate = b.linear(x, f"blk.{i}.inp_gate", f"per_layer_gate-{i}")
    gate = activate(ctx, gate, b.hparams.hidden_act or "gelu")
    cur = b.linear(ops.mul(ctx, gate, inputs), f"blk.{i}.proj", f"per_layer_proj-{i}")
    return b.rms_norm(cur, f"blk.{i}.post_norm", f"per_layer_embd_out-{i}")
