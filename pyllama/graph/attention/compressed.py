"""Attention to a window and to compressed rows: one head of keys that are the values too.

    cur = compressed_attention(b, x, i)            # [n_embd, T]

In a layer with a ratio, ``ratio`` tokens also become one row by a gated mean (``GATED_POOL``). With
ratio 4 these groups overlap, and an indexer with such rows of its own chooses those that a token
attends to. The output is rotated back, since values are rotated as keys, and projected in two
steps: groups of heads by a matrix each, then all together.
Source: DeepSeek-AI 2026, "DeepSeek-V4", section 2.3; transformers, ``DeepseekV4Attention``;
llama.cpp, ``llama_model_deepseek4``.
"""

from __future__ import annotations

import math

import pyggml as ops
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor

from ...errors import ModelError
from ...hparams import COMPRESS_RATIOS, Got, Key, Values
from ..builder import GraphBuilder

CHOSEN_RATIO = 4  # whose groups overlap, and whose rows are chosen


def _widths(got: Got) -> tuple[int, ...]:
    """Columns of what becomes a compressed row, by layer; 0 without them."""
    sizes = zip(got["compress_ratios"], got["head_dim_arr"], strict=True)
    return tuple(n * (2 if ratio == CHOSEN_RATIO else 1) * bool(ratio) for ratio, n in sizes)


def _chosen(got: Got) -> tuple[int, ...]:
    """1 for the layers whose compressed rows an indexer chooses."""
    return tuple(int(ratio == CHOSEN_RATIO) for ratio in got["compress_ratios"])


