"""Profiles a token and a prompt by op; appends to results/profile.jsonl.

    python -m benchmarks.profile_model [MODEL] [--threads N]

Run it on an idle machine; `benchmarks.performance_page` makes the page. Phases are timed inside the
run with the cycle counter.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.bench_model import token_bytes
from benchmarks.performance_page import profile_section
from benchmarks.roof import mac_roof, read_roof
from pyggml.backend.cpu.backend import CpuProgram
from pyggml.backend.cpu.compile.program import PhaseTable
from pyggml.backend.cpu.run.trace import PhaseTime, profile
from pyggml.compiler.jit import isa
from pyggml.dtype import GGMLType
from pyggml.sched import Schedule
from pyllama.engine import Timings
from pyllama.engine.generate import generate
from pyllama.hub.demo import demo_model_path
from pyllama.runtime.batch import Batch
from pyllama.runtime.context import Context
from pyllama.runtime.decode_graph import GraphSize
from pyllama.runtime.model import Model
from pyllama.sampling import SamplingParams

ROOT = Path(__file__).parent


def rows_of(times: list[PhaseTime]) -> list[dict[str, Any]]:
    """Phases of the same kernels and shapes as one row, the slowest first."""
    groups: dict[tuple[str, str], list[PhaseTime]] = defaultdict(list)
    for t in times:
        shapes = " ".join(
            "x".join(map(str, launch.src[0].ne[:2]))
            for launch in t.phase.launches
            if launch.streams is not None and launch.src[0] is not None
        )
        groups[t.label, shapes].append(t)
    total = sum(t.ns for t in times)
    rows = []
    for (label, shapes), part in groups.items():
        ns = sum(t.ns for t in part)
        matmul = bool(shapes)
        rows.append(
            {
                "kernels": label,
                "shapes": shapes,
                "phases": len(part),
                "us": ns / len(part) / 1e3,
                "share": ns / total,
                "gb_per_s": sum(t.bytes for t in part) / ns if matmul else None,
                "gmac_per_s": sum(t.macs for t in part) / ns if matmul else None,
            }
        )
    return sorted(rows, key=lambda r: -r["share"])


def outside(model: Model, params: SamplingParams, n: int = 200) -> tuple[float, float]:
    """What is not graph compute: its share of a token, and microseconds per token."""
    context = Context(model, n_ctx=1024)
    timings = Timings()
    inside = 0.0
    run = Schedule.run

    def timed(schedule: Schedule) -> None:
        nonlocal inside
        start = time.perf_counter()
        run(schedule)
        inside += time.perf_counter() - start

    Schedule.run = timed  # type: ignore[method-assign]
    tokens = list(range(1000, 1016))
    stream = generate(context, tokens, params, n_predict=n, timings=timings)
    next(stream)
    inside, start = 0.0, time.perf_counter()
    n = sum(1 for _ in stream)
    total = time.perf_counter() - start
    Schedule.run = run  # type: ignore[method-assign]
    return 1 - inside / total, 1e6 * (total - inside) / n


def cpu_program(schedule: Schedule) -> PhaseTable:
    """The one program of a schedule on the CPU alone."""
    (made,) = schedule.programs
    assert isinstance(made, CpuProgram)
    return made.program


def phase_times(context: Context, n_tokens: int, repeats: int) -> list[PhaseTime]:
    """The phases of so many tokens with one output, which were decoded before."""
    schedule = context._graph(GraphSize(n_tokens, 1)).schedule
    return profile(cpu_program(schedule), repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    model = Model.load(args.model or demo_model_path())
    context = Context(model, n_ctx=1024, n_threads=args.threads)
    threads = context.n_threads
    prompt = np.random.default_rng(0).integers(0, model.hparams.n_vocab, 512).tolist()
    context.decode(Batch(prompt))
    context.decode(Batch(prompt[:1]))
    token = phase_times(context, 1, 50)
    speeds = []
    for _ in range(5):
        context.kv.clear()
        start = time.perf_counter()
        context.decode(Batch(prompt))
        speeds.append(512 / (time.perf_counter() - start))
    prompt_times = phase_times(context, 512, 1)
    weights = token_bytes(model)
    read, macs = read_roof(weights, threads), mac_roof(GGMLType.Q4_1, threads)
    chains = {  # tokens that end a generation are banned, so that all take as many
        "": SamplingParams(temp=0.0, ignore_eos=True),
        "_sampled": SamplingParams(seed=1, ignore_eos=True),
    }
    rest = {}
    for name, params in chains.items():
        shares, us = zip(*(outside(model, params) for _ in range(5)), strict=True)
        rest[f"outside_share{name}"] = statistics.median(shares)
        rest[f"outside_us{name}"] = statistics.median(us)
    token_ns = sum(t.ns for t in token)
    result = {
        **machine.head(threads),
        "isa": isa(),
        "model": model.desc,
        "weights_bytes": weights,
        "read_roof_gb_per_s": read,
        "mac_roof_gmac_per_s": macs,
        "token_ms": token_ns / 1e6,
        "prompt_512_tokens_per_s": statistics.median(speeds),
        **rest,
        "token": rows_of(token),
        "prompt": rows_of(prompt_times),
    }
    with (ROOT / "results" / "profile.jsonl").open("a") as f:
        f.write(json.dumps(result) + "\n")
    print(profile_section(result))
    print({name: round(us, 1) for name, us in rest.items() if "_us" in name})


if __name__ == "__main__":
    main()
