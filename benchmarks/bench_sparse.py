"""Measures sparse inference on 7B-shaped layers: dense, predictor and exact.

    python -m benchmarks.bench_sparse --type q4_0 --activity 0.1 [--tokens 1,4,8,64,256]
        [--peer PYTHON] [--folder DIR]     # a Python with xllamacpp; 2 to 7 GB of files are kept

``benchmarks.sparse_files`` says how the share of active neurons is set. All modes run in turns, so
that a busy machine slows all. The roof, reading memory as fast as it can be read, is measured
before and after each. Many tokens are one prompt. Bytes are the weights that must be read once:
whole matrices, and the rows that at least one of the tokens needs (the union, counted in the run).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import machine
from benchmarks.profile_model import cpu_program
from benchmarks.roof import read_roof
from benchmarks.sparse_files import N_LAYER, N_VOCAB, set_gates, write_files
from pyggml.backend.cpu.run.trace import profile
from pyggml.compiler.jit import isa
from pyggml.dtype import GGMLType
from pyggml.env import user_cache_dir
from pyllama import Batch, Context, Model
from pyllama.inspect.observe import observe

RESULTS = Path(__file__).parent / "results" / "sparse.jsonl"
ROUNDS, N_CTX, BEHIND, GENERATED = 9, 320, 16, 8
PARTS = {  # by the names of nodes, the first match counts; the rest is attention
    "attention": ("ffn_inp",),
    "predictor": ("mlp_pre_", "ffn_gate_signs", "ffn_gate_svd"),
    "down": ("ffn_down", "l_out"),
    "gate and up": ("ffn_",),
    "output": ("result_", "inp_embd"),
}
_POSITIVE = float(np.finfo(np.float32).smallest_subnormal)


def tokens_of(n: int, seed: int = 0) -> list[int]:
    """Different tokens, none of them special."""
    found: list[int] = np.random.default_rng(seed).permutation(np.arange(260, N_VOCAB))[:n].tolist()
    return found if n <= len(found) else (found * 2)[:n]


@dataclass
class Mode:
    """A way to run: a context, and what its tokens took in each round."""

    context: Context
    scores: str = ""  # names of the nodes with the scores
    threshold: float = _POSITIVE
    seconds: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    roofs: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))  # GB/s

    def run(self, n: int) -> float:
        """Seconds of ``n`` tokens at once, or the median of some single ones."""
        c = self.context
        c.kv.clear()
        if n > 1:
            start = time.perf_counter()
            c.decode(Batch(tokens_of(n)))
            return time.perf_counter() - start
        c.decode(Batch(tokens_of(BEHIND)))
        times = []
        for token in tokens_of(GENERATED, seed=1):
            start = time.perf_counter()
            c.decode_token(token)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def active(self, n: int) -> npt.NDArray[np.float64]:
        """The share of neurons that some of ``n`` tokens need, and that one needs: [2]."""
        if not self.scores:
            return np.ones(2)
        self.context.kv.clear()
        values = observe(self.context, tokens_of(n, seed=1 if n == 1 else 0), [self.scores])
        on = np.stack([values[self.scores.replace("*", str(i))] for i in range(N_LAYER)])
        on = on >= self.threshold  # [n_layer, n, n_ff]
        last = on[-1].mean()  # the last layer computes one token: only its logits are needed
        return np.array([(on[:-1].any(1).mean(1).sum() + last) / N_LAYER, on.mean()])

    def weight_bytes(self, union: float) -> float:
        """Bytes that must be read when a share of the neurons is needed."""
        weights, total = self.context.model.weights, 0.0
        whole = "ffn_gate" if self.scores == "ffn_gate-*" else "nothing"
        for name, t in weights.items():
            rows = self.scores and ".ffn_" in name and t.n_dims > 1 and whole not in name
            total += t.nbytes * (union if rows else t.n_dims > 1 and name != "token_embd.weight")
        return total

    def parts(self) -> dict[str, float]:
        """Milliseconds of the parts of one token."""
        self.run(1)
        program = cpu_program(self.context._graph(1, 1).schedule)
        times: dict[str, float] = defaultdict(float)
        for p in profile(program, GENERATED):
            name = p.phase.launches[-1].node.name
            found = (part for part, heads in PARTS.items() if name.startswith(heads))
            times[next(found, "attention")] += p.ns / 1e6
        return dict(times)


def calibrated(sparse: Model, activity: float) -> float:
    """The threshold that a share of the predictors' scores reaches."""
    model = _with_threshold(sparse, float("inf"))
    values = observe(Context(model, n_ctx=N_CTX), tokens_of(64, seed=2), ["mlp_pre_out-*"])
    return float(np.quantile(np.stack(list(values.values())), 1 - activity))


