"""Gemma 3 (text): sliding windows in five of six layers, norms before and after each part, GEGLU.

Embeddings are scaled by sqrt(n_embd); sliding-window layers have their own rope base; norm weights
in files have 1 added.
Source: Gemma Team 2025, "Gemma 3 Technical Report"; llama.cpp, ``llm_build_gemma3``.
"""

from __future__ import annotations

import math
from functools import partial

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.attention.factors import attention_gate
from ..graph.builder import ROPE_FACTORS, GraphBuilder
from ..graph.ffn import ffn
from ..graph.tensors import ATTENTION, GATED_FFN, OUTPUT
from ..hparams import Key, Values, window_values
from ..mapping.rules import (
    Array,
    Config,
    Convert,
    Keys,
    Tensors,
    base_keys,
    check_config,
    window_keys,
)
from . import qwen2

HPARAMS: Values = {
    "rope_neox": True,
    **window_values(6, 0, base=10000.0),
    "attn_scale": Key("attention.scale", 0.0),
    "final_logit_softcap": Key("final_logit_softcapping", 0.0),
    "embedding_scale": lambda got: math.sqrt(got["n_embd"]),
}

TENSORS = {
    **ATTENTION,
    "blk.{i}.attn_q_norm.weight": ("head_dim",),
    "blk.{i}.attn_k_norm.weight": ("head_dim",),
    "blk.{i}.post_attention_norm.weight": ("n_embd",),
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    **GATED_FFN,
    "blk.{i}.post_ffw_norm.weight": ("n_embd",),
    **ROPE_FACTORS,
    **OUTPUT,
}
_LAYERS_27B = 62  # 27B scales scores by 1 / sqrt(n_embd / n_head) instead of 1 / sqrt(head_dim)


def decoder(
    b: GraphBuilder, act: str, layers_27b: int = 0, gate: str = "", inp: Tensor | None = None,
    post_eps: float = 0.0,
) -> Tensor:  # fmt: skip
    """All layers and the logits of models with norms before and after each part.

    Args:
        act: of the feed-forward part.
        layers_27b: the number of layers of the model whose scores have another scale, see
            ``_LAYERS_27B``; 0 for none.
        gate: activation of the gate on attention's output (``attention_gate``); empty for none.
        inp: the embeddings; None for the tokens'.
        post_eps: epsilon of the norms after each part; 0: the model's.

    Shape:
        inp [n_embd, T] -> [n_vocab, n_outputs]
    """
    hp, ctx = b.hparams, b.ctx
    if inp is None:
        inp = b.embed("token_embd.weight")  # [n_embd, T]
    # a context may run fewer layers than the file has
    of_27b = f"blk.{layers_27b - 1}.attn_norm.weight" in b.weights
    for i in range(hp.n_layer):
        x = b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        q, k, v = b.qkv(x, i)
        if of_27b and not hp.attn_scale:  # not in the file
            n_embd_q = hp.of_layer(i).n_embd_q
            q = ops.scale(ctx, q, math.sqrt(n_embd_q / hp.n_embd))
        cur = b.attention(b.rope(q, f"Qcur-{i}", i), b.rope(k, f"Kcur-{i}", i), v, i)
        if gate:
            cur = attention_gate(b, cur, x, i, gate)
        cur, inp = b.select_outputs(i, cur, inp)
        cur = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}")
        cur = b.rms_norm(cur, f"blk.{i}.post_attention_norm", f"attn_post_norm-{i}", post_eps)
        inp = ops.add(ctx, cur, inp).set_name(f"sa_out-{i}")
        cur = b.rms_norm(inp, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        cur = ffn(b, cur, i, act)
        cur = b.rms_norm(cur, f"blk.{i}.post_ffw_norm", f"ffn_post_norm-{i}", post_eps)
        inp = b.layer_output(ops.add(ctx, cur, inp), i)
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


build_graph = partial(decoder, act="gelu", layers_27b=_LAYERS_27B)


def _keys(config: Config) -> Keys:
    check_config(config, use_bidirectional_attention=False)
    return keys(config)


def keys(config: Config) -> Keys:
    """The keys of Gemma 3, and of models with the same config.json."""
    check_config(config, attention_bias=False)
    period = int(config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6)
    found = base_keys(config, "gelu") | windows(config, period)
    found["attention.scale"] = float(config["query_pre_attn_scalar"]) ** -0.5
    if config.get("final_logit_softcapping"):
        found["final_logit_softcapping"] = float(config["final_logit_softcapping"])
    return found


def windows(config: Config, period: int) -> Keys:
    """The keys of a sliding window: a period where every n-th layer has full attention.

    Args:
        period: without ``layer_types``.
    """
    found = window_keys(config, period)
    if found:
        slides = found["attention.sliding_window_pattern"]
        n = slides.index(False) + 1 if False in slides else 0
        if slides == [n == 0 or (i + 1) % n != 0 for i in range(len(slides))]:
            found["attention.sliding_window_pattern"] = n
    return found


def add_one(name: str, x: Array, config: Config) -> Tensors:
    """Norms of checkpoints multiply by 1 + weight."""
    return {name: x + 1 if name.endswith("norm.weight") else x}


DEFAULTS = {  # defaults of transformers that config.json of vision models omits
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "tie_word_embeddings": True,
}
NAMES = {
    **qwen2.CONVERT.tensors,
    "model.layers.{i}.self_attn.q_norm.weight": "blk.{i}.attn_q_norm.weight",
    "model.layers.{i}.self_attn.k_norm.weight": "blk.{i}.attn_k_norm.weight",
    "model.layers.{i}.post_attention_layernorm.weight": "blk.{i}.post_attention_norm.weight",
    "model.layers.{i}.pre_feedforward_layernorm.weight": "blk.{i}.ffn_norm.weight",
    "model.layers.{i}.post_feedforward_layernorm.weight": "blk.{i}.post_ffw_norm.weight",
}
CONVERT = Convert(
    models=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    tensors=NAMES,
    defaults=DEFAULTS,
    keys=_keys,
    change=add_one,
)
