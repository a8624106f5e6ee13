"""Gemma 4 assistant: drafts for a Gemma 4 model, whose keys and values its layers attend to.

    input = pre_projection [embedding of token i in the target, hidden state before it]

It has no keys and values of its own: all tokens of a draft attend to the target's cells from the
position after these. The hidden state is the target's last one after its norm; of drafted tokens it
is the assistant's own (``post_projection``).
Source: Google 2026, "Gemma 4"; transformers, ``Gemma4AssistantForCausalLM``; llama.cpp,
``llama_model_gemma4_assistant``, which reads no ``masked_embedding`` either: logits are exact.
"""

from __future__ import annotations

import math

import pyggml as ops
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph.builder import TARGET_EMBEDDING, GraphBuilder
from ..graph.tensors import without
from ..hparams import Key, Values, window_values
from ..mapping.rules import Config, Convert, Keys
from . import gemma3, gemma4

NAME = "gemma4-assistant"

HPARAMS: Values = {
    "rope_neox": True,
    **window_values(6, base=10000.0),
    "attn_scale": 1.0,
    "n_layer_nextn": 0,  # the file's number is that of its layers
    "n_expert": 0,  # of the target
    "n_embd_backbone": Key("embedding_length_out"),
    "n_rot_full": gemma4.HPARAMS["n_rot_full"],
    "hidden": "h_nextn",
}

TENSORS = {
    "nextn.pre_projection.weight": ("2*n_embd_backbone", "n_embd"),
    "nextn.post_projection.weight": ("n_embd", "n_embd_backbone"),
    **without(gemma3.TENSORS, "attn_k", "attn_v", "rope_f"),
    "blk.{i}.layer_output_scale.weight": ("1",),
    "rope_freqs.weight": ("n_rot_full/2",),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    hp, ctx, hidden = b.hparams, b.ctx, b.target_hidden
    if hidden is None:
        raise ModelError(
            "this Gemma 4 assistant is no whole model: it drafts for another one, as draft-mtp"
        )
    x = ops.get_rows(ctx, b.weight(TARGET_EMBEDDING), b.tokens)
    x = ops.scale(ctx, x, math.sqrt(x.ne[0])).set_name("inp_embd_target")
    x = ops.concat(ctx, x, hidden, 0).set_name("inp_xh")  # [2 n_embd_backbone, T]
    inp = b.linear(x, "nextn.pre_projection", "pre_proj")  # [n_embd, T]
    for i in range(hp.n_layer):
        of_layer = hp.of_layer(i)
        cur = b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        q = b.linear(cur, f"blk.{i}.attn_q", f"Qcur-{i}")
        q = ops.reshape_3d(ctx, q, of_layer.head_dim, of_layer.n_head, b.n_tokens)
        q = b.rope(b.rms_norm(q, f"blk.{i}.attn_q_norm", f"Qcur_normed-{i}"), f"Qcur-{i}", i)
        inp = gemma4.after_attention(b, b.attention(q, None, None, i), inp, i)
    norm = b.rms_norm(inp, "output_norm", "result_norm")
    b.linear(norm, "nextn.post_projection", "h_nextn")
    return b.output(norm)


def _keys(config: Config) -> Keys:
    shared = config.get("num_kv_shared_layers") or config["num_hidden_layers"]
    keys = gemma4.keys({**config, "num_kv_shared_layers": shared})
    n_embd = 3840 if "Unified" in config["architectures"][0] else 1536  # transformers' defaults
    return keys | {
        "embedding_length_out": int(config.get("backbone_hidden_size") or n_embd),
        "nextn_predict_layers": keys["block_count"],
    }


CONVERT = Convert(
    models=("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"),
    tensors={
        **gemma4.CONVERT.tensors,
        "pre_projection.weight": "nextn.pre_projection.weight",
        "post_projection.weight": "nextn.post_projection.weight",
    },
    keys=_keys,
    change=gemma4.CONVERT.change,
    extra=gemma4.CONVERT.extra,
    defaults=gemma4.CONVERT.defaults,
    ignored=("masked_embedding.*", *Convert.ignored),
)
