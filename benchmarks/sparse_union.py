"""Measures a step of several tokens over a sparse model: its cost, and the union of their neurons.

    python -m benchmarks.sparse_union speed [--layers 4] [--activity 0.05,0.1,0.2]
        [--shared 0,0.5,1] [--tokens 1,2,4,8]          # 7B-shaped layers, random weights
    python -m benchmarks.sparse_union density MODEL TEXT   # a trained model with ReLU, real text

Speed: the masks are constructed, so that any two tokens share exactly the given part of their
neurons: all have these in common, the others are each token's own. That is the largest union that
pairs which share so much can have. The predictors of ``benchmarks.sparse_files`` are computed, then
their scores are replaced by the mask (an addition). A step computes the logits of all of its
tokens. All numbers of tokens run in turns; a line has the median of the ratios to one token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

import pyggml as ops
from benchmarks import machine, sparse_files
from benchmarks.sparse_files import N_FF, set_gates, write_files
from pyggml.buffer import HOST, HostBuffer
from pyggml.compiler.jit import isa
from pyggml.dtype import GGMLType
from pyggml.env import user_cache_dir
from pyggml.tensor import Tensor
from pyllama import Batch, Context, Model
from pyllama.graph.builder import GraphBuilder
from pyllama.graph.sparse import ffn
from pyllama.sparsity.collect import collect

RESULTS = Path(__file__).parent / "results" / "sparse_union.jsonl"
N_CTX, PREFIX, MAX_TOKENS = 256, 16, 16
_ACTIVE = 1e6  # added to the scores of active neurons, subtracted from the others'
Mask = npt.NDArray[np.bool_]


def masks_of(activity: float, shared: float, seed: int = 0) -> Mask:
    """Which neurons each token needs, [MAX_TOKENS, N_FF].

    Where there are too few neurons for all tokens to have their own, later tokens share with
    earlier ones.
    """
    order = np.random.default_rng(seed).permutation(N_FF)
    n = round(activity * N_FF)
    common = round(shared * n)
    rest, own = order[common:], n - common
    masks = np.zeros((MAX_TOKENS, N_FF), np.bool_)
    masks[:, order[:common]] = True
    for t in range(MAX_TOKENS):
        masks[t, rest[np.arange(t * own, (t + 1) * own) % len(rest)]] = True
    return masks


class Masked:
    """A context whose predictors' scores are replaced by masks."""

    def __init__(self, model: Model, **settings: Any) -> None:
        n_layer = model.hparams.n_layer
        self.masks = [_tensor(np.zeros((MAX_TOKENS, N_FF), np.float32)) for _ in range(n_layer)]
        predicted = ffn._predicted

        def scores(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
            y = predicted(b, x, i)
            mask = ops.view_2d(b.ctx, self.masks[i], N_FF, y.ne[1], self.masks[i].nb[1], 0)
            return ops.add(b.ctx, y, mask).set_name(f"mlp_pre_masked-{i}")

        with patch.object(ffn, "_predicted", scores):
            self.context = Context(model, n_ctx=N_CTX, n_ubatch=MAX_TOKENS, **settings)
            for n in range(1, MAX_TOKENS + 1):
                self.context._graph(n, n)

    def set_masks(self, activity: float, shared: float) -> Mask:
        """Set the masks of all layers; returns those of the first."""
        masks = [masks_of(activity, shared, seed) for seed in range(len(self.masks))]
        for tensor, mask in zip(self.masks, masks, strict=True):
            tensor.numpy()[...] = np.where(mask, _ACTIVE, -_ACTIVE)
        return masks[0]

    def run(self, n: int) -> float:
        """Seconds of a step of ``n`` tokens after a prefix."""
        self.context.kv.seq_rm(0, PREFIX)
        tokens = list(range(300, 300 + n))
        start = time.perf_counter()
        self.context.decode(Batch(tokens, logits="all"))
        return time.perf_counter() - start


def _tensor(values: npt.NDArray[np.float32]) -> Tensor:
    buffer = HostBuffer(values.reshape(-1).view(np.uint8), HOST)
    tensor = Tensor(GGMLType.F32, (values.shape[1], values.shape[0], 1, 1)).set_name("masks")
    tensor.buffer, tensor.data = buffer, buffer.base
    return tensor


def speed(args: argparse.Namespace) -> None:
    sparse_files.N_LAYER = args.layers
    folder = args.folder / f"{args.layers}-layers"
    folder.mkdir(parents=True, exist_ok=True)
    _, path = write_files(folder, GGMLType[args.type.upper()])
    model = Model.load(path, sparse="predictor", sparse_threshold=0.0)
    set_gates(model, None)
    masked, counts = Masked(model), [int(n) for n in args.tokens.split(",")]
    masked.context.decode(Batch(range(260, 260 + PREFIX)))
    head = machine.head(masked.context.n_threads) | {
        "isa": isa(), "type": args.type, "layers": args.layers
    }  # fmt: skip
    for activity in map(float, args.activity.split(",")):
        for shared in map(float, args.shared.split(",")):
            mask = masked.set_masks(activity, shared)
            seconds: dict[int, list[float]] = defaultdict(list)
            for i in range(args.rounds + 2):
                for n in counts:
                    seconds[n] += [masked.run(n)] if i >= 2 else [masked.run(n)][1:]
            for n in counts:
                pairs = zip(seconds[n], seconds[counts[0]], strict=True)
                line = {
                    "measure": "speed",
                    "activity": activity,
                    "shared": shared,
                    "tokens": n,
                    "union": round(float(mask[:n].any(0).mean()), 4),
                    "ms": round(1e3 * statistics.median(seconds[n]), 3),
                    "over_first": round(statistics.median(a / b for a, b in pairs), 3),
                }
                _write(head, line, save=not args.no_save)


def density(args: argparse.Namespace) -> None:
    model = Model.load(args.model, sparse="off")
    tokens = model.tokenizer.encode(args.text.read_text(encoding="utf-8"))[: args.max_tokens]
    found = collect(model, tokens, n_ctx=256)
    head = machine.head(0) | {"model": model.desc, "n_tokens": found.n_tokens}
    for k, n in enumerate(found.batch_sizes):
        if n <= MAX_TOKENS:
            layers = found.union[:, k]
            line = {
                "measure": "density",
                "tokens": n,
                "union": round(float(layers.mean()), 4),
                "layers": [round(float(x), 4) for x in layers],
            }
            _write(head, line, save=not args.no_save)


def _write(head: dict[str, Any], line: dict[str, Any], *, save: bool) -> None:
    print(json.dumps(line), flush=True)
    if save:
        with RESULTS.open("a") as f:
            f.write(json.dumps(head | line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-save", action="store_true")
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("speed")
    one.add_argument("--type", choices=("q4_0", "f16"), default="q4_0")
    one.add_argument("--layers", type=int, default=4)
    one.add_argument("--activity", default="0.05,0.1,0.2")
    one.add_argument("--shared", default="0.5,0,1")
    one.add_argument("--tokens", default="1,2,4,8")
    one.add_argument("--rounds", type=int, default=15)
    one.add_argument("--folder", type=Path, default=user_cache_dir("pyllama") / "sparse-bench")
    one.set_defaults(run=speed)
    two = commands.add_parser("density")
    two.add_argument("model", type=Path)
    two.add_argument("text", type=Path)
    two.add_argument("--max-tokens", type=int, default=20000)
    two.set_defaults(run=density)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
