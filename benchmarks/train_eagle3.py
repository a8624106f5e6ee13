"""Trains an EAGLE-3 head for the demo model, from texts that this model writes.

    nice python -m benchmarks.train_eagle3 [--folder DIR]   # ~/.cache/pyllama/eagle3/head.gguf
    python -m benchmarks.speculation --head ~/.cache/pyllama/eagle3/head.gguf

Needs torch (``pip install 'pyggml[bench]'``), ten minutes of one core. Each stage is kept in the
folder, so a run that was stopped goes on with the next one. The head learns the distributions of
the model at each token of these texts (its 32 likeliest tokens), three tokens ahead: for the second
and third token its input is its own hidden state, as in a draft. The paper's heads learned from
half a million conversations.
Source: Li et al. 2025, "EAGLE-3", section 3.
"""

from __future__ import annotations

import argparse
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyggml.dtype import GGMLType
from pyggml.env import user_cache_dir
from pyggml.gguf import GGUFFile, write_gguf
from pyggml.quants import dequantize, quantize
from pyllama import Batch, Context, Model
from pyllama.engine.generate import generate_many
from pyllama.graph.adapters import layer_output
from pyllama.hub.demo import demo_model_path
from pyllama.kv.memory import HiddenReads
from pyllama.sampling import SamplingParams

FOLDER = user_cache_dir("pyllama") / "eagle3"
SEED, WINDOW, BATCH, DEPTH, TOP = 0, 128, 4, 3, 32
N_DRAFTED = 4096  # tokens of the head
RATE, WARM_UP = 1e-3, 20
SUBJECTS = (
    "a lighthouse", "the moon", "bees", "a lost key", "volcanoes", "a small town", "rivers",
    "a robot", "bread", "the heart", "an old library", "trade", "rain", "a fox", "music", "rust",
)  # fmt: skip
REQUESTS = (
    "Write a story about {}.",
    "Explain {} to a student.",
    "Write a Python class about {}, with comments.",
    "Give five facts about {}, and say why each matters.",
)
Arrays = dict[str, np.ndarray[Any, Any]]


def texts(model: Model, path: Path, n_predict: int) -> list[list[int]]:
    """Requests with the model's replies, half of them greedy."""
    if not path.exists():
        prompts = [
            model.tokenizer.encode(
                "<|im_start|>user\n" + request.format(subject) + "<|im_end|>\n"
                "<|im_start|>assistant\n", add_special=False, parse_special=True
            ) for subject, request in product(SUBJECTS, REQUESTS)
        ]  # fmt: skip
        context = Context(model, n_ctx=32 * 512, n_seq_max=32, n_threads=1)
        found = [list(prompt) for prompt in prompts]
        for half, temp in ((0, 0.0), (1, 0.7)):
            params = SamplingParams(temp=temp, seed=SEED)
            written = generate_many(context, prompts[half::2], params, n_predict=n_predict)
            for i, token in written:
                found[half + 2 * i].append(token)
            print(f"{sum(map(len, found))} tokens", flush=True)
        lengths = np.array([len(text) for text in found])
        np.savez(path, tokens=np.concatenate(found), lengths=lengths)
    with np.load(path) as file:
        parts = np.split(file["tokens"], np.cumsum(file["lengths"])[:-1])
    return [part.tolist() for part in parts]


def training_data(model: Model, path: Path, replies: list[list[int]]) -> Arrays:
    """The head's inputs and targets at each token.

    Returns:
        ``tokens``, ``hidden`` (the three layers' inputs), ``ids`` and ``logits`` of the likeliest
        tokens.
    """
    if not path.exists():
        context = Context(model, n_ctx=1024, n_threads=1)
        context.keep_hidden(HiddenReads(tuple(layer_output(i - 1) for i in layers_of(model))))
        parts: dict[str, list[Any]] = {"hidden": [], "ids": [], "logits": []}
        for text in replies:
            context.kv.clear()
            context.decode(Batch(text, logits="all"))
            ids = np.argpartition(context.logits, -TOP, axis=1)[:, -TOP:].astype(np.int32)
            parts["hidden"].append(context.kv.hidden(0).astype(np.float16))
            parts["ids"].append(ids)
            parts["logits"].append(np.take_along_axis(context.logits, ids, 1))
        np.savez(
            path,
            tokens=np.concatenate(replies),
            **{name: np.concatenate(part) for name, part in parts.items()},
        )
    with np.load(path) as file:
        return dict(file)


