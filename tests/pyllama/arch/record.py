"""Record transformers' results for tiny checkpoints, in tests/data/arch/<variant>.npz.

    python -m tests.pyllama.arch.record [NAME...]

Needs torch and transformers, which the tests do not. A file has ``shapes`` (JSON), ``scale``,
``tokens`` int32[40], ``logits`` float32[40, 512] and ``greedy`` int32[16], in float32 with eager
attention. The scale is chosen for logits with a standard deviation of 1.5, the tokens so that no
greedy choice is close, and as few between experts as can be: rounded weights would change them.
"""

from __future__ import annotations

import json
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

from .checkpoints import DATA, N_VOCAB, Shapes, variants, weights, write_safetensors

N_TOKENS, N_GREEDY, SPREAD, GAP = 40, 16, 1.5, 0.02


def _bamboo(model: Any) -> Any:
    """Mistral's feed-forward part with ReLU on gate and up, as in Bamboo's code."""

    def forward(self: Any, x: Any) -> Any:
        return self.down_proj(torch.relu(self.gate_proj(x)) * torch.relu(self.up_proj(x)))

    for layer in model.model.layers:
        layer.mlp.forward = MethodType(forward, layer.mlp)
    return model


# model types that transformers does not have: one that it has, and what makes it the other
_OWN: dict[str, tuple[str, Callable[[Any], Any]]] = {"bamboo": ("mistral", _bamboo)}


def save_config(config: dict[str, Any], folder: Path) -> Shapes:
    """A checkpoint as transformers writes it; the shapes by the names in its file."""
    kind, _ = _OWN.get(config["model_type"], (config["model_type"], None))
    rest = {k: v for k, v in config.items() if k != "model_type"}
    parsed = transformers.AutoConfig.for_model(kind, **rest)
    transformers.AutoModelForCausalLM.from_config(parsed).float().save_pretrained(folder)
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def load_model(config: dict[str, Any], folder: Path, shapes: Shapes, scale: float) -> Any:
    """The model with the weights that the tests will give it."""
    made = weights(config["model_type"], shapes, scale)
    write_safetensors(folder / "model.safetensors", made)
    model = transformers.AutoModelForCausalLM.from_pretrained(
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


def _lead(model: Any, tokens: list[int], config: dict[str, Any]) -> float:
    """The smallest margin between the last used expert of a token and the next one."""
    used = config.get("num_experts_per_tok")
    if used is None:
        return float("inf")
    out = model(torch.tensor([tokens]), use_cache=False, output_router_logits=True)
    ordered = torch.stack(out.router_logits).sort(descending=True).values
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
    for tokens in sorted(drawn, key=lambda tokens: -_lead(model, tokens, config))[:100]:
        greedy, gap = _greedy(model, tokens)
        if gap > GAP:
            break
    logits = compute_logits(model, tokens)
    np.savez_compressed(
        DATA / "arch" / f"{name}.npz",
        shapes=json.dumps(shapes),
        scale=np.float32(scale),
        tokens=np.array(tokens, np.int32),
        logits=logits,
        greedy=np.array(greedy, np.int32),
    )
    print(
        f"{name}: {len(shapes)} tensors, std {logits.std():.3f}, scale {scale:.3f}, gap {gap:.3f}"
    )


if __name__ == "__main__":
    known = variants()
    names = sys.argv[1:] or [*known]
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"no variant {', '.join(unknown)}; variants.py has {', '.join(known)}")
    for name in names:
        with TemporaryDirectory() as directory:
            record(name, known[name][1], Path(directory))
