"""Beam search against transformers, against a search without a cache, and against all texts."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyggml.dtype import GGMLType
from pyllama import Context, Model
from pyllama.convert import convert
from pyllama.engine import Beam, BeamSearchParams, Engine, Lease, Request, generate_beams
from pyllama.errors import BatchError, ContextFull, SamplingError
from pyllama.sampling import SamplingParams

from ...tiers import some
from ..arch.checkpoints import DATA, write_checkpoint
from ..fake_context import BOS, EOS, FakeContext, FakeModel, ids
from .beam_cases import CASES, VARIANTS

F32 = GGMLType.F32


class TinyModel(FakeModel):
    """A model of five tokens: all others have the probability 0."""

    tokens = (EOS, 10, 11, 12, 13)

    def logits(self, tokens: list[int]) -> np.ndarray:
        known = super().logits(tokens)
        logits = np.full_like(known, -np.inf)
        logits[list(self.tokens)] = known[list(self.tokens)]
        logits[EOS] += 4
        return logits


def log_probabilities(model: FakeModel, tokens: list[int], temperature: float) -> np.ndarray:
    logits = model.logits(tokens).astype(np.float64) / (temperature or 1)
    out: np.ndarray = logits - np.log(np.exp(logits[logits > -np.inf]).sum())
    return out


def uncached(model: TinyModel, prompt: list[int], params: BeamSearchParams) -> list[Beam]:
    """The definition: every step evaluates every beam from its first token; no early stop."""
    running, finished = [((), 0.0)], list[Beam]()
    for length in range(1, params.max_tokens + 1):
        extended: list[tuple[tuple[int, ...], float]] = []
        for tokens, logprob in running:
            added = log_probabilities(model, [*prompt, *tokens], params.temperature)
            extended += [((*tokens, t), logprob + added[t]) for t in model.tokens]
        extended.sort(key=lambda item: -item[1])
        running = []
        for rank, (tokens, logprob) in enumerate(extended):
            ended = tokens[-1] == EOS and not params.ignore_eos
            if ended or length == params.max_tokens:
                score = logprob / length**params.length_penalty
                if rank < params.beam_width:
                    finished.append(Beam(tokens, logprob, score, "eog" if ended else "length"))
            else:
                running.append((tokens, logprob))
        running = running[: params.beam_width]
    return sorted(finished, key=lambda beam: -beam.score)[: params.beam_width]


def agree(got: list[Beam], wanted: list[Beam]) -> None:
    assert [(b.tokens, b.reason) for b in got] == [(b.tokens, b.reason) for b in wanted]
    for name in ("logprob", "score"):
        values = [[getattr(beam, name) for beam in beams] for beams in (got, wanted)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)


@given(
    st.integers(1, 6), st.integers(1, 7), st.sampled_from([1.0, 0.0, 0.6, 3.0, -1.0]),
    st.booleans(), st.sampled_from([0.0, 0.5, 2.0]), st.integers(0, 10**6), st.integers(1, 8),
)  # fmt: skip
@settings(deadline=None, max_examples=80)
def test_the_beams_of_a_search_without_a_cache(
    width: int, n: int, penalty: float, ignore: bool, temperature: float, seed: int, n_batch: int
) -> None:
    model, prompt = TinyModel(), [BOS, 20 + seed % 200, 20 + seed // 200 % 200, 10 + seed % 3]
    params = BeamSearchParams(width, n, penalty, ignore, temperature)
    engine = Engine(FakeContext(model, n_ctx=32, n_seq_max=width, n_batch=n_batch))  # type: ignore[arg-type]
    agree(generate_beams(engine, prompt, params), uncached(model, prompt, params))


@pytest.mark.parametrize("penalty", [1.0, 0.0])
def test_a_search_wide_enough_finds_the_best_of_all_texts(penalty: float) -> None:
    model, prompt, n = TinyModel(), ids("ab"), 3
    words = [token for token in model.tokens if token != EOS]
    endings = itertools.product(words, repeat=n)
    shorter = (c for i in range(n) for c in itertools.product(words, repeat=i))
    every = []
    for tokens in [*((*c, EOS) for c in shorter), *endings]:
        parts = [
            log_probabilities(model, [*prompt, *tokens[:i]], 0)[t] for i, t in enumerate(tokens)
        ]
        total = float(sum(parts))
        reason: Any = "eog" if tokens[-1] == EOS else "length"
        every.append(Beam(tokens, total, total / len(tokens) ** penalty, reason))
    every.sort(key=lambda beam: -beam.score)
    engine = Engine(FakeContext(model, n_ctx=32, n_seq_max=len(every)))  # type: ignore[arg-type]
    agree(generate_beams(engine, prompt, BeamSearchParams(len(every), n, penalty)), every)


# --- models ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model of a variant and its record."""
    known: dict[str, tuple[Model, dict[str, Any]]] = {}

    def load(name: str) -> tuple[Model, dict[str, Any]]:
        if name not in known:
            with np.load(DATA / "beams" / f"{name}.npz") as file:
                record = {key: file[key].tolist() for key in file.files}
            folder = write_checkpoint(tmp_path_factory.mktemp("beams") / name, name)
            config = json.loads((folder / "config.json").read_text())
            config["eos_token_id"] = record["eos"]
            (folder / "config.json").write_text(json.dumps(config))
            convert(folder, folder / "x.gguf", "f32")
            known[name] = Model.load(folder / "x.gguf"), record
        return known[name]

    return load


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("name", some(VARIANTS, 2))
def test_the_beams_of_transformers(checkpoints: Any, name: str, unified: bool) -> None:
    model, record = checkpoints(name)
    assert sorted(model.tokenizer.eog) == record["eog"]
    n_ctx = 64 if unified else 4 * 64
    context = Context(
        model, n_ctx=n_ctx, n_seq_max=4, type_k=F32, type_v=F32, n_threads=1, unified=unified
    )
    engine = Engine(context)
    for i, case in enumerate(CASES):
        beams = generate_beams(engine, record["prompt"], BeamSearchParams(**case))
        wanted = [[t for t in row if t >= 0] for row in record[f"tokens_{i}"]]
        assert [list(beam.tokens) for beam in beams] == wanted, case
        scores = [beam.score for beam in beams]
        assert scores == pytest.approx(record[f"scores_{i}"], abs=2e-3), case


