"""Trains a LLaMA of 7 million parameters on a text of 1 MB, with pyggml and with torch in turns.

    python -m benchmarks.train_llama [--steps 40] [--compile] [--save]

Both start from the same weights and see the same bytes in the same order: AdamW, float32, two
threads. The text is Python's language reference (``pydoc_data``) and docs/; tokens are its bytes.
Steps are measured in turns of 5, of which the first one is not counted. A line has the losses of
both, the seconds of a step (median) and their ratio, torch / pyggml: of wall time, and of CPU time,
which tells more where other work runs. Needs torch (``pip install 'pyggml[bench]'``).
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import pyggml as ggml
from benchmarks.llama_graph import EPS, THETA, Array, LlamaGraph, Sizes, random_weights
from benchmarks.machine import head, save
from pyggml import opt

DOCS = Path(__file__).parents[1] / "docs"
TEXT_BYTES = 1_000_000
SEED, TURN = 0, 5
OPTIMIZER = opt.AdamW(1e-3, beta2=0.95, wd=0.1)


def text() -> Array:
    """The bytes to train on."""
    pages = [*pydoc_data.topics.topics.values()]
    pages += [path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))]
    return np.frombuffer("\n\n".join(pages).encode(), np.uint8)[:TEXT_BYTES].astype(np.int32)


class Ours:
    """pyggml's side."""

    def __init__(self, s: Sizes, weights: dict[str, Array], threads: int) -> None:
        backend = ggml.init_backend("cpu", n_threads=threads)
        graph = LlamaGraph(backend, s, weights)
        params = opt.OptParams(optimizer=OPTIMIZER)
        self.trainer = opt.OptContext(backend, graph.ctx, graph.inputs, graph.outputs, params)

    def step(self, batch: Array) -> float:
        """A step on [n_batch, n_ctx + 1] tokens; its loss."""
        t = self.trainer
        assert t.labels is not None
        t.inputs.set(batch[:, :-1])
        t.labels.set(batch[:, 1:].ravel())
        t.eval(train=True)
        return t.loss_value()


class Torch(torch.nn.Module):
    """torch's side."""

    def __init__(self, s: Sizes, weights: dict[str, Array], compiled: bool) -> None:
        super().__init__()
        self.s = s
        self.w = torch.nn.ParameterDict(
            {k.replace(".", "/"): torch.tensor(array) for k, array in weights.items()}
        )
        half = s.n_embd // s.n_head // 2
        angle = torch.outer(torch.arange(s.n_ctx), THETA ** -(torch.arange(half) / half))
        self.cos, self.sin = (
            torch.cat((angle, angle), -1).cos(),
            torch.cat((angle, angle), -1).sin(),
        )
        o = OPTIMIZER
        self.optimizer = torch.optim.AdamW(
            self.parameters(), o.alpha, (o.beta1, o.beta2), o.eps, o.wd
        )
        self.run: Callable[..., Any] = torch.compile(self) if compiled else self

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of [n_batch, n_ctx] tokens."""
        s, w = self.s, self.w
        n, t, hd = *tokens.shape, s.n_embd // s.n_head
        x = F.embedding(tokens, w["token_embd"])

        def rotated(y: torch.Tensor) -> torch.Tensor:
            a, b = y.chunk(2, -1)
            return y * self.cos + torch.cat((-b, a), -1) * self.sin

        for i in range(s.n_layer):
            at = f"blk/{i}/"
            y = F.rms_norm(x, (s.n_embd,), w[at + "attn_norm"], EPS)
            q, k, v = (
                F.linear(y, w[f"{at}attn_{c}"]).view(n, t, -1, hd).transpose(1, 2) for c in "qkv"
            )
            y = F.scaled_dot_product_attention(
                rotated(q), rotated(k), v, is_causal=True, enable_gqa=True
            )
            x = x + F.linear(y.transpose(1, 2).reshape(n, t, -1), w[at + "attn_output"])
            y = F.rms_norm(x, (s.n_embd,), w[at + "ffn_norm"], EPS)
            up = F.silu(F.linear(y, w[at + "ffn_gate"])) * F.linear(y, w[at + "ffn_up"])
            x = x + F.linear(up, w[at + "ffn_down"])
        y = F.linear(F.rms_norm(x, (s.n_embd,), w["output_norm"], EPS), w["output"])
        return F.cross_entropy(y.flatten(0, 1), labels.flatten())

    def step(self, batch: Array) -> float:
        """As ``Ours.step``."""
        tokens = torch.from_numpy(batch.astype(np.int64))
        loss = self.run(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.item())


def batches(s: Sizes, steps: int) -> Array:
    """Random stretches of the text: [steps, n_batch, n_ctx + 1]."""
    tokens, rng = text(), np.random.default_rng(SEED)
    at = rng.integers(0, len(tokens) - s.n_ctx - 1, (steps, s.n_batch, 1))
    stretches: Array = tokens[at + np.arange(s.n_ctx + 1)]
    return stretches


def measure(s: Sizes, steps: int, threads: int, compiled: bool) -> dict[str, Any]:
    """The fields of a line of results."""
    torch.set_num_threads(threads)
    weights, order = random_weights(s, SEED), batches(s, steps)
    sides: dict[str, Ours | Torch] = {
        "pyggml": Ours(s, weights, threads),
        "torch": Torch(s, weights, compiled),
    }
    losses: dict[str, list[float]] = {name: [] for name in sides}
    wall: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    for first in range(0, steps, TURN):
        for name, side in sides.items():
            for i in range(first, min(steps, first + TURN)):
                clocks = time.perf_counter(), time.process_time()
                losses[name].append(side.step(order[i]))
                if i > first:
                    wall[name].append(time.perf_counter() - clocks[0])
                    cpu[name].append(time.process_time() - clocks[1])
        print(first, {name: round(found[-1], 4) for name, found in losses.items()}, flush=True)
    pairs = zip(losses["pyggml"], losses["torch"], strict=True)
    line: dict[str, Any] = {
        "parameters": sum(array.size for array in weights.values()),
        "sizes": asdict(s),
        "steps": steps,
        "torch": torch.__version__ + " compiled" * compiled,
        "largest_difference": round(max(abs(x / y - 1) for x, y in pairs), 6),
    }
    for clock, found in (("wall", wall), ("cpu", cpu)):
        seconds = {name: statistics.median(times) for name, times in found.items()}
        line[clock] = {name: round(value, 4) for name, value in seconds.items()}
        line[clock]["ratio"] = round(seconds["torch"] / seconds["pyggml"], 3)
    return line | {"losses": {k: [round(v, 4) for v in found] for k, found in losses.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="torch.compile torch's side")
    parser.add_argument("--save", action="store_true", help="append to results/training.jsonl")
    args = parser.parse_args()
    line = head(args.threads) | measure(Sizes(), args.steps, args.threads, args.compile)
    print({key: value for key, value in line.items() if key not in ("losses", "host", "versions")})
    if args.save:
        save(line, "training.jsonl", quiet=True)


if __name__ == "__main__":
    main()
