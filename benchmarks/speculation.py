"""Measures generation with drafts beside generation without, on a chat model.

    python -m benchmarks.speculation [MODEL.gguf] [--threads 2] [--rounds 5] [--drafters suffix]
    python -m benchmarks.speculation --drafters --head eagle3.gguf --lengths 0 2 4 --cpu-time

A line a model in results/speculation.jsonl: for each task and drafter the tokens/s without and with
drafts, ``ratio`` as the median over rounds in turns, the accepted share of drafted tokens, by
position too (``at``), and the time of the drafter, in which a draft model also reads the prompt.
The tasks quote their prompt (an edit of a file) or do not (a story, an explanation). Every text is
compared with the one without drafts.

``--head`` is an EAGLE-3 head, ``--mtp`` the model's own layers of multi-token prediction, measured
on a context of its own, which keeps hidden states; ``--lengths`` are fixed draft lengths for it, 0
for the adaptive length. ``--text`` are texts to continue in place of the tasks. ``--cpu-time``
counts CPU seconds of the process, for a machine that runs other programs; with one thread these are
near the wall-clock seconds of an idle machine. The adaptive length then counts them, too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from benchmarks.bench_model import head as of_machine
from benchmarks.machine import save
from pyllama import Context, Model
from pyllama.engine import Engine, Request, step
from pyllama.hub.demo import demo_model_path
from pyllama.runtime.heads import eagle3_head, mtp_head
from pyllama.sampling import SamplingParams
from pyllama.speculative import (
    HeadDrafter,
    LookupCache,
    ModelDrafter,
    PromptLookup,
    Speculation,
    SuffixDecoding,
    model,
    self_draft,
    speculation,
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


class Drafted(NamedTuple):
    """A drafter for a context, and the fixed length of its drafts; 0: it adapts."""

    context: Context
    drafter: Any = None
    length: int = 0

    def speculation(self) -> Speculation | None:
        if self.drafter is None:
            return None
        if self.length:
            return Speculation(self.drafter, self.length, adaptive=False)
        return Speculation(self.drafter)


def count_cpu_time() -> Callable[[], float]:
    """The clock of CPU seconds, from now on also that of the adaptive length."""
    clock = time.process_time
    for module in (speculation, model):
        vars(module)["perf_counter"] = clock
    vars(step)["time"] = SimpleNamespace(perf_counter=clock)
    return clock


def generated(
    drafted: Drafted, request: Request, clock: Callable[[], float]
) -> tuple[list[int], float, Any]:
    """The tokens, their number per second after the first, and the statistics."""
    context, drafting = drafted.context, drafted.speculation()
    context.kv.clear()
    tokens: list[int] = []
    start = 0.0
    for event in Engine(context, speculation=drafting).run(request):
        tokens += event.tokens
        start = start or clock()
    speed = (len(tokens) - 1) / (clock() - start)
    return tokens, speed, None if drafting is None else drafting.stats


def measure(
    context: Context, request: Request, drafters: dict[str, Callable[[], Drafted]], rounds: int,
    clock: Callable[[], float],
) -> dict[str, Any]:  # fmt: skip
    """Speeds of a task without drafts and with each drafter."""
    speeds: dict[str, list[float]] = {"plain": [], **{name: [] for name in drafters}}
    stats: dict[str, Any] = {}
    for number in range(rounds + 1):
        text, speed, _ = generated(Drafted(context), request, clock)
        measured = {"plain": speed}
        for name, make in drafters.items():
            tokens, measured[name], stats[name] = generated(make(), request, clock)
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
            "at": [round(n / max(one.n_drafts, 1), 3) for n in one.accepted_at[:8]],
            "draft_s": round(one.draft_s, 4),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-n", "--n-predict", type=int, default=200)
    parser.add_argument("--drafters", nargs="*", choices=DRAFTERS, default=[*DRAFTERS])
    heads = parser.add_mutually_exclusive_group()
    heads.add_argument("--head", type=Path)
    heads.add_argument("--mtp", action="store_true")
    parser.add_argument("--lengths", type=int, nargs="+", default=[0])
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--request", help="in place of the tasks")
    parser.add_argument("--text", nargs="+", default=[])
    args = parser.parse_args()
    clock = count_cpu_time() if args.cpu_time else time.perf_counter
    target = Model.load(args.model or demo_model_path(), n_threads=args.threads)
    context = Context(target, n_ctx=2048, n_threads=args.threads)
    drafters: dict[str, Callable[[], Drafted]] = {
        name: partial(lambda make: Drafted(context, make(context)), DRAFTERS[name])
        for name in args.drafters
    }
    if args.head is not None or args.mtp:
        own = Context(target, n_ctx=2048, n_threads=args.threads)
        head = mtp_head(target) if args.mtp else eagle3_head(target, args.head)
        drafter = HeadDrafter(own, head)
        for n in args.lengths:
            which = "MTP" if args.mtp else "EAGLE-3 head"
            drafters[f"{which}, {n or 'adaptive'}"] = partial(Drafted, own, drafter, n)
    line: dict[str, Any] = {"clock": "cpu"} if args.cpu_time else {}
    tasks = TASKS if args.request is None else {args.request: (args.request, "")}
    prompts = {
        name: f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}"
        for name, (question, answer) in tasks.items()
    }
    for name, prompt in ({text: text for text in args.text} or prompts).items():
        tokens = target.tokenizer.encode(prompt, add_special=bool(args.text), parse_special=True)
        request = Request(
            tokens, SamplingParams(temp=0.0), max_tokens=args.n_predict, stop=("```",)
        )
        line[name] = measure(context, request, drafters, args.rounds, clock)
        print(name, line[name])
    save(of_machine(target, args.threads) | line, "speculation.jsonl")


if __name__ == "__main__":
    main()
