"""Speed beside llama.cpp's, turn about in one run: from pip, and a build of it if there is one.

    python -m benchmarks.bench_peers MODEL.gguf... [--native PATH/llama-bench] [--peer PYTHON]
        [--tests pp512,tg64] [--threads 2] [--rounds 5]

PYTHON is one that has xllamacpp. Every round runs each test here and on every peer, so that a busy
machine slows all; speeds are medians of the rounds, ratios medians of the rounds' ratios. A line a
test in results/peers.jsonl. Peers are measured by their own clocks, behind their own warm-up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bench_model import Ours, cases, head, name, roof_fields, save
from benchmarks.performance_page import peers_table
from pyllama import Model
from pyllama.bench import BenchCase

Peer = Callable[[Path, BenchCase, int], float | None]  # tokens per second; None: not measured


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def native(program: str) -> Peer:
    """llama-bench by its path; attention fused, as here."""

    def speed(path: Path, case: BenchCase, threads: int) -> float:
        sizes = {"-p": case.n_prompt, "-n": case.n_gen, "-d": case.n_depth, "-t": threads, "-r": 1}
        flags = [str(part) for pair in sizes.items() for part in pair]
        text = _output([program, "-m", str(path), *flags, "-fa", "1", "-o", "jsonl"])
        found: float = json.loads(text.splitlines()[-1])["avg_ts"]
        return found

    return speed


def from_pip(python: str) -> Peer:
    """llama.cpp as xllamacpp has it; tests behind a depth are left out there."""
    script = str(Path(__file__).with_name("llama_cpp.py"))  # -P: tokenize beside it is not Python's

    def speed(path: Path, case: BenchCase, threads: int) -> float | None:
        if case.n_depth:
            return None
        generated = case.n_gen or 1
        count = str(case.n_prompt or "")
        text = _output(
            [python, "-P", script, str(path), count,
             "--generated", str(generated), "--threads", str(threads), "--rounds", "1"]
        )  # fmt: skip
        ms = json.loads(text.partition("PEER ")[2].partition("\n")[0])["ms"]
        return 1e3 * case.n_prompt / ms[count] if case.n_prompt else 1e3 / float(ms["1"])

    return speed


def measure(
    ours: Ours, path: Path, case: BenchCase, peers: dict[str, Peer], rounds: int
) -> dict[str, Any]:
    """Rounds of one test."""
    pairs: list[tuple[float, float]] = []
    speeds: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        pairs.append(ours.against_roof(case))
        for peer, run in peers.items():
            if (found := run(path, case, ours.context.n_threads)) is not None:
                speeds[peer].append(found)
    mine = [speed for speed, _ in pairs]
    line: dict[str, Any] = {"test": name(case), "ours": statistics.median(mine)}
    for peer, theirs in speeds.items():
        line[peer] = statistics.median(theirs)
        line[f"over_{peer}"] = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
    return line | roof_fields(ours.bytes, pairs) | {"samples": {"ours": mine, **speeds}}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--native", metavar="LLAMA_BENCH", help="path of a llama-bench")
    parser.add_argument("--peer", metavar="PYTHON", help="that has xllamacpp")
    parser.add_argument("--tests", default="pp512,tg64")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    peers: dict[str, Peer] = {}
    if args.native:
        peers["native"] = native(args.native)
    if args.peer:
        peers["pip"] = from_pip(args.peer)
    tests, lines = cases(args.tests), []
    for path in args.models:
        model = Model.load(path.resolve(), n_threads=args.threads)
        ours = Ours(model, args.threads, tests)
        for case in tests:
            lines.append(
                head(model, args.threads) | measure(ours, path.resolve(), case, peers, args.rounds)
            )
            save(lines[-1], "peers.jsonl")
        ours.context.close()
        model.close()
    print(peers_table(lines))


if __name__ == "__main__":
    main()
