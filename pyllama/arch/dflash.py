"""DFlash: a few layers that draft a block of tokens at once for another model (the target).

    block = [last token, mask, mask, ...]          # all attend to each other and to the text

Keys and values of the text are projections of the target's hidden states: ``fc`` of the inputs of
some of its layers (``kv.memory.HiddenReads``), and a norm. A graph without outputs stores them.
Each mask becomes the token at its position.

DSpark adds a Markov head: the logits of a token get ``markov_w2 @ markov_w1[token before it]``, so
the tokens of a block are chosen one after the other. Its confidence head is not read.
Source: llama.cpp, ``llama_model_dflash``; transformers, ``MuseGlimmerAssistantModel``.
"""

from __future__ import annotations

from typing import Any

import pyggml as ops
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph.builder import FUSED, GraphBuilder
from ..graph.ffn import ffn
from ..graph.sparse.weights import ANY
from ..graph.tensors import ATTENTION, GATED_FFN
from ..hparams import Key, Values, window_values
from ..mapping.rules import (
    Array,
    Config,
    Convert,
    Keys,
    Tensors,
    base_keys,
    check_config,
    head_columns,
)
from . import eagle3, qwen3

MARKOV = "markov_w1.weight"

HPARAMS: Values = {
    "rope_neox": True,
    **window_values(1, 0),
    "embedding_scale": Key("embedding_scale", 1.0),
    "attn_scale": Key("attention.scale", 0.0),
    "causal": True,
    "block_causal": Key("attention.causal", False),
    "block_size": Key("block_size", 16),
    "sample_from_anchor": Key("sample_from_anchor", True),  # of DSpark: the first token drafts too
    "mask_token": Key("tokenizer.ggml.mask_token_id", prefixed=False),
}

TENSORS = {
    **ATTENTION,
    "blk.{i}.attn_q_norm.weight": ("head_dim",),
    "blk.{i}.attn_k_norm.weight": ("head_dim",),
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    **GATED_FFN,
    FUSED: (ANY, "n_embd"),
    "enc.output_norm.weight": ("n_embd",),
    "output_norm.weight": ("n_embd",),
    # the target's embedding and output matrix take the place of missing ones
    "token_embd.weight?": ("n_embd", "n_vocab"),
    "output.weight?": ("n_embd", ANY),
    "d2t?": (ANY,),
    "markov_w1.weight?": (ANY, "n_vocab"),
    "markov_w2.weight?": (ANY, ANY),
    "conf_proj.weight?": (ANY, "1"),
    "conf_proj.bias?": ("1",),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs].

    Without outputs it stores the keys and values of ``target_hidden``, which it returns normed.
    """
    hidden = b.target_hidden
    if hidden is None:
        raise ModelError(
            "this DFlash head is no whole model: it drafts for another one, as draft-dflash"
        )
    for unused in (b.tokens, hidden):
        b.graph.build_forward_expand(unused)
    if not b.n_outputs:
        x = b.rms_norm(hidden, "enc.output_norm", "result_norm")
        for i in range(b.hparams.n_layer):
            _, k, v = b.qkv(x, i)
            b.store(b.rope(k, f"Kcur-{i}", i), v, i)
        return x
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        x = b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        cur, inp = b.select_outputs(i, b.self_attention(x, i), inp)
        inp = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        cur = b.rms_norm(inp.set_name(f"ffn_inp-{i}"), f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        inp = b.layer_output(ffn(b, cur, i, "silu", residual=inp), i)
    logits = b.output(b.rms_norm(inp, "output_norm", "result_norm"))
    if "d2t" in b.weights:
        logits = eagle3.of_target(b, logits)
    if MARKOV in b.weights and b.n_outputs < 2 * b.hparams.block_size:
        logits = _with_markov_head(b, logits)
    b.logits = logits
    return logits


def _with_markov_head(b: GraphBuilder, logits: Tensor) -> Tensor:
    """The logits of one block, whose tokens depend on the likeliest ones before them.

    Shape:
        logits [n_vocab, n_outputs] -> the same
    """
    ctx, whole = b.ctx, None
    before = ops.view_1d(ctx, b.tokens, 1)  # the block's first token
    for i in range(b.n_outputs):
        x = ops.get_rows(ctx, b.weight(MARKOV), before)  # [rank, 1]
        bias = b.linear(x, "markov_w2", f"markov_bias-{i}")
        if "d2t" in b.weights:
            bias = eagle3.of_target(b, bias)
        row = ops.view_2d(ctx, logits, logits.ne[0], 1, logits.nb[1], i * logits.nb[1])
        row = ops.add(ctx, row, bias)  # [n_vocab, 1]
        before = ops.argmax(ctx, row)
        whole = row if whole is None else ops.concat(ctx, whole, row, 1)
    assert whole is not None
    return whole.set_name("result_output_markov")


def _option(config: Config, name: str) -> Any:
    """A value of ``dflash_config``, or of config.json itself."""
    return (config.get("dflash_config") or {}).get(name, config.get(name))


def _keys(config: Config) -> Keys:
    check_config(config, attention_bias=False, rope_is_neox_style=True)
    for name in ("conv_kernel_size", "attention_value_scale"):
        if _option(config, name) is not None:
            raise ModelError(f"config.json: {name} is of a later kind of head than DFlash")
    inputs = config.get("aux_hidden_state_layer_ids")  # of speculators; else the outputs of layers
    layers = inputs or [int(layer) + 1 for layer in _option(config, "target_layer_ids") or ()]
    if not layers:
        raise ModelError("config.json has no target_layer_ids of a DFlash head")
    keys = base_keys(config, "silu") | _windows(config) | _markov_keys(config)
    keys |= {
        "block_size": int(_option(config, "block_size") or 16),
        "target_layers": [int(layer) for layer in layers],
        "tokenizer.ggml.mask_token_id": int(_option(config, "mask_token_id")),
    }
    causal = config.get("is_causal", _option(config, "causal"))
    if causal is not None:
        keys["attention.causal"] = bool(causal)
    target = config["target"]
    rope = target.get("rope_parameters") or target.get("rope_scaling") or {}
    if "mrope_section" in rope:  # the head's has one section, which is that of other models
        keys["rope.dimension_sections"] = [head_columns(config) // 2, 0, 0, 0]
    scale = _option(config, "input_embedding_scale")
    if scale is None and target["architectures"][0].startswith("Gemma"):
        scale = int(target["hidden_size"]) ** 0.5
    return keys if scale is None else keys | {"embedding_scale": float(scale)}


def _is_dspark(config: Config) -> bool:
    return "DSpark" in config["architectures"][0]


def _markov_keys(config: Config) -> Keys:
    """The keys of a DSpark head, {} for others."""
    if not _is_dspark(config):
        return {}
    check_config(config, markov_head_type="vanilla")
    speculator = "transformer_layer_config" in config or "aux_hidden_state_layer_ids" in config
    return {
        "sample_from_anchor": bool(config.get("sample_from_anchor", not speculator)),
        "has_confidence_head": any("confidence_head.proj" in x for x in config["tensor_names"]),
    }


def _change(name: str, x: Array, config: Config) -> Tensors:
    """Ids in ``d2t``; a DSpark head of all tokens has the target's output matrix."""
    if name == "d2t":
        return eagle3.ids_of_target(x, config)
    n_vocab = config.get("vocab_size")
    all_tokens = (config.get("draft_vocab_size") or n_vocab) == n_vocab
    return {} if name == "output.weight" and _is_dspark(config) and all_tokens else {name: x}


