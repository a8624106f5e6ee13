"""Every architecture with all that a context can do, or one clear line that says why it cannot.

Types of caches, moved positions, copies of sequences, saved states, several sequences in one batch,
embeddings, and texts longer than the context. The first variant of each architecture
with a graph of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyllama import Batch, Context, Model
from pyllama.convert import convert
from pyllama.engine.generate import generate
from pyllama.errors import BatchError
from pyllama.runtime.state import load_state, save_state
from pyllama.sampling import SamplingParams

from ..models import rows
from .checkpoints import long_but, own_graphs, recorded, write_checkpoint

F32 = GGMLType.F32
# NMSE of a token's logits with an 8-bit cache, whose rounding may choose other experts for a few
ROUNDED, MEDIAN, REROUTED_MEAN = 0.05, 0.02, 0.1
GREEDY = SamplingParams(temp=0.0, ignore_eos=True)


@pytest.fixture(scope="module", params=long_but(own_graphs(), ("gemma3", "llama", "mpt")))
def case(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, list[int]]:
    folder = tmp_path_factory.mktemp("x")
    path = convert(write_checkpoint(folder / "x", request.param), folder / "x.gguf", "f32")
    return Model.load(path), recorded(request.param)["tokens"].tolist()[:24]


def context(model: Model, **options: Any) -> Context:
    return Context(model, **{"n_ctx": 64, "n_seq_max": 2, "type_k": F32, "type_v": F32, **options})


def logits(ctx: Context, batch: Batch) -> np.ndarray:
    ctx.decode(batch)
    return ctx.logits_ith(-1).copy()


def test_quantized_caches(case: tuple[Model, list[int]]) -> None:
    model, tokens = case
    columns = {*model.hparams.head_dim_arr, *model.hparams.head_dim_v_arr}
    rounded = {"type_k": GGMLType.Q8_0, "type_v": GGMLType.Q8_0}
    if any(n % 32 for n in columns):
        with pytest.raises(BatchError, match=r"type_[kv] is Q8_0.*use F16"):
            context(model, **rounded)
        return
    wanted, got = (rows(context(model, **options), tokens) for options in ({}, rounded))
    errors = ((got - wanted) ** 2).sum(1) / (wanted**2).sum(1)
    assert np.median(errors) < MEDIAN
    assert errors.mean() < REROUTED_MEAN if model.hparams.n_expert else errors.max() < ROUNDED


def test_a_copy_of_a_sequence_and_a_saved_state(
    case: tuple[Model, list[int]], tmp_path: Path
) -> None:
    model, tokens = case
    ctx = context(model)
    ctx.decode(Batch(tokens[:-1]))
    ctx.kv.seq_cp(0, 1)
    save_state(ctx, tmp_path / "x.state", seq=0)
    wanted = logits(ctx, Batch(tokens[-1:]))
    assert np.array_equal(logits(ctx, Batch(tokens[-1:], seq_id=1)), wanted)
    other = context(model)
    load_state(other, tmp_path / "x.state", seq=0)
    assert np.array_equal(logits(other, Batch(tokens[-1:])), wanted)


def test_sequences_of_different_lengths_in_one_batch(case: tuple[Model, list[int]]) -> None:
    model, tokens = case
    if not model.hparams.states:
        pytest.skip("attention of several sequences has tests of its own")
    texts = [tokens[i : 4 * i + 5] for i in range(4)]  # of 5 to 14 tokens
    ctx = context(model, n_seq_max=4)
    for part in (slice(0, 3), slice(3, None)):
        pairs = [(seq, token) for seq, text in enumerate(texts) for token in text[part]]
        seqs, parts = zip(*pairs, strict=True)
        ctx.decode(Batch([*parts], seq_id=[*seqs], logits="all"))
    ends = np.cumsum([seqs.count(seq) for seq in range(4)]) - 1
    for text, end in zip(texts, ends, strict=True):
        assert np.array_equal(ctx.logits[end], logits(context(model), Batch(text)))


def test_a_text_longer_than_the_context(case: tuple[Model, list[int]]) -> None:
    model, tokens = case
    ctx = Context(model, n_ctx=32)
    try:
        made = list(generate(ctx, tokens, GREEDY, n_predict=24, n_keep=4))
    except BatchError as error:
        assert not ctx.kv.can_shift and "\n" not in str(error)
        return
    assert len(made) == 24 and ctx.kv.can_shift


def test_embeddings(case: tuple[Model, list[int]]) -> None:
    model, tokens = case
    ctx = context(model)
    ctx.decode(Batch(tokens, logits="none", embeddings="all"))
    assert np.isfinite(ctx.embeddings).all() and ctx.embeddings.any()
