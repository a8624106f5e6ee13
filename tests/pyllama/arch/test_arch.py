"""Every architecture against its reference: converted from a checkpoint, then run.

The cases are those of ``variants/``. Logits may differ from transformers' by 1e-4 and from
llama.cpp's, where transformers lacks the model, by 2e-3 (their standard deviation is about 1.5);
they have the same bits however the tokens are cut up. Keys and tensors are those of llama.cpp's
converter.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, write_gguf
from pyggml.viz import graph_dump_dot
from pyllama import Batch, Context, Model
from pyllama.arch import get_arch
from pyllama.errors import ModelError
from pyllama.gguf_tools.validate import validate

from .checkpoints import (
    EVERY,
    conversions,
    firsts,
    long_but,
    own_graphs,
    recorded,
    variants,
    write_checkpoint,
)
from .llama_cpp import described
from .variants import DIFFERENT

F32 = GGMLType.F32
NAMES = sorted(variants())
SOME = long_but(own_graphs(), ("falcon_40b", "gemma3", "qwen3moe"))
ROUNDED = 0.02  # NMSE: weights of 16 or 8 bits, activations of 8, an F16 cache


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes a variant's checkpoint once, and each conversion of it once."""
    return conversions(tmp_path_factory.mktemp("checkpoints"), write_checkpoint)


def logits(
    model: Model, tokens: list[int], cuts: tuple[int, ...] = (), **options: Any
) -> np.ndarray:
    """Logits of all tokens, decoded in parts that end at ``cuts``."""
    context = Context(model, **{"n_ctx": 64, **options})
    parts = []
    for start, stop in pairwise((0, *cuts, len(tokens))):
        context.decode(Batch(tokens[start:stop], logits="all"))
        parts.append(context.logits.copy())
    return np.concatenate(parts)


@pytest.mark.parametrize("name", long_but(NAMES, own_graphs()))
def test_the_reference_s_logits_and_greedy_tokens(folders: Any, name: str) -> None:
    record = recorded(name)
    context = Context(Model.load(folders(name)), n_ctx=128, type_k=F32, type_v=F32)
    context.decode(Batch(record["tokens"].tolist(), logits="all"))
    if "logits" in record:
        assert np.abs(context.logits[::EVERY] - record["logits"]).max() < 1e-4
    greedy, logprobs = [], []
    for _ in record["greedy"]:
        logits = context.logits_ith(-1).astype(np.float64)
        logprobs.append(logits - np.log(np.exp(logits).sum()))
        greedy.append(int(logits.argmax()))
        context.decode(Batch(greedy[-1:]))
    assert greedy == record["greedy"].tolist()
    if "logprobs" in record:
        assert np.abs(np.array(logprobs)[::EVERY] - record["logprobs"]).max() < 2e-3


@pytest.mark.parametrize("name", long_but(NAMES, firsts()))
def test_keys_and_tensors_of_llama_cpp_s_converter(folders: Any, name: str) -> None:
    wanted, ours = json.loads(str(recorded(name)["gguf"])), described(folders(name))
    if not wanted:
        pytest.skip("llama.cpp does not convert this variant")
    others = {"architecture"} if ours["architecture"] != wanted["architecture"] else set()
    others |= {k for k, v in wanted["keys"].items() if not _same(ours["keys"].get(k), v)}
    both = ours["tensors"].keys() | wanted["tensors"].keys()
    others |= {t for t in both if ours["tensors"].get(t) != wanted["tensors"].get(t)}
    assert others == set(DIFFERENT.get(name, ()))


def _same(a: Any, b: Any) -> bool:
    return a == b if isinstance(b, str | bool) else a is not None and np.allclose(a, b, 1e-6, 0)


@pytest.mark.parametrize("name", SOME)
def test_the_same_bits_anyhow(folders: Any, name: str) -> None:
    tokens = recorded(name)["tokens"].tolist()
    model = Model.load(folders(name, "q8_0"))
    in_place = Model.load(folders(name, "q8_0"), repack=False)
    whole = logits(model, tokens, n_threads=1)
    one_by_one = tuple(range(1, len(tokens)))
    for other in (
        logits(model, tokens, n_threads=2),
        logits(model, tokens, one_by_one, n_threads=2),
        logits(model, tokens, n_ubatch=7),
        logits(in_place, tokens, (1, 4, 21), n_ubatch=16),
    ):
        assert np.array_equal(other, whole)


@pytest.mark.parametrize("name", SOME)
def test_rounded_weights(folders: Any, name: str) -> None:
    record = recorded(name)
    tokens = record["tokens"].tolist()
    got, wanted = (logits(Model.load(folders(name, t)), tokens) for t in ("q8_0", "f32"))
    if "logits" in record:
        wanted[::EVERY] = record["logits"]
    assert ((got - wanted) ** 2).sum() < ROUNDED * (wanted**2).sum()


@pytest.mark.parametrize("name", SOME)
def test_the_graph_can_be_drawn(folders: Any, name: str, tmp_path: Path) -> None:
    graph = Context(Model.load(folders(name)), n_ctx=64).graph(4, 1).graph
    graph_dump_dot(graph, tmp_path / "x.dot")
    text = (tmp_path / "x.dot").read_text()
    assert "result_output" in text and "_out-2" in text


@pytest.mark.parametrize("name", SOME)
def test_missing_and_unknown_tensors_are_named(folders: Any, name: str, tmp_path: Path) -> None:
    file = GGUFFile(folders(name))
    tensors: dict[str, Any] = {
        t: (file.tensor_bytes(t), info.type, info.ne[: info.n_dims])
        for t, info in file.tensors.items()
    }
    arch = Model.load(folders(name), vocab_only=True).arch
    lost = next(p for p in arch.TENSORS if not p.endswith("?")).replace("{i}", "1")
    write_gguf(tmp_path / "x.gguf", file.metadata, {t: v for t, v in tensors.items() if t != lost})
    with pytest.raises(ModelError, match=f"tensor '{lost}' is missing"):
        Model.load(tmp_path / "x.gguf")
    tensors["blk.0.strange.weight"] = np.zeros(8, np.float32)
    write_gguf(tmp_path / "y.gguf", file.metadata, tensors)
    with pytest.raises(ModelError, match=r"such as 'blk.0.strange.weight'"):
        Model.load(tmp_path / "y.gguf")


@pytest.mark.parametrize("name", SOME)
def test_a_tensor_too_few_is_a_fault_or_no_need(folders: Any, name: str, tmp_path: Path) -> None:
    """Without an optional tensor, ``validate`` reports it missing, or the model runs."""
    with GGUFFile(folders(name)) as file:
        metadata = dict(file.metadata)
        tensors = {n: (file.tensor_bytes(n), t.type, t.ne) for n, t in file.tensors.items()}
    arch = get_arch(metadata["general.architecture"])
    patterns = {
        p.rstrip("?") for p, ne in arch.TENSORS.items() if p.endswith("?") or "norm" in ne[-1]
    }
    patterns |= {p for p in arch.TENSORS if p.startswith("project_")}
    names = {p.replace("{i}", "0") for p in patterns} & set(tensors)
    for lost in sorted(names):
        path = tmp_path / "x.gguf"
        write_gguf(path, metadata, {n: t for n, t in tensors.items() if n != lost})
        if validate(path).faults:
            with pytest.raises(ModelError, match=f"'{lost}' is missing"):
                Model.load(path)
        else:
            assert np.isfinite(logits(Model.load(path), [1, 2, 3])).all(), lost
