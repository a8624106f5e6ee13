"""Merged adapters: the logits of the adapters applied at run time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile
from pyllama import Batch, Context, Model
from pyllama.errors import ModelError
from pyllama.quantize.merge_lora import merge_lora
from pyllama.runtime.adapters import load_lora

from ..adapters import adaptable, random_terms, write_lora
from ..models import Spec, random_weights, write_model

F32 = GGMLType.F32
TOKENS = [1, 70, 71, 72, 80, 99, 3, 5]


@pytest.mark.parametrize("tied", [False, True])
def test_merged_equals_unmerged(tmp_path: Path, tied: bool) -> None:
    spec = Spec(tied=tied)
    scales = {f"blk.1.{m}.scale": np.full(1, 0.25, np.float32) for m in ("attn_q", "ffn_down")}
    path = write_model(tmp_path / "x.gguf", spec, {**random_weights(spec), **scales})
    model, files = Model.load(path), list[Path]()
    sizes = adaptable(model)
    for i in range(2):
        terms = random_terms(sizes, spec.n_vocab, rank=3 + i, seed=i)
        if tied:
            terms.pop("token_embd.weight")
        files.append(write_lora(tmp_path / f"{i}.gguf", "llama", terms, 8))
    n = merge_lora(path, [(files[0], 0.5), (files[1], -1.0)], tmp_path / "m.gguf", "f32")
    assert n == len(sizes) - tied
    context = Context(model, n_ctx=32, type_k=F32, type_v=F32)
    loras = [load_lora(file, model) for file in files]
    context.set_adapters(loras, {loras[0]: 0.5, loras[1]: -1.0})
    merged = Context(Model.load(tmp_path / "m.gguf"), n_ctx=32, type_k=F32, type_v=F32)
    for one in (context, merged):
        one.decode(Batch(TOKENS, logits="all"))
    assert np.abs(context.logits - merged.logits).max() < 1e-4


def test_types_and_refusals(tmp_path: Path) -> None:
    spec = Spec(n_ff=64)
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec), GGMLType.Q8_0)
    model = Model.load(path)
    sizes = {"blk.0.attn_q.weight": adaptable(model)["blk.0.attn_q.weight"]}
    lora = write_lora(tmp_path / "a.gguf", "llama", random_terms(sizes, spec.n_vocab))
    for outtype, wanted in (("keep", "Q8_0"), ("f16", "F16"), ("q4_0", "Q4_0")):
        merge_lora(path, [(lora, 1.0)], tmp_path / "m.gguf", outtype)
        tensors = GGUFFile(tmp_path / "m.gguf").tensors
        assert tensors["blk.0.attn_q.weight"].type.name == wanted
        assert tensors["blk.1.attn_q.weight"].type.name == "Q8_0"
    with pytest.raises(ModelError, match="outtype"):
        merge_lora(path, [(lora, 1.0)], tmp_path / "n.gguf", "q9")
    with pytest.raises(ModelError, match="the scale is nan"):
        merge_lora(path, [(lora, float("nan"))], tmp_path / "n.gguf")
    embedding = {"token_embd.weight": adaptable(model)["token_embd.weight"]}
    tied = write_lora(tmp_path / "t.gguf", "llama", random_terms(embedding, spec.n_vocab))
    with pytest.raises(ModelError, match="tied"):
        merge_lora(path, [(tied, 1.0)], tmp_path / "n.gguf")
    assert not (tmp_path / "n.gguf").exists()
    for source in (path, lora):
        before = source.read_bytes()
        with pytest.raises(ModelError, match="is a source; choose another name"):
            merge_lora(path, [(lora, 1.0)], source)
        assert source.read_bytes() == before
