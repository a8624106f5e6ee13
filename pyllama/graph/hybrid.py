"""Layers of attention among recurrent ones, or both kinds side by side in each.

    TENSORS = {**ATTENTION, **only_in("recurs", tensors(SSM2_TENSORS)), ...}
    return decoder(b, attention_or(mamba2))

A layer without heads of keys is recurrent; ``KINDS`` are the hyperparameters that say so to
``TENSORS``.
Source: Lieber et al. 2024, "Jamba"; llama.cpp, ``llama_model_granite_hybrid``.
"""

from __future__ import annotations

from collections.abc import Callable

from pyggml.tensor import Tensor

from ..hparams import Got, Values
from .builder import GraphBuilder
from .ffn import ffn
from .mamba import Sizes
from .tensors import QKV, only_in, tensors

Mixer = Callable[[GraphBuilder, Tensor, int], Tensor]  # [n_embd, T] -> the same, in a layer

KINDS: Values = {  # 1 in the layers of a kind
    "attends": lambda got: tuple(int(n > 0) for n in got["n_head_kv_arr"]),
    "recurs": lambda got: tuple(int(n == 0) for n in got["n_head_kv_arr"]),
    "empty_layers": True,
}
ATTENTION = only_in("attends", tensors({**QKV, "blk.{i}.attn_output.*?": ("n_embd_out", "n_embd")}))


def states_where_recurrent(sizes: Callable[[Got], Sizes]) -> Callable[[Got], tuple[Sizes, ...]]:
    """``states`` of ``HPARAMS``, from the function that gives those of a recurrent layer."""
    return lambda got: tuple(sizes(got) if recurs else {} for recurs in got["recurs"])


def attention(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """Attention from a layer's normed input to its output projection.

    Shape:
        x [n_embd, T] -> the same
    """
    return b.linear(b.self_attention(x, i), f"blk.{i}.attn_output", f"attn_out-{i}")


def attention_or(recurrent: Mixer, attention: Mixer = attention) -> Mixer:
    """Attention in the layers that have keys, and ``recurrent`` in the others."""

    def mixer(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
        return (attention if b.hparams.n_head_kv_arr[i] else recurrent)(b, x, i)

    return mixer


def decoder(
    b: GraphBuilder, mixer: Mixer, ffn_norm: str = "ffn_norm", output_norm: str = "output_norm"
) -> Tensor:
    """All layers, each with a feed-forward part after its ``mixer``, and the logits.

    Args:
        ffn_norm, output_norm: the names of these norms.

    Shape:
        -> [n_vocab, n_outputs]
    """
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        cur = mixer(b, b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}"), i)
        cur, inp = b.select_outputs(i, cur, inp)
        inp = b.add_residual(cur, inp, f"mixer_out-{i}")
        cur = b.rms_norm(inp, f"blk.{i}.{ffn_norm}", f"ffn_norm-{i}")
        inp = b.layer_output(ffn(b, cur, i, "silu", residual=inp), i)
    return b.output(b.rms_norm(inp, output_norm, "result_norm"))
