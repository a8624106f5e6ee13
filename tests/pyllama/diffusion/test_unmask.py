"""Unmasking against a plain NumPy version, and what its parameters do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyllama import Batch, Context, Model
from pyllama.convert import convert
from pyllama.diffusion import UnmaskStep, unmask
from pyllama.errors import BatchError, ModelError, SamplingError
from pyllama.parameters.diffusion import DiffusionParams
from pyllama.sampling import SamplingParams

from ..models import Spec, random_weights, write_model
from . import reference
from .checkpoints import write_checkpoint
from .variants import MASK

GREEDY, PROMPT, N = SamplingParams(temp=0.0), [7, 300, 41, 9], 32


@pytest.fixture(scope="module", params=["dream", "llada"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder, name = tmp_path_factory.mktemp("x"), request.param
    path = convert(write_checkpoint(folder / name, name), folder / "x.gguf", "f32")
    return Model.load(path)


def run(
    model: Model, params: DiffusionParams, sampling: SamplingParams = GREEDY
) -> list[UnmaskStep]:
    return [*unmask(Context(model, n_ubatch=N, n_threads=1), PROMPT, params, sampling)]


@pytest.mark.parametrize(
    "params",
    [
        DiffusionParams(eps=0.001, steps=10),
        DiffusionParams(eps=0.2, steps=7, algorithm=1),
        DiffusionParams(eps=0.001, steps=40, algorithm=2),
        DiffusionParams(block_length=8, steps=16),
        DiffusionParams(block_length=16, steps=6, cfg_scale=0.7),
    ],
    ids=["confidence", "entropy", "margin", "blocks", "guidance"],
)
def test_the_text_of_each_step(model: Model, params: DiffusionParams) -> None:
    context = Context(model, n_ubatch=N)

    def logits_of(tokens: list[int]) -> np.ndarray:
        context.decode(Batch(tokens, logits="all"))
        return context.logits.copy()

    shifted = model.hparams.shift_logits
    wanted = reference.unmask(logits_of, PROMPT, N, params, shifted)
    steps = run(model, params)
    assert [step.tokens for step in steps] == wanted
    assert MASK not in wanted[-1] and wanted[-1][: len(PROMPT)] == PROMPT
    assert steps[0].number == 1 and steps[-1].number <= params.steps


@pytest.mark.parametrize("algorithm", range(5))
def test_a_seed_makes_the_same_text(model: Model, algorithm: int) -> None:
    params = DiffusionParams(eps=0.001, steps=6, algorithm=algorithm)
    one, same, other = (
        run(model, params, SamplingParams(temp=1.0, seed=seed)) for seed in (1, 1, 2)
    )
    assert one == same and one[-1] != other[-1] and MASK not in one[-1].tokens
    n_masked = [step.tokens.count(MASK) for step in one]
    assert n_masked == sorted(n_masked, reverse=True) and n_masked[-1] == 0


def test_draws_of_tokens_and_positions(model: Model) -> None:
    plain = run(model, DiffusionParams(eps=0.001, steps=6))
    sampling = SamplingParams(temp=0.5, seed=3)
    for params in (
        DiffusionParams(eps=0.001, steps=6, alg_temp=0.5),
        DiffusionParams(eps=0.001, steps=6, add_gumbel_noise=True),
    ):
        got = run(model, params, sampling)
        assert got == run(model, params, sampling) and got != plain
        assert [s.tokens.count(MASK) for s in got] == [s.tokens.count(MASK) for s in plain]
    cold = SamplingParams(temp=1e-4, seed=3)  # noise that decides nothing
    assert run(model, DiffusionParams(eps=0.001, steps=6, add_gumbel_noise=True), cold) == plain


@pytest.mark.parametrize(
    ("params", "line"),
    [
        (DiffusionParams(), "eps or block_length must be above 0"),
        (DiffusionParams(eps=0.1, block_length=8), "and not both"),
        (DiffusionParams(block_length=7), "blocks must divide the 32 tokens"),
        (DiffusionParams(block_length=8, steps=6), "the 4 blocks the steps"),
        (DiffusionParams(block_length=64), "the 1 blocks the steps"),
    ],
)
def test_parameters_that_do_not_fit(model: Model, params: DiffusionParams, line: str) -> None:
    with pytest.raises(SamplingError, match=line):
        run(model, params)


def test_prompts_and_models_that_do_not_fit(model: Model, tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="leaves no room in a text of n_ubatch = 8"):
        unmask(Context(model, n_ubatch=8), [5] * 8)
    spec = Spec()
    causal = Model.load(write_model(tmp_path / "x.gguf", spec, random_weights(spec)))
    with pytest.raises(ModelError, match=r"llama is no diffusion model.*use pyllama-cli"):
        unmask(Context(causal, n_ctx=64), [5])
