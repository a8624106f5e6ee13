"""Record the reference's results for tiny checkpoints, in tests/data/arch/<variant>.npz.

    LLAMA_CPP_SOURCES=DIR python -m tests.pyllama.arch.record [NAME...]

Needs torch, transformers, xllamacpp and llama.cpp's converter (see ``llama_cpp.py``), which the
tests do not. A file has ``shapes`` (JSON), ``scale``, ``tokens`` int32[40], and ``gguf`` (JSON):
the keys and tensors that llama.cpp's converter makes of the checkpoint, if it can.

Of transformers, in float32 with eager attention: ``logits`` float32[n, 512] at every ``EVERY``-th
token and ``greedy`` int32[16]. The scale is chosen for logits with a standard deviation of 1.5, the
tokens so that no greedy choice is close, and as few between experts as can be: rounded weights
would change them. Of llama.cpp, where transformers lacks the model: ``greedy`` int32[32] and
``logprobs`` float32[8, 512], the logarithms of the probabilities that every fourth of them was
chosen from.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MethodType
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open

from pyllama.convert import convert

from . import llama_cpp
from .checkpoints import (
    DATA,
    EVERY,
    N_VOCAB,
    Shapes,
    expand,
    variants,
    weights,
    write_files,
    write_safetensors,
)
from .variants import SHAPES, UNUSABLE

torch.set_num_threads(1)  # tiny matrices
N_TOKENS, N_GREEDY, N_LLAMA_CPP, SPREAD, GAP = 40, 16, 32, 1.5, 0.02


def _bamboo(model: Any) -> Any:
    """Mistral's feed-forward part with ReLU on gate and up, as in Bamboo's code."""

    def forward(self: Any, x: Any) -> Any:
        return self.down_proj(torch.relu(self.gate_proj(x)) * torch.relu(self.up_proj(x)))

    for layer in model.model.layers:
        layer.mlp.forward = MethodType(forward, layer.mlp)
    return model


def _turbosparse_mixtral(model: Any) -> Any:
    """Mixtral's experts with ReLU on gate and up."""

    def forward(self: Any, x: Any, chosen: Any, shares: Any) -> Any:
        out = torch.zeros_like(x)
        for t, u in np.ndindex(*chosen.shape):
            expert = chosen[t, u]
            gate, up = torch.relu(self.gate_up_proj[expert] @ x[t]).chunk(2)
            out[t] += shares[t, u] * (self.down_proj[expert] @ (gate * up))
        return out

    for layer in model.model.layers:
        layer.mlp.experts.forward = MethodType(forward, layer.mlp.experts)
    return model


# model types that transformers does not have: one that it has, and what makes it the other
_OWN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "bamboo": ("mistral", _bamboo),
    "turbosparsemixtral": ("mixtral", _turbosparse_mixtral),
}


def _auto(parsed: Any) -> Any:
    """The class of transformers that makes the model of a configuration."""
    text = transformers.AutoModelForCausalLM
    vision = transformers.AutoModelForImageTextToText
    return text if type(parsed) in text._model_mapping else vision  # type: ignore[attr-defined]


