"""Compares speed with llama.cpp (from pip, and a native build) and ik_llama.cpp, within one run.

    python -m benchmarks.bench_peers               # all of it, about 20 minutes on two cores
    python -m benchmarks.bench_peers --isa avx2,sse42      # the same with fewer instructions
    python -m benchmarks.bench_peers MODEL.gguf... [--native PATH/llama-bench] [--peer PYTHON]
        [--ik PYTHON] [--tests pp512,tg64] [--threads 2] [--rounds 5] [--reload]

Without models it makes model files and peers (`benchmarks.prepare`), keeps them for next time, and
says in one line what cannot be made here. With models only the peers that are named take part;
PYTHON is one that has xllamacpp, and for ``--ik`` ik-llama-cpp-python. Every round runs each test
here and on every peer, so that a busy machine slows all; speeds are medians of the rounds, ratios
medians of the rounds' ratios. A line a test in results/peers.jsonl. Peers are measured by their own
clocks, after their own warm-up. A model stays loaded while peers run; with ``--reload``, for files
of which two do not fit into memory, it is loaded in each round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine, prepare
from benchmarks.bench_model import Ours, Turn, cases, head, name, roof_fields
from benchmarks.machine import save
from benchmarks.performance_page import LEAST_ROUNDS, PEERS, peers_table
from pyggml import env
from pyggml.compiler.jit import host_isas, isa
from pyggml.host import default_threads
from pyllama import Model
from pyllama.bench.bench import BenchCase

Speed = Callable[[Path, BenchCase, int], float | None]  # tokens per second; None: not measured
TESTS, DEEP, LONG = "pp512,tg64", "pp4096,tg64@d4096", "pp16384"
_LONG_PROMPT = 4096  # tokens from which a peer's warm-up, a whole prompt, says nothing new
_BUSY = 0.1  # share of the CPUs' time that others may take


class PeerFailed(Exception):
    """A peer's program ended with an error; the message is one line."""


@dataclass(frozen=True)
class Peer:
    """llama.cpp as someone else built it: its speed, and what to call it."""

    speed: Speed
    name: str


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise PeerFailed(f"{' '.join(command)}: {said}")
    return done.stdout


def native(program: str) -> Speed:
    """llama-bench by its path; attention fused, as here."""

    def speed(path: Path, case: BenchCase, threads: int) -> float:
        sizes = {"-p": case.n_prompt, "-n": case.n_gen, "-d": case.n_depth, "-t": threads, "-r": 1}
        flags = [str(part) for pair in sizes.items() for part in pair]
        flags += ["--no-warmup"] if case.n_prompt >= _LONG_PROMPT else []
        text = _output([program, "-m", str(path), *flags, "-fa", "1", "-o", "jsonl"])
        found: float = json.loads(text.splitlines()[-1])["avg_ts"]
        return found

    return speed


def from_pip(python: str) -> Speed:
    """llama.cpp as xllamacpp has it; tests after a depth are left out there."""
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


def ik(python: str) -> Speed:
    """ik_llama.cpp as ik-llama-cpp-python has it: the faster of weights as stored and repacked."""
    script = str(Path(__file__).with_name("ik_llama_cpp.py"))

    def speed(path: Path, case: BenchCase, threads: int) -> float:
        sizes = {"--prompt": case.n_prompt, "--generated": case.n_gen, "--depth": case.n_depth}
        flags = [str(part) for pair in sizes.items() for part in pair]
        command = [python, "-P", script, str(path), *flags, "--threads", str(threads)]
        texts = [_output(command + repack) for repack in ([], ["--repack"])]
        return max(
            json.loads(text.partition("PEER ")[2].partition("\n")[0])["ts"] for text in texts
        )

    return speed


@dataclass(frozen=True)
class Limits:
    """How often a test runs.

    Attributes:
        rounds: at most.
        seconds: after which three rounds are enough.
    """

    rounds: int = 5
    seconds: float = 60.0

    def done(self, rounds: int, since: float) -> bool:
        """Whether a test that began at ``since`` (``time.monotonic()``) has run often enough."""
        late = rounds >= LEAST_ROUNDS and time.monotonic() - since > self.seconds
        return rounds >= self.rounds or late


