"""Tiny LLaMA models as GGUF files: the recorded checkpoint, and random ones with every option.

spec = Spec(n_head=6, n_head_kv=2, bias=True)
weights = random_weights(spec)
path = write_model(tmp_path / "x.gguf", spec, weights, GGMLType.F16)
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, write_gguf
from pyggml.quants import quantize
from pyllama import Batch, Context

from .tokenizer.vocabularies import DATA, spm, spm_metadata

HF_LLAMA = DATA.parent / "hf_llama"
Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Spec:
    """Sizes of a model; ``factor`` is the linear rope scaling."""

    n_layer: int = 2
    n_embd: int = 32
    n_ff: int = 48
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 8
    n_rot: int = 0  # 0: head_dim
    n_vocab: int = 261  # 3 + 256 bytes + 2: no multiple of anything
    n_ctx: int = 256
    eps: float = 1e-5
    freq_base: float = 10000.0
    factor: float = 1.0
    bias: bool = False
    tied: bool = True
    freqs: bool = False

    @property
    def rotated(self) -> int:
        return self.n_rot or self.head_dim

    def metadata(self) -> dict[str, Any]:
        """The hyperparameters in GGUF's keys."""
        keys = {
            "context_length": self.n_ctx,
            "embedding_length": self.n_embd,
            "block_count": self.n_layer,
            "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.key_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": np.float32(self.eps),
            "rope.dimension_count": self.rotated,
            "rope.freq_base": np.float32(self.freq_base),
            "rope.scaling.factor": np.float32(self.factor),
        }
        return {"general.architecture": "llama"} | {f"llama.{k}": v for k, v in keys.items()}


def random_weights(spec: Spec, seed: int = 0) -> Weights:
    """Weights whose logits have a standard deviation of about one."""
    rng = np.random.default_rng(seed)
    q, kv = spec.n_head * spec.head_dim, spec.n_head_kv * spec.head_dim
    weights: Weights = {}

    def linear(name: str, n_out: int, n_in: int) -> None:
        weights[f"{name}.weight"] = rng.standard_normal((n_out, n_in)) / np.sqrt(n_in)
        if spec.bias and name.startswith("blk"):
            weights[f"{name}.bias"] = rng.standard_normal(n_out) / 2

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = rng.uniform(0.5, 1.5, spec.n_embd)

    linear("token_embd", spec.n_vocab, spec.n_embd)
    for i in range(spec.n_layer):
        norm(f"blk.{i}.attn_norm")
        norm(f"blk.{i}.ffn_norm")
        linear(f"blk.{i}.attn_q", q, spec.n_embd)
        linear(f"blk.{i}.attn_k", kv, spec.n_embd)
        linear(f"blk.{i}.attn_v", kv, spec.n_embd)
        linear(f"blk.{i}.attn_output", spec.n_embd, q)
        linear(f"blk.{i}.ffn_gate", spec.n_ff, spec.n_embd)
        linear(f"blk.{i}.ffn_up", spec.n_ff, spec.n_embd)
        linear(f"blk.{i}.ffn_down", spec.n_embd, spec.n_ff)
    norm("output_norm")
    if not spec.tied:
        linear("output", spec.n_vocab, spec.n_embd)
    if spec.freqs:
        weights["rope_freqs.weight"] = rng.uniform(1, 8, spec.rotated // 2)
    return {name: value.astype(np.float32) for name, value in weights.items()}


def write_model(
    path: Path,
    spec: Spec,
    weights: Weights,
    type: GGMLType = GGMLType.F32,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """Write a model with its matrices in ``type``; ``metadata`` replaces keys, None drops one."""
    keys = spec.metadata() | _vocabulary(spec) | (metadata or {})
    tensors = {
        name: value if value.ndim == 1 else (quantize(value, type), type, value.shape[::-1])
        for name, value in weights.items()
    }
    write_gguf(path, {key: value for key, value in keys.items() if value is not None}, tensors)
    return path


def _vocabulary(spec: Spec) -> dict[str, Any]:
    if spec.n_vocab == 512:
        return tokenizer()
    return spm(*(chr(ord("A") + i) for i in range(spec.n_vocab - 259)))


def write_eagle3(path: Path, spec: Spec, seed: int = 0) -> Path:
    """Write an EAGLE-3 head of a model, which has its embedding and output matrix."""
    own = {
        k.replace("llama.", "eagle3."): v for k, v in replace(spec, n_layer=1).metadata().items()
    }
    keys = own | {
        **_vocabulary(spec),
        "general.architecture": "eagle3",
        "eagle3.target_layers": [1, 2, 3],
        "eagle3.target_hidden_size": spec.n_embd,
    }
    whole = random_weights(replace(spec, n_layer=1), seed)
    weights = {x: w for x, w in whole.items() if not x.startswith("token_embd")}
    for part in "qkv":  # they read an embedding and hidden states
        weights[f"blk.0.attn_{part}.weight"] = weights[f"blk.0.attn_{part}.weight"].repeat(2, 1)
    weights["blk.0.attn_norm_2.weight"] = np.ones(spec.n_embd, np.float32)
    weights["fc.weight"] = np.eye(spec.n_embd, 3 * spec.n_embd, dtype=np.float32)
    write_gguf(path, keys, weights)
    return path


def tokenizer() -> dict[str, Any]:
    """Metadata of the checkpoint's tokenizer."""
    return spm_metadata(DATA / "llama" / "tokenizer.model")


def rows(context: Context, *parts: list[int], seq: int = 0) -> np.ndarray:
    """Logits of all tokens of a sequence, decoded in batches of ``n_batch``."""
    out = []
    for part in parts:
        for i in range(0, len(part), context.n_batch):
            context.decode(Batch(part[i : i + context.n_batch], seq_id=seq, logits="all"))
            out.append(context.logits.copy())
    return np.concatenate(out)


def state(context: Context) -> tuple[Any, ...]:
    """Cells in use, and length, first and last position of each sequence."""
    kv, seqs = context.kv, range(context.kv.n_seq_max)
    return kv.n_used, [(kv.length(s), kv.seq_pos_min(s), kv.seq_pos_max(s)) for s in seqs]


# --- the checkpoint: transformers' LLaMA with recorded logits ------------------------------------

HF_SPEC = Spec(
    n_layer=3, n_embd=64, n_ff=160, n_head=4, n_head_kv=2, head_dim=16, n_vocab=512, tied=False
)


def hf_folder(path: Path, name: str = "hf_llama") -> Path:
    """Make ``path`` a checkpoint's folder, to convert it or to damage it first."""
    shutil.copytree(HF_LLAMA.with_name(name), path, copy_function=shutil.copyfile)
    shutil.copyfile(DATA / "llama" / "tokenizer.model", path / "tokenizer.model")
    return path


def hf_weights(converted: Path) -> Weights:
    """The weights in an F32 file, shaped as NumPy has it."""
    with GGUFFile(converted) as file:
        return {
            name: file.tensor_bytes(name).view(np.float32).reshape(t.ne[: t.n_dims][::-1])
            for name, t in file.tensors.items()
        }