def save_config(config: dict[str, Any], folder: Path) -> Shapes:
    """A checkpoint as transformers writes it; the shapes by the names in its file."""
    kind, _ = _OWN.get(config["model_type"], (config["model_type"], None))
    rest = {k: v for k, v in config.items() if k != "model_type"}
    parsed = transformers.AutoConfig.for_model(kind, **rest)
    _auto(parsed).from_config(parsed).float().save_pretrained(folder)
    with safe_open(folder / "model.safetensors", "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    if kind == "qwen3_vl_moe":  # the published ones are transposed; transformers reads both
        shapes = {k: (x[0], x[2], x[1]) if ".experts." in k else x for k, x in shapes.items()}
    if kind == "deepseek_v4":  # transformers reads the published names too
        published = {"model.": "", "embed_tokens": "embed", "attn.norm": "attn.kv_norm",
                     "hc_head.hc_": "hc_head_"}  # fmt: skip
        for theirs, name in published.items():
            shapes = {k.replace(theirs, name): x for k, x in shapes.items()}
    if kind == "kimi_linear":  # the published ones call the first layers' part ``mlp``
        dense = ("e.gate_proj.", "e.up_proj.", "e.down_proj.")
        shapes = {
            k.replace("block_sparse_moe", "mlp") if any(part in k for part in dense) else k: x
            for k, x in shapes.items()
        }
    return shapes


def load_model(config: dict[str, Any], folder: Path, shapes: Shapes, scale: float) -> Any:
    """The model with the weights that the tests will give it."""
    made = weights(config["model_type"], shapes, scale)
    write_safetensors(folder / "model.safetensors", made)
    model = _auto(transformers.AutoConfig.from_pretrained(folder)).from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    _, change = _OWN.get(config["model_type"], ("", None))
    return (model if change is None else change(model)).eval()


def compute_logits(model: Any, tokens: list[int]) -> np.ndarray:
    out: np.ndarray = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    return out


def _greedy(model: Any, tokens: list[int]) -> tuple[list[int], float]:
    """The greedy continuation, and the smallest margin between the two largest logits."""
    made: list[int] = []
    gap = float("inf")
    for _ in range(N_GREEDY):
        last = compute_logits(model, tokens + made)[-1]
        best = np.sort(last)[::-1]
        gap = min(gap, float(best[0] - best[1]))
        made.append(int(last.argmax()))
    return made, gap


def routing_margin(model: Any, tokens: list[int], config: dict[str, Any]) -> float:
    """The smallest margin between the last used expert of a token and the next one."""
    text = config.get("text_config", config)
    names = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k")
    used = next((text[name] for name in names if name in text), None)
    if not used or text.get("num_experts") == 1:
        return float("inf")
    seen: list[Any] = []  # what each router chooses by

    def note(router: Any, inputs: Any, out: Any) -> None:
        bias = getattr(router, "e_score_correction_bias", None)
        score = getattr(router, "score_fn", torch.sigmoid)
        seen.append(out[0] if bias is None else score(out[0]) + bias)

    routers = [m for m in model.modules() if type(m).__name__.endswith(("Router", "router"))]
    routers = [m for m in routers if not hasattr(m, "tid2eid")]  # these do not choose
    hooks = [m.register_forward_hook(note) for m in routers]
    out = model(torch.tensor([tokens]), use_cache=False, output_router_logits=True)
    for hook in hooks:
        hook.remove()
    scores = seen or getattr(out, "router_logits", None)
    if not scores:
        return float("inf")
    ordered = torch.stack([*scores]).sort(descending=True).values
    return float((ordered[..., used - 1] - ordered[..., used]).min())


@torch.no_grad()
def record(name: str, config: dict[str, Any], folder: Path) -> None:
    shapes, scale = save_config(config, folder), 1.0
    tokens = np.random.default_rng(0).integers(4, N_VOCAB, N_TOKENS).tolist()
    for _ in range(20):  # the embedding's own size may matter too
        model = load_model(config, folder, shapes, scale)
        scale *= (SPREAD / float(compute_logits(model, tokens).std())) ** 0.7
    scale = float(np.float32(scale))
    model = load_model(config, folder, shapes, scale)
    drawn = [np.random.default_rng(i).integers(4, N_VOCAB, N_TOKENS).tolist() for i in range(500)]
    for tokens in sorted(drawn, key=lambda tokens: -routing_margin(model, tokens, config))[:100]:
        greedy, gap = _greedy(model, tokens)
        if gap > GAP:
            break
    logits = compute_logits(model, tokens)
    converted = _llama_cpp_file(folder / "checkpoint", name, config, shapes, scale)
    _save(
        name, shapes, scale, tokens, "" if converted is None else llama_cpp.described(converted),
        logits=logits[::EVERY], greedy=np.array(greedy, np.int32),
    )  # fmt: skip
    print(
        f"{name}: {len(shapes)} tensors, std {logits.std():.3f}, scale {scale:.3f}, gap {gap:.3f}"
    )


def record_llama_cpp(name: str, config: dict[str, Any], folder: Path) -> None:
    """Record what llama.cpp computes with the file of its own converter, else of ours."""
    shapes, scale = expand(SHAPES[name], config), 1.0
    for attempt in range(10):
        path = _llama_cpp_file(folder / str(attempt), name, config, shapes, scale)
        usable = None if name in UNUSABLE else path
        server = _server(usable, folder / str(attempt))
        tokens = np.random.default_rng(0).integers(4, N_VOCAB, N_TOKENS).tolist()
        greedy, logprobs = llama_cpp.generate(server, tokens, N_LLAMA_CPP)
        spread = float(logprobs.std())
        if abs(spread / SPREAD - 1) < 0.2:
            break
        scale = float(np.float32(scale * (SPREAD / spread) ** 0.9))
    for seed in range(1, 100):
        best = np.sort(logprobs)[:, -2:]
        gap = float((best[:, 1] - best[:, 0]).min())
        if gap > GAP and logprobs.argmax(1).tolist() == greedy:  # llama.cpp never chooses EOS
            break
        tokens = np.random.default_rng(seed).integers(4, N_VOCAB, N_TOKENS).tolist()
        greedy, logprobs = llama_cpp.generate(server, tokens, N_LLAMA_CPP)
    _save(
        name, shapes, scale, tokens, "" if path is None else llama_cpp.described(path),
        logprobs=logprobs[::EVERY], greedy=np.array(greedy, np.int32),
    )  # fmt: skip
    print(f"{name}: {len(shapes)} tensors, std {spread:.3f}, scale {scale:.3f}, gap {gap:.3f}")


def _server(path: Path | None, folder: Path) -> Any:
    try:
        if path is not None:
            return llama_cpp.serve(path)
    except RuntimeError:  # the file lacks a key that llama.cpp reads
        print(f"llama.cpp does not load {path}")
    return llama_cpp.serve(llama_cpp.plain_words(convert(folder, folder / "own.gguf", "f32")))


def _llama_cpp_file(
    folder: Path, name: str, config: dict[str, Any], shapes: Shapes, scale: float
) -> Path | None:
    """The file that llama.cpp's converter makes of a checkpoint; None if it cannot."""
    write_files(folder, config, weights(config["model_type"], shapes, scale))
    try:
        return llama_cpp.convert(folder, folder / "x.gguf")
    except subprocess.CalledProcessError as error:
        print(f"{name}: llama.cpp's converter: {error.stderr.strip().splitlines()[-1]}")
        return None


def _save(
    name: str, shapes: Shapes, scale: float, tokens: list[int], gguf: Any, **arrays: np.ndarray
) -> None:
    np.savez_compressed(
        DATA / "arch" / f"{name}.npz",
        shapes=json.dumps(shapes),
        scale=np.float32(scale),
        tokens=np.array(tokens, np.int32),
        gguf=json.dumps(gguf),
        **arrays,
    )


if __name__ == "__main__":
    known = variants()
    names = sys.argv[1:] or [*known]
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"no variant {', '.join(unknown)}; variants/ has {', '.join(known)}")
    for name in names:
        with TemporaryDirectory() as directory:
            of_reference = record_llama_cpp if name in SHAPES else record
            of_reference(name, known[name][1], Path(directory))
