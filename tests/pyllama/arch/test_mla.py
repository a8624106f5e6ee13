"""Caches of latent attention: values are columns of the keys, of which the last are rotated."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, write_gguf
from pyllama import Batch, Context, Model
from pyllama.convert import ConvertOptions, convert
from pyllama.errors import BatchError
from pyllama.runtime.state import load_state, save_state

from .checkpoints import recorded, shapes_of, variants, weights, write_checkpoint, write_files

F16, F32, Q8_0 = GGMLType.F16, GGMLType.F32, GGMLType.Q8_0
TOKENS = recorded("deepseek2")["tokens"].tolist()
FEW = 12
ROUNDED = 0.01  # NMSE: Q8_0 keys, which now and then choose another expert


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = write_checkpoint(tmp_path_factory.mktemp("mla") / "x", "deepseek2")
    return Model.load(convert(folder, folder / "x.gguf", "f32"))


def rows(context: Context, tokens: list[int], **options: Any) -> np.ndarray:
    context.decode(Batch(tokens, logits="all", **options))
    return context.logits.copy()


def keys(context: Context, seq: int = 0) -> list[np.ndarray]:
    """The keys of a sequence in each layer, float32 [n, head_dim]."""
    cache = context.kv.caches[0]
    cells = cache.entries(seq)[:, 0]
    return [k.numpy(squeeze=False)[0, 0, cells].astype(np.float32) for k in cache.k.values()]


@pytest.mark.parametrize("type", [F32, F16, Q8_0])
def test_the_cache_has_only_keys(model: Model, type: GGMLType) -> None:
    cache = Context(model, n_ctx=64, type_k=type, type_v=F16).kv.caches[0]
    row = 128 // type.block_size * type.type_size
    assert cache.size_bytes == 3 * 64 * row == sum(k.nbytes for k in cache.stored)
    assert [t.ne[0] for t in cache.k.values()] == [128] * 3
    for k, v in zip(cache.k.values(), cache.v.values(), strict=True):
        assert (v.ne, v.type, v.nb, v.data) == ((64, *k.ne[1:]), type, k.nb, k.data)
    assert cache.rotate_k == cache.rotate_v == (64 if type is Q8_0 else 0)


@pytest.mark.parametrize("type", [F32, F16, Q8_0])
def test_sequences_and_states(model: Model, type: GGMLType, tmp_path: Path) -> None:
    make = partial(Context, model, n_ctx=128, type_k=type, type_v=type)
    whole = rows(make(), TOKENS)
    if type is not F32:
        exact = rows(Context(model, n_ctx=128, type_k=F32, type_v=F32), TOKENS)
        assert ((whole - exact) ** 2).sum() < ROUNDED * (exact**2).sum()
    for unified in (True, False):
        context = make(n_seq_max=2, unified=unified)
        assert np.array_equal(rows(context, TOKENS[:FEW]), whole[:FEW])
        context.kv.seq_cp(0, 1)
        assert np.array_equal(rows(context, TOKENS[FEW:], seq_id=1), whole[FEW:])
        save_state(context, tmp_path / "x", TOKENS[:FEW], seq=0)
        other = make(n_seq_max=2, unified=unified)
        assert load_state(other, tmp_path / "x", seq=1) == TOKENS[:FEW]
        assert np.array_equal(rows(other, TOKENS[FEW:], seq_id=1), whole[FEW:])


def test_shifts_rotate_the_last_columns_only(model: Model) -> None:
    make = partial(Context, model, n_ctx=64, type_k=F32, type_v=F32)
    shifted, wanted = make(), make()
    rows(shifted, TOKENS[:FEW], pos=list(range(5, 5 + FEW)))
    before = keys(shifted)
    shifted.kv.seq_add(0, 0, -1, -5)
    want = rows(wanted, TOKENS)
    got = rows(shifted, TOKENS[FEW:])
    assert np.abs(got - want[FEW:]).max() < 1e-4
    for old, new, right in zip(before, keys(shifted), keys(wanted), strict=True):
        assert np.array_equal(old[:, :64], new[:FEW, :64])
        assert np.abs(new - right).max() < 1e-5 and np.abs(old - new[:FEW]).max() > 0.1


def test_a_quantized_cache_shifts_too(model: Model) -> None:
    context = Context(model, n_ctx=64, type_k=Q8_0)
    rows(context, TOKENS[:FEW], pos=list(range(5, 5 + FEW)))
    context.kv.seq_add(0, 0, -1, -5)
    got, want = rows(context, TOKENS[FEW:]), rows(Context(model, n_ctx=64), TOKENS)[FEW:]
    assert ((got - want) ** 2).sum() < ROUNDED * (want**2).sum()


def test_blocks_that_do_not_divide_a_row(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "x", "deepseek2_lite")  # rows of 64 + 16
    model = Model.load(convert(folder, folder / "x.gguf", "f32"))
    with pytest.raises(BatchError, match=r"type_k is Q8_0.* 80 columns; use F16"):
        Context(model, n_ctx=64, type_k=Q8_0)


def test_multi_token_prediction_is_left_out(tmp_path: Path) -> None:
    """On demand of checkpoints, after the last layer; of files, in blocks that have a key."""
    record, (_, config) = recorded("deepseek2_v3"), variants()["deepseek2_v3"]
    shapes = shapes_of(record)
    last = {
        k.replace(".layers.3.", ".layers.4."): x for k, x in shapes.items() if ".layers.3." in k
    }
    more = {**shapes, **last, "model.layers.4.eh_proj.weight": (64, 128)}
    made = weights("deepseek_v3", more, float(record["scale"]))
    longer = write_files(tmp_path / "y", {**config, "num_nextn_predict_layers": 1}, made)
    folder = write_checkpoint(tmp_path / "x", "deepseek2_v3")
    path, other = (
        convert(x, tmp_path / f"{x.name}.gguf", "f32", options=ConvertOptions(mtp=False))
        for x in (folder, longer)
    )
    with GGUFFile(other) as file:
        assert not any(".4." in name for name in file.tensors)

    with GGUFFile(path) as file:
        data: dict[str, Any] = {
            n: (file.tensor_bytes(n), t.type, t.ne[: t.n_dims]) for n, t in file.tensors.items()
        }
        metadata = dict(file.metadata)
    data |= {n.replace("blk.3", "blk.4"): x for n, x in data.items() if n.startswith("blk.3.")}
    data["blk.4.nextn.eh_proj.weight"] = np.zeros((64, 128), np.float32)
    keys = {"block_count": 5, "nextn_predict_layers": 1, "feed_forward_length": np.full(5, 160)}
    write_gguf(tmp_path / "z.gguf", metadata | {f"deepseek2.{k}": v for k, v in keys.items()}, data)
    want, got = (
        rows(Context(Model.load(p), n_ctx=64), TOKENS) for p in (path, tmp_path / "z.gguf")
    )
    assert np.array_equal(got, want)


def test_layers_that_config_json_does_not_count_are_left_out(tmp_path: Path) -> None:
    record, (_, config) = recorded("dots3note"), variants()["dots3note"]
    more: dict[str, tuple[int, ...]] = {
        "model.mtp.embed_tokens.weight": (512, 64),
        "model.layers.4.eh_proj.weight": (64, 128),
        "model.layers.4.input_layernorm.weight": (64,),
    }
    made = weights("dots3_note", {**shapes_of(record), **more}, float(record["scale"]))
    longer = write_files(tmp_path / "y", dict(config), made)
    with GGUFFile(convert(longer, tmp_path / "y.gguf", "f32")) as file:
        assert not any(".4." in name for name in file.tensors)


def test_contexts_of_sparse_attention(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files without the sizes of groups, as llama.cpp's converter may write them."""
    folder = write_checkpoint(tmp_path / "x", "qwen4exp")  # a token attends to 64 keys
    with GGUFFile(convert(folder, folder / "x.gguf", "f32")) as file:
        data: dict[str, Any] = {
            n: (file.tensor_bytes(n), t.type, t.ne[: t.n_dims]) for n, t in file.tensors.items()
        }
        ratios = {"qwen4exp.attention.compress_ratios": np.zeros(3, np.int32)}
        write_gguf(tmp_path / "y.gguf", {**file.metadata, **ratios}, data)
    context = Context(Model.load(tmp_path / "y.gguf"), n_ctx=4096)
    assert context.n_ctx == 64
    assert "chosen keys only, which is supported up to 64 positions" in caplog.text
    with pytest.raises(BatchError, match="position 64: the largest is 63"):
        context.decode(Batch([5], pos=[64]))