def _states(got: Got) -> tuple[dict[str, tuple[int, ...]], ...]:
    """The states of GATED_POOL: of rows, and of the indexer's. Raises: ModelError: sizes."""
    if not got["n_swa"] or 0 < got["n_indexer_key"] < got["n_rot_arr"][0]:
        raise ModelError(
            f"{got['arch']} model with a window of {got['n_swa']} tokens, want 1 or more; indexer "
            f"keys of {got['n_indexer_key']} columns, want 0, or {got['n_rot_arr'][0]} or more"
        )

    def of_layer(n: int, ratio: int) -> dict[str, tuple[int, ...]]:
        if ratio == CHOSEN_RATIO:
            return {"pool": (9 * n // 2,), "pool_index": (9 * got["n_indexer_key"],)}
        return {"pool": (3 * n,)} if ratio else {}

    return tuple(map(of_layer, _widths(got), got["compress_ratios"]))


def _group_columns(got: Got) -> int:
    """Columns of a group of heads. Raises: ModelError: groups are not equal."""
    n, n_groups = got["n_head_arr"][0], got["n_groups_out"]
    if not n_groups or n % n_groups:
        raise ModelError(
            f"{got['arch']} model with {n} heads and {n_groups} groups of them, want equal groups"
        )
    columns: int = n // n_groups * got["head_dim_v_arr"][0]
    return columns


HPARAMS: Values = {
    "n_swa": Key("attention.sliding_window"),
    "swa_period": 0,
    "rope_last": True,
    "rope_freq_base": Key("attention.compress_rope_freq_base"),
    "rope_freq_base_swa": Key("rope.freq_base", 10000.0),
    "rope_attn_factor": lambda got: (  # ROPE multiplies by its inverse: YaRN without a length
        1 / (1 - 0.1 * math.log(got["rope_freq_scale"])) if got["rope_scaling"] == "yarn" else 1.0
    ),
    "values_in_keys": True,
    "compress_ratios": Key(COMPRESS_RATIOS, type=tuple),
    "n_sparse_keys": Key("attention.indexer.top_k"),
    "n_indexer_head": Key("attention.indexer.head_count"),
    "n_indexer_key": Key("attention.indexer.key_length"),
    "indexer_layers": _chosen,
    "n_compressed": _widths,
    "is_compressed": lambda got: tuple(int(r > 0) for r in got["compress_ratios"]),
    "is_chosen": _chosen,
    "ratio": lambda got: got["compress_ratios"],  # of a layer
    "states": _states,
    "n_lora_q": Key("attention.q_lora_rank"),
    "n_lora_out": Key("attention.output_lora_rank"),
    "n_groups_out": Key("attention.output_group_count"),
    "n_group_columns": _group_columns,
}

TENSORS = {
    "blk.{i}.attn_q_a.weight": ("n_embd", "n_lora_q"),
    "blk.{i}.attn_q_a_norm.weight": ("n_lora_q",),
    "blk.{i}.attn_q_b.weight": ("n_lora_q", "n_embd_q"),
    "blk.{i}.attn_kv.weight": ("n_embd", "head_dim"),
    "blk.{i}.attn_kv_a_norm.weight": ("head_dim",),
    "blk.{i}.attn_compressor_kv.weight": ("n_embd", "n_compressed"),
    "blk.{i}.attn_compressor_gate.weight": ("n_embd", "n_compressed"),
    "blk.{i}.attn_compressor_ape.weight": ("n_compressed", "ratio"),
    "blk.{i}.attn_compressor_norm.weight": ("is_compressed*head_dim",),
    "blk.{i}.indexer.attn_q_b.weight": ("n_lora_q", "is_chosen*n_indexer_head*n_indexer_key"),
    "blk.{i}.indexer.proj.weight": ("n_embd", "is_chosen*n_indexer_head"),
    "blk.{i}.indexer_compressor_kv.weight": ("n_embd", "2*is_chosen*n_indexer_key"),
    "blk.{i}.indexer_compressor_gate.weight": ("n_embd", "2*is_chosen*n_indexer_key"),
    "blk.{i}.indexer_compressor_ape.weight": ("2*is_chosen*n_indexer_key", "ratio"),
    "blk.{i}.indexer_compressor_norm.weight": ("is_chosen*n_indexer_key",),
    "blk.{i}.attn_sinks.weight": ("n_head",),
    "blk.{i}.attn_output_a.weight": ("n_group_columns", "n_lora_out", "n_groups_out"),
    "blk.{i}.attn_output_b.weight": ("n_lora_out*n_groups_out", "n_embd"),
}


def compressed_attention(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """Attention of layer ``i`` with its output projection.

    Shape:
        x [n_embd, T], normed -> the same
    """
    ctx, hp, n_tokens = b.ctx, b.hparams.of_layer(i), b.n_tokens
    n, n_head, n_groups = hp.head_dim, hp.n_head, hp.size("n_groups_out")
    latent = b.linear(x, f"blk.{i}.attn_q_a", f"qr-{i}")
    latent = b.rms_norm(latent, f"blk.{i}.attn_q_a_norm", f"qr_norm-{i}")  # [n_lora_q, T]
    q = b.linear(latent, f"blk.{i}.attn_q_b", f"q-{i}")
    q = b.rms_norm(ops.reshape_3d(ctx, q, n, n_head, n_tokens), "", f"q_norm-{i}")
    k = b.linear(x, f"blk.{i}.attn_kv", f"kv-{i}")
    k = b.rms_norm(k, f"blk.{i}.attn_kv_a_norm", f"kv_norm-{i}")
    k = b.rope(ops.reshape_3d(ctx, k, n, 1, n_tokens), f"Kcur-{i}", i)
    lists = _lists(b, x, latent, i) if hp.compress_ratio(i) else None
    out = b.attention(b.rope(q, f"Qcur-{i}", i), k, None, i, chosen=lists)  # [n * n_head, T]
    out = ops.reshape_3d(ctx, out, n, n_head, n_tokens)
    out = b.rope(out, f"attn_derope-{i}", i, back=True)
    out = ops.reshape_3d(ctx, out, n * n_head // n_groups, n_groups, n_tokens)
    out = ops.permute(ctx, out, 0, 2, 1, 3)  # [n * n_head / n_groups, T, n_groups]
    out = ops.mul_mat(ctx, b.weight(f"blk.{i}.attn_output_a.weight"), out)
    out = ops.cont(ctx, ops.permute(ctx, out, 0, 2, 1, 3)).set_name(f"attn_wo_a-{i}")
    out = ops.reshape_2d(ctx, out, out.ne[0] * n_groups, n_tokens)  # [n_lora_out * n_groups, T]
    return b.linear(out, f"blk.{i}.attn_output_b", f"attn_out-{i}")


def _lists(b: GraphBuilder, x: Tensor, latent: Tensor, i: int) -> Tensor:
    """Store the compressed rows that end with tokens of the ubatch; the cells to attend to.

    Shape:
        x [n_embd, T], latent queries [n_lora_q, T] -> I32 [2, n, T]
    """
    ctx, hp, n_tokens = b.ctx, b.hparams, b.n_tokens
    ratio = hp.compress_ratio(i)
    kv, lists = b.kv.compressed[ratio], b.lists[ratio][0]
    b.store(_compress(b, x, i, "attn_compressor", "pool"), None, i, kv)
    if i not in kv.indexer_keys:
        return lists
    b.store_index(_compress(b, x, i, "indexer_compressor", "pool_index"), i, kv)
    n, n_head = hp.size("n_indexer_key"), hp.size("n_indexer_head")
    q = b.linear(latent, f"blk.{i}.indexer.attn_q_b", f"lid_q-{i}")
    q = b.rope(ops.reshape_3d(ctx, q, n, n_head, n_tokens), f"lid_q-{i}", i)
    weights = b.linear(x, f"blk.{i}.indexer.proj", f"lid_weights-{i}")
    weights = ops.scale(ctx, weights, 1 / math.sqrt(n * n_head))
    chosen = ops.indexer_top_k(
        ctx, q, kv.indexer_keys[i], weights, kv.cells, b.rows[b.kv.caches.index(kv)],
        hp.n_sparse_keys, branches=kv.branches,
    )  # fmt: skip
    return ops.concat(ctx, lists, chosen.set_name(f"lid_top_k-{i}"), 1)


def _compress(b: GraphBuilder, x: Tensor, i: int, part: str, state: str) -> Tensor:
    """Rows that are complete at the last tokens of their groups: x [n_embd, T] -> [n, 1, T]."""
    ctx, prefix, ratio = b.ctx, f"blk.{i}.{part}", b.hparams.compress_ratio(i)
    bias = b.weight(f"{prefix}_ape.weight")  # [n_compressed, ratio]
    bias = bias if bias.type is GGMLType.F32 else ops.cast(ctx, bias, GGMLType.F32)
    values = b.linear(x, f"{prefix}_kv", f"{part}_kv-{i}")
    scores = b.linear(x, f"{prefix}_gate", f"{part}_gate-{i}")
    rows = ops.gated_pool(
        ctx, values, scores, bias, b.positions, b.state(state, i), overlap=ratio == CHOSEN_RATIO
    )
    rows = b.rms_norm(rows.set_name(f"{part}-{i}"), f"{prefix}_norm", f"{part}_norm-{i}")
    rows = ops.reshape_3d(ctx, rows, rows.ne[0], 1, b.n_tokens)
    first = ops.cast(ctx, b.positions, GGMLType.F32)  # of the group that a token ends
    first = ops.cast(ctx, ops.scale_bias(ctx, first, 1.0, float(1 - ratio)), GGMLType.I32)
    return b.rope(rows, f"{part}-{i}", i, first)
