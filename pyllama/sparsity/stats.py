"""Statistics of a sparse model: which neurons were active, how often, and who foresaw it.

    stats.density                                  # [n_layer], the share that is active for a token
    stats.coverage(0.2)                            # of activations, by the hottest 20 % of neurons
    save_stats("stats.json", stats); load_stats("stats.json")

A neuron is active where what goes into its ReLU is larger than zero. ``collect`` makes them.
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
from ..files.bounded_json import parse_json
from ..hparams import HParams
from .placement import Activity, hottest

Shares = npt.NDArray[np.float64]
_FORMAT = "pyllama sparse statistics 1"
_MAX_BYTES, _MAX_VALUES = 128 << 20, 12 << 20  # 70 billion parameters have 2.3 million counts
_MOST_TOKENS, _LONGEST = 1 << 48, 200
COVERED = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # shares of neurons in the file and in tables


def judged(hparams: HParams) -> dict[int, str]:
    """The layers whose scores may be wrong, and their source."""
    sources = {i: hparams.source(i) for i in range(hparams.n_layer)}
    return {i: x for i, x in sources.items() if x in ("predictor", "signs", "svd")}


def source_name(hparams: HParams) -> str:
    """All such sources of a model in a word."""
    return "+".join(sorted(set(judged(hparams).values())))


@dataclass(frozen=True, eq=False)
class Statistics:
    """What a text did in each layer of a model.

    Attributes:
        model: its description; fingerprint: see ``model_fingerprint``.
        n_tokens: of the text.
        source: of the scores, such as ``predictor``; empty where there were none.
        threshold: that scores must reach.
        counts: int64 [n_layer, n_ff], tokens for which a neuron was active.
        batch_sizes: tokens in a row; union: [n_layer, len(batch_sizes)], the share of neurons that
            at least one of so many tokens needs.
        predicted: [n_layer], the share of neurons whose score reached the threshold; recall: of
            active neurons, those; precision: of those, active ones. NaN without scores.
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
        """[n_layer]: the mean share of neurons that are active for a token."""
        density: Shares = self.counts.mean(axis=1) / max(1, self.n_tokens)
        return density

    @property
    def activity(self) -> Activity:
        """[n_layer, n_ff]: the share of tokens for which a neuron is active."""
        return self.counts / max(1, self.n_tokens)

    @property
    def computed(self) -> Activity:
        """[n_layer, n_ff]: the share of tokens for which a neuron is computed: where scores choose,
        as many as they choose, spread as activity is."""
        known = np.isfinite(self.predicted) & (self.density > 0)
        factor = np.where(known, self.predicted / np.where(known, self.density, 1.0), 1.0)
        scaled: Activity = np.minimum(self.activity * factor[:, None], 1.0)
        return scaled

    def coverage(self, share: float) -> Shares:
        """[n_layer]: of all activations, how many are of the hottest ``share`` of neurons."""
        activity, n_layer = self.activity, len(self.counts)
        n = [round(share * activity.shape[1])] * n_layer
        return np.array(hottest(activity, n, n).share(activity))


def save_stats(path: str | os.PathLike[str], stats: Statistics) -> None:
    """Write JSON. Raises: OSError."""
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
    """Read what ``save_stats`` wrote. Raises: ModelError; OSError: the file cannot be read."""
    path = Path(path)
    data = read_regular(path, _MAX_BYTES)
    try:
        return _parse(parse_json(data, _MAX_VALUES))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise ModelError(
            f"{path}: no statistics of pyllama-powerinfer stats, or damaged ({error!r:.80})"
        ) from None


def _parse(data: Any) -> Statistics:
    if data["format"] != _FORMAT:
        raise ValueError(data["format"])
    layers = data["layers"]
    counts = np.array([layer["counts"] for layer in layers], np.int64)
    n_tokens, sizes = int(data["n_tokens"]), tuple(layers[0]["union"])
    if counts.ndim != 2 or not counts.size or counts.min() < 0 or counts.max() > n_tokens:
        raise ValueError("counts")
    if not 1 <= n_tokens < _MOST_TOKENS:
        raise ValueError(f"{n_tokens:.3g} tokens")

    def numbers(key: str) -> Shares:
        return _shares([math.nan if x[key] is None else x[key] for x in layers], key)

    threshold = data["threshold"]
    return Statistics(
        visible(str(data["model"]), limit=_LONGEST),
        visible(str(data["fingerprint"]), limit=_LONGEST),
        n_tokens,
        visible(str(data["source"]), limit=_LONGEST),
        math.nan if threshold is None else float(threshold),
        counts,
        tuple(map(int, sizes)),
        _shares([[x["union"][n] for n in sizes] for x in layers], "union"),
        numbers("predicted"),
        numbers("recall"),
        numbers("precision"),
    )


def _shares(values: list[Any], key: str) -> Shares:
    """Numbers from 0 to 1, or NaN. Raises: ValueError."""
    shares = np.array(values, np.float64)
    if not ((shares >= 0) & (shares <= 1) | np.isnan(shares)).all():
        raise ValueError(f"{key} is no share")
    return shares


def _plain(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None  # JSON has no NaN
