"""Measures tokens of a SmallThinker-shaped model: all neurons of its experts, and the active ones.

    python -m benchmarks.bench_sparse_experts --folder DIR --write       # the files, once
    python -m benchmarks.bench_sparse_experts --folder DIR [--active 0.4,0.2,0.1] [--save]

A random model of SmallThinker-21B-A3B's sizes with 8 of its 52 layers and 32,000 tokens, so that
the output matrix has about the same share of the bytes as in the whole model. Its gates are made so
that a share of the neurons is active (``random_model``). Three ways in turns: a plain file, dense;
the same file with ``sparse='exact'``, whose down matrices are multiplied whole; a file with
transposed down matrices, which is sparse by default. The roof of each is its bytes by the rate of
plain reads, measured in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from benchmarks import machine, random_model
from benchmarks.machine import save
from benchmarks.roof import read_roof
from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile
from pyllama import Batch, Context, Model

_NAME, _PROMPT = "smallthinker-21b-a3b-8-layers", 16
_WAYS = {  # the file, the source of active neurons, shares of gate, up and down that are read
    "dense": ("plain", "off", (1, 1, 1)),
    "gate and up": ("plain", "exact", (1, 0, 1)),
    "sparse": ("transposed", "auto", (1, 0, 0)),
}


def path_of(folder: Path, kind: str, active: float, type: str) -> Path:
    return folder / f"smallthinker-{kind}-{active:g}-{type}.gguf"


def read_bytes(path: Path, active: float, shares: tuple[int, int, int]) -> float:
    """Bytes of the weights that a token reads; ``shares``: 0 stands for the active share."""
    total = 0.0
    file = GGUFFile(path)
    used = file.get_int("smallthinker.expert_used_count")
    for name, t in file.tensors.items():
        if name == "token_embd.weight" and "output.weight" in file.tensors:
            continue
        if "_exps" in name:
            share = shares[["gate", "up", "down"].index(name.split("_")[1])] or active
            total += share * t.nbytes * used / t.ne[2]
        else:
            total += t.nbytes
    return total


def token_ms(context: Context, tokens: list[int]) -> float:
    context.kv.clear()
    context.decode(Batch(tokens[:_PROMPT]))
    start = time.perf_counter()
    for token in tokens[_PROMPT:]:
        context.decode(Batch([token]))
    return (time.perf_counter() - start) * 1e3 / (len(tokens) - _PROMPT)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--active", default="0.4,0.2,0.1")
    parser.add_argument("--type", default="q4_0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--ways", default=",".join(_WAYS))
    parser.add_argument("--write", action="store_true", help="write the files and end")
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    shares = [float(x) for x in args.active.split(",")]
    kind = GGMLType[args.type.upper()]
    if args.write:
        for active in shares:
            for form in ("plain", "transposed"):
                path = path_of(args.folder, form, active, args.type)
                random_model.create(_NAME, path, kind, active, form == "transposed")
        return
    tokens = np.random.default_rng(1).integers(0, 1000, _PROMPT + args.tokens).tolist()
    for active in shares:
        paths: dict[str, Path] = {}
        contexts: dict[str, Context] = {}
        for way in dict.fromkeys(["dense", *args.ways.split(",")]):
            form, source, _ = _WAYS[way]
            paths[way] = path_of(args.folder, form, active, args.type)
            model = Model.load(paths[way], sparse=source)
            contexts[way] = Context(model, n_ctx=256, n_threads=args.threads)
            token_ms(contexts[way], tokens)
        times: dict[str, list[float]] = {way: [] for way in contexts}
        rates = []
        for _ in range(args.repeat):
            rates.append(read_roof(1 << 28, args.threads, tries=1))
            for way, context in contexts.items():
                times[way].append(token_ms(context, tokens))
        ratios = {
            way: statistics.median(d / t for d, t in zip(times["dense"], found, strict=True))
            for way, found in times.items()
        }
        rate = statistics.median(rates)
        for way, found in times.items():
            n_bytes = read_bytes(paths[way], active, _WAYS[way][2])
            ms = statistics.median(found)
            line = {
                "active": active, "way": way, "type": args.type, "ms": round(ms, 3),
                "dense_by_this": round(ratios[way], 3), "mb": round(n_bytes / 1e6, 1),
                "gb_s": round(n_bytes / ms / 1e6, 2), "read_gb_s": round(rate, 2),
                "of_roof": round(ms / (n_bytes / rate / 1e6), 3),
            }  # fmt: skip
            print(line, flush=True)
            if args.save:
                save({**machine.head(args.threads), **line}, "sparse_experts.jsonl", quiet=True)
        del contexts


if __name__ == "__main__":
    main()
