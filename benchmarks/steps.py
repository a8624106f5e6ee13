"""Measures steps of several rows, as of drafted tokens: chains and trees, logits of all rows.

    python -m benchmarks.steps MODEL.gguf... [--threads 2] [--rows 2,4,8,16] [--depth 128]
    python -m benchmarks.steps --depth 8192 --rows 16 --rounds 2

A line a model in results/steps.jsonl: for each number of rows the times of a chain and of a tree,
``ratio`` by the larger of one token's time and the time of the rows' products at the rate of
prompts. All are medians of runs in turns. ``place_16_ms`` is the time of placing and dropping a
tree of 16 nodes without decoding it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench_model import head
from benchmarks.machine import save
from pyllama import Batch, Context, Model
from pyllama.bench.bench import bench_tokens
from pyllama.hub.demo import demo_model_path

PROMPT = 512
KINDS = ("chain", "tree")


def macs(model: Model) -> tuple[int, int]:
    """Multiply-adds of one token: of all its matrices, and of the output alone."""
    skipped = {"token_embd.weight", "position_embd.weight"}
    body = sum(t.nelements for n, t in model.weights.items() if t.n_dims == 2 and n not in skipped)
    output = model.weights.get("output.weight")
    logits = (output or model.weights["token_embd.weight"]).nelements
    return body + (0 if output else logits), logits


def parents(n: int) -> list[int]:
    """A tree of ``n`` nodes, of which each has two children."""
    return [(i + 1) // 2 - 1 for i in range(n)]


class Steps:
    """Timed steps of a context after ``depth`` tokens."""

    def __init__(self, context: Context, depth: int) -> None:
        self.context, self.depth = context, depth
        self.tokens = bench_tokens(context.model, max(depth, PROMPT), 0)
        self.fill(depth)

    def fill(self, n: int) -> None:
        """Clear the context, and evaluate ``n`` tokens."""
        self.context.kv.clear()
        for i in range(0, n, self.context.n_batch):
            self.context.decode(Batch(self.tokens[i : min(n, i + self.context.n_batch)]))

    def one(self) -> None:
        """One token."""
        self.context.decode_token(5)
        self.context.kv.seq_rm(0, self.depth)

    def rows(self, n: int, tree: bool) -> None:
        """A step of ``n`` rows: a tree, or the next tokens of the sequence."""
        if not tree:
            self.context.decode(Batch(self.tokens[:n], logits="all"))
            self.context.kv.seq_rm(0, self.depth)
            return
        self.context.decode(Batch(self.tokens[:n], parent=parents(n), logits="all"))
        self.context.kv.commit_tree(0, ())

    def place(self, n: int) -> None:
        """Place a tree and drop it."""
        positions = [self.depth]
        for parent in parents(n)[1:]:
            positions.append(positions[parent] + 1)
        self.context.kv.place_tree([0] * n, positions, parents(n))
        self.context.kv.drop_tree(0)


def seconds(run: Callable[[], None], n: int) -> float:
    """The median time of ``n`` calls."""
    times = []
    for _ in range(n):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(
    model: Model, threads: int, sizes: list[int], depth: int, rounds: int
) -> dict[str, Any]:
    """The fields of a line."""
    n_ctx = max(depth, PROMPT) + max(sizes)
    context = Context(model, n_ctx=n_ctx, n_threads=threads)
    steps = Steps(context, depth)
    n = 5 if model.size_bytes > 1 << 28 else 20  # of each in a round
    runs: dict[str, Callable[[], None]] = {"one": steps.one, "place": lambda: steps.place(16)}
    for size in sizes:
        for kind in KINDS:
            runs[f"{kind}{size}"] = partial(steps.rows, size, kind == "tree")
    times: dict[str, list[float]] = {name: [] for name in (*runs, "prompt")}
    for number in range(rounds + 1):
        prompt = seconds(lambda: steps.fill(PROMPT), 1)
        steps.fill(depth)
        measured = {name: seconds(run, n) for name, run in runs.items()} | {"prompt": prompt}
        for name, value in measured.items() if number else ():  # the first one compiles
            times[name].append(value)
    body, logits = macs(model)
    rate = (PROMPT * (body - logits) + logits) / statistics.median(times["prompt"])
    medians = {name: statistics.median(values) for name, values in times.items()}
    one = medians["one"]
    line: dict[str, Any] = {
        "depth": depth,
        "one_ms": round(1e3 * one, 3),
        "prompt_ts": round(PROMPT / medians["prompt"], 1),
        "place_16_ms": round(1e3 * medians["place"], 4),
    }
    for size in sizes:
        both, bound = [medians[f"{kind}{size}"] for kind in KINDS], max(one, size * body / rate)
        line[f"ms{size}"] = [round(1e3 * t, 3) for t in both]
        line[f"ratio{size}"] = [round(t / bound, 3) for t in both]
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="2,3,4,5,6,7,8,12,16")
    parser.add_argument("--depth", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    sizes = [int(n) for n in args.rows.split(",")]
    for path in args.models or [demo_model_path()]:
        model = Model.load(path, n_threads=args.threads)
        line = measure(model, args.threads, sizes, args.depth, args.rounds)
        save(head(model, args.threads) | line, "steps.jsonl")
        model.close()


if __name__ == "__main__":
    main()