def test_one_beam_is_the_greedy_text_and_cells_are_shared(checkpoints: Any) -> None:
    model, record = checkpoints("llama")
    prompt = record["prompt"] * 3
    context = Context(model, n_ctx=64, n_seq_max=6, n_threads=1)
    engine = Engine(context)
    greedy = Request(prompt, SamplingParams(temp=0.0), max_tokens=6, text=False)
    wanted = [token for event in engine.run(greedy) for token in event.tokens]
    (beam,) = generate_beams(engine, prompt, BeamSearchParams(1, 6))
    assert list(beam.tokens) == wanted
    # 6 copies of the prompt would not fit
    beams = generate_beams(engine, prompt, BeamSearchParams(6, 5, ignore_eos=True))
    assert len({beam.tokens for beam in beams}) == 6
    assert sorted(beams, key=lambda beam: -beam.score) == beams


def test_what_is_refused(checkpoints: Any) -> None:
    model, record = checkpoints("llama")
    engine = Engine(Context(model, n_ctx=32, n_seq_max=2, n_threads=1))
    bad: tuple[dict[str, Any], ...] = (
        {"beam_width": 0}, {"max_tokens": 0}, {"length_penalty": np.inf}, {"temperature": -1},
        {"temperature": np.nan},
    )  # fmt: skip
    for options in bad:
        with pytest.raises(SamplingError, match=next(iter(options))):
            BeamSearchParams(**{"beam_width": 2, "max_tokens": 4} | options)
    prompt = record["prompt"]
    for tokens, params, error in (
        (prompt, BeamSearchParams(3, 4), BatchError),  # sequences
        (prompt, BeamSearchParams(2, 25), ContextFull),
        ([], BeamSearchParams(2, 4), BatchError),
        ([512], BeamSearchParams(2, 4), BatchError),
    ):
        with pytest.raises(error):
            generate_beams(engine, tokens, params)
    assert len(generate_beams(engine, prompt, BeamSearchParams(2, 4))) == 2  # nothing is lost
    Lease(engine)
