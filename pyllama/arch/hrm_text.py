"""HRM-Text: a low and a high stack of layers that run in turns, each time with their own cache.

A low stack of n layers runs ``l_cycles`` times, then a high one of n layers once, all of that
``h_cycles`` times. The file has each layer once: the low stack's, then the high stack's. The state
of each stack is the other one's additional input. Norms have no weights. All tokens attend to
earlier ones only, as in llama.cpp, also where ``hrm.prefix_lm`` is true.
Source: Wang et al. 2025, "Hierarchical Reasoning Model"; transformers, ``HrmTextModel``; llama.cpp,
``llama_model_hrm_text``.
"""

from __future__ import annotations

import numpy as np

import pyggml as ops
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph.attention.factors import attention_gate
from ..graph.builder import GraphBuilder
from ..graph.ffn import ffn
from ..hparams import Got, Key, Values
from ..mapping.rules import (
    HF_MLP,
    HF_QKV,
    Array,
    Config,
    Convert,
    Keys,
    Tensors,
    base_keys,
    check_config,
    float32,
    head_columns,
)


def _in_file(got: Got) -> tuple[int, ...]:
    """Columns of the embedding in layers that the file has, 0 in their repetitions."""
    n, h, low, n_layer = (got[name] for name in ("n_stack", "h_cycles", "l_cycles", "n_layer"))
    if min(n, h, low) < 1 or n * h * (low + 1) != n_layer:
        raise ModelError(
            f"{n_layer} layers, want {h} * ({low} + 1) runs of a stack of {n} layers, all above 0"
        )
    n_in_file = 2 * int(n)
    return (int(got["n_embd"]),) * n_in_file + (0,) * (int(n_layer) - n_in_file)


HPARAMS: Values = {
    "rope_neox": True,
    "embedding_scale": Key("embedding_scale", 1.0),
    "n_stack": Key("hrm.layers_per_stack"),
    "h_cycles": Key("hrm.h_cycles"),
    "l_cycles": Key("hrm.l_cycles"),
    "n_embd_in_file": _in_file,
}

TENSORS = {
    "blk.{i}.attn_gate.weight": ("n_embd_in_file", "n_embd_out"),
    "blk.{i}.attn_q.weight": ("n_embd_in_file", "n_embd_q"),
    "blk.{i}.attn_k.weight": ("n_embd_in_file", "n_embd_k"),
    "blk.{i}.attn_v.weight": ("n_embd_in_file", "n_embd_v"),
    "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd_in_file"),
    "blk.{i}.ffn_gate.weight": ("n_embd_in_file", "n_ff"),
    "blk.{i}.ffn_up.weight": ("n_embd_in_file", "n_ff"),
    "blk.{i}.ffn_down.weight": ("n_ff", "n_embd_in_file"),
    "hrm.z_l_init": ("n_embd",),
    "token_embd.weight": ("n_embd", "n_vocab"),
    "output.weight?": ("n_embd", "n_vocab"),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    own, n_layer = b.hparams.own, b.hparams.n_layer
    n, period = own["n_stack"], own["l_cycles"] + 1
    high, low = b.embed("token_embd.weight"), b.weight("hrm.z_l_init")  # [n_embd, T], [n_embd]
    for run in range(n_layer // n):
        x = ops.add(b.ctx, high, low).set_name(f"stack_inp-{run}")
        is_high = run % period == period - 1
        for i in range(run * n, (run + 1) * n):
            x = _layer(b, x, i, i % n + n * is_high)
        x = b.rms_norm(x, "", "result_norm" if i == n_layer - 1 else f"stack_norm-{i}")
        high, low = (x, low) if is_high else (high, x)
    return b.output(high)


def _layer(b: GraphBuilder, inp: Tensor, i: int, w: int) -> Tensor:
    """Layer ``i`` with the weights of layer ``w`` of the file: [n_embd, T] -> the same."""
    x = b.rms_norm(inp, "", f"attn_norm-{i}")
    q, k, v = b.qkv(x, w)
    cur = b.attention(b.rope(q, f"Qcur-{i}", i), b.rope(k, f"Kcur-{i}", i), v, i)
    cur = attention_gate(b, cur, x, w, "sigmoid")
    cur, inp = b.select_outputs(i, cur, inp)
    inp = b.linear(cur, f"blk.{w}.attn_output", f"attn_out-{i}", residual=inp)
    cur = b.rms_norm(inp, "", f"ffn_norm-{i}")
    return b.layer_output(ffn(b, cur, w, "silu", residual=inp), i)


def _stack(config: Config) -> int:
    """Layers of a stack: ``num_hidden_layers`` may be that, or the runs of all layers."""
    return int(config.get("num_layers_per_stack") or config["num_hidden_layers"])


def _keys(config: Config) -> Keys:
    check_config(config, hidden_act="silu", attention_bias=False, mlp_bias=False)
    n, h, low, head_dim = (
        _stack(config),
        *(int(config[f"{x}_cycles"]) for x in "HL"),
        head_columns(config),
    )
    scale = config.get("embedding_scale") or 1 / config["initializer_range"]
    return base_keys(config) | {
        "block_count": n * h * (low + 1),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "embedding_scale": float32(scale),
        "hrm.layers_per_stack": n,
        "hrm.h_cycles": h,
        "hrm.l_cycles": low,
        "hrm.prefix_lm": bool(config["prefix_lm"]),
    }


_FUSED = {
    "attn_gqkv": ("attn_gate", "attn_q", "attn_k", "attn_v"),
    "ffn_gate_up": ("ffn_gate", "ffn_up"),
}


def _change(name: str, x: Array, config: Config) -> Tensors:
    part = name.split(".")[-2]
    if part not in _FUSED:
        return {name: x}
    names = [name.replace(part, one) for one in _FUSED[part]]
    return dict(zip(names, np.split(x, len(names)), strict=True))


_LAYERS = {
    "model.layers.{i}.attn.gqkv_proj.weight": "blk.{i}.attn_gqkv.weight",
    "model.layers.{i}.attn.o_proj.weight": "blk.{i}.attn_output.weight",
    "model.layers.{i}.mlp.gate_up_proj.weight": "blk.{i}.ffn_gate_up.weight",
    "model.layers.{i}.self_attn.gate_proj.weight": "blk.{i}.attn_gate.weight",
    "model.layers.{i}.self_attn.o_proj.weight": "blk.{i}.attn_output.weight",
    **HF_QKV,
    **HF_MLP,
}
CONVERT = Convert(
    models=("HrmTextForCausalLM",),
    tensors={
        "model.embed_tokens.weight": "token_embd.weight",
        "model.z_L_init": "hrm.z_l_init",
        **{
            theirs.replace("layers.{i}", f"{stack}_module.layers.{i}"): ours.replace("{i}", i)
            for stack, i in (("L", "{i}"), ("H", "{j}"))
            for theirs, ours in _LAYERS.items()
        },
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
    first_stack=_stack,
    change=_change,
    defaults={
        "H_cycles": 2,
        "L_cycles": 3,
        "initializer_range": 0.02,
        "prefix_lm": True,
        "rms_norm_eps": 1e-6,
    },
)