def _with_threshold(model: Model, threshold: float) -> Model:
    """The same weights with another threshold."""
    return model.with_hparams(replace(model.hparams, sparse_threshold=threshold))


def modes_of(dense: Path, sparse: Path, activity: float) -> dict[str, Mode]:
    model = Model.load(sparse, sparse="predictor", sparse_threshold=0.0)
    set_gates(model, None)
    threshold = calibrated(model, activity)
    exact = Model.load(sparse, sparse="exact")
    set_gates(exact, activity)

    def context(model: Model) -> Context:
        return Context(model, n_ctx=N_CTX)

    return {
        "dense": Mode(context(Model.load(dense, sparse="off"))),
        "predictor": Mode(context(_with_threshold(model, threshold)), "mlp_pre_out-*", threshold),
        "exact": Mode(context(exact), "ffn_gate-*"),
    }


def peer_times(python: str, path: Path, counts: list[int]) -> dict[str, Any]:
    """llama.cpp's milliseconds of the dense file by number of tokens."""
    several = ",".join(str(n) for n in counts if n > 1)
    script = Path(__file__).with_name("llama_cpp.py")
    command = [python, "-P", str(script), str(path), several]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.partition("PEER ")[2].partition("\n")[0])
    return found


def result_of(mode: Mode, dense: Mode, n: int, peer: dict[str, Any] | None) -> dict[str, Any]:
    """A line for one mode and count of tokens."""
    union, density = mode.active(n)
    seconds, n_bytes = mode.seconds[n], mode.weight_bytes(union)
    ms = statistics.median(seconds) * 1e3
    pairs = zip(dense.seconds[n], seconds, strict=True)
    line = {
        "density": density,
        "union": union,
        "ms": ms,
        "bytes": int(n_bytes),
        "read_roof_gb_per_s": statistics.median(mode.roofs[n]),
        "of_roof_time": statistics.median(
            s * roof * 1e9 / n_bytes for s, roof in zip(seconds, mode.roofs[n], strict=True)
        ),
        "dense_over_this": statistics.median(a / b for a, b in pairs),
    }
    if n == 1:
        line["parts_ms"] = {k: round(v, 3) for k, v in mode.parts().items()}
    if peer:
        line["peer_ms"] = peer["ms"][str(n)]
        line["peer_over_this"] = line["peer_ms"] / ms
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--type", choices=("q4_0", "f16"), default="q4_0")
    parser.add_argument("--activity", type=float, default=0.1)
    parser.add_argument("--tokens", default="1,4,8,64,256")
    parser.add_argument("--folder", type=Path, default=user_cache_dir("pyllama") / "sparse-bench")
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter with xllamacpp")
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    counts = [int(n) for n in args.tokens.split(",")]
    args.folder.mkdir(parents=True, exist_ok=True)
    dense, sparse = write_files(args.folder, GGMLType[args.type.upper()])
    modes = modes_of(dense, sparse, args.activity)
    measure = _in_turns(modes, counts)
    for i in range(ROUNDS):
        measure(i)
    peer = peer_times(args.peer, dense, counts) if args.peer else None
    head = machine.head(modes["dense"].context.n_threads) | {
        "isa": isa(),
        "type": args.type,
        "activity": args.activity,
        "peer": peer and f"llama.cpp, xllamacpp {peer['version']}",
    }
    for n in counts:
        for name, mode in modes.items():
            line = head | {"mode": name, "tokens": n}
            line |= result_of(mode, modes["dense"], n, peer)
            print(json.dumps({k: v for k, v in line.items() if k not in head}), flush=True)
            if not args.no_save:
                with RESULTS.open("a") as f:
                    f.write(json.dumps(line) + "\n")


def _in_turns(modes: dict[str, Mode], counts: list[int]) -> Callable[[int], None]:
    for mode in modes.values():  # kernels compile, pages come in
        for n in counts:
            mode.run(n)

    def roof() -> float:
        return read_roof(1 << 30, modes["dense"].context.n_threads, tries=1)

    def measure(i: int) -> None:
        for n in counts:
            if n < 64 or i < 3:  # long prompts take seconds
                before = roof()
                for mode in modes.values():
                    mode.seconds[n].append(mode.run(n))
                    after = roof()
                    mode.roofs[n].append(max(before, after))
                    before = after

    return measure


if __name__ == "__main__":
    main()
