"""Measures the speed of every architecture relative to LLaMA at the same sizes.

    python -m benchmarks.architectures [NAME...] [--peer qwen3moe] [--shape 1b] [--type q8_0]
        [--tokens 512] [--profile]

A variant of the tests is blown up: random weights, the sizes below. For a prompt the ratio is of
multiplications a second (matrices and attention of the layers), since a feed-forward part without
gates has fewer of them; for one token of bytes of weights a second. Both run in turns, so that a
busy machine slows both.
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
from pyllama.hparams import HParams
from pyllama.hparams_reader import read_hparams
from pyllama.runtime.decode_graph import GraphSize
from pyllama.runtime.loader import tensor_sizes
from tests.pyllama.arch.checkpoints import N_VOCAB, variants, write_checkpoint

RESULTS = Path(__file__).parent / "results" / "architectures.jsonl"
ROUNDS, N_GENERATED, N_CTX = 7, 16, 1024
SHAPES = {"135m": (576, 1536, 9, 6), "1b": (2048, 8192, 32, 4)}  # n_embd, n_ff, n_head, n_layer


def blown_up(folder: Path, name: str, type: GGMLType, shape: tuple[int, int, int, int]) -> Path:
    """A GGUF file of a variant with the sizes of this page."""
    write_checkpoint(folder / name, name)
    tiny, path = folder / f"{name}-tiny.gguf", folder / f"{name}.gguf"
    convert(folder / name, tiny, "f32")
    file = GGUFFile(tiny)
    old = read_hparams(file, N_VOCAB, arch_of(file).HPARAMS)
    keys: dict[str, Any] = dict(file.metadata)
    n_embd, n_ff, n_head, n_layer = shape
    grouped = n_head // (4 if n_head % 4 == 0 else 3)
    sizes = {
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "context_length": N_CTX,
        "attention.head_count": n_head,
        "attention.head_count_kv": grouped if old.n_head_kv < old.n_head else n_head,
        "attention.key_length": n_embd // n_head,
        "attention.value_length": n_embd // n_head,
        "block_count": n_layer,
    }
    if old.n_expert:
        sizes["expert_feed_forward_length"] = n_ff // old.n_expert_used
    if old.n_head_kv == 1 < old.n_head:
        sizes["attention.head_count_kv"] = 1
    if old.n_rot:
        sizes["rope.dimension_count"] = n_embd // n_head * old.n_rot // old.head_dim
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
            is_matrix = len(ne) > 1 and name.endswith(".weight") and "_inp" not in name
            kind = type if is_matrix else GGMLType.F32
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
        matrices = [t for t in model.weights.values() if t.n_dims > 1 and "position" not in t.name]
        self.bytes = sum(
            t.nbytes * min(t.ne[2], hp.n_expert_used or 1) // t.ne[2] for t in matrices
        )
        self.run()
        self.run_tokens()

    def run(self) -> float:
        """Seconds of one prompt."""
        self.context.kv.clear()
        start = time.perf_counter()
        self.context.decode(Batch(self.tokens))
        return time.perf_counter() - start

    def run_tokens(self) -> float:
        """Seconds of one token, of a few in a row after an empty context."""
        self.context.kv.clear()
        self.context.decode(Batch(self.tokens[:16]))
        start = time.perf_counter()
        for token in self.tokens[:N_GENERATED]:
            self.context.decode_token(token)
        return (time.perf_counter() - start) / N_GENERATED

    def profile(self) -> str:
        """Where the time goes."""
        program = cpu_program(self.context._graph(GraphSize(len(self.tokens), 1)).schedule)
        rows = rows_of(profile(program, 3))
        return "\n".join(
            f"    {r['share']:6.1%} {r['us']:8.1f} us x {r['phases']:3} "
            f"{r['kernels']} {r['shapes']}"
            for r in rows[:14]
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--peer", default="llama")
    parser.add_argument("--shape", default="135m", choices=SHAPES)
    parser.add_argument("--type", default="q8_0")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    type = GGMLType[args.type.upper()]
    with tempfile.TemporaryDirectory() as folder:
        shape = SHAPES[args.shape]
        peer = Runner(blown_up(Path(folder), args.peer, type, shape), args.tokens)
        if args.profile:
            print(f"{args.peer}\n{peer.profile()}")
        for name in args.names or sorted(variants().keys() - {args.peer}):
            mine = Runner(blown_up(Path(folder), name, type, shape), args.tokens)
            pairs = [(mine.run(), peer.run()) for _ in range(ROUNDS)]
            a, b = (statistics.median(times) for times in zip(*pairs, strict=True))
            ratio = statistics.median((mine.macs / x) / (peer.macs / y) for x, y in pairs)
            tokens = [(mine.run_tokens(), peer.run_tokens()) for _ in range(ROUNDS)]
            read = statistics.median((mine.bytes / x) / (peer.bytes / y) for x, y in tokens)
            line = {
                **machine.head(mine.context.n_threads),
                "variant": name,
                "type": args.type,
                "tokens": args.tokens,
                "ms": a * 1e3,
                "gmac_per_s": mine.macs / a / 1e9,
                "shape": args.shape,
                "peer": args.peer,
                f"{args.peer}_ms": b * 1e3,
                f"{args.peer}_gmac_per_s": peer.macs / b / 1e9,
                "ratio": ratio,
                "token_ms": statistics.median(x for x, _ in tokens) * 1e3,
                "token_ratio": read,
            }
            with RESULTS.open("a") as f:
                f.write(json.dumps(line) + "\n")
            print(
                f"{name:16} {a * 1e3:7.1f} ms, {line['gmac_per_s']:6.1f} GMAC/s, ratio {ratio:.2f};"
                f" one token {line['token_ms']:.2f} ms, ratio {read:.2f}"
            )
            if args.profile:
                print(mine.profile())


if __name__ == "__main__":
    main()
