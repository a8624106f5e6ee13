"""Measures what adapters cost: one token, and several texts with an adapter each in one step.

    python -m benchmarks.bench_adapters [MODEL.gguf...] [--rank 16] [--texts 4] [--threads 2]

Each model gets a line in results/adapters.jsonl. ``one`` is the time of a token with an adapter
divided by the time without; ``batch`` is the speed of a step of several texts with different
adapters divided by the speed without; ``ms`` are the times of these four steps: one token without
and with, several texts without and with. The adapters have random values for all matrices of each
layer, or only for the matrices named by ``--matrices``. The four steps run in turns, each time in
another order, since what ran before decides what is in the caches. A time is the first decile of
all runs, since other work on the machine only adds to it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench_model import head
from benchmarks.machine import save
from pyllama import Batch, Context, Model
from pyllama.graph.adapters import LowRank
from pyllama.hub.demo import demo_model_path
from pyllama.runtime.adapters import Adapter
from pyllama.runtime.loader import adaptable_tensors

DEPTH = 128  # tokens in the cache of each text before a measured step


def random_adapter(model: Model, rank: int, seed: int, matrices: list[str]) -> Adapter:
    """An adapter with random values.

    Args:
        matrices: ends of the names of matrices, such as ``attn_q``; "" is the end of all names.
    """
    rng, terms = np.random.default_rng(seed), {}
    for name, (n_in, n_out, *_) in adaptable_tensors(
        model.arch, model.hparams, model.weights
    ).items():
        if name.startswith("blk.") and any(name.endswith(f"{m}.weight") for m in matrices):
            a = rng.standard_normal((rank, n_in), np.float32) / n_in**0.5
            b = rng.standard_normal((n_out, rank), np.float32) / rank**0.5
            terms[name] = LowRank(a, 0.1 * b)
    return Adapter(f"random {seed}", terms, {})


def times(runs: list[Callable[[], None]], n: int, clock: Callable[[], float]) -> list[float]:
    """The first decile of ``n`` times of each function, which are called in turns."""
    found: list[list[float]] = [[] for _ in runs]
    order = np.random.default_rng(0)
    for number in range(n + 5):
        for i in order.permutation(len(runs)):
            start = clock()
            runs[i]()
            if number >= 5:  # the first ones compile
                found[i].append(clock() - start)
    return [statistics.quantiles(of_one, n=10)[0] for of_one in found]


def measure(model: Model, args: argparse.Namespace) -> dict[str, Any]:
    """The fields of a line of results, see above."""
    n, named = args.texts, args.matrices.split(",")
    adapters = [random_adapter(model, args.rank, seed, named) for seed in range(n)]
    context = Context(model, n_ctx=512 * n, n_seq_max=n, n_threads=args.threads)
    context.set_adapters(adapters)
    for seq in range(n):
        context.decode(Batch(range(100, 100 + DEPTH), seq_id=seq))

    def step(texts: int, scales: np.ndarray) -> None:
        seqs = list(range(texts))
        context.decode(Batch([5] * texts, seq_id=seqs, logits="all", adapters=scales))
        for seq in seqs:
            context.kv.seq_rm(seq, DEPTH)

    none, each = np.zeros(n, np.float32), np.eye(n, dtype=np.float32)
    runs = [partial(step, 1, none), partial(step, 1, each[0])]
    runs += [partial(step, n, none), partial(step, n, each)]
    clock = time.process_time if args.cpu else time.perf_counter
    ms = [1e3 * t for t in times(runs, args.runs, clock)]
    return {
        "rank": args.rank,
        "texts": n,
        "clock": "cpu" if args.cpu else "wall",
        "matrices": args.matrices or "all",
        "values": sum(x.a.size + x.b.size for x in adapters[0].terms.values() if x.a is not None),
        "ms": [round(x, 3) for x in ms],
        "one": round(ms[1] / ms[0], 3),
        "batch": round(ms[2] / ms[3], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--matrices", default="", help="ends of names, separated by commas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="CPU time; of one thread")
    parser.add_argument("--runs", type=int, default=200)
    args = parser.parse_args()
    for path in args.models or [demo_model_path()]:
        model = Model.load(path, n_threads=args.threads)
        save(head(model, args.threads) | measure(model, args), "adapters.jsonl")
        model.close()


if __name__ == "__main__":
    main()
