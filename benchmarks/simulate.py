"""Compares the prediction of ``pyllama-powerinfer plan --simulate`` for the CPU with measurements.

    python -m benchmarks.simulate [--activity 0.05,0.1,0.2,0.5] [--folder DIR]

The 7B-shaped model of ``benchmarks.bench_sparse`` runs token by token, with predictors and exactly.
The prediction is the bytes of a token over two bandwidths, both measured in the same run: of plain
reads of memory (the roof), and of active rows, as the command measures it. A ratio above one is a
run that takes longer than predicted.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.bench_sparse import BEHIND, N_CTX, ROUNDS, Mode, modes_of
from benchmarks.roof import read_roof
from benchmarks.sparse_files import N_FF, N_LAYER, write_files
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.dtype import GGMLType
from pyggml.env import user_cache_dir
from pyllama.sparsity.placement import place
from pyllama.sparsity.plan import MemoryBudget, read_needs
from pyllama.sparsity.simulate import Machine, Work, predict
from pyllama.sparsity.speeds import measure_speeds

RESULTS = Path(__file__).parent / "results" / "simulate.jsonl"


def predicted_ms(mode: Mode, density: float, bandwidth: float) -> float:
    """Milliseconds of a token where a share of neurons is active and all is on the CPU."""
    hp = mode.context.model.hparams
    needs = read_needs(mode.context.model, MemoryBudget(0, N_CTX))
    work = Work(BEHIND, N_CTX, hp.n_embd, hp.n_vocab)
    machine = Machine(bandwidth, bandwidth, bandwidth)
    active = np.full((N_LAYER, N_FF), density)
    return 1e3 * predict(needs, place(needs, 0), active, machine, work).seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--activity", default="0.05,0.1,0.2,0.5")
    parser.add_argument("--folder", type=Path, default=user_cache_dir("pyllama") / "sparse-bench")
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    dense, sparse = write_files(args.folder, GGMLType.Q4_0)
    backend = CpuBackend()
    for activity in map(float, args.activity.split(",")):
        modes = modes_of(dense, sparse, activity)
        del modes["dense"]
        types = read_needs(modes["predictor"].context.model, MemoryBudget(0, N_CTX)).rows.types
        sizes = modes["predictor"].context.model.hparams
        roofs, speeds = [], []
        for i in range(ROUNDS + 1):  # the first warms up
            roofs.append(1e9 * read_roof(1 << 30, backend.n_threads, tries=1))
            speeds.append(measure_speeds(backend, sizes.n_embd, sizes.n_ff, *types, activity).mean)
            for mode in modes.values():
                mode.seconds[1].append(mode.run(1)) if i else mode.run(1)
        for name, mode in modes.items():
            ms = 1e3 * statistics.median(mode.seconds[1])
            density = float(mode.active(1)[1])
            line: dict[str, Any] = {
                **machine.head(backend.n_threads),
                "mode": name,
                "density": density,
                "measured_ms": ms,
            }
            for kind, found in (("roof", max(roofs)), ("rows", statistics.median(speeds[1:]))):
                line[f"{kind}_gb_per_s"] = found / 1e9
                line[f"measured_over_{kind}"] = ms / predicted_ms(mode, density, found)
            print(json.dumps(line), flush=True)
            if not args.no_save:
                with RESULTS.open("a") as f:
                    f.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
