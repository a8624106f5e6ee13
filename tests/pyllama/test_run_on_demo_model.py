"""The runtime on the demo model: text, equal bits by all paths, and aborts at any time."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pyggml.errors import Aborted
from pyllama import Batch, Context, Llama, Model
from pyllama.bench.bench import BenchCase, run_bench
from pyllama.engine.generate import generate, generate_text
from pyllama.eval.perplexity import perplexity
from pyllama.sampling import SamplingParams

pytestmark = pytest.mark.model
PROMPT = "The capital of France is"
GREEDY = SamplingParams(temp=0.0)
TEXT = " Paris.\n\nThe United States has a population of approximately 311 million people."


@pytest.fixture(scope="module")
def model(demo_model: Path) -> Iterator[Model]:
    with Model.load(demo_model) as model:
        yield model


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    context = Context(model, n_ctx=256)
    yield context
    context.close()


def encode(model: Model, text: str) -> list[int]:
    return model.tokenizer.encode(text, add_special=True, parse_special=True)


def test_the_text_is_llama_cpps(model: Model, context: Context) -> None:
    tokens = encode(model, PROMPT)
    text = "".join(generate_text(context, tokens, GREEDY, n_predict=18))
    assert TEXT.startswith(text) and len(text) > 60
    stopped = "".join(generate_text(context, tokens, GREEDY, stop=["\n\nThe United"]))
    assert stopped == " Paris."


@pytest.mark.long
def test_an_aborted_run_leaves_the_context_usable(model: Model, context: Context) -> None:
    tokens, over = encode(model, PROMPT), threading.Event()

    def abort() -> None:
        while not over.wait(0.02):  # one between two decodes has no effect
            context.abort()

    thread = threading.Thread(target=abort)
    thread.start()
    try:
        with pytest.raises(Aborted):
            for _ in range(20):
                list(generate(context, list(range(100, 300)), GREEDY, n_predict=30))
    finally:
        over.set()
        thread.join()
    assert TEXT.startswith("".join(generate_text(context, tokens, GREEDY, n_predict=10)))


def test_completions_by_every_way_agree(demo_model: Path) -> None:
    with Llama(demo_model, n_ctx=256, logits_all=True, verbose=False) as llama:
        whole = llama(PROMPT, max_tokens=18, temperature=0)
        assert TEXT.startswith(whole["choices"][0]["text"])  # type: ignore[index]
        rows = llama._scores.copy()
        chunks = llama(PROMPT, max_tokens=18, temperature=0, stream=True)
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)  # type: ignore[index]
        assert text == whole["choices"][0]["text"]  # type: ignore[index]
        assert np.array_equal(llama._scores, rows)
        ids = llama._input_ids.tolist()
        llama.reset()
        for start in range(0, len(ids), 5):
            llama.eval(ids[start : start + 5])
        assert np.array_equal(llama._scores, rows)


@pytest.mark.long
def test_perplexity_of_a_repetition_is_low(model: Model) -> None:
    context = Context(model, n_ctx=32, n_batch=20)
    text = encode(model, "one two three four five six seven eight " * 12)
    (first, *_) = perplexity(context, text, n_chunks=1)
    assert 1 < first.ppl < 3
    whole = Context(model, n_ctx=32)
    whole.decode(Batch(text[:32], logits="all"))
    logits = whole.logits.astype(np.float64)
    losses = np.log(np.exp(logits).sum(1))[16:31] - logits[np.arange(16, 31), text[17:32]]
    assert first.nll == pytest.approx(losses.sum(), rel=1e-5)


@pytest.mark.long
def test_a_bench_row(model: Model) -> None:
    row = run_bench(model, BenchCase(n_prompt=8, n_gen=2, n_depth=4), repetitions=2)
    assert row["model_type"] == "llama 135M Q4_1" and row["avg_ts"] > 1


def test_the_package_imports_nothing_heavy() -> None:
    code = "import sys, pyllama; print([m for m in ('numba', 'numpy') if m in sys.modules])"
    out = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert out.stdout == "[]\n"
