"""Trains a small model with its layer of multi-token prediction, as a Hugging Face folder and GGUF.

    nice python -m benchmarks.train_mtp [--folder DIR]      # ~/.cache/pyllama/mtp/model.gguf
    python -m benchmarks.speculation ~/.cache/pyllama/mtp/model.gguf --drafters --mtp \\
        --lengths 0 1 2 3 --text "## Add a drafter" "The scheduler"

Needs torch (``pip install 'pyggml[bench]'``), ten minutes of two cores, or a minute of a GPU with
``--device cuda``. The architecture is that of GLM-4.5 without experts. The text is this
repository's documentation, with a vocabulary of its own; each 19th file, or the last one of fewer,
is held out. A run that was stopped goes on at its last checkpoint.

The loss is the model's cross entropy and that of the layer, three tokens ahead: like a draft, it
reads its own hidden states for the second and third token. At these it also attends to such states
of earlier tokens, in a draft to the model's.
Source: DeepSeek-AI 2024, "DeepSeek-V3", section 2.2; Zeng et al. 2025, "GLM-4.5".
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.llama_graph import EPS, THETA, Sizes
from benchmarks.relu.folder import write_folder
from benchmarks.relu.text import N_VOCAB, tokenizer
from pyggml.env import user_cache_dir
from pyllama.convert import convert

FOLDER, ROOT = user_cache_dir("pyllama") / "mtp", Path(__file__).parents[1]
SEED, BATCH, WINDOW, DEPTH = 0, 4, 128, 2
RATE, WARM_UP, DECAY, SHARE = 2e-3, 30, 0.1, 0.3  # the last: weight of the layer's loss
HELD_OUT, EVERY, SAVE = 19, 20, 20


def documents(pattern: str) -> tuple[list[str], list[str]]:
    """The texts for training, and those held out: each 19th file, or the last of fewer."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob(pattern))]
    held_out = {*range(HELD_OUT - 1, len(texts), HELD_OUT)} or {len(texts) - 1}
    parts: tuple[list[str], list[str]] = ([], [])
    for i, text in enumerate(texts):
        parts[i in held_out].append(text)
    return parts


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


class Layer(nn.Module):
    """A layer of GLM-4.5 without experts."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(s.n_embd, EPS)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = nn.RMSNorm(s.n_embd, EPS)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(s.n_embd, s.n_ff, bias=False),
                "up_proj": nn.Linear(s.n_embd, s.n_ff, bias=False),
                "down_proj": nn.Linear(s.n_ff, s.n_embd, bias=False),
            }
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        y, parts = self.post_attention_layernorm(x), self.mlp
        y = parts["down_proj"](F.silu(parts["gate_proj"](y)) * parts["up_proj"](y))
        return torch.add(x, y)


class Nextn(Layer):
    """The layer of multi-token prediction."""

    def __init__(self, s: Sizes) -> None:
        super().__init__(s)
        self.enorm, self.hnorm = nn.RMSNorm(s.n_embd, EPS), nn.RMSNorm(s.n_embd, EPS)
        self.eh_proj = nn.Linear(2 * s.n_embd, s.n_embd, bias=False)
        self.shared_head = nn.ModuleDict({"norm": nn.RMSNorm(s.n_embd, EPS)})

    def predict(self, embedded: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Hidden states of the next token from those of each token and the embedding after it."""
        x = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1))
        found: Tensor = self.shared_head["norm"](self(x, cos, sin))
        return found


def rotations(s: Sizes) -> dict[str, Tensor]:
    """``cos`` and ``sin`` of the angles of rope, [n_ctx, head_dim] each."""
    half = s.n_embd // s.n_head // 2
    angle = torch.outer(torch.arange(s.n_ctx), THETA ** -(torch.arange(half) / half))
    angle = torch.cat((angle, angle), -1)
    return {"cos": angle.cos(), "sin": angle.sin()}