@dataclass
class Here:
    """Our side of the tests of a file.

    Attributes:
        reload: load the model for each test of each round.
        about: the first fields of each result, of the model, the machine and memory; empty before
            the first turn.
    """

    path: Path
    threads: int
    tests: list[BenchCase]
    reload: bool
    about: dict[str, Any] = field(default_factory=dict)
    _loaded: tuple[Model, Ours] | None = None

    def turn(self, case: BenchCase) -> Turn:
        """Run a test once; loads the model if it is not loaded."""
        model, ours = self._loaded = self._loaded or self._load(
            [case] if self.reload else self.tests
        )
        found = ours.turn(case)
        memory = {"file_bytes": self.path.stat().st_size}
        memory |= {"resident_bytes": machine.resident_bytes()}
        self.about = head(model, self.threads) | memory
        if self.reload:
            self.close()
        return found

    def _load(self, tests: list[BenchCase]) -> tuple[Model, Ours]:
        model = Model.load(self.path, n_threads=self.threads)
        return model, Ours(model, self.threads, tests)

    def close(self) -> None:
        """Free the model if it is loaded."""
        if self._loaded is not None:
            model, ours = self._loaded
            ours.context.close()
            model.close()
            self._loaded = None


def measure(here: Here, case: BenchCase, peers: dict[str, Peer], limits: Limits) -> dict[str, Any]:
    """Rounds of one test."""
    turns: list[Turn] = []
    speeds: dict[str, list[float]] = defaultdict(list)
    failed: set[str] = set()
    start = time.monotonic()
    while not limits.done(len(turns), start):
        turns.append(here.turn(case))
        for key, peer in peers.items():
            try:
                found = None if key in failed else peer.speed(here.path, case, here.threads)
            except PeerFailed as error:
                print(f"{peer.name} is left out of {name(case)}: {error}", flush=True)
                failed.add(key)
                speeds.pop(key, None)
                continue
            if found is not None:
                speeds[key].append(found)
    mine = [turn.speed for turn in turns]
    line: dict[str, Any] = {"test": name(case), "ours": statistics.median(mine)}
    for key, theirs in speeds.items():
        line[key] = statistics.median(theirs)
        line[f"over_{key}"] = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
        line[f"{key}_build"] = peers[key].name
    return here.about | line | roof_fields(turns) | {"samples": {"ours": mine, **speeds}}


@dataclass
class Progress:
    """Show which test runs and an estimate of the time left, corrected by the times so far.

    Attributes:
        tests: of each file, with its size in bytes.
    """

    tests: list[tuple[int, BenchCase]]
    limits: Limits
    done: int = 0
    _start: float = field(default_factory=lambda: time.monotonic())

    def _seconds(self, n_bytes: int, case: BenchCase) -> float:
        work = (case.n_prompt + case.n_depth) / 200 + case.n_gen / 30
        a_round = 6 + n_bytes / 1e8 * work
        least = max(LEAST_ROUNDS * a_round, self.limits.seconds)
        return min(self.limits.rounds * a_round, least)

    def left(self) -> str:
        """``about 9 min left``."""
        expected = [self._seconds(*test) for test in self.tests]
        past, rest = sum(expected[: self.done]), sum(expected[self.done :])
        taken = (time.monotonic() - self._start) / past if past else 1.0
        return f"about {max(1, round(rest * taken / 60))} min left" if rest else "done"


def _report(line: dict[str, Any], progress: Progress) -> str:
    parts = [f"here {line['ours']:.0f} t/s"]
    for key in PEERS:
        if key in line:
            parts.append(f"{key} {line[key]:.0f} ({line[f'over_{key}']:.2f}x)")
    if "of_roof" in line:
        parts.append(f"{line['of_roof']:.0%} of the read rate")
    count = f"[{progress.done}/{len(progress.tests)}]"
    return f"{count} {line['model']} {line['test']}: {', '.join(parts)}; {progress.left()}"


