"""A checkpoint as sparse inference wants it: down matrices by neuron, and PowerInfer's predictors.

    check_neurons(folder, hparams, act="relu")
    form = sparse_form(planned, hparams, Folder(Path("predictors")))
    form.planned, form.keys, form.magic

A folder of predictors has ``model_{i}.pt`` (or ``.safetensors``) for each layer, which hold
``fc1.weight`` [rank, n_embd] and ``fc2.weight`` [n_ff, rank], and may have a config.json with
``sparse_threshold``. As of a checkpoint only tables are read here; values are, when written.
Source: PowerInfer, ``convert.py``: ``load_mlp_model``, ``postprocess_transpose``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyggml.gguf.magic import MAGIC, POWERINFER

from ..errors import ModelError
from ..files.budget import Budget, shown
from ..graph.activation import RELU_LIKE
from ..hparams import HParams
from ..sparsity.sources import THRESHOLD_KEY
from .folder import Folder
from .mapping import Array
from .plan import Planned
from .safetensors import read_safetensors
from .stored import Stored
from .torch_files import read_torch

_DOWN = re.compile(r"(blk\.\d+)\.ffn_down\.(weight|bias)")
_FILE = re.compile(r"model_([0-9]+)\.(pt|safetensors)")
_FC1, _FC2 = "fc1.weight", "fc2.weight"
_FEW = 8  # layers that a message names


@dataclass(frozen=True)
class Form:
    """The tensors of a file, and what tells it from a file of another form.

    Attributes:
        keys: metadata that it has beyond others.
        ending: of its default name, before ``.gguf``.
        magic: its first bytes.
    """

    planned: list[Planned]
    keys: dict[str, Any] = field(default_factory=dict)
    ending: str = ""
    magic: bytes = MAGIC


def check_neurons(folder: Path, hparams: HParams, act: str) -> None:
    """Raise ModelError for a model of which no neurons can be left out.

    Args:
        folder: for messages.
        act: of the feed-forward part; empty: one that is not like ReLU.
    """
    if hparams.n_expert:
        raise ModelError(
            f"{folder}: its feed-forward part is made of {hparams.n_expert} experts, which sparse "
            "inference cannot run: convert it with `predictor=None`"
        )
    if act not in RELU_LIKE:
        raise ModelError(
            f"{folder}: its activation is {act or 'not ReLU'}, whose neurons are never exactly "
            'zero: convert it with `predictor=None`, or say "hidden_act": "relu" in config.json, '
            "if it was trained so"
        )


def sparse_form(
    planned: Iterable[Planned], hparams: HParams, predictor: Folder | None = None
) -> Form:
    """A file with ``ffn_down_t``, and with the predictors of a folder if there is one.

    Raises:
        ModelError: the folder or a file in it is not as it must be, or of another model.
    """
    turned = [_transposed(one) for one in planned]
    if predictor is None:
        return Form(turned, ending=".transposed")
    threshold = _read_threshold(predictor)
    keys = {} if threshold is None else {THRESHOLD_KEY: threshold}
    return Form(turned + _plan_predictors(predictor, hparams), keys, ".powerinfer", POWERINFER)


def _transposed(one: Planned) -> Planned:
    """A down matrix by neuron, its row j; its bias under that name too; any other as it is."""
    match = _DOWN.fullmatch(one.name)
    if match is None:
        return one
    name = f"{match[1]}.ffn_down_t.{match[2]}"
    parts = tuple(partial(_read_transposed, part) for part in one.parts)
    return Planned(name, one.shape[::-1], parts, one.dtypes)


def _read_transposed(read: Callable[[], Array]) -> Array:
    return read().T  # a view: what is written at a time is copied then


def _read_threshold(folder: Folder) -> np.float32 | None:
    """What a neuron's score must reach; None where the folder does not say.

    Raises:
        ModelError: there is no such folder, or the threshold is no number.
    """
    path = folder.path
    if not path.is_dir():
        what = "is a file" if path.exists() else "no such folder"
        raise ModelError(f"{path}: {what}: name the folder that has model_0.pt, a predictor")
    value = folder.json("config.json").get("sparse_threshold")
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= float(np.finfo(np.float32).max):  # NaN is not
        raise ModelError(
            f"{path / 'config.json'}: sparse_threshold is {shown(value)}, want a number that a "
            "32-bit float holds"
        )
    return np.float32(value)


def _plan_predictors(folder: Folder, hparams: HParams) -> list[Planned]:
    """The predictors' tensors, layer by layer.

    Raises:
        ModelError: a layer's file is missing or there are too many, one is damaged or holds
            something else, or sizes are not those of the model.
    """
    files = _find_files(folder.path, hparams.n_layer)
    return [
        one for i, file in enumerate(files) for one in _plan_layer(i, file, hparams, folder.budget)
    ]


def _find_files(folder: Path, n_layer: int) -> list[Path]:
    """The file of each layer. Raises: ModelError."""
    files: dict[int, Path] = {}
    try:
        there = sorted(folder.iterdir())
    except OSError as error:
        raise ModelError(f"{folder}: cannot be read: {error.strerror or error}") from None
    for file in there:
        match = _FILE.fullmatch(file.name)
        if match is None:
            continue
        layer = int(match[1])
        if layer >= n_layer:
            raise ModelError(
                f"{file}: there is no layer {layer}, the model has {n_layer}: are these the "
                "predictors of another?"
            )
        if layer in files:
            raise ModelError(f"{file}: {files[layer].name} is of layer {layer} too: keep one")
        files[layer] = file
    missing = [i for i in range(n_layer) if i not in files]
    if missing:
        names = ", ".join(f"model_{i}.pt" for i in missing[:_FEW])
        more = f" and {len(missing) - _FEW} more" if len(missing) > _FEW else ""
        raise ModelError(
            f"{folder}: no predictors for {len(missing)} of the model's {n_layer} layers: "
            f"there is no {names}{more}"
        )
    return [files[i] for i in range(n_layer)]


def _plan_layer(i: int, file: Path, hparams: HParams, budget: Budget) -> list[Planned]:
    tensors = (read_torch if file.suffix == ".pt" else read_safetensors)(file, budget)
    _check(file, tensors, hparams)
    return [
        Planned(
            f"blk.{i}.{name}",
            tensors[name].shape,
            (partial(_read_finite, name, tensors[name]),),
            frozenset({tensors[name].dtype}),
        )
        for name in (_FC1, _FC2)
    ]


def _check(file: Path, tensors: dict[str, Stored], hparams: HParams) -> None:
    """Raise ModelError where tensors are no predictor of a layer of the model."""
    odd = [name for name in (_FC1, _FC2) if name not in tensors]
    odd += [name for name in tensors if name not in (_FC1, _FC2)]
    if odd:
        what = "has no place in a predictor" if odd[0] in tensors else "is missing"
        raise ModelError(f"{file}: tensor {shown(odd[0])} {what}, which is {_FC1} and {_FC2}")
    n_embd, n_ff = hparams.n_embd, hparams.n_ff
    first, second = (list(tensors[name].shape) for name in (_FC1, _FC2))
    for name, shape, size, wanted in (
        (_FC1, first, first[1:], [n_embd]),
        (_FC2, second, second[:1], [n_ff]),
    ):
        if len(shape) != 2 or size != wanted or 0 in shape:
            pattern = f"[rank, {n_embd}]" if name == _FC1 else f"[{n_ff}, rank]"
            raise ModelError(
                f"{file}: tensor {name!r} has the shape {shape}, want {pattern} for this model"
            )
    if first[0] != second[1]:
        raise ModelError(
            f"{file}: {_FC1} {first} is of rank {first[0]}, but {_FC2} {second} of {second[1]}"
        )


def _read_finite(name: str, stored: Stored) -> Array:
    """Values of a predictor. Raises: ModelError: one is NaN or infinite, and scores would be."""
    x = stored.read()
    finite = np.isfinite(x)
    if not finite.all():
        at = [int(n) for n in np.unravel_index(np.argmin(finite), x.shape)]
        raise ModelError(
            f"{stored.path}: tensor {name!r} is {x[tuple(at)]} at {at}: train or fetch it again"
        )
    return x
