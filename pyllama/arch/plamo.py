"""PLaMo: parallel attention and feed-forward with one RMS norm, SwiGLU, rope on halves.

Source: Preferred Networks 2023, "PLaMo-13B"; llama.cpp, ``llm_build_plamo``.
"""

from __future__ import annotations

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.ffn import ffn
from ..graph.tensors import ATTENTION, GATED_FFN, without
from ..hparams import Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, base_keys
from . import qwen2

HPARAMS: Values = {"rope_neox": True}

TENSORS = {
    **ATTENTION,
    **GATED_FFN,
    "output_norm.weight": ("n_embd",),
    "token_embd.weight": ("n_embd", "n_vocab"),
    "output.weight": ("n_embd", "n_vocab"),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        norm = b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        cur = b.self_attention(norm, i)
        cur, inp, norm = b.select_outputs(i, cur, inp, norm)
        cur = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        inp = b.layer_output(ffn(b, norm, i, "silu", residual=cur), i)
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


def _n_shared(config: Config) -> int:
    return int(config.get("n_shared_head", 8))


def _keys(config: Config) -> Keys:
    n_head_kv = -(-int(config["num_attention_heads"]) // _n_shared(config))
    keys = {"context_length": 4096} | base_keys(config)
    return keys | {"attention.head_count_kv": n_head_kv}


def _change(name: str, x: Array, config: Config) -> Tensors:
    """Order query heads by their key head, which in checkpoints is ``i % n_head_kv`` of head i."""
    parts = _n_shared(config), int(config["num_attention_heads"]) // _n_shared(config)
    if ".attn_q." in name:
        x = x.reshape(*parts, -1, x.shape[-1]).swapaxes(0, 1).reshape(x.shape)
    elif ".attn_output." in name:
        x = x.reshape(x.shape[0], *parts, -1).swapaxes(1, 2).reshape(x.shape)
    return {name: x}


_NAMES = without(qwen2.CONVERT.tensors, "layernorm")
CONVERT = Convert(
    models=("PlamoForCausalLM",),
    tensors={
        **{name.replace("layers", "layers.layers"): x for name, x in _NAMES.items()},
        "model.layers.layers.{i}.norm.weight": "blk.{i}.attn_norm.weight",
    },
    keys=_keys,
    change=_change,
)