def test_files_with_one_matrix_of_keys_and_values(tmp_path: Path) -> None:
    """DeepSeek's from before the matrices were apart: the cache has the expanded heads."""
    folder = write_checkpoint(tmp_path / "x", "deepseek2")
    path, old = convert(folder, tmp_path / "x.gguf", "f32"), tmp_path / "old.gguf"
    with GGUFFile(path) as file:
        metadata = {k: v for k, v in file.metadata.items() if not k.endswith("_length_mla")}
        data: dict[str, Any] = {
            n: (file.tensor_bytes(n), t.type, t.ne[: t.n_dims]) for n, t in file.tensors.items()
        }
    for i in range(3):
        k, v = (data.pop(f"blk.{i}.attn_{x}_b.weight") for x in "kv")
        keys = k[0].view(np.float32).reshape(k[2][::-1]).swapaxes(1, 2)
        values = v[0].view(np.float32).reshape(v[2][::-1])
        both = np.concatenate([keys, values], axis=1).reshape(4 * 64, 64)
        data[f"blk.{i}.attn_kv_b.weight"] = np.ascontiguousarray(both)
    sizes = {"head_count_kv": 4, "key_length": 96, "value_length": 32}
    metadata |= {f"deepseek2.attention.{k}": v for k, v in sizes.items()}
    write_gguf(old, metadata, data)
    ctx = Context(Model.load(old), n_ctx=64, type_k=F32, type_v=F32)
    assert [t.ne[0] for t in ctx.kv.caches[0].stored] == [96] * 3 + [32] * 3
    want = rows(Context(Model.load(path), n_ctx=64, type_k=F32, type_v=F32), TOKENS)
    assert np.abs(rows(ctx, TOKENS) - want).max() < 1e-4


@pytest.mark.parametrize("name", ["minicpm3", "plm"])
def test_expanded_keys_shift_too(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "x", name)
    model = Model.load(convert(folder, folder / "x.gguf", "f32"))
    shifted, wanted = (Context(model, n_ctx=64, type_k=F32, type_v=F32) for _ in range(2))
    rows(shifted, TOKENS[:FEW], pos=list(range(5, 5 + FEW)))
    shifted.kv.seq_add(0, 0, -1, -5)
    want = rows(wanted, TOKENS)
    assert np.abs(rows(shifted, TOKENS[FEW:]) - want[FEW:]).max() < 1e-4


def test_reduced_rows_are_those_of_the_keys(model: Model) -> None:
    context = Context(model, n_ctx=64, type_k=F32, type_v=F32, kv_keep=12, kv_window=4)
    tokens = TOKENS[:4] * 5
    rows(context, tokens)
    before = keys(context)
    rows(context, [TOKENS[5]])
    for old, new in zip(before, keys(context), strict=True):
        kept = [np.flatnonzero((old == row).all(axis=1)).tolist() for row in new[:12]]
        assert [0] in kept and [*kept[-4:]] == [[16], [17], [18], [19]]
        assert kept == sorted(kept) and len(new) == 13
