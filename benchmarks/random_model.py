"""Creates models with random weights at the sizes of real ones, for speed tests.

    python -m benchmarks.random_model mamba2-370m x.gguf [--type q4_0]
    python -m benchmarks.random_model smallthinker-21b-a3b-8-layers x.gguf --active 0.4 --transposed

llama.cpp can load them. The tensors are those of a variant of the tests; each matrix repeats a
few random rows, which costs as much to read as any others.

Random gates are positive in half of the cases. For a smaller share of active neurons some rows of
the gates are 0; they are read as any others.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.random_llama import N_VOCAB, metadata
from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, write_gguf
from pyggml.quants import quantize
from pyllama.arch import get_arch
from pyllama.convert import convert
from pyllama.convert.outtype import stays_f32
from pyllama.file_types import FILE_TYPES
from pyllama.hparams import HParams
from pyllama.hparams_reader import read_hparams
from pyllama.runtime.loader import tensor_sizes
from tests.pyllama.arch.checkpoints import variants, write_checkpoint

MODELS: dict[str, tuple[str, dict[str, Any]]] = {  # the variant, and config.json's real sizes
    "mamba2-370m": (
        "mamba2",
        {"hidden_size": 1024, "num_hidden_layers": 48, "head_dim": 64, "num_heads": 32,
         "state_size": 128},
    ),
    "mamba-370m": (
        "mamba",
        {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 48,
         "time_step_rank": 64},
    ),
    "lfm2-350m": (
        "lfm2",
        {"hidden_size": 1024, "intermediate_size": 4608, "num_hidden_layers": 16,
         "num_attention_heads": 16, "num_key_value_heads": 8,
         "layer_types": ["conv", "conv", "full_attention"] * 5 + ["conv"]},
    ),
    "qwen35-0.8b": (
        "qwen35_text",
        {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24,
         "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
         "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
         "linear_value_head_dim": 128,
         "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6},
    ),
    "granitehybrid-1b": (
        "granitehybrid_dense",
        {"hidden_size": 1536, "shared_intermediate_size": 4096, "num_hidden_layers": 40,
         "num_attention_heads": 12, "num_key_value_heads": 4, "mamba_n_heads": 48,
         "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1,
         "layer_types": (["mamba"] * 9 + ["attention"]) * 4},
    ),
    "llama-8b": (
        "llama",
        {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8},
    ),
    "qwen3-30b-a3b-8-layers": (
        "qwen3moe",
        {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 8,
         "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
         "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
    ),
    "gpt-oss-20b": (
        "gpt-oss",
        {"hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
         "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
         "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
         "layer_types": ["sliding_attention", "full_attention"] * 12},
    ),
    "smallthinker-21b-a3b-8-layers": (
        "smallthinker",
        {"hidden_size": 2560, "num_hidden_layers": 8, "num_attention_heads": 28,
         "num_key_value_heads": 4, "head_dim": 128, "moe_ffn_hidden_size": 768,
         "moe_num_primary_experts": 64, "moe_num_active_primary_experts": 6,
         "num_local_experts": 64, "sliding_window_layout": [0, 1, 1, 1] * 2,
         "rope_layout": [0, 1, 1, 1] * 2},
    ),
}  # fmt: skip
_ALSO = {"granitehybrid-1b": ["blk.0.ssm_conv1d.bias"]}  # which llama.cpp needs; real ones have it
_ROWS = 64  # random rows of a matrix


def random_tensors(
    hp: HParams, known: set[str], type: GGMLType, active: float = 0.5, transposed: bool = False
) -> dict[str, Any]:
    """All tensors, of which a tiny file of the same kind has the names in ``known``.

    Args:
        active: the share of experts' neurons with a positive gate, up to 0.5.
        transposed: the down matrices of experts have a row for each neuron.
    """
    rng, made = np.random.default_rng(0), {}
    without_layer = {".".join(name.split(".")[2:]) for name in known if name.startswith("blk.")}
    for pattern, sizes in get_arch(hp.arch).TENSORS.items():
        name = pattern.rstrip("?")
        is_layer = "{i}" in name
        if (".".join(name.split(".")[2:]) not in without_layer) if is_layer else name not in known:
            continue
        for i in range(hp.n_layer if is_layer else 1):
            ne = tensor_sizes(hp.of_layer(i) if is_layer else hp, sizes)
            if transposed and name.endswith("ffn_down_exps.weight"):
                ne = ne[1], ne[0], *ne[2:]
            if 0 in ne:
                continue
            if name.endswith("ffn_gate_exps.weight") and active < 0.5:
                made[name.replace("{i}", str(i))] = _gates(rng, ne, type, active)
            else:
                made[name.replace("{i}", str(i))] = _random(rng, name, ne, type)
    return made


def _random(rng: np.random.Generator, name: str, ne: tuple[int, ...], type: GGMLType) -> Any:
    shape = ne[::-1]
    if name.endswith("ffn_gate_inp.weight"):  # tokens differ in their experts
        return rng.normal(0, ne[0] ** -0.5, shape).astype(np.float32), GGMLType.F32, ne
    if "ssm_a" in name:
        return -rng.uniform(0.5, 8, shape).astype(np.float32), GGMLType.F32, ne
    if len(ne) == 1 or not name.endswith(".weight") or stays_f32(name):
        x = np.full(shape, -4.0 if "dt" in name else 0.0 if name.endswith("bias") else 1.0)
        return x.astype(np.float32), GGMLType.F32, ne
    kind = type if ne[0] % type.block_size == 0 else GGMLType.F16
    scale = 1.0 if name == "token_embd.weight" else ne[0] ** -0.5  # tokens differ in all layers
    rows = rng.normal(0, scale, (_ROWS, ne[0])).astype(np.float32)
    stored = quantize(rows, kind) if kind.is_quantized else rows.astype(np.float16)
    return _repeated(stored, int(np.prod(shape[:-1]))), kind, ne


def _gates(rng: np.random.Generator, ne: tuple[int, ...], type: GGMLType, active: float) -> Any:
    """Experts' gates, twice the share ``active`` of whose rows are not 0."""
    rows = rng.normal(0, ne[0] ** -0.5, (ne[1], ne[0])).astype(np.float32)
    rows[rng.random(ne[1]) >= 2 * active] = 0
    stored = quantize(rows, type) if type.is_quantized else rows.astype(np.float16)
    return _repeated(stored, int(np.prod(ne[1:]))), type, ne


