"""Multi-head latent attention: keys and values of all heads as one compressed row of each token.

    cur = latent_attention(b, x, i)                # [n_head * n_value, T]

A token's row c [n_lora_kv] expands to the key and the value of each head, ``k = K c`` and
``v = V c``; a key also has ``n_rot`` rotated columns, which are the same for all heads. With a
matrix each (``attn_k_b``, ``attn_v_b``) they are absorbed: scores are ``(K^T q) c``, the output is
``V`` times the weighted sum of rows, and the cache has one head, whose keys are c and the rotated
columns and whose values are c. With one matrix for both (``attn_kv_b``: MiniCPM3, PLM, DeepSeek
files from before April 2025) the cache has the expanded heads.
Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1 and appendix C; llama.cpp,
``llm_build_deepseek2``.
"""

from __future__ import annotations

import math

import pyggml as ops
from pyggml.tensor import Tensor

from ...errors import ModelError
from ...hparams import Got, Key, Values
from ..builder import GraphBuilder
from .indexer import choose_keys


def _n_nope(got: Got) -> int:
    """The columns of a head that are not rotated. Raises: ModelError: sizes do not fit."""
    if got["n_key_mla"]:
        check_absorbed(got, got["n_lora_kv"])
    return n_nope(got, got["n_key_mla"] or got["head_dim_arr"][0])


def check_absorbed(got: Got, n_lora: int, i: int = 0) -> None:
    """Raise ModelError unless the cache of layer ``i`` has rows of ``n_lora`` columns."""
    n_rot: int = got["n_rot_arr"][i]
    columns = got["head_dim_arr"][i], got["head_dim_v_arr"][i]
    if columns != (n_lora + n_rot, n_lora):
        raise ModelError(
            f"{got['arch']} model with {columns[0]} columns of keys and {columns[1]} of values, "
            f"want {n_lora + n_rot} and {n_lora}: the compressed row with and without the "
            f"{n_rot} rotated columns; the metadata is damaged"
        )


def n_nope(got: Got, n_key: int, i: int = 0) -> int:
    """How many of a head's ``n_key`` columns are not rotated, in layer ``i``.

    Raises:
        ModelError: there are none.
    """
    n_rot: int = got["n_rot_arr"][i]
    if not 0 <= n_rot < n_key:
        raise ModelError(
            f"{got['arch']} model with {n_rot} of {n_key} columns of a head rotated, want a part "
            f"of them; the metadata is damaged"
        )
    return n_key - n_rot


def _n_value(got: Got) -> int:
    n: int = got["n_value_mla"] or got["head_dim_v_arr"][0]
    return n


def _log_factor(got: Got) -> float:
    """The logarithm of the factor by which YaRN lengthens the context."""
    return -math.log(got["rope_freq_scale"]) if got["rope_scaling"] == "yarn" else 0.0


def _attn_scale(got: Got) -> float:
    mscale: float = 1 + got["yarn_log_mul"] * _log_factor(got)
    return mscale**2 / math.sqrt(_n_nope(got) + got["n_rot_arr"][0])


def _rope_factor(got: Got) -> float:
    """The factor to pass to ROPE, which multiplies by YaRN's ``1 + 0.1 log(factor)`` itself."""
    factor: float = got["rope_length"]
    return factor / (1 + 0.1 * _log_factor(got)) if got["yarn_log_mul"] else factor


HPARAMS: Values = {
    "n_lora_q": Key("attention.q_lora_rank", 0),
    "n_lora_kv": Key("attention.kv_lora_rank"),
    "n_key_mla": Key("attention.key_length_mla", 0),
    "n_value_mla": Key("attention.value_length_mla", 0),
    "yarn_log_mul": Key("rope.scaling.yarn_log_multiplier", 0.0),  # 0.1 * mscale_all_dim
    "rope_length": Key("rope.scaling.attn_factor", 1.0),
    "rope_attn_factor": _rope_factor,
    "rope_last": True,
    "attn_scale": _attn_scale,
    "latent_eps": 1e-6,  # of the norms of compressed rows, whatever the model's other norms have
    "values_in_keys": lambda got: got["n_key_mla"] > 0,
    "n_nope": _n_nope,
    "n_value": _n_value,
    "n_key": lambda got: _n_nope(got) + got["n_rot_arr"][0],
    "n_kv_a": lambda got: got["n_lora_kv"] + got["n_rot_arr"][0],
    # 0 where the model does not have the tensor
    "n_key_direct": lambda got: 0 if got["n_lora_q"] else got["n_key"],
    "n_lora_absorbed": lambda got: got["n_lora_kv"] if got["n_key_mla"] else 0,
    "n_kv_expanded": lambda got: 0 if got["n_key_mla"] else got["n_nope"] + got["n_value"],
}

TENSORS = {
    "blk.{i}.attn_q.weight": ("n_embd", "n_head*n_key_direct"),
    "blk.{i}.attn_q_a.weight": ("n_embd", "n_lora_q"),
    "blk.{i}.attn_q_a.bias?": ("n_lora_q",),
    "blk.{i}.attn_q_a_norm.weight": ("n_lora_q",),
    "blk.{i}.attn_q_b.weight": ("n_lora_q", "n_head*n_key"),
    "blk.{i}.attn_kv_a_mqa.weight": ("n_embd", "n_kv_a"),
    "blk.{i}.attn_kv_a_mqa.bias?": ("n_kv_a",),
    "blk.{i}.attn_kv_a_norm.weight": ("n_lora_kv",),
    "blk.{i}.attn_k_b.weight": ("n_nope", "n_lora_absorbed", "n_head"),
    "blk.{i}.attn_v_b.weight": ("n_lora_absorbed", "n_value", "n_head"),
    "blk.{i}.attn_kv_b.weight": ("n_lora_kv", "n_head*n_kv_expanded"),
    "blk.{i}.attn_output.weight": ("n_head*n_value", "n_embd"),
    "blk.{i}.attn_output.bias?": ("n_embd",),
}