class Glm(nn.Module):
    """Output and embedding share their matrix; the last of ``layers`` is that of the head."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.sizes = s
        self.embed_tokens = nn.Embedding(s.n_vocab, s.n_embd)
        self.layers = nn.ModuleList([*(Layer(s) for _ in range(s.n_layer)), Nextn(s)])
        self.norm = nn.RMSNorm(s.n_embd, EPS)
        for name, table in rotations(s).items():
            self.register_buffer(name, table, persistent=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        """Logits of the tokens 1, 2, ... 1 + DEPTH ahead: [n, T, n_vocab] each.

        Shape:
            tokens [n, T + DEPTH]
        """
        t = tokens.shape[1] - DEPTH
        rope, embedded = (self.cos[:t], self.sin[:t]), self.embed_tokens(tokens)
        x = embedded[:, :t]
        for layer in self.layers[: self.sizes.n_layer]:
            x = layer(x, *rope)
        hidden = [self.norm(x)]
        for depth in range(1, DEPTH + 1):
            of_next = embedded[:, depth : depth + t]
            hidden.append(self.layers[-1].predict(of_next, hidden[-1], *rope))
        return [F.linear(h, self.embed_tokens.weight) for h in hidden]

    def config(self) -> dict[str, Any]:
        """config.json."""
        s = self.sizes
        return {
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "hidden_size": s.n_embd,
            "intermediate_size": s.n_ff,
            "moe_intermediate_size": s.n_ff,
            "num_hidden_layers": s.n_layer,
            "num_attention_heads": s.n_head,
            "num_key_value_heads": s.n_head,
            "head_dim": s.n_embd // s.n_head,
            "max_position_embeddings": s.n_ctx,
            "vocab_size": s.n_vocab,
            "rms_norm_eps": EPS,
            "rope_theta": THETA,
            "partial_rotary_factor": 1.0,
            "first_k_dense_replace": s.n_layer,  # no layer has experts
            "n_routed_experts": 2,
            "num_experts_per_tok": 1,
            "n_shared_experts": 1,
            "routed_scaling_factor": 1.0,
            "num_nextn_predict_layers": 1,
            "tie_word_embeddings": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }


def windows(ids: np.ndarray[Any, Any], rng: np.random.Generator, n: int) -> Tensor:
    """Random stretches of the text: int64 [n, WINDOW + DEPTH + 1]."""
    length = WINDOW + DEPTH + 1
    at = rng.integers(0, len(ids) - length, n)
    return torch.from_numpy(ids[at[:, None] + np.arange(length)]).to(torch.get_default_device())


def losses(model: Glm, batch: Tensor) -> tuple[Tensor, list[float]]:
    """Cross entropy of each depth, [1 + DEPTH]; how often a depth's likeliest token is the model's.

    The model's token of the same place, as it counts for a greedy draft.
    """
    logits = model(batch[:, :-1])
    t = WINDOW
    found = [
        F.cross_entropy(x.flatten(0, 1), batch[:, d + 1 : d + 1 + t].flatten())
        for d, x in enumerate(logits)
    ]
    likeliest = logits[0].argmax(-1)
    same = [
        (x.argmax(-1)[:, : t - d] == likeliest[:, d:]).float().mean().item()
        for d, x in enumerate(logits)
        if d
    ]
    return torch.stack(found), same


def train(folder: Path, sizes: Sizes, steps: int, files: str) -> Glm:
    """The trained model; prints a line every few steps."""
    texts, held_out = documents(files)
    spm = tokenizer(folder / "tokenizer.model", texts)
    ids, test_ids = (
        np.array([i for text in spm.encode(part) for i in (spm.bos_id(), *text)], np.int64)
        for part in (texts, held_out)
    )
    torch.manual_seed(SEED)
    model = Glm(sizes)
    groups = [
        {"params": [p for p in model.parameters() if (p.dim() == 2) == matrix],
         "weight_decay": DECAY * matrix} for matrix in (True, False)
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, RATE, betas=(0.9, 0.95))
    done, path, start = 0, folder / "checkpoint.pt", time.process_time()
    if path.exists():
        saved = torch.load(path, torch.get_default_device(), weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["step"]
    n_weights = sum(p.numel() for p in model.parameters())
    print(f"{n_weights} weights, {len(ids)} tokens, held out {len(test_ids)}", flush=True)
    test = windows(test_ids, np.random.default_rng(SEED), 8)
    weights = torch.tensor([1.0, *(SHARE * 0.7**d for d in range(DEPTH))])
    for step in range(done, steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min((step + 1) / WARM_UP, (steps - step) / (0.7 * steps), 1)
        loss, _ = losses(model, windows(ids, np.random.default_rng((SEED, step)), BATCH))
        (loss * weights).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % EVERY == 0:
            print(f"{step + 1:5} losses {_shown(loss.tolist())}, "
                  f"{time.process_time() - start:.0f} s", flush=True)  # fmt: skip
        if (step + 1) % SAVE == 0 or step + 1 == steps:
            with torch.no_grad():
                loss, same = losses(model, test)
            print(f"      held out {_shown(loss.tolist())}, same token {_shown(same)}", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step + 1}, path.with_suffix(".new"))
            os.replace(path.with_suffix(".new"), path)
    return model


def _shown(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--width", type=int, default=256, help="columns, a multiple of 64")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--files", default="docs/**/*.md", help="pattern of the texts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="of torch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_default_device(args.device)
    folder = args.folder / "model"
    folder.mkdir(parents=True, exist_ok=True)
    n_ff = args.width * 11 // 4
    n_head = args.width // 64
    sizes = Sizes(N_VOCAB, args.width, n_head, n_head, n_ff, args.layers, n_ctx=1024)
    model = train(folder, sizes, args.steps, args.files)
    weights = {f"model.{name}": x.cpu().numpy() for name, x in model.state_dict().items()}
    write_folder(weights, model.config(), folder)
    convert(folder, args.folder / "model.gguf", "q8_0")


if __name__ == "__main__":
    main()
