"""Activation statistics of a ReLU model, and the quality of its predictors.

    stats.density                                  # [n_layer], active share of neurons per token
    stats.coverage(0.2)                            # share of activations of the hottest 20 %
    save_stats("stats.json", stats); load_stats("stats.json")

A neuron is active if the input of its ReLU is positive. ``collect`` creates the statistics.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.files import read_regular, write_whole
from pyggml.visible import visible

from ..errors import ModelError
from ..hparams import HParams
from ..inputs.bounded_json import parse_json
from .placement import Activity, hottest

Shares = npt.NDArray[np.float64]
_FORMAT = "pyllama sparse statistics 1"
_MAX_BYTES, _MAX_VALUES = 128 << 20, 12 << 20  # 70 billion parameters have 2.3 million counts
_MAX_TOKENS, _MAX_TEXT = 1 << 48, 200
COVERED = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # shares of neurons whose coverage is saved


def source_name(hparams: HParams) -> str:
    """Return the names of a model's predicting sources, joined by "+"."""
    return "+".join(sorted(set(hparams.predicted.values())))


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of a text in each layer of a model.

    Attributes:
        model: the model's description.
        fingerprint: see ``model_fingerprint``.
        n_tokens: tokens of the text.
        source: source of the scores, such as ``predictor``; empty without scores.
        threshold: minimum score of a predicted neuron.
        counts: int64 [n_layer, n_ff], tokens for which a neuron was active.
        batch_sizes: numbers of consecutive tokens.
        union: [n_layer, len(batch_sizes)], share of neurons active for at least one token of a
            batch.
        predicted: [n_layer], share of predicted neurons; NaN without scores.
        recall: [n_layer], share of active neurons that were predicted.
        precision: [n_layer], share of predicted neurons that were active.
    """

    model: str
    fingerprint: str
    n_tokens: int
    source: str
    threshold: float
    counts: npt.NDArray[np.int64]
    batch_sizes: tuple[int, ...]
    union: Shares
    predicted: Shares
    recall: Shares
    precision: Shares

    @property
    def density(self) -> Shares:
        """[n_layer]: mean share of active neurons per token."""
        density: Shares = self.counts.mean(axis=1) / max(1, self.n_tokens)
        return density

    @property
    def activity(self) -> Activity:
        """[n_layer, n_ff]: share of tokens for which a neuron is active."""
        return self.counts / max(1, self.n_tokens)

    @property
    def computed(self) -> Activity:
        """[n_layer, n_ff]: share of tokens for which a neuron is computed.

        With scores: activity scaled so that its mean is the share of predicted neurons.
        """
        is_measured = np.isfinite(self.predicted) & (self.density > 0)
        factor = np.where(
            is_measured, self.predicted / np.where(is_measured, self.density, 1.0), 1.0
        )
        scaled: Activity = np.minimum(self.activity * factor[:, None], 1.0)
        return scaled

    def coverage(self, share: float) -> Shares:
        """Return, by layer, the share of activations of the hottest ``share`` of neurons."""
        activity, n_layer = self.activity, len(self.counts)
        n = [round(share * activity.shape[1])] * n_layer
        return np.array(hottest(activity, n, n).share(activity))


def save_stats(path: str | os.PathLike[str], stats: Statistics) -> None:
    """Write the statistics as JSON. Raises: OSError."""
    covered = np.stack([stats.coverage(share) for share in COVERED], axis=1)
    layers = [
        {
            "layer": i,
            "density": density,
            "union": dict(zip(map(str, stats.batch_sizes), stats.union[i].tolist(), strict=True)),
            "predicted": _plain(stats.predicted[i]),
            "recall": _plain(stats.recall[i]),
            "precision": _plain(stats.precision[i]),
            "coverage": dict(zip(map(str, COVERED), covered[i].tolist(), strict=True)),
            "counts": stats.counts[i].tolist(),
        }
        for i, density in enumerate(stats.density.tolist())
    ]
    whole = {
        "format": _FORMAT,
        "model": stats.model,
        "fingerprint": stats.fingerprint,
        "n_tokens": stats.n_tokens,
        "source": stats.source,
        "threshold": _plain(stats.threshold),
        "layers": layers,
    }
    write_whole(path, json.dumps(whole).encode())


def load_stats(path: str | os.PathLike[str]) -> Statistics:
    """Return the statistics in a file of ``save_stats``.

    Raises:
        ModelError: the file is not such a file, or damaged.
        OSError: it cannot be read.
    """
    path = Path(path)
    data = read_regular(path, _MAX_BYTES)
    try:
        return _parse(parse_json(data, _MAX_VALUES))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise ModelError(
            f"{path}: not a file of pyllama-powerinfer stats, or damaged ({error!r:.80})"
        ) from None


def _parse(data: Any) -> Statistics:
    if data["format"] != _FORMAT:
        raise ValueError(data["format"])
    layers = data["layers"]
    counts = np.array([layer["counts"] for layer in layers], np.int64)
    n_tokens, sizes = int(data["n_tokens"]), tuple(layers[0]["union"])
    if counts.ndim != 2 or not counts.size or counts.min() < 0 or counts.max() > n_tokens:
        raise ValueError("counts")
    if not 1 <= n_tokens < _MAX_TOKENS:
        raise ValueError(f"{n_tokens:.3g} tokens")

    def numbers(key: str) -> Shares:
        return _shares([math.nan if x[key] is None else x[key] for x in layers], key)

    threshold = data["threshold"]
    return Statistics(
        visible(str(data["model"]), limit=_MAX_TEXT),
        visible(str(data["fingerprint"]), limit=_MAX_TEXT),
        n_tokens,
        visible(str(data["source"]), limit=_MAX_TEXT),
        math.nan if threshold is None else float(threshold),
        counts,
        tuple(map(int, sizes)),
        _shares([[x["union"][n] for n in sizes] for x in layers], "union"),
        numbers("predicted"),
        numbers("recall"),
        numbers("precision"),
    )


def _shares(values: list[Any], key: str) -> Shares:
    """Return numbers from 0 to 1, or NaN, as an array. Raises: ValueError."""
    shares = np.array(values, np.float64)
    if not ((shares >= 0) & (shares <= 1) | np.isnan(shares)).all():
        raise ValueError(f"{key} is not a share")
    return shares


def _plain(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None  # JSON has no NaN
