"""Compares quantization speed with llama-quantize, alternating: results/quantize.jsonl.

    python -m benchmarks.quantize_speed F16.gguf LLAMA_QUANTIZE [--types Q4_0,Q8_0,Q4_K_M]

Both times are of reading, quantizing and writing the file: llama-quantize's by its own account,
ours without Python's start.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import machine
from benchmarks.machine import save
from pyggml.compiler.jit import isa
from pyllama.quantize import QuantizeOptions, find_file_type, quantize_model

_THEIRS = re.compile(r"quantize time =\s*([\d.]+) ms")


def _theirs(program: str, source: Path, out: Path, type: str, threads: int) -> float:
    command = [program, str(source), str(out), type, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = _THEIRS.search(done.stdout + done.stderr)
    assert found, f"{program} says no time"
    return float(found[1]) / 1e3


def _ours(source: Path, out: Path, type: str, threads: int) -> float:
    start = time.perf_counter()
    quantize_model(source, out, find_file_type(type), QuantizeOptions(n_threads=threads))
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("program", metavar="LLAMA_QUANTIZE")
    parser.add_argument("--types", default="Q4_0,Q8_0,Q4_K_M")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.gguf")
        for type in args.types.split(","):
            _ours(args.source, out, type, args.threads)  # kernels compile
            turns = [
                (
                    _theirs(args.program, args.source, out, type, args.threads),
                    _ours(args.source, out, type, args.threads),
                )
                for _ in range(args.rounds)
            ]
            theirs, ours = (statistics.median(t) for t in zip(*turns, strict=True))
            line = {
                **machine.head(args.threads), "isa": isa(),
                "file": args.source.name, "type": type, "ours_s": ours, "llama_quantize_s": theirs,
                "llama_quantize_over_ours": statistics.median(a / b for a, b in turns),
                "samples": turns,
            }  # fmt: skip
            save(line, "quantize.jsonl")


if __name__ == "__main__":
    main()
