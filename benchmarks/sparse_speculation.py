"""Measures speculation over sparse models: accept rates of drafters, and speed by accept rate.

    python -m benchmarks.sparse_speculation accept MODEL TEXT   # a trained model with ReLU
    python -m benchmarks.sparse_speculation speed [--layers 8] [--activity 0.05,0.1,0.2,1]
        [--accept 0.5,0.7,0.9]                         # 7B-shaped layers, random weights

Accept: windows of the text are continued, greedily or with samplers, with drafts of always the same
length. A rate is the share of drafts of which at least so many tokens are accepted.

Speed: the drafter knows the greedy text and errs at random, so a drafted token is accepted with a
given probability, and drafting takes no time. Predictors are random; their threshold sets the share
of active neurons, 1 stands for the dense run. A presence penalty prevents repeated tokens, which
would need the same neurons. Runs with and without drafts alternate; a speed-up is the median of
their ratios.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import machine, sparse_files
from benchmarks.bench_sparse import calibrated
from benchmarks.sparse_files import N_VOCAB, set_gates, write_files
from pyggml.compiler.jit import isa
from pyggml.dtype import GGMLType
from pyggml.env import user_cache_dir
from pyllama import Context, Model
from pyllama.engine.generate import generate
from pyllama.sampling import SamplingParams
from pyllama.speculative import (
    Draft,
    Drafter,
    DraftView,
    PromptLookup,
    Speculation,
    Stats,
    SuffixDecoding,
    self_draft,
)

RESULTS = Path(__file__).parent / "results" / "sparse_speculation.jsonl"
N_CTX, N_PROMPT, N_PREDICT = 256, 64, 64
GREEDY = SamplingParams(temp=0.0, ignore_eos=True)
DIVERSE = replace(GREEDY, presence_penalty=1e3, repeat_last_n=-1)
SAMPLED = SamplingParams(temp=0.8, ignore_eos=True, seed=1)


class Oracle:
    """Drafts the known continuation of a text; each token is right with a given probability."""

    def __init__(self, text: Sequence[int], accept: float, seed: int = 0) -> None:
        self._text, self._accept, self._random = list(text), accept, random.Random(seed)

    def propose(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        """See `Drafter.propose`."""
        return [self._draft(view, n) for view, n in zip(views, max_nodes, strict=True)]

    def _draft(self, view: DraftView, n: int) -> Draft:
        start = len(view.tokens)
        known = self._text[start : start + n]
        return Draft.chain(
            [t if self._random.random() < self._accept else (t + 1) % N_VOCAB for t in known]
        )

    def accepted(self, view: DraftView, path: Sequence[int]) -> None:
        """See `Drafter.accepted`."""

    def release(self, view: DraftView) -> None:
        """See `Drafter.release`."""


def text_of(
    context: Context, prompt: Sequence[int], params: SamplingParams, speculation: Speculation | None
) -> tuple[list[int], float]:
    """The tokens that continue a prompt, and the seconds from the first to the last."""
    found: list[int] = []
    start = 0.0
    tokens = generate(context, prompt, params, n_predict=N_PREDICT, speculation=speculation)
    for token in tokens:
        start = start or time.perf_counter()
        found.append(token)
    return found, time.perf_counter() - start


# --- speed by accept rate ---


def speed(args: argparse.Namespace) -> None:
    sparse_files.N_LAYER = args.layers
    folder = args.folder / f"{args.layers}-layers"
    folder.mkdir(parents=True, exist_ok=True)
    dense, sparse = write_files(folder, GGMLType.Q4_0)
    model = Model.load(sparse, sparse="predictor", sparse_threshold=0.0)
    set_gates(model, None)
    for activity in map(float, args.activity.split(",")):
        if activity < 1:
            threshold = calibrated(model, activity)
            used = model.with_hparams(replace(model.hparams, sparse_threshold=threshold))
        else:
            used = Model.load(dense, sparse="off")
        context = Context(used, n_ctx=N_CTX)
        head = machine.head(context.n_threads) | {"isa": isa(), "layers": args.layers}
        rates = [float(a) for a in args.accept.split(",")]
        for line in speeds(context, rates, args.rounds):
            _write(head, {"measure": "speed", "activity": activity} | line, save=not args.no_save)


def speeds(context: Context, rates: Sequence[float], rounds: int) -> list[dict[str, Any]]:
    """The line without drafts, and those of each accept rate and length of drafts."""
    prompt = list(range(300, 300 + 16))
    text = prompt + text_of(context, prompt, DIVERSE, None)[0]
    runs = [(a, n) for a in rates for n in (1, 3, 7, None)]  # None: as many as pay
    speculations = {
        (a, n): Speculation(Oracle(text, a), max_draft=n or 16, adaptive=n is None) for a, n in runs
    }
    plain: list[float] = []
    ratios: dict[tuple[float, int | None], list[float]] = {run: [] for run in runs}
    for i in range(rounds + 1):
        for run, speculation in speculations.items():
            if i == 1:
                speculation.stats = Stats()
            plain.append(text_of(context, prompt, DIVERSE, None)[1])
            found, spent = text_of(context, prompt, DIVERSE, speculation)
            assert prompt + found == text
            ratios[run].append(plain[-1] / spent)
    first = {"accept": None, "tokens_per_s": (N_PREDICT - 1) / statistics.median(plain)}
    lines: list[dict[str, Any]] = [first]
    for (a, n), measured in ratios.items():
        stats = speculations[a, n].stats
        lines.append(
            {
                "accept": a,
                "draft": "adaptive" if n is None else n,
                "speed_up": statistics.median(measured[1:]),
                "drafted": stats.n_drafted / max(stats.n_verified, 1),
                "added": stats.mean_length,
            }
        )
    return lines


# --- accept rates of drafters ---


def accept(args: argparse.Namespace) -> None:
    model = Model.load(args.model)
    context = Context(model, n_ctx=N_CTX)
    tokens = model.tokenizer.encode(args.text.read_text(encoding="utf-8"))
    step = (len(tokens) - N_PROMPT) // args.prompts
    prompts = [tokens[i * step : i * step + N_PROMPT] for i in range(args.prompts)]
    head = machine.head(context.n_threads) | {
        "isa": isa(), "model": model.desc, "threshold": model.hparams.sparse_threshold
    }  # fmt: skip
    for name, params in (("greedy", GREEDY), ("sampled", SAMPLED)):
        texts = _texts(context, prompts, params, None)
        for drafter, made in _drafters(context).items():
            speculation = Speculation(made, max_draft=args.draft, adaptive=False)
            found = _texts(context, prompts, params, speculation)
            assert found == texts, f"{drafter} changes the text"
            stats = speculation.stats
            line = {
                "measure": "accept",
                "sampling": name,
                "drafter": drafter,
                "proposed": stats.n_drafts / max(stats.n_calls, 1),
                "rates": [round(r, 3) for r in stats.rates],
                "added": stats.mean_length,
            }
            _write(head, line, save=not args.no_save)


def _drafters(context: Context) -> dict[str, Drafter]:
    n, at = context.hparams.n_layer, context.hparams.sparse_threshold

    def own(threshold: float | None = None, n_layer: int | None = None) -> Drafter:
        return self_draft(context, threshold=threshold, n_layer=n_layer)

    return {
        **{f"threshold {at + more:g}": own(at + more) for more in (0.5, 1.0, 2.0)},
        **{f"{k} of {n} layers": own(None, k) for k in range(n - 1, n // 2 - 1, -1)},
        f"threshold {at + 1:g}, {n - 1} of {n} layers": own(at + 1, n - 1),
        "prompt lookup": PromptLookup(),
        "suffix decoding": SuffixDecoding(),
    }


def _texts(
    context: Context, prompts: list[list[int]], params: SamplingParams, made: Speculation | None
) -> list[list[int]]:
    """The continuations of all prompts."""
    return [text_of(context, prompt, params, made)[0] for prompt in prompts]


def _write(head: dict[str, Any], line: dict[str, Any], *, save: bool) -> None:
    line = {k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}
    print(json.dumps(line), flush=True)
    if save:
        with RESULTS.open("a") as f:
            f.write(json.dumps(head | line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-save", action="store_true")
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("speed")
    one.add_argument("--layers", type=int, default=8)
    one.add_argument("--activity", default="0.05,0.1,0.2,1")
    one.add_argument("--accept", default="0.5,0.7,0.9")
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--folder", type=Path, default=user_cache_dir("pyllama") / "sparse-bench")
    one.set_defaults(run=speed)
    two = commands.add_parser("accept")
    two.add_argument("model", type=Path)
    two.add_argument("text", type=Path)
    two.add_argument("--prompts", type=int, default=24)
    two.add_argument("--draft", type=int, default=4)
    two.set_defaults(run=accept)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
