"""Files of adapters and control vectors: what is read, what is refused, and what is not changed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFError, GGUFFile, write_gguf
from pyggml.quants import dequantize, quantize
from pyllama import Batch, Context, Model
from pyllama.errors import BatchError, ModelError
from pyllama.runtime.adapters import load_control_vector, load_lora

from ..adapters import adaptable, merge, random_terms, write_lora, write_vector
from ..models import Spec, random_weights, write_model

SPEC = Spec(n_embd=64, n_ff=96, tied=False)
TOKENS = [1, 70, 71, 72, 80, 99, 3, 5]
F32 = GGMLType.F32


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base") / "x.gguf", SPEC, random_weights(SPEC))


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return Model.load(path)


def terms_of(model: Model, rank: int = 4, seed: int = 0) -> dict[str, Any]:
    return dict(random_terms(adaptable(model), 261, rank, seed))


def logits(model: Model, **options: Any) -> np.ndarray:
    context = Context(model, n_ctx=32, type_k=F32, type_v=F32)
    context.decode(Batch(TOKENS, logits="all", **options))
    return context.logits.copy()


@pytest.mark.parametrize("type", ["F32", "F16", "BF16", "Q8_0"])
def test_types_of_matrices_and_ranks_of_tensors(
    tmp_path: Path, path: Path, model: Model, type: str
) -> None:
    kind, terms, stored = GGMLType[type], {}, {}
    for i, (name, ne) in enumerate(adaptable(model).items()):
        terms |= random_terms({name: ne}, 261, 32 if type == "Q8_0" else 2 + i % 3, seed=i)
    for name, pair in terms.items():
        for part, x in zip(("lora_a", "lora_b"), pair, strict=True):
            blocks = quantize(x, kind)
            stored[f"{name}.{part}"] = blocks, kind, x.shape[::-1]
        terms[name] = tuple(
            dequantize(stored[f"{name}.{part}"][0], kind).reshape(x.shape)
            for part, x in zip(("lora_a", "lora_b"), pair, strict=True)
        )
    keys = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    write_gguf(tmp_path / "a.gguf", keys, stored)  # without alpha the factor is 1
    lora = load_lora(tmp_path / "a.gguf", model)
    context = Context(model, n_ctx=32, type_k=F32, type_v=F32)
    context.set_adapters([lora], {lora: 1.0})
    context.decode(Batch(TOKENS, logits="all"))
    wanted = logits(Model.load(merge(tmp_path / "m.gguf", path, [(terms, 1.0)])))
    assert np.abs(context.logits - wanted).max() < 1e-4


@pytest.mark.parametrize(
    ("type", "size", "rank"),
    [
        ("F16", 1, 4), ("Q8_0", 1, 4), ("Q4_0", 1, 4), ("F16", 1 << 24, 4), ("Q4_0", 1 << 24, 4),
        ("Q8_0", 1, 16), ("Q4_0", 1, 24), ("Q4_0", 1, 48), ("F16", 2**-22, 4), ("Q4_0", 2**-22, 16),
        ("Q8_0", 1, 3),
    ],
)  # fmt: skip
def test_bases_of_other_types(tmp_path: Path, type: str, size: float, rank: int) -> None:
    """Also with values of B that are too large or too small for F16, and the alpha for them.

    Of the ranks, the blocks of Q8_0 fit all matrices (16), some (24, 48) or none (3, 4).
    """
    base = write_model(tmp_path / "x.gguf", SPEC, random_weights(SPEC), GGMLType[type])
    model = Model.load(base)
    plain, terms = logits(model), terms_of(model, rank)
    sized = {name: (a, b * size) for name, (a, b) in terms.items()}
    lora = load_lora(write_lora(tmp_path / "a.gguf", "llama", sized, rank / size), model)
    context = Context(model, n_ctx=32, type_k=F32, type_v=F32)
    context.set_adapters([lora])
    context.decode(Batch(TOKENS, logits="all", adapters=context.scales({lora: 1.0})))
    changed = context.logits.copy()
    context.reset()
    context.decode(Batch(TOKENS, logits="all"))
    assert np.array_equal(context.logits, plain)
    wanted = logits(Model.load(merge(tmp_path / "m.gguf", base, [(terms, 1.0)])))
    error = np.abs(changed - wanted).max()
    assert error < (1e-2 if type == "F16" else 0.2)  # activations are rounded in the base alone
    assert error < np.abs(changed - plain).max() / 3


@pytest.mark.parametrize("type", ["F16", "Q8_0"])
def test_an_adapter_has_the_same_bits_beside_others(tmp_path: Path, type: str) -> None:
    """Also beside those of ranks that blocks of Q8_0 do not fit."""
    base = write_model(tmp_path / "x.gguf", SPEC, random_weights(SPEC), GGMLType[type])
    model = Model.load(base)
    loras = [
        load_lora(write_lora(tmp_path / f"{rank}.gguf", "llama", terms_of(model, rank)), model)
        for rank in (16, 3, 5)
    ]
    for lora in loras:
        results = []
        for loaded in ([lora], loras):
            context = Context(model, n_ctx=32)
            context.set_adapters(loaded, {lora: 0.5})
            context.decode(Batch(TOKENS, logits="all"))
            results.append(context.logits.copy())
        assert np.array_equal(*results)


def test_graphs_without_adapters_stay_as_they_are(tmp_path: Path, model: Model) -> None:
    context = Context(model, n_ctx=32)

    def nodes() -> list[tuple[Any, ...]]:
        return [(n.name, n.op.name if n.op else "", n.ne) for n in context.graph(3, 1).graph.nodes]

    before = nodes()
    context.set_adapters(
        [load_lora(write_lora(tmp_path / "a.gguf", "llama", terms_of(model)), model)]
    )
    assert nodes() == before
    assert not any(op.startswith("LORA") for _, op, _ in before)


def test_control_vectors(tmp_path: Path, model: Model) -> None:
    path = write_vector(tmp_path / "v.gguf", 64, 2)
    vector = load_control_vector(path, model)
    context = Context(model, n_ctx=32, type_k=F32, type_v=F32)
    context.set_adapters([vector, vector], {vector: 0.5})  # used once
    outputs: dict[str, np.ndarray] = {}

    def observe(node: Any, ask: bool) -> bool:
        if not ask:
            outputs[node.name] = node.numpy().copy()
        return node.name in ("ffn-1_res", "ffn_out-1_res", "l_out-1", "result_norm")

    with context.watched(observe):
        context.decode(Batch(TOKENS, logits="all"))
    direction = GGUFFile(path).tensor_bytes("direction.1").view(np.float32)
    plain = Context(model, n_ctx=32, type_k=F32, type_v=F32)
    wanted: dict[str, np.ndarray] = {}

    def keep(node: Any, ask: bool) -> bool:
        if not ask:
            wanted[node.name] = node.numpy().copy()
        return bool(node.name == "l_out-1")

    with plain.watched(keep):
        plain.decode(Batch(TOKENS, logits="all"))
    assert np.abs(outputs["l_out-1"] - (wanted["l_out-1"] + 0.5 * direction)).max() < 1e-6
    for first, last, message in ((2, 9, "no direction lies in the layers 2 to 9"),):
        with pytest.raises(ModelError, match=message):
            load_control_vector(path, model, first, last)
    wrong = (
        ({"direction.1": np.ones(32, np.float32)}, "this model wants F32 .64."),
        ({"direction.0": np.ones(64, np.float32)}, "no direction of a layer"),
        ({"direction.x": np.ones(64, np.float32)}, "no direction of a layer"),
        ({"direction.1": np.full(64, np.nan, np.float32)}, "NaN or infinite"),
        ({"direction.1": np.ones((64, 64), np.float32)}, "this model wants F32"),
    )
    for tensors, message in wrong:
        write_gguf(tmp_path / "w.gguf", {"general.architecture": "controlvector"}, tensors)
        with pytest.raises(ModelError, match=message):
            load_control_vector(tmp_path / "w.gguf", model)


FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "base": ({"general__architecture": "qwen2"}, {}, "for qwen2 models, this model is llama"),
    "kind": ({"general__type": "model"}, {}, "general.type is 'model', want 'adapter'"),
    "no kind": ({"general__type": None}, {}, "general.type is ''"),
    "method": ({"adapter__type": "ia3"}, {}, "adapter.type is 'ia3', want 'lora'"),
    "alpha": ({"adapter__lora__alpha": np.float32("nan")}, {}, "adapter.lora.alpha is nan"),
    "huge alpha": ({"adapter__lora__alpha": np.float32(1e30)}, {}, "adapter.lora.alpha is 1e"),
    "token": (
        {"adapter__alora__invocation_tokens": np.array([1, 999], np.uint32)}, {},
        "invocation token 999",
    ),
    "pair": ({}, {"blk.0.attn_q.weight.lora_b": None}, "attn_q.weight.lora_b' is missing"),
    "suffix": (
        {}, {"blk.0.attn_q.weight.lora_magnitude_vector": np.ones(4, np.float32)}, "DoRA and other",
    ),
    "sizes": (
        {}, {"blk.1.ffn_up.weight.lora_a": np.ones((4, 63), np.float32)}, "this model wants .64,",
    ),
    "ranks": (
        {}, {"blk.1.ffn_up.weight.lora_a": np.ones((5, 64), np.float32)}, "do not multiply",
    ),
    "no rank": (
        {}, {
            "blk.1.ffn_up.weight.lora_a": np.ones((0, 64), np.float32),
            "blk.1.ffn_up.weight.lora_b": np.ones((96, 0), np.float32),
        }, "ffn_up.weight' has rank 0",
    ),
    "type": (
        {}, {"blk.1.ffn_up.weight.lora_a": np.ones((4, 64))}, "ffn_up.weight.lora_a': F64 is not",
    ),
    "layer": (
        {}, {f"blk.7.attn_q.weight.lora_{x}": np.ones((4, 4), np.float32) for x in "ab"},
        "'blk.7.attn_q.weight' does not exist in this llama model; is it the adapter's base",
    ),
    "norm": (
        {}, {f"blk.0.attn_norm.weight.lora_{x}": np.ones((4, 4), np.float32) for x in "ab"},
        "cannot be changed by adapters",
    ),
    "nan": ({}, {"blk.1.ffn_up.weight.lora_a": np.full((4, 64), np.inf, np.float32)}, "NaN or inf"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named_in_one_line(tmp_path: Path, model: Model, fault: str) -> None:
    metadata, tensors, message = FAULTS[fault]
    file = GGUFFile(write_lora(tmp_path / "a.gguf", "llama", terms_of(model), **metadata))
    every = {
        name: file.tensor_bytes(name).view(np.float32).reshape(info.ne[1::-1])
        for name, info in file.tensors.items()
    } | tensors
    every = {name: x for name, x in every.items() if x is not None}
    write_gguf(tmp_path / "b.gguf", file.typed_metadata(), every)
    with pytest.raises(ModelError, match=message) as error:
        load_lora(tmp_path / "b.gguf", model)
    assert "\n" not in str(error.value)


def test_truncated_files_and_factors(tmp_path: Path, model: Model) -> None:
    path = write_lora(tmp_path / "a.gguf", "llama", terms_of(model))
    data = path.read_bytes()
    for n in (0, 10, 100, len(data) // 2, len(data) - 40):  # padding comes last
        (tmp_path / "cut.gguf").write_bytes(data[:n])
        with pytest.raises(GGUFError):
            load_lora(tmp_path / "cut.gguf", model)
    with pytest.raises(ModelError, match="is an adapter, not a model: load its base"):
        Model.load(path)
    lora, context = load_lora(path, model), Context(model, n_ctx=32)
    with pytest.raises(BatchError, match="not loaded"):
        context.scales({lora: 1.0})
    context.set_adapters([lora])
    for bad in (float("nan"), float("inf"), 1e9):
        with pytest.raises(ModelError, match="the scale is"):
            context.apply({lora: bad})
    for wrong in (np.ones(2, np.float32), np.ones((3, 1), np.float32)):
        with pytest.raises(BatchError, match="a factor for each adapter"):
            context.decode(Batch(TOKENS, adapters=wrong))
    assert context.applied == {}
    context.apply({lora: 1.0})
    others = [load_lora(path, model) for _ in range(2)]
    for factors, message in (({others[0]: 1e9}, "the scale is"), ({lora: 1.0}, "not loaded")):
        with pytest.raises((BatchError, ModelError), match=message):
            context.set_adapters(others, factors)
        assert context.adapters == (lora,)
        context.decode(Batch(TOKENS))


def test_norms_are_left_out_as_by_llama_cpp(
    tmp_path: Path, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    terms = {"blk.0.attn_q.weight": terms_of(model)["blk.0.attn_q.weight"]}
    file = GGUFFile(write_lora(tmp_path / "a.gguf", "llama", terms))
    every = {
        name: file.tensor_bytes(name).view(np.float32).reshape(info.ne[1::-1])
        for name, info in file.tensors.items()
    }
    every["blk.0.attn_norm.weight"] = np.ones(64, np.float32)
    write_gguf(tmp_path / "b.gguf", file.typed_metadata(), every)
    with caplog.at_level(logging.WARNING):
        assert list(load_lora(tmp_path / "b.gguf", model).terms) == ["blk.0.attn_q.weight"]
    assert "attn_norm.weight' is not applied" in caplog.text
