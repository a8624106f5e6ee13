"""Which source says, for each layer, what neurons are active.

    hparams = choose_sources(file, hparams, "auto")
    hparams.sparse, hparams.sparse_threshold       # ('predictor', 'predictor'), 0.25
    parse_sparse("predictor,exact:0-3")            # other sources for some layers

``ffn`` says what each source is. ``auto`` never loses anything that the file's author
did not mean to: predictors where the file has them, else ``exact`` where it has a transposed down
matrix and ReLU, else dense.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pyggml import env
from pyggml.gguf import GGUFFile

from ..errors import ModelError
from ..graph.activation import RELU_LIKE
from ..hparams import HParams

log = logging.getLogger(__name__)
SOURCES = ("auto", "predictor", "exact", "signs", "svd", "topk", "off")
THRESHOLD_KEY = "powerinfer.sparse_threshold"
_SVD_RANK = 8  # a rank that is not given is n_embd over this
_NUMBERED = {"svd": "its rank", "topk": "how many neurons it keeps"}
_ITEM = re.compile(r"([a-z]+)(?:=(\d+))?(?::(\d+)(?:-(\d+))?)?")


class Item(NamedTuple):
    """A source, its number (``svd=64``), and its first and last layer; None: all."""

    source: str
    number: int | None
    layers: tuple[int, int] | None


def parse_sparse(text: str) -> list[Item]:
    """The items of ``SOURCE[=NUMBER][:FIRST[-LAST]],...``. Raises: ModelError."""
    items = []
    for part in text.split(","):
        match = _ITEM.fullmatch(part.strip())
        if match is None or match[1] not in SOURCES:
            raise ModelError(
                f"sparse {part!r}: want {', '.join(SOURCES[:-2])} or off, with layers after a "
                "colon where not all are meant: predictor,exact:0-3"
            )
        source, number, first, last = match.groups()
        if (number is not None and (source not in _NUMBERED or int(number) < 1)) or (
            source == "topk" and number is None
        ):
            want = f"{source}=N, {_NUMBERED[source]}" if source in _NUMBERED else source
            raise ModelError(f"sparse {part!r}: want {want}")
        layers = None if first is None else (int(first), int(last or first))
        items.append(Item(source, None if number is None else int(number), layers))
    return items


def choose_sources(
    file: GGUFFile, hparams: HParams, sparse: str = "auto", threshold: float | None = None
) -> HParams:
    """Hyperparameters with a source for each layer, and the threshold.

    The threshold is the one given, or else, for predictors, that of the environment, of the file,
    and 0.

    Raises:
        ModelError: what is asked for cannot be had from this file, or the threshold is no number.
        GGUFError: the file's threshold is no number.
    """
    asked = _each_layer(parse_sparse(sparse), hparams.n_layer)
    chosen = tuple(_source(file, hparams, item, i) for i, item in enumerate(asked))
    if threshold is not None and math.isnan(threshold):
        raise ModelError("the sparse threshold is nan: want a number, inf or -inf")
    kinds = {source.partition("=")[0] for source in chosen}
    if threshold is None:
        threshold = _threshold(file) if "predictor" in kinds else 0.0
    elif not kinds & {"predictor", "signs", "svd"}:
        log.warning("the sparse threshold has no effect: no layer has scores to compare with it")
    if kinds == {"off"}:
        return replace(hparams, sparse=(), sparse_threshold=0.0)
    with np.errstate(over="ignore"):
        return replace(hparams, sparse=chosen, sparse_threshold=float(np.float32(threshold)))


def _each_layer(items: Sequence[Item], n_layer: int) -> list[Item]:
    """The item that counts for each layer: the last one that names it."""
    asked = [Item("auto", None, None)] * n_layer
    for item in items:
        first, last = item.layers or (0, n_layer - 1)
        if not first <= last < n_layer:
            raise ModelError(
                f"sparse {item.source}:{first}-{last}: the layers of this model are 0 to "
                f"{n_layer - 1}"
            )
        asked[first : last + 1] = [item] * (last + 1 - first)
    return asked


def _source(file: GGUFFile, hparams: HParams, item: Item, i: int) -> str:
    """The source of layer ``i``, with its number where it has one. Raises: ModelError."""
    source, number, _ = item
    predicted = any(name.endswith(".fc1.weight") for name in file.tensors)
    if source == "auto":
        exact = f"blk.{i}.ffn_down_t.weight" in file.tensors and hparams.hidden_act in RELU_LIKE
        source = "predictor" if predicted else "exact" if exact else "off"
    if source == "off":
        return source
    if hparams.n_expert:
        raise ModelError(
            f"{file.path}: its layers have {hparams.n_expert} experts, whose neurons cannot be "
            "left out; use `sparse='off'`"
        )
    if source == "predictor":
        _check_predictor(file, i, predicted)
    if source == "topk" and (number or 0) > hparams.n_ff:
        raise ModelError(f"sparse topk={number}: a layer has {hparams.n_ff} neurons")
    if source == "svd":
        most = min(hparams.n_embd, hparams.n_ff)
        number = min(number or max(1, hparams.n_embd // _SVD_RANK), most)
    return source if number is None else f"{source}={number}"


def _check_predictor(file: GGUFFile, i: int, others: bool) -> None:
    """Raise ModelError where layer ``i`` has none; ``others`` may."""
    lost = [n for n in (f"blk.{i}.fc1.weight", f"blk.{i}.fc2.weight") if n not in file.tensors]
    if lost and others:
        raise ModelError(
            f"{file.path}: layer {i} has no predictor: there is no tensor '{lost[0]}'; convert it "
            f"with one, or use another source there: `sparse='predictor,exact:{i}'`"
        )
    if lost:
        raise ModelError(
            f"{file.path}: there are no predictors in this file, such as '{lost[0]}'; convert it "
            "with them, or use `sparse='exact'`, which needs none"
        )


def _threshold(file: GGUFFile) -> float:
    """What predictors' scores must reach: of the environment, else of the file, else 0."""
    text = env.SPARSE_THRESHOLD.get()
    if text is None:
        value, where = file.get_float(THRESHOLD_KEY, 0.0), f"{file.path}: {THRESHOLD_KEY}"
    else:
        where = env.SPARSE_THRESHOLD.name
        try:
            value = float(text)
        except ValueError:
            value = math.nan
    if math.isnan(value):
        raise ModelError(f"{where} is {text or value}, want a number, inf or -inf")
    return value
