"""Creates a model of 7B-shaped layers with random weights, as dense and sparse GGUF files.

    dense, sparse = write_files(folder, GGMLType.Q4_0)
    set_gates(model, 0.1)                          # of a loaded one: a tenth of the gates opens

Every weight is one of the levels -7 to 7, which Q4_0 and F16 hold alike. The share of open gates
is set by construction: 32 channels of every embedding are the same constant, the weights of all
gates on them are -8, and the outputs of layers are small, so the residual keeps that constant. The
FFN norm's weights on these channels (a vector of float32, changed in memory) are then a common
bias of all gates. Predictors are random too; their activity is set by the threshold. Their scores
share a part across tokens, since ReLU's results are never negative: about a third of the variance,
so some neurons are hotter than others, as in trained models.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.buffer import HOST, HostBuffer
from pyggml.dtype import GGMLType
from pyggml.gguf import write_gguf
from pyggml.tensor import Tensor
from pyllama import Model

N_EMBD, N_FF, RANK, N_LAYER, N_HEAD, N_VOCAB = 4096, 11008, 1024, 8, 32, 512
_CONSTANT = 32  # channels: a block of Q4_0
_SPREAD = 17.5**0.5  # root mean square of the levels
_CODES = np.where(np.arange(16) == 0, 8, np.arange(16))  # -8 would shift the mean: 0 instead
_PAIRS = (_CODES[np.arange(256) & 15] | _CODES[np.arange(256) >> 4] << 4).astype(np.uint8)
_STEP_ROWS = 512
Rows = tuple[Iterator[npt.NDArray[Any]], GGMLType, tuple[int, int]]


def _levels(
    seed: int, ne: tuple[int, int], type: GGMLType, rms: float, first: int | None = None
) -> Rows:
    """Random rows; ``first``: the code (0 to 15, level + 8) of the constant channels."""
    step = np.float16(rms / _SPREAD)
    level = (np.arange(16) - 8).astype(np.float16) * step
    pairs = np.stack([level[np.arange(256) & 15], level[np.arange(256) >> 4]], 1).view(np.uint32)

    def pieces() -> Iterator[npt.NDArray[Any]]:
        rng = np.random.default_rng(seed)
        for start in range(0, ne[1], _STEP_ROWS):
            n = min(_STEP_ROWS, ne[1] - start)
            codes = _PAIRS[np.frombuffer(rng.bytes(n * ne[0] // 2), np.uint8)]
            if type is GGMLType.F16:
                rows = pairs[:, 0][codes].view(np.float16).reshape(n, ne[0])
                if first is not None:
                    rows[:, :_CONSTANT] = level[first]
            else:
                rows = np.empty((n, ne[0] // 32), [("d", "<f2"), ("qs", "u1", 16)])
                rows["d"], rows["qs"] = step, codes.reshape(n, -1, 16)
                if first is not None:
                    rows["qs"][:, 0] = first * 17
            yield rows

    return pieces(), type, ne


def _metadata() -> dict[str, Any]:
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    words = [chr(0x4E00 + i) for i in range(N_VOCAB - 259)]
    sizes = {
        "context_length": 2048,
        "embedding_length": N_EMBD,
        "block_count": N_LAYER,
        "feed_forward_length": N_FF,
        "attention.head_count": N_HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": N_EMBD // N_HEAD,
    }
    return {f"llama.{key}": value for key, value in sizes.items()} | {
        "general.name": "random",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *bytes_, *words],
        "tokenizer.ggml.scores": np.zeros(N_VOCAB, np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * len(words), np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def _tensors(type: GGMLType, sparse: bool) -> dict[str, Any]:
    e, f = N_EMBD, N_FF
    made: dict[str, Any] = {"token_embd.weight": _levels(0, (e, N_VOCAB), type, 1.0, first=12)}
    unit, small = 1 / e**0.5, 0.05 / e**0.5
    for i in range(N_LAYER):
        shapes: dict[str, tuple[tuple[int, int], float, int | None]] = {
            **{f"attn_{part}": ((e, e), unit, None) for part in "qkv"},
            "attn_output": ((e, e), small, None),
            "ffn_gate": ((e, f), unit, 0),
            "ffn_up": ((e, f), unit, None),
        }
        if sparse:
            shapes["ffn_down_t"] = ((e, f), small / 4, None)
            shapes["fc1"] = ((e, RANK), unit, None)
            shapes["fc2"] = ((RANK, f), 1 / RANK**0.5, None)
        else:
            shapes["ffn_down"] = ((f, e), small / 4, None)
        for k, (name, (ne, rms, first)) in enumerate(shapes.items()):
            made[f"blk.{i}.{name}.weight"] = _levels(100 * i + k + 1, ne, type, rms, first)
        for name in ("attn_norm", "ffn_norm"):
            made[f"blk.{i}.{name}.weight"] = np.ones(e, np.float32)
    made["output_norm.weight"] = np.ones(e, np.float32)
    made["output.weight"] = _levels(1, (e, N_VOCAB), type, unit)
    return made


def write_files(folder: Path, type: GGMLType) -> tuple[Path, Path]:
    """The dense file, which llama.cpp loads too, and the sparse one; kept if they are there."""
    paths = []
    for sparse in (False, True):
        path = folder / f"7b-layers-{type.name}-{'sparse' if sparse else 'dense'}.gguf"
        if not path.exists():
            write_gguf(path, _metadata() | {"llama.hidden_act": "relu"}, _tensors(type, sparse))
        paths.append(path)
    return paths[0], paths[1]


def set_gates(model: Model, share: float | None) -> None:
    """Open a share of the gates; None: practically all, so that predictors decide alone."""
    deviations = -4.0 if share is None else NormalDist().inv_cdf(1 - share)
    constant = 4 / _SPREAD  # of the embedding, code 12
    noise = _SPREAD * (N_EMBD - _CONSTANT) ** 0.5
    norm = np.ones(N_EMBD, np.float32)
    norm[:_CONSTANT] = deviations * noise / (8 * _CONSTANT * constant)
    buffer = HostBuffer(norm.view(np.uint8), HOST)
    for i in range(N_LAYER):
        tensor = Tensor(GGMLType.F32, (N_EMBD, 1, 1, 1)).set_name(f"blk.{i}.ffn_norm.weight")
        tensor.buffer, tensor.data = buffer, buffer.base
        model.weights[tensor.name] = tensor
