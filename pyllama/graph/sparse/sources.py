"""Chooses the source of each layer: how its active neurons are predicted.

    hparams = choose_sources(file, hparams, "auto")
    hparams.sparse, hparams.sparse_threshold       # ('predictor', 'predictor'), 0.25
    parse_sparse("predictor,exact:0-3")            # another source for layers 0 to 3
    parse_sparse("exact,head")                     # predicted tokens of the output matrix only

``ffn`` describes the sources. ``auto`` uses predictors if the file has them; else ``exact`` if it
has a transposed down matrix and ReLU; else dense. Experts can be ``exact`` or dense.
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

from ...activation import RELU_LIKE
from ...errors import ModelError
from ...hparams import PREDICTING, HParams
from ..builder import HEAD_PREDICTOR

log = logging.getLogger(__name__)
SOURCES = ("auto", "predictor", "cross", "exact", "signs", "svd", "topk", "off")
HEAD_ITEM = "head"  # not a source of neurons: the output matrix is sparse too
THRESHOLD_KEY = "powerinfer.sparse_threshold"
_SVD_RANK = 8  # the default rank is n_embd / _SVD_RANK
_NUMBERED = {"svd": "N is its rank", "topk": "N is the number of neurons"}
_ITEM = re.compile(r"([a-z]+)(?:=(\d+))?(?::(\d+)(?:-(\d+))?)?")


class SourceItem(NamedTuple):
    """A source, its number (64 in ``svd=64``), and its first and last layer (None: all layers)."""

    source: str
    number: int | None
    layers: tuple[int, int] | None


def parse_sparse(text: str) -> list[SourceItem]:
    """Parse ``SOURCE[=NUMBER][:FIRST[-LAST]],...`` and return its items. Raises: ModelError."""
    items = []
    for part in text.split(","):
        match = _ITEM.fullmatch(part.strip())
        if match is None or match[1] not in (*SOURCES, HEAD_ITEM):
            raise ModelError(
                f"sparse {part!r}: must be {', '.join(SOURCES[:-2])} or off, for some layers as in "
                "predictor,exact:0-3, and head"
            )
        source, number, first, last = match.groups()
        if source == HEAD_ITEM and match[0] != HEAD_ITEM:
            raise ModelError(f"sparse {part!r}: must be head, without a number and layers")
        if (number is not None and (source not in _NUMBERED or int(number) < 1)) or (
            source == "topk" and number is None
        ):
            form = f"{source}=N, {_NUMBERED[source]}" if source in _NUMBERED else source
            raise ModelError(f"sparse {part!r}: must be {form}")
        layers = None if first is None else (int(first), int(last or first))
        items.append(SourceItem(source, None if number is None else int(number), layers))
    return items


def choose_sources(
    file: GGUFFile, hparams: HParams, sparse: str = "auto", threshold: float | None = None
) -> HParams:
    """Return the hyperparameters with the source of each layer, and the threshold.

    The threshold is the argument; if None, for predictors, that of the environment or the file;
    otherwise 0.

    Raises:
        ModelError: the file does not support a source, or the threshold is not a number.
        GGUFError: the file's threshold is not a number.
    """
    parsed = parse_sparse(sparse)
    if any(item.source == HEAD_ITEM for item in parsed):
        name = f"{HEAD_PREDICTOR}.weight"
        if name not in file.tensors:
            raise ModelError(
                f"{file.path}: sparse head: there is no predictor of the output matrix, '{name}'"
            )
        parsed = [item for item in parsed if item.source != HEAD_ITEM]
        hparams = replace(hparams, sparse_head=True)
    items = _items_of_layers(parsed, hparams.n_layer)
    chosen = tuple(_source(file, hparams, item, i) for i, item in enumerate(items))
    if threshold is not None and math.isnan(threshold):
        raise ModelError("the sparse threshold is nan: must be a number, inf or -inf")
    kinds = {source.partition("=")[0] for source in chosen}
    if threshold is None:
        threshold = _threshold(file) if kinds & {"predictor", "cross"} else 0.0
    elif kinds.isdisjoint(PREDICTING):
        log.warning("the sparse threshold has no effect: no layer has predicted scores")
    if kinds == {"off"}:
        return replace(hparams, sparse=(), sparse_threshold=0.0)
    with np.errstate(over="ignore"):
        return replace(hparams, sparse=chosen, sparse_threshold=float(np.float32(threshold)))


def _items_of_layers(items: Sequence[SourceItem], n_layer: int) -> list[SourceItem]:
    """Return the item of each layer; later items override earlier ones."""
    by_layer = [SourceItem("auto", None, None)] * n_layer
    for item in items:
        first, last = item.layers or (0, n_layer - 1)
        if not first <= last < n_layer:
            raise ModelError(
                f"sparse {item.source}:{first}-{last}: the layers of this model are 0 to "
                f"{n_layer - 1}"
            )
        by_layer[first : last + 1] = [item] * (last + 1 - first)
    return by_layer


def _source(file: GGUFFile, hparams: HParams, item: SourceItem, i: int) -> str:
    """Return the source of layer ``i``, with its number if any. Raises: ModelError."""
    source, number, _ = item
    predicted = any(name.endswith(".fc1.weight") for name in file.tensors)
    if source == "auto":
        transposed = f"blk.{i}.ffn_down{'_exps' * hparams.has_experts(i)}_t.weight"
        exact = transposed in file.tensors and hparams.hidden_act in RELU_LIKE
        source = "predictor" if predicted else "exact" if exact else "off"
    if source == "off":
        return source
    if hparams.has_experts(i):
        if not (hparams.relu_experts or hparams.hidden_act in RELU_LIKE):
            raise ModelError(
                f"{file.path}: sparse inference does not support experts whose activation is not "
                "ReLU; use `sparse='off'`"
            )
        separate = all(f"blk.{i}.ffn_{part}_exps.weight" in file.tensors for part in ("gate", "up"))
        if source != "exact" or not separate:
            raise ModelError(
                f"{file.path}: in experts, sparse inference supports `sparse='exact'` with "
                f"separate gate and up matrices only; use `sparse='off'`"
            )
        return source
    n_ff = hparams.n_ff_arr[i]
    up, down = (file.tensors.get(f"blk.{i}.ffn_{part}.weight") for part in ("up", "down"))
    fused = up is not None and down is not None and up.ne[1] != down.ne[0]
    named_so = any(  # not so in RWKV and in T5
        name.startswith("blk.") and name.endswith(".ffn_up.weight") for name in file.tensors
    )
    if not n_ff or fused or not named_so:
        raise ModelError(
            f"{file.path}: sparse inference does not support layers without a feed-forward part, "
            "or with gate and up in one matrix; use `sparse='off'`"
        )
    if source in ("predictor", "cross"):
        _check_predictor(file, i, predicted)
    if source == "topk" and (number or 0) > n_ff:
        raise ModelError(f"sparse topk={number}: a layer has {n_ff} neurons")
    if source == "svd":
        max_rank = min(hparams.n_embd, n_ff)
        number = min(number or max(1, hparams.n_embd // _SVD_RANK), max_rank)
    return source if number is None else f"{source}={number}"


def _check_predictor(file: GGUFFile, i: int, others: bool) -> None:
    """Raise ModelError if layer ``i`` has no predictor; ``others``: some layer has one."""
    lost = [n for n in (f"blk.{i}.fc1.weight", f"blk.{i}.fc2.weight") if n not in file.tensors]
    if lost and others:
        raise ModelError(
            f"{file.path}: layer {i} has no predictor: there is no tensor '{lost[0]}'; convert it "
            f"with one, or use another source for it: `sparse='predictor,exact:{i}'`"
        )
    if lost:
        raise ModelError(
            f"{file.path}: there are no predictors in this file, such as '{lost[0]}'; convert it "
            "with predictors, or use `sparse='exact'`"
        )


def _threshold(file: GGUFFile) -> float:
    """Return the threshold of predictors: of the environment, else of the file, else 0."""
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
        raise ModelError(f"{where} is {text or value}, must be a number, inf or -inf")
    return value
