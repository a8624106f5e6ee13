"""Trains PowerInfer's predictors of active neurons, ``fc2 @ relu(fc1 @ x)``.

    folder = PredictorFolder("predictors", model, tokens, PredictorParams(rank=64))
    for layer in folder.train():                   # writes model_0.pt, ..., for pyllama-convert
        print(layer.active, layer.recall)

Logistic regression, layer by layer: from the input of a feed-forward part, before its norm, to its
active neurons. A layer's threshold is the score that a share ``recall`` of its active neurons
reaches on tokens that were not fitted. A file has one threshold for all layers, so each layer's
scores are scaled to it. A folder keeps each layer as soon as it is trained, so that a killed run
goes on from there. Source: PowerInfer, ``convert.py`` (files).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyggml as ops
from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.registry import init_backend
from pyggml.context import Context as TensorContext
from pyggml.dtype import GGMLType
from pyggml.files import read_input, write_whole
from pyggml.gguf import GGUFFile
from pyggml.host import available_memory
from pyggml.opt import AdamW, Dataset, OptContext, OptParams, epoch
from pyggml.sched import to_numpy
from pyggml.tensor import Tensor

from ..convert.files.torch_writer import write_torch
from ..errors import ModelError
from ..inputs.bounded_json import parse_json
from ..inputs.text import utf8
from ..runtime.batch import Batch
from ..runtime.context import Context
from ..runtime.model import Model
from .collect import relu_inputs, text_chunks
from .fingerprint import weights_digest

Floats = npt.NDArray[np.float32]
Progress = Callable[[float], None]
THRESHOLD = -1.0  # in the file; negative, as an unlikely neuron counts as active
_CALIBRATION = 8  # one token of so many is not fitted
_RECORD = "run.json"  # in an unfinished folder: settings, and statistics of the layers
_MAX_RECORD_BYTES, _MAX_RECORD_VALUES = 1 << 20, 1 << 16
_MEMORY_SHARE = 0.5  # of free memory, for inputs and activity of some layers


@dataclass(frozen=True)
class PredictorParams:
    """How predictors are trained.

    Args:
        rank: of the two matrices.
        recall: share of the active neurons that a predictor selects.
        steps, n_batch, rate: of AdamW, whose rate decays to 0.
        seed: of the first values and of the order of tokens.
    """

    rank: int = 64
    recall: float = 0.98
    steps: int = 1000
    n_batch: int = 1024
    rate: float = 2e-3
    seed: int = 0


class Predictor(NamedTuple):
    """A trained predictor, with its statistics on held-out tokens.

    Attributes:
        active: share of the neurons that are active.
        selected: share of the neurons that it selects.
        recall: share of the active neurons that it selects.

    Shape:
        NumPy order: fc1 [rank, n_embd], fc2 [n_ff, rank]
    """

    fc1: Floats
    fc2: Floats
    active: float
    selected: float
    recall: float


class PredictorStats(NamedTuple):
    """Statistics of a predictor, as of ``Predictor``."""

    active: float
    selected: float
    recall: float


class Pairs(NamedTuple):
    """Inputs of a layer's feed-forward part, and which neurons are active.

    Shape:
        NumPy order: x [T, n_embd], active bool [T, n_ff]
    """

    x: Floats
    active: npt.NDArray[np.bool_]


def train_predictors(
    model: Model,
    tokens: Sequence[int],
    params: PredictorParams | None = None,
    *,
    n_ctx: int = 512,
    n_threads: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Predictor]:
    """The predictor of each layer, as soon as it is trained.

    Args:
        model: computed densely (``sparse="off"``).
        n_ctx: tokens per chunk of the text.

    Raises:
        ModelError: the model's activation is not ReLU-like, the text is too short, or a layer has
            no threshold.
    """
    p, n_layer = params or PredictorParams(), model.hparams.n_layer
    chunks = _chunks(model, tokens, n_ctx)
    return _train_layers(model, chunks, p, range(n_layer), n_threads, progress)


def _chunks(model: Model, tokens: Sequence[int], n_ctx: int) -> list[list[int]]:
    """The chunks of a text. Raises: ModelError: it is too short."""
    chunks = text_chunks(model, tokens, max(1, min(n_ctx, model.hparams.n_ctx_train)))
    n = sum(map(len, chunks))
    if n < 2 * _CALIBRATION:
        raise ModelError(f"{n} tokens are too few to train predictors: use a longer text")
    return chunks


def _train_layers(
    model: Model,
    chunks: Sequence[Sequence[int]],
    p: PredictorParams,
    layers: range,
    n_threads: int | None,
    progress: Progress | None,
) -> Iterator[Predictor]:
    """The predictors of some layers; inputs of as many as memory allows are collected at once."""
    n, hp = sum(map(len, chunks)), model.hparams
    size = n * max(4 * hp.n_embd + hp.of_layer(i).n_ff for i in range(hp.n_layer))
    at_once = max(1, int(_MEMORY_SHARE * (available_memory() or size)) // size)
    for first in range(layers.start, layers.stop, at_once):
        some = range(first, min(first + at_once, layers.stop))
        pairs = _collect(model, chunks, some, n_threads)
        for i in some:

            def report(fraction: float, i: int = i) -> None:
                if progress is not None:
                    progress((i + fraction) / hp.n_layer)

            yield _fit(pairs.pop(i), p, i, n_threads, report)


def _collect(
    model: Model, chunks: Sequence[Sequence[int]], layers: range, n_threads: int | None
) -> dict[int, Pairs]:
    """Evaluate a text, and keep inputs and activity of some layers."""
    n_ctx = max(map(len, chunks))
    context = Context(model, n_ctx=n_ctx, n_batch=n_ctx, n_threads=n_threads)
    graph = context.graph(1, 1).graph
    nodes: dict[str, tuple[int, bool]] = {}  # layer, and whether it is the input
    for i, gate in relu_inputs(model, graph):
        if i in layers:
            name = f"ffn_inp-{i}"
            if graph.get_tensor(name) is None:
                raise ModelError(
                    f"predictors of {model.hparams.arch} models cannot be trained: their layers "
                    f"have no node {name}"
                )
            nodes |= {name: (i, True), gate.name: (i, False)}
    found: dict[tuple[int, bool], list[npt.NDArray[Any]]] = {key: [] for key in nodes.values()}

    def callback(node: Tensor, ask: bool) -> bool:
        key = nodes.get(node.name)
        if key is None or ask:
            return key is not None
        rows = to_numpy(node)[0, 0]
        found[key].append(rows.copy() if key[1] else rows > 0)
        return True

    with context.watched(callback):
        for chunk in chunks:
            context.kv.clear()
            context.decode(Batch(chunk, logits="all"))
    return {
        i: Pairs(np.concatenate(found[i, True]), np.concatenate(found[i, False])) for i in layers
    }


def _fit(
    pairs: Pairs, p: PredictorParams, layer: int, n_threads: int | None, progress: Progress
) -> Predictor:
    rng = np.random.default_rng((p.seed, layer))
    order = rng.permutation(len(pairs.x))  # neighbours are alike
    n_held_out = len(order) // _CALIBRATION
    test, fitted = order[:n_held_out], order[n_held_out:]
    n_batch = min(p.n_batch, len(fitted))
    fitted = fitted[: p.steps * n_batch]  # an epoch is visited as a whole
    backend = init_backend("cpu", n_threads=n_threads)
    params, ctx = TensorContext(no_alloc=True), TensorContext(no_alloc=True)
    n_embd, n_ff = pairs.x.shape[1], pairs.active.shape[1]
    fc1 = params.new_tensor_2d(GGMLType.F32, n_embd, p.rank).set_name("fc1").set_param()
    fc2 = params.new_tensor_2d(GGMLType.F32, p.rank, n_ff).set_name("fc2").set_param()
    alloc_ctx_tensors(params, backend.buffer_type())
    size = float(np.sqrt(np.square(pairs.x, dtype=np.float64).sum(1).mean()))
    fc1.set(rng.normal(0, 1 / size, fc1.shape))
    fc2.set(rng.uniform(-1, 1, fc2.shape) * p.rank**-0.5)
    inputs = ctx.new_tensor_2d(GGMLType.F32, n_embd, n_batch)
    scores = ops.mul_mat(ctx, fc2, ops.relu(ctx, ops.mul_mat(ctx, fc1, inputs)))
    optimizer = AdamW(p.rate, schedule=lambda step: max(0.0, 1 - step / p.steps))
    how = OptParams("binary_cross_entropy", optimizer)
    trainer = OptContext(backend, ctx, inputs, scores, how)
    data = Dataset(pairs.x[fitted], pairs.active[fitted], p.seed)
    number = 0
    while trainer.step < p.steps:
        epoch(trainer, data, number, lambda *_: progress(min(1.0, trainer.step / p.steps)))
        number += 1
    first, second = fc1.numpy().copy(), fc2.numpy().copy()
    backend.close()
    return _calibrated(first, second, Pairs(pairs.x[test], pairs.active[test]), p.recall, layer)


def _calibrated(fc1: Floats, fc2: Floats, test: Pairs, recall: float, layer: int) -> Predictor:
    """The predictor with ``fc2`` scaled so that its threshold is ``THRESHOLD``."""
    scores = np.maximum(test.x @ fc1.T, 0) @ fc2.T
    of_active = np.sort(scores[test.active])
    if not len(of_active):
        raise ModelError(f"layer {layer}: no neuron is active: use a longer text")
    threshold = float(of_active[int((1 - recall) * len(of_active))])
    if threshold >= 0:
        raise ModelError(
            f"layer {layer}: the threshold of a recall of {recall:g} is {threshold:.3g}, and must "
            "be below 0: use a larger recall"
        )
    selected = scores >= threshold
    found = np.count_nonzero(selected & test.active) / len(of_active)
    scaled = (fc2 * np.float32(THRESHOLD / threshold)).astype(np.float32)
    return Predictor(fc1, scaled, float(test.active.mean()), float(selected.mean()), found)


def write_predictors(folder: str | os.PathLike[str], predictors: Sequence[Predictor]) -> None:
    """Write PowerInfer's folder, for ``pyllama-convert --predictor``. Raises: OSError."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for i, one in enumerate(predictors):
        _write_layer(folder, i, one)
    _write_config(folder)


