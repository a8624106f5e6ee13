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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

import pyggml as ggml
from benchmarks.bench_model import save
from benchmarks.machine import head
from pyggml import opt
from pyggml.context import Context
from pyggml.tensor import Tensor

F32, I32 = ggml.GGMLType.F32, ggml.GGMLType.I32
DOCS = Path(__file__).parents[1] / "docs"
TEXT_BYTES = 1_000_000
EPS, THETA, SEED, TURN = 1e-5, 10_000.0, 0, 5
OPTIMIZER = opt.AdamW(1e-3, beta2=0.95, wd=0.1)
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Sizes:
    n_vocab: int = 256
    n_embd: int = 256
    n_head: int = 8
    n_head_kv: int = 4
    n_ff: int = 896
    n_layer: int = 8
    n_ctx: int = 256
    n_batch: int = 8


def text() -> Array:
    """The bytes to train on."""
    pages = [*pydoc_data.topics.topics.values()]
    pages += [path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))]
    return np.frombuffer("\n\n".join(pages).encode(), np.uint8)[:TEXT_BYTES].astype(np.int32)


def random_weights(s: Sizes) -> dict[str, Array]:
    """Matrices [out, in] and gains by the names of GGUF."""
    rng, kv = np.random.default_rng(SEED), s.n_embd // s.n_head * s.n_head_kv

    def matrix(n_out: int, n_in: int, scale: float = 1.0) -> Array:
        return rng.normal(0, 0.02 * scale, (n_out, n_in)).astype(np.float32)

    gain, small = np.ones(s.n_embd, np.float32), (2 * s.n_layer) ** -0.5
    w = {"token_embd": matrix(s.n_vocab, s.n_embd)}
    for i in range(s.n_layer):
        w |= {
            f"blk.{i}.attn_norm": gain,
            f"blk.{i}.attn_q": matrix(s.n_embd, s.n_embd),
            f"blk.{i}.attn_k": matrix(kv, s.n_embd),
            f"blk.{i}.attn_v": matrix(kv, s.n_embd),
            f"blk.{i}.attn_output": matrix(s.n_embd, s.n_embd, small),
            f"blk.{i}.ffn_norm": gain,
            f"blk.{i}.ffn_gate": matrix(s.n_ff, s.n_embd),
            f"blk.{i}.ffn_up": matrix(s.n_ff, s.n_embd),
            f"blk.{i}.ffn_down": matrix(s.n_embd, s.n_ff, small),
        }
    return w | {"output_norm": gain, "output": matrix(s.n_vocab, s.n_embd)}


class Ours:
    """pyggml's side: attention is one op, over the texts of a batch one after the other."""

    def __init__(self, s: Sizes, weights: dict[str, Array], threads: int) -> None:
        backend = ggml.init_backend("cpu", n_threads=threads)
        static, ctx = Context(no_alloc=True), Context(no_alloc=True)
        w = {
            name: static.new_tensor(F32, array.shape[::-1]).set_name(name).set_param()
            for name, array in weights.items()
        }
        n = s.n_ctx * s.n_batch
        pos, rows = static.new_tensor(I32, (n,)), static.new_tensor(I32, (4, n))
        ggml.alloc_ctx_tensors(static, backend.buffer_type())
        for name, array in weights.items():
            w[name].set(array)
        place = np.tile(np.arange(s.n_ctx), s.n_batch)
        pos.set(place)
        rows.set(np.stack([np.arange(n) - place, 0 * place, place + 1, place], -1))
        inputs = ctx.new_tensor_2d(I32, s.n_ctx, s.n_batch)
        outputs = self.logits(ctx, s, w, inputs, pos, rows)
        params = opt.OptParams(optimizer=OPTIMIZER)
        self.trainer = opt.OptContext(backend, ctx, inputs, outputs, params)

    @staticmethod
    def logits(
        ctx: Context, s: Sizes, w: dict[str, Tensor], inputs: Tensor, pos: Tensor, rows: Tensor
    ) -> Tensor:
        """Shape: inputs [n_ctx, n_batch] -> [n_vocab, n_ctx * n_batch]."""
        n, hd = s.n_ctx * s.n_batch, s.n_embd // s.n_head
        x = ggml.get_rows(ctx, w["token_embd"], ggml.reshape_1d(ctx, inputs, n))

        def normed(name: str, x: Tensor) -> Tensor:
            return ggml.mul(ctx, ggml.rms_norm(ctx, x, EPS), w[name])

        for i in range(s.n_layer):
            at = f"blk.{i}."
            y = normed(at + "attn_norm", x)
            q, k, v = (
                ggml.reshape_3d(ctx, ggml.mul_mat(ctx, w[f"{at}attn_{c}"], y), hd, heads, n)
                for c, heads in (("q", s.n_head), ("k", s.n_head_kv), ("v", s.n_head_kv))
            )
            q, k = (ggml.rope(ctx, t, pos, hd, 2) for t in (q, k))
            q, k, v = (ggml.permute(ctx, t, 0, 2, 1, 3) for t in (q, k, v))  # [hd, n, heads]
            y = ggml.flash_attn_ranges(ctx, q, k, v, rows, hd**-0.5)  # [hd, n_head, n]
            y = ggml.reshape_2d(ctx, y, s.n_embd, n)
            x = ggml.add(ctx, x, ggml.mul_mat(ctx, w[at + "attn_output"], y))
            y = normed(at + "ffn_norm", x)
            gate, up = (ggml.mul_mat(ctx, w[f"{at}ffn_{c}"], y) for c in ("gate", "up"))
            y = ggml.mul_mat(ctx, w[at + "ffn_down"], ggml.swiglu_split(ctx, gate, up))
            x = ggml.add(ctx, x, y)
        return ggml.mul_mat(ctx, w["output"], normed("output_norm", x))

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
    weights, order = random_weights(s), batches(s, steps)
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