def layers_of(model: Model) -> list[int]:
    """The layers whose inputs the head reads, as in the paper's code."""
    n = model.hparams.n_layer
    return [2, n // 2, n - 3]


class Head(nn.Module):
    """The head with llama.cpp's names of tensors, for rope on adjacent pairs."""

    def __init__(self, model: Model, embedding: Tensor, drafted: Tensor) -> None:
        super().__init__()
        hp = model.hparams
        n, self.n_head, self.n_kv, d = hp.n_embd, hp.n_head, hp.n_head_kv, hp.head_dim
        self.eps, self.d, self.base = hp.norm_eps, d, hp.rope_freq_base
        sizes = {
            "fc": (n, 3 * n), "attn_q": (self.n_head * d, 2 * n), "attn_k": (self.n_kv * d, 2 * n),
            "attn_v": (self.n_kv * d, 2 * n), "attn_output": (n, self.n_head * d),
            "ffn_gate": (hp.n_ff, n), "ffn_up": (hp.n_ff, n), "ffn_down": (n, hp.n_ff),
        }  # fmt: skip
        torch.manual_seed(SEED)
        self.w = nn.ParameterDict(
            {name: torch.randn(size) / size[1] ** 0.5 for name, size in sizes.items()}
        )
        for name in ("attn_norm", "attn_norm_2", "ffn_norm"):
            self.w[name] = torch.ones(n)
        self.w["output_norm"] = torch.from_numpy(numbers(model, "output_norm.weight"))
        self.w["output"] = embedding[drafted].clone()
        self.embedding = embedding

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.w[name], self.eps)

    def rope(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [batch, heads, T, d]"""
        angles = positions[:, None] * self.base ** (-torch.arange(0, self.d, 2) / self.d)
        cos, sin = angles.cos(), angles.sin()
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    def forward(self, tokens: Tensor, hidden: Tensor) -> list[Tensor]:
        """Logits of each depth, [batch, T, n_drafted]; at depth k the first k positions are unused.

        Args:
            tokens: token i + 1 of the text at position i, [batch, T].
            hidden: inputs of the target's three layers at token i, [batch, T, 3 n_embd].
        """
        g = hidden @ self.w["fc"].T
        positions, keys, values, found = torch.arange(tokens.shape[1]), [], [], []
        embedded = self.norm(self.embedding[tokens], "attn_norm")
        for _ in range(DEPTH):
            x = torch.cat([embedded, self.norm(g, "attn_norm_2")], -1)
            q, k, v = (
                (x @ self.w[f"attn_{p}"].T).unflatten(-1, (-1, self.d)).transpose(1, 2)
                for p in "qkv"
            )
            q, k = self.rope(q, positions), self.rope(k, positions)
            repeat = self.n_head // self.n_kv
            keys.append(k.repeat_interleave(repeat, 1))
            values.append(v.repeat_interleave(repeat, 1))
            y = attention(q, keys, values) @ self.w["attn_output"].T
            x = g + y
            y = self.norm(x, "ffn_norm")
            y = F.silu(y @ self.w["ffn_gate"].T) * (y @ self.w["ffn_up"].T)
            x = x + y @ self.w["ffn_down"].T
            found.append(self.norm(x, "output_norm") @ self.w["output"].T)
            g = F.pad(x, (0, 0, 1, 0))[:, :-1]  # of the next depth, at the next position
        return found


def attention(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attention of the n-th drafted token to the text before the draft, and to the draft.

    Args:
        keys, values: of depths 0 (the text) to n.
    """
    n, t, scale = len(keys) - 1, q.shape[2], q.shape[3] ** -0.5
    scores = [q @ keys[0].transpose(-1, -2) * scale]
    scores[0] = scores[0].masked_fill(~torch.ones(t, t, dtype=torch.bool).tril(-n), -torch.inf)
    before = [(F.pad(x, (0, 0, n - i, 0))[:, :, :t], i) for i, x in enumerate(keys)][1:]
    scores += [(q * k).sum(-1, keepdim=True) * scale for k, _ in before]
    p = torch.cat(scores, -1).softmax(-1)
    p = torch.where(p.isnan(), 0.0, p)  # the first tokens, which have no text before their draft
    y = p[..., :t] @ values[0]
    for at, (_, i) in enumerate(before):
        y = y + p[..., t + at, None] * F.pad(values[i], (0, 0, n - i, 0))[:, :, :t]
    return y.transpose(1, 2).flatten(-2)


def numbers(model: Model, name: str) -> np.ndarray[Any, Any]:
    """A tensor of the model's file as float32."""
    with GGUFFile(model.path) as file:
        info, data = file.tensors[name], file.tensor_bytes(name)
        shape = info.ne[: info.n_dims][::-1]
        found: np.ndarray[Any, Any] = dequantize(data, info.type).reshape(shape)
        return found


def train(model: Model, data: Arrays, steps: int, path: Path) -> tuple[Head, Tensor]:
    """The head after so many steps, and its tokens."""
    ids, counts = np.unique(
        np.concatenate([data["tokens"], data["ids"][:, -1]]), return_counts=True
    )
    often = ids[np.argsort(-counts, kind="stable")][:N_DRAFTED]
    rest = np.setdiff1d(np.arange(2 * N_DRAFTED), often)[: N_DRAFTED - len(often)]
    drafted = torch.from_numpy(np.sort(np.concatenate([often, rest])))
    index = torch.full((model.hparams.n_vocab,), -1).scatter(0, drafted, torch.arange(N_DRAFTED))
    head = Head(model, torch.from_numpy(numbers(model, "token_embd.weight")), drafted)
    optimizer = torch.optim.AdamW(head.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.0)
    all_ids, all_logits = (
        index[torch.from_numpy(data["ids"]).long()],
        torch.from_numpy(data["logits"]),
    )
    tokens, hidden = torch.from_numpy(data["tokens"]), torch.from_numpy(data["hidden"])
    done, start = 0, time.process_time()
    if path.exists():
        saved = torch.load(path, weights_only=True)
        head.load_state_dict(saved["head"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["step"]
    for step in range(done, steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min((step + 1) / WARM_UP, (steps - step) / (0.8 * steps), 1)
        rng = np.random.default_rng((SEED, step))
        at = rng.integers(0, len(tokens) - WINDOW - 1, BATCH)[:, None] + np.arange(WINDOW)
        losses, rates = [], []
        # at position i the head reads hidden states of i and token i + 1, and predicts i + 2
        for depth, logits in enumerate(head(tokens[at + 1], hidden[at].float())):
            target = torch.from_numpy(at[:, depth:] + 1)
            known, q = all_ids[target], logits[:, depth:].log_softmax(-1)
            p = all_logits[target].masked_fill(known < 0, -torch.inf).softmax(-1)
            p = torch.where(p.isnan(), 0.0, p)
            losses.append(-(p * q.gather(-1, known.clamp(min=0))).sum(-1).mean() * 0.8**depth)
            likeliest = known.gather(-1, all_logits[target].argmax(-1, keepdim=True))[..., 0]
            rates.append((q.argmax(-1) == likeliest).float().mean().item())
        torch.stack(losses).sum().backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 10 == 0:
            accepted = " ".join(f"{rate:.2f}" for rate in rates)
            print(f"{step + 1:5} loss {losses[0].item():.3f}, same token {accepted}, "
                  f"{time.process_time() - start:.0f} s", flush=True)  # fmt: skip
        if (step + 1) % 50 == 0:
            state = head.state_dict(), optimizer.state_dict(), step + 1
            torch.save(dict(zip(("head", "optimizer", "step"), state, strict=True)), path)
    return head, drafted


def write(model: Model, head: Head, drafted: Tensor, path: Path) -> None:
    """The file of the head, matrices in Q8_0."""
    own = ("llama.", "tokenizer.")
    with GGUFFile(model.path) as file:
        keys = {
            key.replace("llama.", "eagle3."): value
            for key, value in file.typed_metadata().items()
            if key.startswith(own)
        }
    keys |= {
        "general.architecture": "eagle3",
        "eagle3.block_count": np.uint32(1),
        "eagle3.target_layers": layers_of(model),
        "eagle3.target_hidden_size": np.uint32(model.hparams.n_embd),
    }
    tensors: dict[str, Any] = {"d2t": (drafted.numpy().view(np.uint8), GGMLType.I64, drafted.shape)}
    for name, x in head.w.items():
        whole = name if name in ("fc", "output", "output_norm") else f"blk.0.{name}"
        values = x.detach().numpy()
        if values.ndim == 2:
            q8 = quantize(values, GGMLType.Q8_0), GGMLType.Q8_0, values.shape[::-1]
            tensors[f"{whole}.weight"] = q8
        else:
            tensors[f"{whole}.weight"] = values
    write_gguf(path, keys, tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("-n", "--n-predict", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.folder.mkdir(parents=True, exist_ok=True)
    model = Model.load(demo_model_path(), n_threads=1)
    replies = texts(model, args.folder / "texts.npz", args.n_predict)
    data = training_data(model, args.folder / "taught.npz", replies)
    head, drafted = train(model, data, args.steps, args.folder / "checkpoint.pt")
    write(model, head, drafted, args.folder / "head.gguf")


if __name__ == "__main__":
    main()