def _repeated(rows: Any, n: int) -> Iterator[Any]:
    """``n`` rows in pieces: the given rows, again and again."""
    for start in range(0, n, len(rows)):
        yield rows[: n - start]


def file_type(type: GGMLType) -> int:
    """The value of ``general.file_type`` for matrices of a type."""
    return next(f.number for f in FILE_TYPES.values() if f.type is type and f.number is not None)


def create(
    name: str, path: Path, type: GGMLType, active: float = 0.5, transposed: bool = False
) -> None:
    """Write a model of ``MODELS``; see ``random_tensors``."""
    variant, sizes = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        tiny = convert(
            write_checkpoint(Path(folder) / "x", variant), Path(folder) / "x.gguf", "f32"
        )
        known = {*GGUFFile(tiny).tensors, *_ALSO.get(name, ())}
        arch, config = variants()[variant]
        config = {**config, **sizes, "vocab_size": N_VOCAB}
        rules = get_arch(arch).CONVERT
        keys = {f"{arch}.{k}": v for k, v in {**rules.defaults, **rules.keys(config)}.items()}
        tokens = {k: v for k, v in metadata().items() if not k.startswith("llama.")}
        kind = {"general.name": name, "general.file_type": file_type(type)}
        head = {"general.architecture": arch, **tokens, **kind, **keys}
        header = Path(folder) / "header.gguf"
        write_gguf(header, head, {})
        hp = read_hparams(GGUFFile(header), N_VOCAB, get_arch(arch).HPARAMS)
    write_gguf(path, head, random_tensors(hp, known, type, active, transposed))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("path", type=Path)
    parser.add_argument("--type", default="q4_0")
    parser.add_argument("--active", type=float, default=0.5)
    parser.add_argument("--transposed", action="store_true")
    args = parser.parse_args()
    create(args.name, args.path, GGMLType[args.type.upper()], args.active, args.transposed)
    print(args.path, args.path.stat().st_size)


if __name__ == "__main__":
    main()