def _windows(config: Config) -> Keys:
    """The keys of a sliding window, {} without one."""
    everywhere = bool(_option(config, "use_swa"))
    uses = everywhere or config.get("use_sliding_window") or _MUSE in config["architectures"]
    window = _option(config, "swa_window_size") or config.get("sliding_window")
    if not (uses and window):
        return {}
    n_layer = int(config["num_hidden_layers"])
    kinds = config.get("layer_types") or ["sliding_attention"] * n_layer
    return {
        "attention.sliding_window": int(window),
        "attention.sliding_window_pattern": [
            everywhere or kind == "sliding_attention" for kind in kinds
        ],
    }


_MUSE = "MuseGlimmerAssistantModel"
CONVERT = Convert(
    models=(
        "DFlashDraftModel",
        _MUSE,
        "Qwen3DSparkModel",
        "DSparkDraftModel",
        "DSparkSpeculator",
        "Lfm2DSparkDraftModel",
        "LingDSparkModel",
    ),
    tensors={
        **{
            theirs: ours
            for theirs, ours in qwen3.CONVERT.tensors.items()
            if not theirs.startswith("score")
        },
        "model.fc.weight": FUSED,
        "model.hidden_norm.weight": "enc.output_norm.weight",
        "model.markov_head.markov_w1.weight": MARKOV,
        "model.markov_head.markov_w2.weight": "markov_w2.weight",
        "model.confidence_head.proj.*": "conf_proj.*",
        "d2t": "d2t",
        "encoder.fc.weight": FUSED,
        "encoder.output_norm_enc.weight": "enc.output_norm.weight",
    },
    keys=_keys,
    change=_change,
    ignored=("t2d", *Convert.ignored),
    defaults={"rms_norm_eps": 1e-6},
    prefix="model.",
    drafts=True,
)
