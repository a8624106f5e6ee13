"""The model in PyTorch: LLaMA with ``relu(gate) * up``, tensors named as Hugging Face does.

    model = ReluLlama()
    logits, taps = model(tokens)             # taps: (input of the predictor, gate) of each layer

Rotation is the half-split one of Hugging Face's checkpoints.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.relu.text import N_VOCAB

EPS, THETA = 1e-5, 10_000.0


@dataclass(frozen=True)
class Sizes:
    n_vocab: int = N_VOCAB
    n_embd: int = 256
    n_head: int = 4
    n_ff: int = 1024
    n_layer: int = 6
    n_ctx: int = 512


class Attention(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.n_head = s.n_head
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(s.n_embd, s.n_embd, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n, t, e = x.shape
        q, k, v = (
            f(x).view(n, t, self.n_head, -1).transpose(1, 2)
            for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (y * cos + torch.cat((-y[..., y.shape[-1] // 2 :], y[..., : y.shape[-1] // 2]), -1)
                * sin for y in (q, k))  # fmt: skip
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(n, t, e))


class FeedForward(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.n_embd, s.n_ff, bias=False)
        self.up_proj = nn.Linear(s.n_embd, s.n_ff, bias=False)
        self.down_proj = nn.Linear(s.n_ff, s.n_embd, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate = self.gate_proj(x)
        return self.down_proj(F.relu(gate) * self.up_proj(x)), gate


class Layer(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(s.n_embd, EPS)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = nn.RMSNorm(s.n_embd, EPS)
        self.mlp = FeedForward(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ffn_inp = x + self.self_attn(self.input_layernorm(x), cos, sin)
        y, gate = self.mlp(self.post_attention_layernorm(ffn_inp))
        return ffn_inp + y, ffn_inp, gate


def rotations(s: Sizes) -> dict[str, Tensor]:
    """``cos`` and ``sin`` of the angles of rope, [n_ctx, head_dim] each."""
    half = s.n_embd // s.n_head // 2
    angle = torch.outer(torch.arange(s.n_ctx), THETA ** -(torch.arange(half) / half))
    angle = torch.cat((angle, angle), -1)
    return {"cos": angle.cos(), "sin": angle.sin()}


def write_folder(model: nn.Module, config: dict[str, Any], folder: Path) -> None:
    """Write ``model.safetensors``, ``config.json`` and ``tokenizer_config.json``."""
    from safetensors.torch import save_file

    tensors = {f"model.{name}": x.contiguous() for name, x in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    about = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False,
             "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=1))


class ReluLlama(nn.Module):
    """Output and embedding share their matrix."""

    def __init__(self, sizes: Sizes | None = None) -> None:
        super().__init__()
        self.sizes = s = sizes or Sizes()
        self.embed_tokens = nn.Embedding(s.n_vocab, s.n_embd)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.n_layer))
        self.norm = nn.RMSNorm(s.n_embd, EPS)
        for name, table in rotations(s).items():
            self.register_buffer(name, table, persistent=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
        for layer in self.layers:  # additions to the residual start small
            for p in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
                nn.init.normal_(p, std=0.02 / (2 * s.n_layer) ** 0.5)

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Shape: tokens [n, T] -> logits [n, T, n_vocab]; taps of [n, T, E] and [n, T, F]."""
        t = tokens.shape[1]
        x, taps = self.embed_tokens(tokens), []
        for layer in self.layers:
            x, ffn_inp, gate = layer(x, self.cos[:t], self.sin[:t])
            taps.append((ffn_inp, gate))
        return F.linear(self.norm(x), self.embed_tokens.weight), taps

    def config(self) -> dict[str, object]:
        """What ``config.json`` says of it."""
        s = self.sizes
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "relu",
            "hidden_size": s.n_embd,
            "intermediate_size": s.n_ff,
            "num_hidden_layers": s.n_layer,
            "num_attention_heads": s.n_head,
            "num_key_value_heads": s.n_head,
            "max_position_embeddings": s.n_ctx,
            "vocab_size": s.n_vocab,
            "rms_norm_eps": EPS,
            "rope_theta": THETA,
            "tie_word_embeddings": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "float32",
        }
