"""Prepares a checkpoint for sparse inference: transposed down matrices, PowerInfer's predictors.

    check_neurons(folder, hparams, act="relu")
    form = sparse_form(planned, hparams, Folder(Path("predictors")))
    form.planned, form.keys, form.magic

A folder of predictors has ``model_{i}.pt`` (or ``.safetensors``) for each layer, with
``fc1.weight`` [rank, n_embd] and ``fc2.weight`` [n_ff, rank], and optionally a config.json with
``sparse_threshold``. Only the tables of tensors are read here; values are read when written.
Source: PowerInfer, ``convert.py``: ``load_mlp_model``, ``postprocess_transpose``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyggml.gguf.magic import MAGIC, POWERINFER

from ..activation import RELU_LIKE
from ..errors import ModelError
from ..graph.sparse.sources import THRESHOLD_KEY
from ..hparams import HParams
from ..inputs.budget import ReadBudget, shown
from ..mapping.rules import Array
from .files.folder import Folder, unreadable
from .files.safetensors import read_safetensors
from .files.stored import StoredTensor
from .files.torch_files import read_torch
from .plan import ConvertedTensor

_DOWN = re.compile(r"(blk\.\d+)\.ffn_down\.(weight|bias)")
_DOWN_EXPERTS = re.compile(r"blk\.\d+\.ffn_down_exps\.weight")
_FILE = re.compile(r"model_([0-9]+)\.(pt|safetensors)")
_FC1, _FC2 = "fc1.weight", "fc2.weight"
_FEW = 8  # layers listed in a message


@dataclass(frozen=True)
class Form:
    """The tensors of the output file and its kind: dense, transposed or PowerInfer.

    Attributes:
        keys: additional metadata.
        ending: suffix of the default file name, before ``.gguf``.
        magic: the first bytes of the file.
    """

    planned: list[ConvertedTensor]
    keys: dict[str, Any] = field(default_factory=dict)
    ending: str = ""
    magic: bytes = MAGIC


def check_neurons(folder: Path, hparams: HParams, act: str, predicted: bool) -> None:
    """Raise ModelError for a model whose neurons cannot be skipped.

    Args:
        folder: for messages.
        act: the FFN's activation; empty if it is not ReLU-like.
        predicted: whether predictors are given.
    """
    if hparams.n_expert and predicted:
        raise ModelError(
            f"{folder}: the model has {hparams.n_expert} experts, for which there are no "
            "predictors: convert it with `transpose_down` in place of `predictor`"
        )
    if hparams.n_expert and hparams.n_ff_exp == hparams.n_embd:
        raise ModelError(
            f"{folder}: experts with as many neurons as columns ({hparams.n_embd}) cannot be "
            "marked as transposed: convert it without `transpose_down`"
        )
    if act not in RELU_LIKE:
        raise ModelError(
            f"{folder}: its activation is {act or 'not ReLU'}, which does not give exact zeros: "
            'convert it with `predictor=None`, or set "hidden_act": "relu" in config.json if it '
            "was trained with ReLU"
        )


def sparse_form(
    planned: Iterable[ConvertedTensor], hparams: HParams, predictor: Folder | None = None
) -> Form:
    """Return the tensors with ``ffn_down_t``, and with the predictors of a folder if given.

    Raises:
        ModelError: the folder or a file in it is invalid, or belongs to another model.
    """
    transposed = [_transposed(one) for one in planned]
    if predictor is None:
        return Form(transposed, ending=".transposed")
    threshold = _read_threshold(predictor)
    keys = {} if threshold is None else {THRESHOLD_KEY: threshold}
    files, budget = _find_files(predictor.path, hparams.n_layer), predictor.budget
    predictors = [
        one for i, file in enumerate(files) for one in _plan_layer(i, file, hparams, budget)
    ]
    return Form(transposed + predictors, keys, ".powerinfer", POWERINFER)


def _transposed(one: ConvertedTensor) -> ConvertedTensor:
    """Return a down matrix transposed (row j is neuron j), its bias renamed, others unchanged.

    Experts' matrices keep their name, as PowerInfer's do: their sizes tell.
    """
    if _DOWN_EXPERTS.fullmatch(one.name):
        parts = tuple(partial(lambda read: read().swapaxes(-1, -2), part) for part in one.parts)
        shape = one.shape[0], one.shape[2], one.shape[1]
        return ConvertedTensor(one.name, shape, parts, one.dtypes)
    match = _DOWN.fullmatch(one.name)
    if match is None:
        return one
    name = f"{match[1]}.ffn_down_t.{match[2]}"
    # views; chunks are copied when they are written
    parts = tuple(partial(lambda read: read().T, part) for part in one.parts)
    return ConvertedTensor(name, one.shape[::-1], parts, one.dtypes)


def _read_threshold(folder: Folder) -> np.float32 | None:
    """Return the threshold of the scores, None if the folder has none.

    Raises:
        ModelError: there is no such folder, or the threshold is not a number.
    """
    path = folder.path
    if not path.is_dir():
        problem = "is a file" if path.exists() else "no such folder"
        raise ModelError(f"{path}: {problem}: give the folder of predictors (model_0.pt, ...)")
    value = folder.json("config.json").get("sparse_threshold")
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= float(np.finfo(np.float32).max):  # also true for NaN
        raise ModelError(
            f"{path / 'config.json'}: sparse_threshold is {shown(value)}, must be a number in the "
            "range of float32"
        )
    return np.float32(value)


def _find_files(folder: Path, n_layer: int) -> list[Path]:
    """Return the file of each layer. Raises: ModelError."""
    files: dict[int, Path] = {}
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from None
    for file in entries:
        match = _FILE.fullmatch(file.name)
        if match is None:
            continue
        layer = int(match[1])
        if layer >= n_layer:
            raise ModelError(
                f"{file}: there is no layer {layer}, the model has {n_layer} layers: are these "
                "the predictors of another model?"
            )
        if layer in files:
            raise ModelError(f"{file}: {files[layer].name} is also of layer {layer}: keep one")
        files[layer] = file
    missing = [i for i in range(n_layer) if i not in files]
    if missing:
        names = ", ".join(f"model_{i}.pt" for i in missing[:_FEW])
        more = f" and {len(missing) - _FEW} more" if len(missing) > _FEW else ""
        raise ModelError(
            f"{folder}: predictors are missing for {len(missing)} of {n_layer} layers: "
            f"there is no {names}{more}"
        )
    return [files[i] for i in range(n_layer)]


def _plan_layer(i: int, file: Path, hparams: HParams, budget: ReadBudget) -> list[ConvertedTensor]:
    tensors = (read_torch if file.suffix == ".pt" else read_safetensors)(file, budget)
    _check(file, tensors, hparams.of_layer(i))
    return [
        ConvertedTensor(
            f"blk.{i}.{name}",
            tensors[name].shape,
            (partial(_read_finite, name, tensors[name]),),
            frozenset({tensors[name].dtype}),
        )
        for name in (_FC1, _FC2)
    ]


def _check(file: Path, tensors: dict[str, StoredTensor], hparams: HParams) -> None:
    """Raise ModelError if the tensors are not a predictor for this model."""
    odd = [name for name in (_FC1, _FC2) if name not in tensors]
    odd += [name for name in tensors if name not in (_FC1, _FC2)]
    if odd:
        problem = "is unknown" if odd[0] in tensors else "is missing"
        raise ModelError(
            f"{file}: tensor {shown(odd[0])} {problem}; a predictor consists of {_FC1} and {_FC2}"
        )
    n_embd, n_ff = hparams.n_embd, hparams.n_ff
    first, second = (list(tensors[name].shape) for name in (_FC1, _FC2))
    for name, shape, size, expected in (
        (_FC1, first, first[1:], [n_embd]),
        (_FC2, second, second[:1], [n_ff]),
    ):
        if len(shape) != 2 or size != expected or 0 in shape:
            pattern = f"[rank, {n_embd}]" if name == _FC1 else f"[{n_ff}, rank]"
            raise ModelError(
                f"{file}: tensor {name!r} has the shape {shape}, must be {pattern} for this model"
            )
    if first[0] != second[1]:
        raise ModelError(
            f"{file}: {_FC1} {first} has rank {first[0]}, but {_FC2} {second} has {second[1]}"
        )


def _read_finite(name: str, stored: StoredTensor) -> Array:
    """Return the values of a predictor. Raises: ModelError: a value is NaN or infinite."""
    x = stored.read()
    finite = np.isfinite(x)
    if not finite.all():
        at = [int(n) for n in np.unravel_index(np.argmin(finite), x.shape)]
        raise ModelError(
            f"{stored.path}: tensor {name!r} is {x[tuple(at)]} at {at}: train or download it again"
        )
    return x