def latent_attention(b: GraphBuilder, x: Tensor, i: int, q_scale: Tensor | None = None) -> Tensor:
    """Attention of layer ``i`` without the output matrix.

    Args:
        q_scale: a factor of each token's queries, or None.

    Shape:
        x [n_embd, T], q_scale [1, 1, T] -> [n_head * n_value, T]
    """
    ctx, hp, n_tokens = b.ctx, b.hparams.of_layer(i), b.n_tokens
    n_head, n_lora, n_rot = hp.n_head, hp.size("n_lora_kv"), hp.n_rot
    n_key, n_nope, n_value = (hp.size(name) for name in ("n_key", "n_nope", "n_value"))
    part = "attn_q_b" if f"blk.{i}.attn_q_b.weight" in b.weights else "attn_q"
    q = _latent_query(b, x, i)
    chosen = choose_keys(b, x, q, i)
    q = b.linear(q, f"blk.{i}.{part}", f"q-{i}")
    q = ops.reshape_3d(ctx, q, n_key, n_head, n_tokens)
    if q_scale is not None:
        q = ops.mul(ctx, q, q_scale)
    kv = b.linear(x, f"blk.{i}.attn_kv_a_mqa", f"kv_cmpr_pe-{i}")  # [n_lora + n_rot, T]
    latent = ops.view_2d(ctx, kv, n_lora, n_tokens, kv.nb[1], 0)
    latent = b.rms_norm(latent, f"blk.{i}.attn_kv_a_norm", f"kv_cmpr-{i}", hp.own["latent_eps"])
    if n_rot:
        k_rot = ops.view_3d(ctx, kv, (n_rot, 1, n_tokens), (kv.nb[1],) * 2, n_lora * kv.nb[0])
        if f"blk.{i}.attn_k_norm.weight" in b.weights:
            k_rot = b.rms_norm(k_rot, f"blk.{i}.attn_k_norm", f"k_pe_normed-{i}")
        k_rot = b.rope(k_rot, f"k_pe-{i}", i)
    if not hp.values_in_keys:
        kv = b.linear(latent, f"blk.{i}.attn_kv_b", f"kv-{i}")
        kv = ops.reshape_3d(ctx, kv, n_nope + n_value, n_head, n_tokens)
        k, v = _columns(b, kv, 0, n_nope), _columns(b, kv, n_nope, n_value)
        k_rot = ops.repeat_4d(ctx, k_rot, n_rot, n_head, n_tokens, 1)
        k = ops.concat(ctx, k, k_rot, 0).set_name(f"Kcur-{i}")
        return b.attention(b.rope(q, f"Qcur-{i}", i), k, v, i)
    columns = ops.permute(ctx, _columns(b, q, 0, n_nope), 0, 2, 1, 3)  # [n_nope, T, n_head]
    k_b = b.weight(f"blk.{i}.attn_k_b.weight")
    absorbed = ops.mul_mat(ctx, k_b, columns).set_name(f"q_absorbed-{i}")
    absorbed = ops.permute(ctx, absorbed, 0, 2, 1, 3)  # [n_lora, n_head, T]
    k = ops.reshape_3d(ctx, latent, n_lora, 1, n_tokens)
    if n_rot:
        q_rot = b.rope(_columns(b, q, n_nope, n_rot), f"q_pe-{i}", i)
        absorbed = ops.concat(ctx, absorbed, q_rot, 0)
        k = ops.concat(ctx, k, k_rot, 0)
    q = absorbed.set_name(f"Qcur-{i}")
    out = b.attention(q, k.set_name(f"Kcur-{i}"), None, i, chosen=chosen)  # [n_lora * n_head, T]
    out = ops.permute(ctx, ops.reshape_3d(ctx, out, n_lora, n_head, n_tokens), 0, 2, 1, 3)
    out = ops.mul_mat(ctx, b.weight(f"blk.{i}.attn_v_b.weight"), out)  # [n_value, T, n_head]
    out = ops.cont(ctx, ops.permute(ctx, out, 0, 2, 1, 3)).set_name(f"kqv_expanded-{i}")
    return ops.reshape_2d(ctx, out, n_head * n_value, n_tokens)


def _latent_query(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """The normed compressed queries, or ``x`` where queries are not compressed.

    Shape:
        x [n_embd, T] -> [n_lora_q, T]
    """
    if f"blk.{i}.attn_q_a.weight" not in b.weights:
        return x
    q = b.linear(x, f"blk.{i}.attn_q_a", f"q_a-{i}")
    return b.rms_norm(q, f"blk.{i}.attn_q_a_norm", f"q_a_norm-{i}", b.hparams.own["latent_eps"])


def _columns(b: GraphBuilder, x: Tensor, first: int, n: int) -> Tensor:
    """A view of ``n`` columns of each head: [n, n_head, T]."""
    return ops.view_3d(b.ctx, x, (n, *x.ne[1:3]), x.nb[1:3], first * x.nb[0])
