"""Nanbeige 4: LLaMA; the layers of some models run several times, each time with their own cache.

Source: Nanbeige Lab 2026, "Nanbeige4-3B"; llama.cpp, ``llm_build_nanbeige``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph.builder import ROPE_FACTORS, GraphBuilder
from ..graph.ffn import ffn
from ..graph.tensors import OUTPUT
from ..hparams import Got, Key, Values
from ..mapping.rules import Config, Keys
from . import llama

_MAX_LAYERS = 4096


def _n_layer(got: Got) -> int:
    n = int(got["n_layer"] * got["n_loops"])
    if not 1 <= n <= _MAX_LAYERS:
        raise ModelError(f"num_loops is {got['n_loops']}: {n} layers, want 1 to {_MAX_LAYERS}")
    return n


def _repeated(name: str) -> Callable[[Got], tuple[int, ...]]:
    return lambda got: tuple(int(n) for _ in range(got["n_loops"]) for n in got[name])


def _in_file(got: Got) -> tuple[int, ...]:
    """Columns of the embedding in layers that the file has, 0 in their repetitions."""
    n_layer = int(got["n_layer"])
    n = n_layer // int(got["n_loops"])
    return (int(got["n_embd"]),) * n + (0,) * (n_layer - n)


_ARRAYS = ("n_head_arr", "n_head_kv_arr", "n_ff_arr", "head_dim_arr", "head_dim_v_arr", "n_rot_arr")
HPARAMS: Values = {
    "n_loops": Key("num_loops", 1),
    "skip_loop_norm": Key("skip_loop_final_norm", False),
    "n_layer": _n_layer,
    **{name: _repeated(name) for name in _ARRAYS},
    "n_embd_in_file": _in_file,
}

TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd_in_file",),
    "blk.{i}.attn_q.weight": ("n_embd_in_file", "n_embd_q"),
    "blk.{i}.attn_k.weight": ("n_embd_in_file", "n_embd_k"),
    "blk.{i}.attn_v.weight": ("n_embd_in_file", "n_embd_v"),
    "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd_in_file"),
    "blk.{i}.ffn_norm.weight": ("n_embd_in_file",),
    "blk.{i}.ffn_gate.weight": ("n_embd_in_file", "n_ff"),
    "blk.{i}.ffn_up.weight": ("n_embd_in_file", "n_ff"),
    "blk.{i}.ffn_down.weight": ("n_ff", "n_embd_in_file"),
    **ROPE_FACTORS,
    **OUTPUT,
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    n_layer, own = b.hparams.n_layer, b.hparams.own
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(n_layer):
        w = i % (n_layer // own["n_loops"])  # the layer of the file
        if w == 0 and i and not own["skip_loop_norm"]:
            inp = b.rms_norm(inp, "output_norm", f"loop_norm-{i}")
        cur = b.rms_norm(inp, f"blk.{w}.attn_norm", f"attn_norm-{i}")
        q, k, v = b.qkv(cur, w)
        cur = b.attention(b.rope(q, f"Qcur-{i}", i), b.rope(k, f"Kcur-{i}", i), v, i)
        cur, inp = b.select_outputs(i, cur, inp)
        inp = b.linear(cur, f"blk.{w}.attn_output", f"attn_out-{i}", residual=inp)
        cur = b.rms_norm(inp, f"blk.{w}.ffn_norm", f"ffn_norm-{i}")
        inp = b.layer_output(ffn(b, cur, w, "silu", residual=inp), i)
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


def _keys(config: Config) -> Keys:
    return llama.keys(config) | {
        "num_loops": max(int(config.get("num_loops") or 1), 1),
        "skip_loop_final_norm": bool(config.get("skip_loop_final_norm", False)),
    }


CONVERT = replace(llama.CONVERT, models=("NanbeigeForCausalLM",), keys=_keys)
