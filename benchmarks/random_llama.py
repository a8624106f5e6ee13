"""Creates a LLaMA of 1.1 billion random Q4_0 weights for speed tests; llama.cpp can load it.

    python -m benchmarks.random_llama              # ~/.cache/pyllama/random-1.1b-Q4_0.gguf, 620 MB

The sizes are TinyLlama's. Blocks are random bytes with one scale a matrix, chosen so that values
neither vanish nor explode on their way through the layers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.dtype import GGMLType
from pyggml.env import user_cache_dir
from pyggml.gguf import write_gguf

N_EMBD, N_FF, N_LAYER, N_HEAD, N_HEAD_KV, N_VOCAB = 2048, 5632, 22, 32, 4, 32000
_BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])  # of Q4_0
_SPREAD = 21.5**0.5  # root mean square of -8 to 7
_STEP_ROWS = 2048
RawTensor = tuple[Iterator[npt.NDArray[Any]], GGMLType, tuple[int, int]]


def matrix(seed: int, n_in: int, n_out: int) -> RawTensor:
    """Random rows; the result of a matmul is about as large as its input."""
    scale = np.float16(1 / (_SPREAD * n_in**0.5))

    def pieces() -> Iterator[npt.NDArray[Any]]:
        rng = np.random.default_rng(seed)
        for start in range(0, n_out, _STEP_ROWS):
            n = min(_STEP_ROWS, n_out - start)
            rows = np.empty((n, n_in // 32), _BLOCK)
            rows["d"] = scale
            rows["qs"] = np.frombuffer(rng.bytes(n * n_in // 2), np.uint8).reshape(n, -1, 16)
            yield rows

    return pieces(), GGMLType.Q4_0, (n_in, n_out)


def metadata() -> dict[str, Any]:
    """Sizes, and a vocabulary of bytes and single characters."""
    sizes = {
        "context_length": 2048,
        "embedding_length": N_EMBD,
        "block_count": N_LAYER,
        "feed_forward_length": N_FF,
        "attention.head_count": N_HEAD,
        "attention.head_count_kv": N_HEAD_KV,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": N_EMBD // N_HEAD,
        "vocab_size": N_VOCAB,
    }
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    words = [chr(0x20000 + i) for i in range(N_VOCAB - 259)]
    return {f"llama.{key}": value for key, value in sizes.items()} | {
        "general.name": "random 1.1B",
        "general.file_type": 2,
        "general.quantization_version": 2,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *bytes_, *words],
        "tokenizer.ggml.scores": np.zeros(N_VOCAB, np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * len(words), np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def tensors() -> dict[str, Any]:
    """All of the model's, by name."""
    kv = N_HEAD_KV * N_EMBD // N_HEAD
    shapes = {
        "attn_q": (N_EMBD, N_EMBD),
        "attn_k": (N_EMBD, kv),
        "attn_v": (N_EMBD, kv),
        "attn_output": (N_EMBD, N_EMBD),
        "ffn_gate": (N_EMBD, N_FF),
        "ffn_up": (N_EMBD, N_FF),
        "ffn_down": (N_FF, N_EMBD),
    }
    made: dict[str, Any] = {"token_embd.weight": matrix(0, N_EMBD, N_VOCAB)}
    for i in range(N_LAYER):
        for k, (name, (n_in, n_out)) in enumerate(shapes.items()):
            made[f"blk.{i}.{name}.weight"] = matrix(100 * i + k + 2, n_in, n_out)
        for name in ("attn_norm", "ffn_norm"):
            made[f"blk.{i}.{name}.weight"] = np.ones(N_EMBD, np.float32)
    made["output_norm.weight"] = np.ones(N_EMBD, np.float32)
    made["output.weight"] = matrix(1, N_EMBD, N_VOCAB)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = user_cache_dir("pyllama") / "random-1.1b-Q4_0.gguf"
    parser.add_argument("path", nargs="?", type=Path, default=default)
    path = parser.parse_args().path
    write_gguf(path, metadata(), tensors())
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
