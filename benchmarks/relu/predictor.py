"""PowerInfer's predictors ``fc2(relu(fc1(x)))``, fitted to which gates a trained model opens.

    fit_predictors(model, batches, folder, rank=64, recall=0.98)   # model_{i}.pt and config.json

A logistic fit on pairs (input of the feed-forward part before its norm, gate > 0), one layer after
the other. The threshold of a layer is the score that the wanted share of its open gates reaches on
tokens that were not fitted. A file has one threshold for all layers, so the scores of each layer
are scaled until its threshold is that one.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.relu.model import ReluLlama

STEPS, BATCH, RATE = 1000, 1024, 2e-3
CALIBRATION = 8  # one token of so many
THRESHOLD = -1.0  # in the file; negative, as an unlikely gate counts as open


@torch.no_grad()
def _pairs(model: ReluLlama, batches: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Inputs float32 [n, E] and open gates bool [n, F] of each layer."""
    layers: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(model.sizes.n_layer)]
    for batch in batches:
        for found, (x, gate) in zip(layers, model(batch[:, :-1])[1], strict=True):
            found.append((x.flatten(0, 1), (gate > 0).flatten(0, 1)))
    return [(torch.cat([x for x, _ in found]), torch.cat([y for _, y in found]))
            for found in layers]  # fmt: skip


def _fit(x: Tensor, is_open: Tensor, rank: int) -> nn.Sequential:
    fc1, fc2 = (
        nn.Linear(x.shape[1], rank, bias=False),
        nn.Linear(rank, is_open.shape[1], bias=False),
    )
    nn.init.normal_(fc1.weight, std=1 / x.square().sum(1).mean().sqrt().item())
    net = nn.Sequential(fc1, nn.ReLU(), fc2)
    optimizer = torch.optim.Adam(net.parameters(), RATE)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - step / STEPS)
        at = torch.randint(len(x), (BATCH,))
        loss = F.binary_cross_entropy_with_logits(net(x[at]), is_open[at].float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


def fit_predictors(
    model: ReluLlama, batches: list[Tensor], folder: Path, rank: int, recall: float
) -> None:
    """Writes PowerInfer's predictor folder and prints a line for each layer.

    Raises:
        SystemExit: a layer's threshold is not negative, so there is no common one.
    """
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    for i, (x, is_open) in enumerate(_pairs(model, batches)):
        n = len(x) // CALIBRATION
        net = _fit(x[n:], is_open[n:], rank)
        with torch.no_grad():
            scores, truth = net(x[:n]), is_open[:n]
            threshold = torch.sort(scores[truth]).values[int((1 - recall) * truth.sum())].item()
            if threshold >= 0:
                raise SystemExit(f"layer {i}: threshold {threshold} is not negative")
            net[2].weight *= THRESHOLD / threshold
            active = scores >= threshold
        found = (active & truth).sum() / truth.sum()
        shares = f"open {truth.float().mean():.3f}, active {active.float().mean():.3f}"
        print(f"predictor {i}: {shares}, recall {found:.4f}", flush=True)
        weights = {"fc1.weight": net[0].weight.detach(), "fc2.weight": net[2].weight.detach()}
        torch.save(weights, folder / f"model_{i}.pt")
    (folder / "config.json").write_text(json.dumps({"sparse_threshold": THRESHOLD}))
