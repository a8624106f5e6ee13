"""Trains a small LLaMA with ReLU gates and its predictors, as a Hugging Face folder.

    python -m benchmarks.train_relu [--folder DIR]    # ~/.cache/pyllama/relu-7m: model, predictor

Needs torch (``pip install 'pyggml[bench]'``), half an hour of two cores. A
run that was stopped goes on at its last checkpoint; one that is complete does nothing. Text, order
and initial weights come from the seed, so the same versions give the same model.

ReLU alone leaves half of the gates of the first layers open. A penalty on L1 / L2 of each token's
gates (Hoyer's measure, blind to their scale, so that it cannot be met by small gates and large up
rows) closes most; its weight in each layer follows the layer's density, which falls to the one
wanted in the first half of training.
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
from torch import Tensor

from benchmarks.relu.model import ReluLlama, write_folder
from benchmarks.relu.predictor import fit_predictors
from benchmarks.relu.text import documents, tokenizer
from pyggml.env import user_cache_dir

FOLDER = user_cache_dir("pyllama") / "relu-7m"
SEED, BATCH, CONTEXT, STEPS = 0, 8, 256, 400
RATE, WARM_UP, DECAY = 2e-3, 50, 0.1
DENSITY = 0.1  # of open gates, wanted
EVERY, SAVE = 10, 50  # steps between two lines, two checkpoints
Windows = np.ndarray[Any, Any]


def token_ids(folder: Path) -> tuple[Windows, Windows]:
    """Trained on and held out: each text behind its <s>. Writes ``held-out.txt`` for perplexity."""
    kept = folder / "tokens.npz"
    if kept.exists():
        with np.load(kept) as file:
            return file["train"], file["held_out"]
    train, held_out = documents()
    spm = tokenizer(folder / "tokenizer.model", train)
    (folder / "held-out.txt").write_text("\n\n".join(held_out), encoding="utf-8")
    both = []
    for texts in (train, held_out):
        ids = [i for text in spm.encode(texts) for i in (spm.bos_id(), *text)]
        both.append(np.asarray(ids, np.int64))
    np.savez(kept, train=both[0], held_out=both[1])
    return both[0], both[1]


def windows(ids: Windows, rng: np.random.Generator, n: int, context: int = CONTEXT) -> Tensor:
    """Random stretches of the text: int64 [n, context + 1]."""
    at = rng.integers(0, len(ids) - context - 1, n)
    return torch.from_numpy(ids[at[:, None] + np.arange(context + 1)])


def loss_of(model: ReluLlama, batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cross entropy (nats a token), Hoyer's penalty and the density of each layer."""
    logits, taps = model(batch[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    gates = torch.stack([gate for _, gate in taps])
    positive = F.relu(gates)
    norm = positive.square().sum(-1).add(1e-6).sqrt()
    penalty = (positive.sum(-1) / norm).mean((1, 2))  # [n_layer]
    return loss, penalty, (gates > 0).float().mean((1, 2, 3)).detach()


class Training:
    """What a checkpoint holds."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(SEED)
        self.path = folder / "checkpoint.pt"
        self.model = ReluLlama()
        groups = [
            {"params": [p for p in self.model.parameters() if (p.dim() == 2) == matrix],
             "weight_decay": DECAY * matrix} for matrix in (True, False)
        ]  # fmt: skip
        self.optimizer = torch.optim.AdamW(groups, RATE, betas=(0.9, 0.95))
        self.step, self.weight = 0, torch.full((self.model.sizes.n_layer,), 1e-3)  # of the penalty
        if self.path.exists():
            saved = torch.load(self.path, weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.step, self.weight = saved["step"], saved["weight"]

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "step": self.step, "weight": self.weight,
        }  # fmt: skip
        torch.save(state, self.path.with_suffix(".new"))
        os.replace(self.path.with_suffix(".new"), self.path)

    def run_step(self, ids: Windows, steps: int) -> tuple[float, Tensor]:
        """One step; its loss and the densities of the layers."""
        part = self.step / steps
        rate = RATE * min((self.step + 1) / WARM_UP, (1 - part) / (1 - WARM_UP / steps), 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = windows(ids, np.random.default_rng((SEED, self.step)), BATCH)
        loss, penalty, density = loss_of(self.model, batch)
        (loss + self.weight @ penalty).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        wanted = max(DENSITY, 0.5 + (DENSITY - 0.5) * 2 * part)
        self.weight = (self.weight * (density / wanted) ** 0.2).clamp(1e-5, 0.1)
        self.step += 1
        return loss.item(), density


def train(folder: Path, steps: int) -> ReluLlama:
    """The trained model; prints a line every few steps."""
    ids, held_out = token_ids(folder)
    print(f"{len(ids)} tokens, held out {len(held_out)}")
    test = windows(held_out, np.random.default_rng(SEED), 16)
    run, start = Training(folder), time.perf_counter()
    while run.step < steps:
        loss, density = run.run_step(ids, steps)
        if run.step % EVERY == 0:
            layers = " ".join(f"{d:.2f}" for d in density.tolist())
            weights = " ".join(f"{w:.0e}" for w in run.weight.tolist())
            print(f"{run.step:5} loss {loss:.3f}, open {layers}, penalties {weights}, "
                  f"{time.perf_counter() - start:.0f} s", flush=True)  # fmt: skip
        if run.step % SAVE == 0 or run.step == steps:
            run.save()
        if run.step % (2 * SAVE) == 0:
            with torch.no_grad():
                print(f"      held out {loss_of(run.model, test)[0].item():.3f}", flush=True)
    return run.model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rank", type=int, default=64, help="rank of the predictors")
    parser.add_argument(
        "--recall", type=float, default=0.98, help="minimum recall of the predictors"
    )
    args = parser.parse_args()
    torch.set_num_threads(2)
    (args.folder / "model").mkdir(parents=True, exist_ok=True)
    model = train(args.folder / "model", args.steps)
    write_folder(model, model.config(), args.folder / "model")
    ids, _ = token_ids(args.folder / "model")
    batches = [windows(ids, np.random.default_rng((SEED, 1, i)), BATCH) for i in range(48)]
    fit_predictors(model, batches, args.folder / "predictor", args.rank, args.recall)


if __name__ == "__main__":
    main()
