"""Short convolutions with gates, which LFM2 has in place of attention in most layers.

    cur = short_conv(b, b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}"), i)

Source: Liquid AI 2025, "LFM2 Technical Report"; llama.cpp, ``llama_model_lfm2``.
"""

from __future__ import annotations

import pyggml as ops
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..hparams import Got
from .builder import GraphBuilder

SHORT_CONV = {
    "blk.{i}.shortconv.in_proj.weight": ("n_embd", "3*n_embd"),
    "blk.{i}.shortconv.conv.weight": ("d_conv", "n_embd"),
    "blk.{i}.shortconv.out_proj.weight": ("n_embd", "n_embd"),
}


def states_of(got: Got) -> dict[str, tuple[int, ...]]:
    """The sizes of a layer's states. Raises: ModelError: convolutions also see later tokens."""
    if not got["causal"]:
        raise ModelError(
            f"{got['arch']} model for embeddings, whose convolutions also see later tokens: not "
            "supported"
        )
    return {"conv": (got["n_embd"], got["d_conv"] - 1)}


def short_conv(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """``out_proj(c * conv(b * x))``, where ``in_proj`` makes b, c and x of the normed input.

    Shape:
        x [n_embd, T] -> the same
    """
    ctx, (n, n_tokens) = b.ctx, x.ne[:2]
    parts = b.linear(x, f"blk.{i}.shortconv.in_proj", f"shortconv_in-{i}")  # [3 n_embd, T]
    gate_in, gate_out, x = (
        ops.view_2d(ctx, parts, n, n_tokens, parts.nb[1], 4 * n * k) for k in range(3)
    )
    weight = b.weight(f"blk.{i}.shortconv.conv.weight")
    x = ops.ssm_conv_slots(ctx, ops.mul(ctx, gate_in, x), weight, *b.state("conv", i))
    x = ops.mul(ctx, gate_out, x.set_name(f"shortconv-{i}"))
    return b.linear(x, f"blk.{i}.shortconv.out_proj", f"shortconv_out-{i}")