def _write_layer(folder: Path, i: int, one: Predictor) -> None:
    write_torch(folder / f"model_{i}.pt", {"fc1.weight": one.fc1, "fc2.weight": one.fc2})


def _write_config(folder: Path) -> None:
    config = json.dumps({"sparse_threshold": THRESHOLD})
    write_whole(folder / "config.json", config.encode())


class PredictorFolder:
    """PowerInfer's folder of predictors, which are trained and written one after the other.

    They are kept in ``FOLDER/unfinished`` until all are there; a run that finds some of its own
    goes on after the last, with the bits of an uninterrupted one. Arguments as of
    ``train_predictors``.

    Attributes:
        unfinished: the folder until then; done: the statistics of the layers in it.

    Raises:
        ModelError: as ``train_predictors``; ``unfinished`` has predictors of another run.
        OSError: it cannot be read.
    """

    def __init__(
        self, folder: str | os.PathLike[str], model: Model, tokens: Sequence[int],
        params: PredictorParams | None = None, *, n_ctx: int = 512,
    ) -> None:  # fmt: skip
        self._folder, self._model, self._params = Path(folder), model, params or PredictorParams()
        self._chunks = _chunks(model, tokens, n_ctx)
        self.unfinished = self._folder / "unfinished"
        with GGUFFile(model.path) as file:
            base = weights_digest(file)
        text = sha256(repr(self._chunks).encode()).hexdigest()[:12]
        settings = {**asdict(self._params), "n_ctx": n_ctx, "model": base, "text": text}
        self._settings = {name: str(value) for name, value in settings.items()}
        self.done = self._read()

    def train(
        self, n_threads: int | None = None, progress: Progress | None = None
    ) -> Iterator[PredictorStats]:
        """Train the layers that are missing; yields the statistics of all.

        Raises:
            ModelError: as ``train_predictors``.
            OSError: a file cannot be written; earlier layers stay.
        """
        yield from tuple(self.done)
        self.unfinished.mkdir(parents=True, exist_ok=True)
        n_layer = self._model.hparams.n_layer
        missing = range(len(self.done), n_layer)
        trained = _train_layers(
            self._model, self._chunks, self._params, missing, n_threads, progress
        )
        for i, one in zip(missing, trained, strict=True):
            _write_layer(self.unfinished, i, one)
            self.done.append(PredictorStats(*one[2:]))
            record = {"settings": self._settings, "layers": self.done}
            write_whole(self.unfinished / _RECORD, json.dumps(record).encode())
            yield self.done[-1]
        self._folder.mkdir(parents=True, exist_ok=True)
        for i in reversed(range(n_layer)):  # a run killed here goes on with the first ones
            os.replace(self.unfinished / f"model_{i}.pt", self._folder / f"model_{i}.pt")
        _write_config(self._folder)
        (self.unfinished / _RECORD).unlink()
        self.unfinished.rmdir()

    def _read(self) -> list[PredictorStats]:
        """The statistics of the layers of an earlier run."""
        path = self.unfinished / _RECORD
        if not path.exists():
            return []
        try:
            record = parse_json(utf8(read_input(path, _MAX_RECORD_BYTES)), _MAX_RECORD_VALUES)
            settings = dict(record["settings"])
            done = [PredictorStats(*map(float, layer)) for layer in record["layers"]]
        except (ValueError, TypeError, KeyError):
            raise ModelError(f"{path}: no record of predictors: delete the folder") from None
        names = [n for n, value in self._settings.items() if settings.get(n) != value]
        if names:
            changes = "; ".join(f"{n} {settings.get(n)}, now {self._settings[n]}" for n in names)
            raise ModelError(
                f"{self.unfinished} has {len(done)} layers of a run with other settings: {changes}."
                " Go on with its own, delete the folder, or name another output"
            )
        there = [(self.unfinished / f"model_{i}.pt").exists() for i in range(len(done))]
        return done[: there.index(False)] if False in there else done
