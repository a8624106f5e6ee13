"""Measures prompt speed of every architecture relative to LLaMA at the same sizes.

    python -m benchmarks.architectures [NAME...] [--type q8_0] [--tokens 512] [--profile]

A variant of the tests is blown up: random weights, the sizes below. The ratio is of multiplications
a second (matrices and attention of the layers), since a feed-forward part without gates has fewer
of them. Both run in turns, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.profile_model import cpu_program, rows_of
from pyggml.backend.cpu.run.trace import profile
from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, write_gguf
from pyggml.quants import quantize
from pyllama import Batch, Context, Model
from pyllama.arch import arch_of, get_arch
from pyllama.convert import convert
from pyllama.convert.outtype import tensor_type
from pyllama.hparams import HParams, read_hparams
from pyllama.runtime.loader import tensor_sizes
from tests.pyllama.arch.checkpoints import N_VOCAB, variants, write_checkpoint

RESULTS = Path(__file__).parent / "results" / "architectures.jsonl"
PEER = "llama"
ROUNDS = 7
N_EMBD, N_FF, N_HEAD, N_LAYER, N_CTX = 576, 1536, 9, 6, 1024


def blown_up(folder: Path, name: str, type: GGMLType) -> Path:
    """A GGUF file of a variant with the sizes of this page."""
    write_checkpoint(folder / name, name)
    tiny, path = folder / f"{name}-tiny.gguf", folder / f"{name}.gguf"
    convert(folder / name, tiny, "f32")
    file = GGUFFile(tiny)
    old = read_hparams(file, N_VOCAB, arch_of(file).HPARAMS)
    keys: dict[str, Any] = dict(file.metadata)
    sizes = {
        "embedding_length": N_EMBD,
        "feed_forward_length": N_FF,
        "context_length": N_CTX,
        "attention.head_count": N_HEAD,
        "attention.head_count_kv": max(1, N_HEAD // 3) if old.n_head_kv < old.n_head else N_HEAD,
        "attention.key_length": N_EMBD // N_HEAD,
        "attention.value_length": N_EMBD // N_HEAD,
        "block_count": N_LAYER,
    }
    if old.n_expert:
        sizes["expert_feed_forward_length"] = N_FF // old.n_expert_used
    if old.n_head_kv == 1 < old.n_head:
        sizes["attention.head_count_kv"] = 1
    if old.n_rot:
        sizes["rope.dimension_count"] = N_EMBD // N_HEAD * old.n_rot // old.head_dim
    keys |= {f"{old.arch}.{key}": value for key, value in sizes.items()}
    write_gguf(path, keys, {"position_embd.weight": np.zeros(1)} if old.learned_positions else {})
    hp = read_hparams(GGUFFile(path), N_VOCAB, arch_of(file).HPARAMS)
    tensors = _tensors(hp, set(file.tensors), type)
    write_gguf(path, keys, tensors)
    return path


def _tensors(hp: HParams, names: set[str], type: GGMLType) -> dict[str, Any]:
    rng, made = np.random.default_rng(0), {}
    for pattern, sizes in get_arch(hp.arch).TENSORS.items():
        for i in range(hp.n_layer if "{i}" in pattern else 1):
            name = pattern.rstrip("?")
            if name.replace("{i}", "0") not in names:
                continue
            ne = tensor_sizes(hp, sizes)
            x = rng.uniform(-1, 1, ne[::-1]).astype(np.float32) / np.sqrt(ne[0])
            kind = tensor_type(name, ne[::-1], type)
            made[name.replace("{i}", str(i))] = (quantize(x, kind), kind, ne)
    return made


class Runner:
    """A model and what its prompts take."""

    def __init__(self, path: Path, n_tokens: int) -> None:
        model = Model.load(path)
        self.context = Context(model, n_ctx=N_CTX)
        self.tokens = np.random.default_rng(0).integers(4, N_VOCAB, n_tokens).tolist()
        hp = model.hparams
        layers = (t for n, t in model.weights.items() if n.startswith("blk.") and t.n_dims > 1)
        used = sum(t.ne[0] * t.ne[1] * min(t.ne[2], hp.n_expert_used or 1) for t in layers)
        self.macs = n_tokens * (used + (n_tokens + 1) * hp.n_embd_q * hp.n_layer)
        self.run()

    def run(self) -> float:
        """Seconds of one prompt."""
        self.context.kv.clear()
        start = time.perf_counter()
        self.context.decode(Batch(self.tokens))
        return time.perf_counter() - start

    def profile(self) -> str:
        """Where the time goes."""
        program = cpu_program(self.context._graph(len(self.tokens), 1).schedule)
        rows = rows_of(profile(program, 3))
        return "\n".join(
            f"    {r['share']:6.1%} {r['us']:8.1f} us x {r['phases']:3} "
            f"{r['kernels']} {r['shapes']}"
            for r in rows[:14]
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--type", default="q8_0")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    type = GGMLType[args.type.upper()]
    with tempfile.TemporaryDirectory() as folder:
        peer = Runner(blown_up(Path(folder), PEER, type), args.tokens)
        if args.profile:
            print(f"{PEER}\n{peer.profile()}")
        for name in args.names or sorted(variants().keys() - {PEER}):
            mine = Runner(blown_up(Path(folder), name, type), args.tokens)
            pairs = [(mine.run(), peer.run()) for _ in range(ROUNDS)]
            a, b = (statistics.median(times) for times in zip(*pairs, strict=True))
            ratio = statistics.median((mine.macs / x) / (peer.macs / y) for x, y in pairs)
            line = {
                **machine.head(mine.context.n_threads),
                "variant": name,
                "type": args.type,
                "tokens": args.tokens,
                "ms": a * 1e3,
                "gmac_per_s": mine.macs / a / 1e9,
                f"{PEER}_ms": b * 1e3,
                f"{PEER}_gmac_per_s": peer.macs / b / 1e9,
                "ratio": ratio,
            }
            with RESULTS.open("a") as f:
                f.write(json.dumps(line) + "\n")
            print(
                f"{name:16} {a * 1e3:7.1f} ms, {line['gmac_per_s']:6.1f} GMAC/s, ratio {ratio:.2f}"
            )
            if args.profile:
                print(mine.profile())


if __name__ == "__main__":
    main()
