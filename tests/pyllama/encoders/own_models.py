"""Encoders that transformers lacks, after the code that their checkpoints come with, in torch.

    hidden = MODELS["nomic-bert-moe"](config, weights, tokens)   # [T, n_embd]

One text at a time, in float32.
Source: modeling_hf_nomic_bert.py of nomic-ai/nomic-bert-2048.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F

Config = Mapping[str, Any]
Weights = Mapping[str, torch.Tensor]


def _linear(w: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def _norm(w: Weights, name: str, x: torch.Tensor, eps: float) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w.get(f"{name}.bias"), eps)


def _angles(n_tokens: int, n: int, base: float) -> torch.Tensor:
    """[T, 1, n / 2]: one for each pair of the columns of a head."""
    frequencies = 1 / base ** (torch.arange(0, n, 2) / n)
    return torch.outer(torch.arange(n_tokens).float(), frequencies)[:, None]


def _rotate_halves(x: torch.Tensor, base: float) -> torch.Tensor:
    """Rope on the pairs (i, i + n / 2) of x [T, n_head, n]."""
    angles = _angles(len(x), x.shape[-1], base)
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | float = 0.0
) -> torch.Tensor:
    """Attention of all tokens to all: [T, n_head, n] -> [T, n_head * n]."""
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 + bias
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


def _nomic_experts(config: Config, w: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    """Experts without gates; their weights, of all experts' softmax, do not sum to 1."""
    sizes = (config["num_experts"], config["n_inner"], config["n_embd"])
    up, down = (w[f"{name}.experts.mlp.{part}"].view(sizes) for part in ("w1", "w2"))
    probs = _linear(w, f"{name}.router.layer", x).softmax(-1)
    weights, chosen = probs.topk(config["moe_top_k"], -1)
    rows = [
        sum(
            p * (F.gelu(row @ up[e].T) @ down[e])
            for p, e in zip(of_row, experts, strict=True)
        )
        for row, of_row, experts in zip(x, weights, chosen, strict=True)
    ]  # fmt: skip
    return torch.stack(rows)


def nomic_bert_moe(config: Config, w: Weights, tokens: torch.Tensor) -> torch.Tensor:
    eps, base = config["layer_norm_epsilon"], config["rotary_emb_base"]
    x = w["embeddings.word_embeddings.weight"][tokens]
    if "embeddings.token_type_embeddings.weight" in w:
        x = x + w["embeddings.token_type_embeddings.weight"][0]
    x = _norm(w, "emb_ln", x, eps)
    for i in range(config["n_layer"]):
        layer = f"encoder.layers.{i}"
        qkv = _linear(w, f"{layer}.attn.Wqkv", x)
        q, k, v = qkv.view(len(x), 3, config["n_head"], -1).unbind(1)
        out = _attend(_rotate_halves(q, base), _rotate_halves(k, base), v)
        x = _norm(w, f"{layer}.norm1", x + _linear(w, f"{layer}.attn.out_proj", out), eps)
        if f"{layer}.mlp.router.layer.weight" in w:
            out = _nomic_experts(config, w, f"{layer}.mlp", x)
        else:
            out = _linear(w, f"{layer}.mlp.fc2", F.gelu(_linear(w, f"{layer}.mlp.fc1", x)))
        x = _norm(w, f"{layer}.norm2", x + out, eps)
    return x


MODELS: Mapping[str, Callable[[Config, Weights, torch.Tensor], torch.Tensor]] = {
    "nomic-bert-moe": nomic_bert_moe,
}
