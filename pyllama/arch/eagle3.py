"""EAGLE-3: one layer that drafts for another model (the target) from the target's hidden states.

    attention input = [norm(embedding of token i), norm_2(hidden state at token i - 1)]

At tokens of the text the hidden state is a projection (``fc``) of the inputs of three of the
target's layers (``kv.memory.HiddenReads``); at drafted tokens it is the head's own output. The
head may draft fewer tokens than the target has: ``d2t`` is the target's id of each.
Source: Li et al. 2025, "EAGLE-3"; llama.cpp, ``llama_model_eagle3``.
"""

from __future__ import annotations

import numpy as np

import pyggml as ops
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph.builder import FUSED, ROPE_FACTORS, GraphBuilder
from ..graph.ffn import ffn
from ..graph.sparse.weights import ANY
from ..graph.tensors import GATED_FFN
from ..hparams import Key, Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors
from . import llama

HPARAMS: Values = {
    "hidden": "l_out-0",
    "n_embd_read": Key("target_hidden_size"),  # columns of a layer of the target
    "norm_before_residual": Key("norm_before_residual", False),
    "norm_before_fc": Key("norm_before_fc", False),
}

TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd",),
    "blk.{i}.attn_norm_2.weight": ("n_embd",),
    "blk.{i}.attn_q.weight": ("2*n_embd", "n_embd_q"),
    "blk.{i}.attn_k.weight": ("2*n_embd", "n_embd_k"),
    "blk.{i}.attn_v.weight": ("2*n_embd", "n_embd_v"),
    "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    **GATED_FFN,
    **ROPE_FACTORS,
    FUSED: ("3*n_embd_read", "n_embd"),
    "enc.output_norm.weight": ("3*n_embd_read*norm_before_fc",),
    "output_norm.weight": ("n_embd",),
    # the target's embedding and output matrix take the place of missing ones
    "token_embd.weight?": ("n_embd", "n_vocab"),
    "output.weight?": ("n_embd", ANY),
    "d2t?": (ANY,),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    hidden = b.target_hidden
    if hidden is None:
        raise ModelError(
            "this EAGLE-3 head is no whole model: it drafts for another one, as draft-eagle3"
        )
    x = b.rms_norm(b.embed("token_embd.weight"), "blk.0.attn_norm", "embd_norm-0")  # [n_embd, T]
    norm = b.rms_norm(hidden, "blk.0.attn_norm_2", "g_norm-0")
    x = ops.concat(b.ctx, x, norm, 0).set_name("concat_embd-0")  # [2 n_embd, T]
    inp = norm if b.hparams.own["norm_before_residual"] else hidden
    cur, inp = b.select_outputs(0, b.self_attention(x, 0), inp)
    inp = b.linear(cur, "blk.0.attn_output", "attn_out-0", residual=inp).set_name("ffn_inp-0")
    cur = b.rms_norm(inp, "blk.0.ffn_norm", "post_attn_norm-0")
    inp = b.layer_output(ffn(b, cur, 0, "silu", residual=inp), 0)
    logits = b.output(b.rms_norm(inp, "output_norm", "result_norm"))  # [tokens of the head, n]
    if "d2t" in b.weights and b.n_outputs:
        logits = b.logits = of_target(b, logits)
    return logits


def of_target(b: GraphBuilder, logits: Tensor) -> Tensor:
    """The logits by the target's ids; tokens that the head cannot draft get -inf.

    Shape:
        logits [n, n_outputs] -> [n_vocab, n_outputs]
    """
    ctx, (n, n_outputs), n_vocab = b.ctx, logits.ne[:2], b.hparams.n_vocab
    whole = ops.fill(
        ctx, ops.pad(ctx, logits, n_vocab - n, 0, 0, 0), float("-inf")
    )  # [n_vocab, n_outputs]
    whole = ops.set_rows(
        ctx,
        ops.reshape_3d(ctx, whole, 1, n_vocab, n_outputs),
        ops.reshape_3d(ctx, logits, 1, n, n_outputs),
        b.weight("d2t"),
    )
    return ops.reshape_2d(ctx, whole, n_vocab, n_outputs).set_name("result_output_d2t")


def is_head(config: Config) -> bool:
    """Whether a checkpoint is an EAGLE-3 head; some heads have LLaMA's class name."""
    return bool(config.get("draft_vocab_size")) and config.get("num_hidden_layers") == 1


def _keys(config: Config) -> Keys:
    target = config["target"]
    n_layer = int(target["num_hidden_layers"])
    layers = config.get("eagle_aux_hidden_state_layer_ids") or [2, n_layer // 2, n_layer - 3]
    return llama.keys(config) | {
        "target_layers": [int(layer) for layer in layers],
        "target_hidden_size": int(config.get("target_hidden_size") or target["hidden_size"]),
        "norm_before_residual": bool(config.get("norm_before_residual")),
        "norm_before_fc": bool(config.get("norm_before_fc")),
    }


def _change(name: str, x: Array, config: Config) -> Tensors:
    """Queries and keys as in LLaMA; ids in place of differences in ``d2t``."""
    return llama.change(name, x, config) if name != "d2t" else ids_of_target(x, config)


def ids_of_target(x: Array, config: Config) -> Tensors:
    """``d2t`` of a checkpoint, the differences to the target's ids, as these ids."""
    ids = x.reshape(-1).astype(np.int64) + np.arange(x.size)
    n_vocab = int(config["target"]["vocab_size"])
    if ids.size and not (ids.min() >= 0 and ids.max() < n_vocab and np.unique(ids).size == x.size):
        raise ModelError(
            f"d2t of {x.size} tokens: the ids must differ and be less than vocab_size = {n_vocab} "
            "of the target: it is the head of another model"
        )
    return {"d2t": ids}


_LAYER = {
    theirs: ours for theirs, ours in llama.CONVERT.tensors.items() if "block_sparse" not in theirs
} | {"model.layers.{i}.hidden_norm.weight": "blk.{i}.attn_norm_2.weight"}

CONVERT = Convert(
    models=(
        "LlamaForCausalLMEagle3",
        "Eagle3LlamaForCausalLM",
        "Eagle3Speculator",
        "Eagle3DraftModel",
        "LlamaForCausalLM",
    ),
    tensors={
        **_LAYER,
        **{  # of the authors' code
            theirs.replace("model.layers.{i}", "midlayer"): ours.replace("{i}", "0")
            for theirs, ours in _LAYER.items()
            if "{i}" in theirs
        },
        "fc.weight": FUSED,
        "input_norm.weight": "enc.output_norm.weight",
        "d2t": "d2t",
    },
    keys=_keys,
    change=_change,
    ignored=("t2d", *Convert.ignored),
    prefix="model.",
    accepts=is_head,
    drafts=True,
)