def run_all(
    work: list[tuple[Path, list[BenchCase]]],
    peers: dict[str, Peer],
    args: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Every test of every file; a line each."""
    limits = Limits(args.rounds, args.seconds)
    sizes = [(path.stat().st_size, case) for path, tests in work for case in tests]
    progress = Progress(sizes, limits)
    lines = []
    if (busy := machine.busy_share()) > _BUSY:
        print(f"other programs take {busy:.0%} of this machine: llama.cpp suffers most from that")
    for path, tests in work:
        print(f"loading {path.name}: {progress.left()}", flush=True)
        here = Here(path.resolve(), args.threads, tests, args.reload)
        for case in tests:
            lines.append(measure(here, case, peers, limits))
            progress.done += 1
            print(_report(lines[-1], progress), flush=True)
            if not args.no_save:
                save(lines[-1], "peers.jsonl", quiet=True)
        here.close()
    return lines


def prepared(args: argparse.Namespace) -> tuple[list[Path], dict[str, Peer]]:
    """Files and peers of this machine, made where they are missing.

    Raises:
        Missing: there is no model to measure.
    """
    folder = prepare.cache_dir()
    print(f"{machine.cpu().label}, {args.threads} threads, {isa()}; everything is in {folder}")
    print("making the demo model's files", flush=True)
    files = prepare.demo_files(folder)

    def random_file() -> None:
        files.append(prepare.random_file(folder))

    def native_peer() -> None:
        forced = env.ISA.get()
        kind = forced if forced in prepare.SET_BUILDS else "native"
        if forced and isa() == "generic":
            raise prepare.Missing("llama.cpp has no build for generic: left out")
        found = prepare.build(folder, kind, files[0])
        print(f"{found.name}: {found.program}")
        peers["native"] = Peer(native(str(found.program)), found.name)

    def pip_peer() -> None:
        if env.ISA.get() in ("sse42", "generic"):
            raise prepare.Missing(f"llama.cpp from pip needs AVX2: left out beside {isa()}")
        python = prepare.pip_peer(folder)
        print(f"{prepare.pip_name(python)}: {python}")
        peers["pip"] = Peer(from_pip(str(python)), prepare.pip_name(python))

    def ik_peer() -> None:
        if env.ISA.get() in ("sse42", "generic"):
            raise prepare.Missing(f"ik_llama.cpp from pip needs AVX2: left out beside {isa()}")
        python = prepare.pip_peer(folder, prepare.IK)
        print(f"{prepare.pip_name(python, prepare.IK)}: {python}")
        peers["ik"] = Peer(ik(str(python)), prepare.pip_name(python, prepare.IK))

    peers: dict[str, Peer] = {}
    steps = {"1.1 billion random weights": random_file}
    steps |= {"llama.cpp for this machine": native_peer} if args.native is None else {}
    steps |= {"llama.cpp from pip": pip_peer} if args.peer is None else {}
    steps |= {"ik_llama.cpp from pip": ik_peer} if args.ik is None else {}
    for what, step in steps.items():
        print(f"making {what}", flush=True)
        try:
            step()
        except prepare.Missing as missing:
            print(missing)
    return files, peers


def _forced(args: argparse.Namespace, argv: list[str]) -> int:
    """This command in a child for each instruction set of ``--isa``; the worst exit code."""
    worst = 0
    at = next(i for i, word in enumerate(argv) if word.partition("=")[0] == "--isa")
    rest = argv[:at] + argv[at + (1 if "=" in argv[at] else 2) :]
    for wanted in args.isa.split(","):
        if wanted not in host_isas():
            print(f"this machine has no {wanted}, but {', '.join(host_isas())}: left out")
            continue
        command = [sys.executable, "-P", "-m", "benchmarks.bench_peers", *rest]
        settings = {env.ISA.name: wanted, "PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(command, env={**os.environ, **settings})
        worst = max(worst, abs(done.returncode))
    return worst


def main() -> None:
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=about, allow_abbrev=False)
    parser.add_argument(
        "models", nargs="*", type=Path, help="models; default: the demo model's files and 1.1B"
    )
    parser.add_argument("--native", metavar="LLAMA_BENCH", help="path of llama-bench, or none")
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter with xllamacpp, or none")
    parser.add_argument("--ik", metavar="PYTHON", help="one with ik-llama-cpp-python, or none")
    parser.add_argument("--tests", help=f"of each file; default {TESTS}; {DEEP} of the first too")
    parser.add_argument("--long", action="store_true", help=f"{LONG} of the first file too")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=5, help="maximum rounds per test")
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="time after which three rounds per test are enough",
    )
    parser.add_argument("--reload", action="store_true", help="load the model in each round")
    parser.add_argument("--isa", help="instruction sets to test, separated by commas")
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    if args.isa:
        raise SystemExit(_forced(args, sys.argv[1:]))
    files: list[Path] = args.models
    peers: dict[str, Peer] = {}
    try:
        if not files:
            files, peers = prepared(args)
    except prepare.Missing as missing:
        raise SystemExit(str(missing)) from None
    if args.native not in (None, "none"):
        peers["native"] = Peer(native(args.native), f"llama.cpp, a given {Path(args.native).name}")
    if args.peer not in (None, "none"):
        peers["pip"] = Peer(from_pip(args.peer), prepare.pip_name(args.peer))
    if args.ik not in (None, "none"):
        peers["ik"] = Peer(ik(args.ik), prepare.pip_name(args.ik, prepare.IK))
    first = ",".join([TESTS] + [DEEP] * (not args.models) + [LONG] * args.long)
    tests = [args.tests or (TESTS if i else first) for i in range(len(files))]
    work = [(path, cases(text)) for path, text in zip(files, tests, strict=True)]
    print(peers_table(run_all(work, peers, args)))


if __name__ == "__main__":
    main()
