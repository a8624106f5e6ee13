"""Measures the speed of models relative to the memory bandwidth of this machine.

    python -m benchmarks.bench_model MODEL.gguf... [--threads 1,2] [--tests pp512,tg64,tg64@d512]
    PYGGML_ISA=generic python -m benchmarks.bench_model MODEL.gguf

A line a test in results/model.jsonl. Loading is from the page cache. The roof is measured right
before and right after each generation, over a buffer of the bytes that a token reads: its weights,
keys and values of the tokens before it, and recurrent states, which count twice: they are written
too.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.machine import save
from benchmarks.roof import around
from pyggml.compiler.jit import isa
from pyllama import Context, Model
from pyllama.bench.bench import BenchCase, samples_ns
from pyllama.hub.demo import demo_model_path
from pyllama_cli.tables.bench import test_name

TESTS = "pp512,tg64,tg64@d512,pp2000"


def cases(text: str) -> list[BenchCase]:
    """``pp512,tg64@d512``: a prompt, and a generation after 512 tokens."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(pp|tg)(\d+)(?:@d(\d+))?", part)
        if match is None:
            raise SystemExit(f"{part!r} is no test such as pp512 or tg64@d512")
        kind, n, depth = match[1], int(match[2]), int(match[3] or 0)
        prompt, generated = (n, 0) if kind == "pp" else (0, n)
        found.append(BenchCase(n_prompt=prompt, n_gen=generated, n_depth=depth))
    return found


def name(case: BenchCase) -> str:
    """``tg64 @ d512``."""
    return test_name(asdict(case))


def token_bytes(model: Model) -> int:
    """Bytes of weights that one token reads: all matrices, but only the experts it uses."""
    unread = {"token_embd.weight"} if "output.weight" in model.weights else set()
    unread |= {"position_embd.weight"}
    total = 0.0
    for key, t in model.weights.items():
        if t.n_dims > 1 and key not in unread:
            experts = model.hparams.n_expert if t.n_dims > 2 else 0
            total += t.nbytes * (model.hparams.n_expert_used / experts if experts else 1)
    return int(total)


def kv_bytes(context: Context, case: BenchCase) -> int:
    """Bytes of keys and values that a generated token reads, its own included; the mean of all."""
    total = 0.0
    for cache in context.kv.caches:
        cells = range(case.n_depth + 1, case.n_depth + case.n_gen + 1)
        seen = statistics.fmean(min(n, cache.window or n) for n in cells)
        total += seen * cache.size_bytes / cache.n_cells
    return round(total)


def state_bytes(context: Context) -> int:
    """Bytes of recurrent states that a token reads and writes."""
    states = context.kv.states
    return 0 if states is None else 2 * states.size_bytes // states.n_seq_max


def head(model: Model, threads: int) -> dict[str, Any]:
    """What every line says first."""
    return machine.head(threads) | {
        "isa": isa(),
        "model": model.desc,
        "file": model.path.name,
        "bytes": token_bytes(model),
    }


class Turn(NamedTuple):
    """One run of a test.

    Attributes:
        speed: tokens per second.
        roof: GB/s of plain reads right before and after a generation; 0 of a prompt.
        read_bytes: that a generated token reads; 0 of a prompt.
    """

    speed: float
    roof: float
    read_bytes: int


class Ours:
    """A model in a context that stays, so that turns with others cost no loading."""

    def __init__(self, model: Model, threads: int, tests: list[BenchCase]) -> None:
        n_ctx = max(c.n_prompt + c.n_gen + c.n_depth for c in tests)
        self.context = Context(model, n_ctx=n_ctx, n_threads=threads)
        self.bytes = token_bytes(model)
        for case in tests:  # kernels compile, pages come in
            self.speed(case)

    def speed(self, case: BenchCase) -> float:
        """Tokens per second, once."""
        (ns,) = samples_ns(self.context, case)
        return 1e9 * (case.n_prompt + case.n_gen) / ns

    def turn(self, case: BenchCase) -> Turn:
        """Run a test once, beside the read rate."""
        if case.n_prompt:
            return Turn(self.speed(case), 0.0, 0)
        n_bytes = self.read_bytes(case)
        return Turn(*around(lambda: self.speed(case), n_bytes, self.context.n_threads), n_bytes)

    def read_bytes(self, case: BenchCase) -> int:
        """Bytes that one generated token reads, and writes of its states."""
        return self.bytes + kv_bytes(self.context, case) + state_bytes(self.context)


def roof_fields(turns: list[Turn]) -> dict[str, float]:
    """The fields of a line that compare a test of generation with the read rate.

    They are medians over the turns, and the best share of the read rate. Prompts have none.
    """
    if not turns[0].read_bytes:
        return {}
    shares = [turn.speed * turn.read_bytes / turn.roof / 1e9 for turn in turns]
    return {
        "read_bytes": turns[0].read_bytes,
        "read_roof_gb_per_s": statistics.median(turn.roof for turn in turns),
        "of_roof": statistics.median(shares),
        "best_of_roof": max(shares),
    }


def loaded(path: Path, threads: int) -> tuple[Model, float]:
    """A model, and GB/s of loading it from the page cache."""
    Model.load(path, n_threads=threads).close()
    start = time.perf_counter()
    model = Model.load(path, n_threads=threads)
    return model, model.size_bytes / (time.perf_counter() - start) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--tests", default=TESTS)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    tests = cases(args.tests)
    for path in args.models or [demo_model_path()]:
        for threads in map(int, args.threads.split(",")):
            model, load = loaded(path, threads)
            ours = Ours(model, threads, tests)
            for case in tests:
                turns = [ours.turn(case) for _ in range(args.rounds)]
                line = head(model, threads) | {"load_gb_per_s": load, "test": name(case)}
                speeds = [turn.speed for turn in turns]
                line |= {"ts": statistics.median(speeds), "samples_ts": speeds}
                save(line | roof_fields(turns), "model.jsonl")
            ours.context.close()
            model.close()


if __name__ == "__main__":
    main()
