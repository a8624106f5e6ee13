"""Encoders that transformers lacks, after the code that their checkpoints come with, in torch.

    hidden = MODELS["nomic-bert-moe"](config, weights, tokens)   # [T, n_embd]

One text at a time, in float32.
Source: the modeling code of nomic-ai/nomic-bert-2048, jinaai/jina-bert-implementation,
jinaai/jina-bert-v2-qk-post-norm, jinaai/xlm-roberta-flash-implementation, chandar-lab/NeoBERT.
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


def _rotate_pairs(x: torch.Tensor) -> torch.Tensor:
    """Rope on adjacent pairs of x [T, n_head, n], as products of complex numbers."""
    angles = _angles(len(x), x.shape[-1], 10000.0)
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(turned * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


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


def _embed(config: Config, w: Weights, tokens: torch.Tensor, norm: str) -> torch.Tensor:
    """Embeddings of tokens and of their types, normed; a classifier's second text has type 1."""
    x = w["embeddings.word_embeddings.weight"][tokens]
    ends = (tokens == config.get("sep_token_id", -1)).long()
    x = x + w["embeddings.token_type_embeddings.weight"][(ends.cumsum(0) - ends).clamp(max=1)]
    return _norm(w, norm, x, config.get("layer_norm_eps") or config["layer_norm_epsilon"])


def _rotary_encoder(config: Config, w: Weights, x: torch.Tensor, mixer: str) -> torch.Tensor:
    """The layers of Nomic's and Jina's encoders on BERT of the authors of flash attention."""
    eps = config.get("layer_norm_eps") or config["layer_norm_epsilon"]
    n_layer = config.get("n_layer") or config["num_hidden_layers"]
    n_head, base = config.get("n_head") or config["num_attention_heads"], config["rotary_emb_base"]
    for i in range(n_layer):
        layer = f"encoder.layers.{i}"
        qkv = _linear(w, f"{layer}.{mixer}.Wqkv", x)
        q, k, v = qkv.view(len(x), 3, n_head, -1).unbind(1)
        out = _attend(_rotate_halves(q, base), _rotate_halves(k, base), v)
        x = _norm(w, f"{layer}.norm1", x + _linear(w, f"{layer}.{mixer}.out_proj", out), eps)
        if f"{layer}.mlp.router.layer.weight" in w:
            out = _nomic_experts(config, w, f"{layer}.mlp", x)
        else:
            out = _linear(w, f"{layer}.mlp.fc2", F.gelu(_linear(w, f"{layer}.mlp.fc1", x)))
        x = _norm(w, f"{layer}.norm2", x + out, eps)
    return x


def nomic_bert_moe(config: Config, w: Weights, tokens: torch.Tensor) -> torch.Tensor:
    return _rotary_encoder(config, w, _embed(config, w, tokens, "emb_ln"), "attn")


def jina_bert_v3(config: Config, w: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """Without the adapter of a task."""
    ends = ("roberta.", ".parametrizations.weight.original")
    w = {k.removeprefix(ends[0]).replace(ends[1], ".weight"): x for k, x in w.items()}
    return _rotary_encoder(config, w, _embed(config, w, tokens, "emb_ln"), "mixer")


def jina_bert_v2(config: Config, w: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """Both codes: that of text, and that of code with norms of queries and keys; a classifier."""
    w = {name.removeprefix("bert."): x for name, x in w.items()}
    eps, n_head, n = config["layer_norm_eps"], config["num_attention_heads"], len(tokens)
    slopes = 2 ** (-8 * (torch.arange(n_head) + 1) / n_head)  # of a power of two heads
    distances = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    bias = -slopes[:, None, None] * distances
    x = _embed(config, w, tokens, "embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        attention = f"{layer}.attention"
        q, k, v = (_linear(w, f"{attention}.self.{p}", x) for p in ("query", "key", "value"))
        if f"{attention}.self.layer_norm_q.weight" in w:
            q = _norm(w, f"{attention}.self.layer_norm_q", q, eps)
            k = _norm(w, f"{attention}.self.layer_norm_k", k, eps)
        out = _attend(*(y.view(n, n_head, -1) for y in (q, k, v)), bias)
        out = _linear(w, f"{attention}.output.dense", out)
        out = _norm(w, f"{attention}.output.LayerNorm", x + out, eps)
        if f"{layer}.layer_norm_1.weight" in w:
            x = _norm(w, f"{layer}.layer_norm_1", x + out, eps)
            up, gate = _linear(w, f"{layer}.mlp.up_gated_layer", x).chunk(2, -1)
            out = _linear(w, f"{layer}.mlp.down_layer", up * F.gelu(gate))
            x = _norm(w, f"{layer}.layer_norm_2", x + out, eps)
        else:
            gate, up = _linear(w, f"{layer}.mlp.gated_layers", out).chunk(2, -1)
            x = _linear(w, f"{layer}.mlp.wo", F.gelu(gate) * up) + out
            x = _norm(w, f"{layer}.mlp.layernorm", x, eps)
    if "classifier.weight" in w:
        return _linear(w, "classifier", _linear(w, "pooler.dense", x[:1]).tanh())
    return x


def neo_bert(config: Config, w: Weights, tokens: torch.Tensor) -> torch.Tensor:
    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], w[f"model.{name}.weight"], config["norm_eps"])

    x = w["model.encoder.weight"][tokens]
    for i in range(config["num_hidden_layers"]):
        layer = f"transformer_encoder.{i}"
        qkv = _linear(w, f"model.{layer}.qkv", norm(f"{layer}.attention_norm", x))
        q, k, v = qkv.view(len(x), config["num_attention_heads"], -1).chunk(3, -1)
        x = x + _linear(w, f"model.{layer}.wo", _attend(_rotate_pairs(q), _rotate_pairs(k), v))
        hidden = _linear(w, f"model.{layer}.ffn.w12", norm(f"{layer}.ffn_norm", x))
        gate, up = hidden.chunk(2, -1)
        x = x + _linear(w, f"model.{layer}.ffn.w3", F.silu(gate) * up)
    return norm("layer_norm", x)


MODELS: Mapping[str, Callable[[Config, Weights, torch.Tensor], torch.Tensor]] = {
    "nomic-bert-moe": nomic_bert_moe,
    "jina-bert-v2": jina_bert_v2,
    "jina-bert-v3": jina_bert_v3,
    "neo-bert": neo_bert,
}
