"""Measures generation with drafts beside generation without, on a chat model.

    python -m benchmarks.speculation [MODEL.gguf] [--threads 2] [--rounds 5] [--drafters suffix]

A line a model in results/speculation.jsonl: for each task and drafter the tokens/s without and with
drafts, ``ratio`` as the median over rounds in turns, the accepted share of drafted tokens, and the
time of the drafter, in which a draft model also reads the prompt. The tasks quote their prompt (an
edit of a file) or do not (a story, an explanation). Every text is compared with the one without
drafts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bench_model import head, save
from pyllama import Context, Model
from pyllama.engine import Engine, Request
from pyllama.hub.demo import demo_model_path
from pyllama.sampling import SamplingParams
from pyllama.speculative import (
    LookupCache,
    ModelDrafter,
    PromptLookup,
    Speculation,
    SuffixDecoding,
    self_draft,
)

FILE = '''import json
import os


class Store:
    """A dictionary that is kept in a file."""

    def __init__(self, path):
        self.path = path
        self.items = {}
        if os.path.exists(path):
            with open(path) as file:
                self.items = json.load(file)

    def get(self, key, default=None):
        return self.items.get(key, default)

    def put(self, key, value):
        self.items[key] = value
        self.save()

    def remove(self, key):
        if key in self.items:
            del self.items[key]
            self.save()

    def save(self):
        with open(self.path, "w") as file:
            json.dump(self.items, file)
'''
CODE = f"```python\n{FILE}```\n\n"
TASKS = {  # the request, and the beginning of the answer
    "rename": (
        CODE + "Rename the class `Store` to `FileStore`, and show all of it.",
        "```python\n",
    ),
    "indent": (CODE + "Fix the indentation, and print the whole file.", "```python\n"),
    "story": ("Write a story about a dragon who learns to paint.", ""),
    "explanation": ("Explain photosynthesis.", ""),
}
DRAFTERS: dict[str, Callable[[Context], Any]] = {  # of a target
    "prompt lookup": lambda target: PromptLookup(),
    "lookup cache": lambda target: LookupCache(),
    "suffix": lambda target: SuffixDecoding(),
    "same model": lambda target: ModelDrafter(
        Context(target.model, n_ctx=target.n_ctx, n_threads=target.n_threads)
    ),
    "half of its layers": lambda target: self_draft(
        target, n_layer=target.model.hparams.n_layer // 2
    ),
}


def generated(context: Context, request: Request, drafter: Any) -> tuple[list[int], float, Any]:
    """The tokens, their number per second after the first, and the statistics."""
    context.kv.clear()
    speculation = None if drafter is None else Speculation(drafter)
    tokens: list[int] = []
    start = 0.0
    for event in Engine(context, speculation=speculation).run(request):
        tokens += event.tokens
        start = start or time.perf_counter()
    speed = (len(tokens) - 1) / (time.perf_counter() - start)
    return tokens, speed, None if speculation is None else speculation.stats


def measure(
    context: Context, request: Request, drafters: dict[str, Callable[[Context], Any]], rounds: int
) -> dict[str, Any]:
    """Speeds of a task without drafts and with each drafter."""
    speeds: dict[str, list[float]] = {"plain": [], **{name: [] for name in drafters}}
    stats: dict[str, Any] = {}
    for number in range(rounds + 1):
        text, speed, _ = generated(context, request, None)
        measured = {"plain": speed}
        for name, make in drafters.items():
            tokens, measured[name], stats[name] = generated(context, request, make(context))
            if tokens != text and request.sampling.temp == 0:
                raise SystemExit(f"{name}: the text is not the one without drafts")
        for name, value in measured.items() if number else ():  # the first round compiles
            speeds[name].append(value)
    plain = speeds.pop("plain")
    found: dict[str, Any] = {"tokens": len(text), "plain": round(statistics.median(plain), 1)}
    for name, values in speeds.items():
        ratios = [value / base for value, base in zip(values, plain, strict=True)]
        one = stats[name]
        found[name] = {
            "ts": round(statistics.median(values), 1),
            "ratio": round(statistics.median(ratios), 3),
            "drafted": one.n_drafted,
            "accepted": round(one.n_accept / max(one.n_drafted, 1), 3),
            "draft_s": round(one.draft_s, 4),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-n", "--n-predict", type=int, default=200)
    parser.add_argument("--drafters", nargs="+", choices=DRAFTERS, default=[*DRAFTERS])
    args = parser.parse_args()
    model = Model.load(args.model or demo_model_path(), n_threads=args.threads)
    context = Context(model, n_ctx=2048, n_threads=args.threads)
    line: dict[str, Any] = {}
    for name, (question, answer) in TASKS.items():
        prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}"
        tokens = model.tokenizer.encode(prompt, add_special=False, parse_special=True)
        request = Request(
            tokens, SamplingParams(temp=0.0), max_tokens=args.n_predict, stop=("```",)
        )
        drafters = {one: DRAFTERS[one] for one in args.drafters}
        line[name] = measure(context, request, drafters, args.rounds)
        print(name, line[name])
    save(head(model, args.threads) | line, "speculation.jsonl")


if __name__ == "__main__":
    main()
