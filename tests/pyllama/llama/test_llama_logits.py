"""LLaMA's logits against transformers' and a NumPy model; equal bits for any batching."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.backend.cpu.simd.isa import vectors
from pyggml.backend.cpu.simd.vector import HardwareFloats
from pyggml.dtype import GGMLType
from pyggml.quants import dequantize, quantize
from pyllama import Batch, Context, Model
from pyllama.convert import convert
from pyllama.runtime.state import dump_state, restore_state

from ...tiers import some
from ..models import (
    HF_LLAMA,
    HF_SPEC,
    Spec,
    Weights,
    hf_folder,
    hf_weights,
    random_weights,
    write_model,
)
from ..tokenizer.vocabularies import cases

F32, F16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.Q8_0
Q4_0, Q4_1 = GGMLType.Q4_0, GGMLType.Q4_1

# NMSE against float64 on the same (dequantized) weights, with activations rounded as the engine
# does it. Left is float32's rounding; four-bit kernels also round a block's sum to F16 (2^-12),
# which tips some of the 8-bit codes over: about half of what those codes cost in all.
# Without a multiply-add more sums fall to the other side of a rounding of the cache.
SAME_WEIGHTS = {
    F32: 1e-8,
    F16: 1e-8 if isinstance(vectors(), HardwareFloats) else 2e-8,
    Q8_0: 1e-8,
    Q4_0: 2e-3,
    Q4_1: 2e-3,
}
# Against the recorded float32 logits: rounding of the cache (F16), of weights (F16, 1/254 of a
# block's largest, 1/16 or 1/30 of its range), and of activations to 8 bits, over 22 matmuls.
RECORDED = {F32: 2e-6, F16: 1e-5, Q8_0: 5e-3, Q4_0: 0.4, Q4_1: 0.4}


def numpy_llama(
    w: Weights,
    spec: Spec,
    tokens: list[int],
    visible: np.ndarray | None = None,
    eight_bits: bool = False,
) -> np.ndarray:
    """float64 logits of all tokens; token i at position i attends to j where ``visible[i, j]``.

    ``eight_bits``: matmuls round their input to blocks of 32 bytes, as quantized weights want it.
    """
    n = len(tokens)
    visible = np.tri(n, dtype=bool) if visible is None else visible
    w = {name: value.astype(np.float64) for name, value in w.items()}
    pairs = np.arange(0, spec.rotated, 2)
    frequency = spec.freq_base ** (-pairs / spec.rotated) / spec.factor
    angle = np.arange(n)[:, None] * frequency / w.get("rope_freqs.weight", 1.0)
    turn = np.exp(1j * angle)[:, None]  # [n, 1, rotated / 2]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        if eight_bits:
            blocks = x.reshape(n, -1, 32)
            d = np.abs(blocks).max(-1, keepdims=True) / 127
            x = (np.rint(blocks / d) * d.astype(np.float16)).reshape(x.shape)
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + spec.eps) * w[f"{name}.weight"]

    def rope(x: np.ndarray) -> np.ndarray:
        z = (x[..., pairs] + 1j * x[..., pairs + 1]) * turn
        x[..., pairs], x[..., pairs + 1] = z.real, z.imag
        return x

    def cached(x: np.ndarray, n_head: int) -> np.ndarray:  # in F16; a head serves several queries
        return x.astype(np.float16).astype(np.float64).repeat(n_head // x.shape[1], axis=1)

    x = w["token_embd.weight"][tokens]
    for i in range(spec.n_layer):
        cur = norm(x, f"blk.{i}.attn_norm")
        q, k, v = (
            linear(cur, f"blk.{i}.attn_{part}").reshape(n, -1, spec.head_dim) for part in "qkv"
        )
        k, v = (cached(part, q.shape[1]) for part in (rope(k), v))
        scores = np.einsum("ihd,jhd->hij", rope(q), k) / np.sqrt(spec.head_dim)
        scores = np.exp(np.where(visible, scores - scores.max(-1, keepdims=True), -np.inf))
        scores /= scores.sum(-1, keepdims=True)
        out = np.einsum("hij,jhd->ihd", scores, v).reshape(n, -1)
        x = x + linear(out, f"blk.{i}.attn_output")
        cur = norm(x, f"blk.{i}.ffn_norm")
        gate = linear(cur, f"blk.{i}.ffn_gate")
        cur = gate / (1 + np.exp(-gate)) * linear(cur, f"blk.{i}.ffn_up")
        x = x + linear(cur, f"blk.{i}.ffn_down")
    return linear(norm(x, "output_norm"), "token_embd" if spec.tied else "output")


def nmse(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(((got - wanted) ** 2).sum() / (wanted**2).sum())


def logits(
    model: Model, tokens: list[int], cuts: tuple[int, ...] = (), **options: Any
) -> np.ndarray:
    """Logits of all tokens, decoded in parts that end at ``cuts``."""
    context = Context(model, **{"n_ctx": 64, **options})
    parts = []
    for start, stop in pairwise((0, *cuts, len(tokens))):
        context.decode(Batch(tokens[start:stop], logits="all"))
        parts.append(context.logits.copy())
    return np.concatenate(parts)


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    with np.load(HF_LLAMA / "recorded.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = hf_folder(tmp_path_factory.mktemp("hf") / "llama")
    return convert(folder, outtype="f32")


def test_transformers_logits_and_greedy_tokens(hf: Path, recorded: dict[str, np.ndarray]) -> None:
    model = Model.load(hf)
    context = Context(model, type_k=F32, type_v=F32)
    tokens = recorded["tokens"].tolist()
    context.decode(Batch(tokens, logits="all"))
    assert np.abs(context.logits - recorded["logits"]).max() < 1e-4  # they ask for 2e-3
    greedy = []
    for _ in recorded["greedy"]:
        greedy.append(int(context.logits_ith(-1).argmax()))
        context.decode(Batch(greedy[-1:]))
    assert greedy == recorded["greedy"].tolist()


def test_the_files_tokenizer_is_sentencepieces(hf: Path) -> None:
    tokenizer = Model.load(hf, vocab_only=True).tokenizer
    for text, ids in cases("llama"):
        assert tokenizer.encode(text, add_special=False) == ids


@pytest.mark.parametrize("type", some(SAME_WEIGHTS, 2), ids=lambda type: type.name)
def test_each_type_is_exact_and_the_same_bits_anyhow(
    tmp_path: Path, type: GGMLType, hf: Path, recorded: dict[str, np.ndarray]
) -> None:
    weights, tokens = hf_weights(hf), recorded["tokens"].tolist()
    path = write_model(tmp_path / "x.gguf", HF_SPEC, weights, type)
    model, in_place = Model.load(path), Model.load(path, repack=False, use_mmap=False)
    whole = logits(model, tokens, n_threads=1)
    rounded = {
        name: value if value.ndim == 1 else dequantize(quantize(value, type), type)
        for name, value in weights.items()
    }
    wanted = numpy_llama(rounded, HF_SPEC, tokens, eight_bits=type.is_quantized)
    assert nmse(whole, wanted) < SAME_WEIGHTS[type]
    assert nmse(whole, recorded["logits"]) < RECORDED[type]
    one_by_one = tuple(range(1, len(tokens)))
    for other in (
        logits(model, tokens, n_threads=2),
        logits(model, tokens, one_by_one, n_threads=1),
        logits(model, tokens, one_by_one, n_threads=2),
        logits(model, tokens, n_ubatch=7),
        logits(model, tokens, (1, 4, 21), n_ubatch=16),
        logits(in_place, tokens, n_threads=2),
        logits(in_place, tokens, one_by_one, n_threads=1),
        logits(in_place, tokens, n_ubatch=7),
    ):
        assert np.array_equal(other, whole)


VARIANTS = {
    "plain": Spec(n_head_kv=4),
    "gqa-untied": Spec(n_head=6, n_head_kv=2, tied=False),
    "mqa-bias": Spec(n_head_kv=1, bias=True),
    "freqs": Spec(freqs=True, freq_base=5e5, factor=4.0),
    "head_dim": Spec(n_embd=48, n_head=3, n_head_kv=3, head_dim=32, tied=False),
    "part-of-a-head-turns": Spec(head_dim=16, n_rot=8, freqs=True),
    "odd-sizes": Spec(n_layer=1, n_embd=37, n_ff=43, n_vocab=263, head_dim=24, bias=True, eps=0.1),
    "heads-of-100": Spec(n_embd=64, head_dim=100, tied=False),  # as OpenLLaMA's of 3B
    "heads-of-20": Spec(head_dim=20),
    "one-of-all": Spec(n_embd=1, n_ff=1, n_head=1, n_head_kv=1),
}


@pytest.mark.parametrize("spec", some(VARIANTS.values(), 5), ids=VARIANTS)
def test_variants_agree_with_an_independent_model(tmp_path: Path, spec: Spec) -> None:
    weights = random_weights(spec)
    path = write_model(tmp_path / "x.gguf", spec, weights)
    tokens = np.random.default_rng(1).integers(0, spec.n_vocab, 33).tolist()
    whole = logits(Model.load(path), tokens)
    assert nmse(whole, numpy_llama(weights, spec, tokens)) < SAME_WEIGHTS[F32]
    assert np.array_equal(logits(Model.load(path, repack=False), tokens, (1, 2, 20)), whole)


def test_layers_of_different_sizes(tmp_path: Path) -> None:
    sizes = {"n_head": (4, 6, 2), "n_head_kv": (2, 6, 1), "n_ff": (48, 64, 33)}
    weights: Weights = {}
    for i in range(3):
        spec = Spec(n_layer=3, n_ctx=64, **{name: values[i] for name, values in sizes.items()})
        layer = random_weights(spec, seed=i)
        weights |= {name: x for name, x in layer.items() if f"blk.{i}." in name or not i}
    keys = dict(zip(sizes, ("attention.head_count", "attention.head_count_kv",
                            "feed_forward_length"), strict=True))  # fmt: skip
    arrays = {f"llama.{keys[name]}": np.array(x, np.int32) for name, x in sizes.items()}
    model = Model.load(write_model(tmp_path / "x.gguf", spec, weights, metadata=arrays))
    tokens = np.random.default_rng(1).integers(0, spec.n_vocab, 33).tolist()
    whole = logits(model, tokens)
    assert nmse(whole, numpy_llama(weights, spec, tokens)) < SAME_WEIGHTS[F32]
    assert np.array_equal(logits(model, tokens, (1, 4, 21), n_ubatch=16), whole)
    context = Context(model, n_ctx=64)
    context.decode(Batch(tokens[:-1]))
    saved, tail = dump_state(context), tokens[-1:]
    context.kv.seq_add(0, 0, -1, 7)  # rotates the keys of each layer
    context.decode(Batch(tail, [7 + len(tokens) - 1], logits="all"))
    assert nmse(context.logits, whole[-1:]) < 1e-5
    restore_state(context, b"".join(x.tobytes() for x in saved))
    context.decode(Batch(tail, logits="all"))
    assert np.array_equal(context.logits, whole[-1:])


def test_forgotten_tokens_are_not_attended_to(tmp_path: Path) -> None:
    """Positions 5 to 8 are removed after token 11; earlier tokens have attended to them."""
    spec = Spec()
    weights = random_weights(spec)
    context = Context(Model.load(write_model(tmp_path / "x.gguf", spec, weights)), n_ctx=16)
    tokens = list(range(40, 60))
    context.decode(Batch(tokens[:12]))
    context.kv.seq_rm(0, 5, 9)
    context.decode(Batch(tokens[12:], logits="all"))  # 4 free cells, 4 given back
    visible = np.tri(20, dtype=bool)
    visible[12:, 5:9] = False
    wanted = numpy_llama(weights, spec, tokens, visible)[12:]
    assert nmse(context.logits, wanted) < SAME_WEIGHTS[F32]
