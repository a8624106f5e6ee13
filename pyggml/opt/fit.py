"""Epochs over data sets: train, evaluate, show progress, save.

    results = fit(trainer, train, n_epoch=10, val=held_out, checkpoint="run.gguf")
    results[-1][1].accuracy                        # of the held-out data after the last epoch

An epoch of training visits whole batches in random order and leaves out the rest; evaluation visits
all data. Source: ggml-opt, ``ggml_opt_epoch``, ``ggml_opt_fit``.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..errors import ComputeError, ShapeError
from .checkpoint import load_checkpoint, save_checkpoint
from .context import OptContext
from .dataset import Array, Dataset

_COLUMNS = 20  # of a progress bar
_MAX_CLASS = int(np.iinfo(np.int32).max)  # more than any model has: the loss refuses it


@dataclass
class OptResult:
    """Results of an epoch so far.

    Attributes:
        is_mean: whether a loss is a mean; else it is a sum.
        n_data: data points visited.
        losses: of each micro-batch, the loss and the number of rows that have a label (all, if
            labels are no classes).
        pred: predicted classes, in the order in which data were visited.
        n_correct, n_labels: number of right classes, and of rows that have a label.
    """

    is_mean: bool = True
    n_data: int = 0
    losses: list[tuple[float, int]] = field(default_factory=list)
    pred: list[int] = field(default_factory=list)
    n_correct: int = 0
    n_labels: int = 0

    @property
    def loss(self) -> float:
        """The mean of ``losses``, weighted by rows, or their sum; NaN before the first."""
        n_rows = sum(n for _, n in self.losses)
        if n_rows and not self.is_mean:
            return sum(loss for loss, _ in self.losses)
        return sum(loss * n for loss, n in self.losses) / n_rows if n_rows else math.nan

    @property
    def accuracy(self) -> float:
        """Of the rows with a label, the share with the right class; NaN if there are none."""
        return self.n_correct / self.n_labels if self.n_labels else math.nan


# (whether it trains, result so far, micro-batches done, micro-batches of the epoch, seconds)
Callback = Callable[[bool, OptResult, int, int, float], None]


def progress_bar(train: bool, result: OptResult, done: int, of: int, seconds: float) -> None:
    """Draw a line on stderr; if stderr is no terminal, only at the end of an epoch."""
    terminal = sys.stderr.isatty()
    if not terminal and done < of:
        return
    bar = ("#" * (_COLUMNS * done // of)).ljust(_COLUMNS)
    accuracy = "" if math.isnan(result.accuracy) else f" accuracy={100 * result.accuracy:.2f} %"
    rest = seconds * (of - done) / done
    text = (
        f"{'train' if train else 'test '} [{bar}] {result.n_data} data, loss={result.loss:.5f}"
        f"{accuracy}, {seconds:.1f} s" + (f", {rest:.0f} s left" if done < of else "")
    )
    sys.stderr.write(f"\r{text}\x1b[K" if terminal else text)
    sys.stderr.write("\n" if done == of else "")
    sys.stderr.flush()


def epoch(
    trainer: OptContext,
    dataset: Dataset,
    number: int | None = None,
    callback: Callback | None = None,
) -> OptResult:
    """Visit the data once.

    Args:
        number: of an epoch of training, which decides the order; None: evaluate, in the order of
            the data.
        callback: called after each micro-batch.

    Raises:
        ShapeError: data or labels do not fit the model, are less than one batch, or (in evaluation
            without class labels) no multiple of a micro-batch.
        ComputeError: the loss is not a number, or a label is no class.
    """
    _check(trainer, dataset)
    train, n = number is not None, trainer.n_micro_batch
    places = np.arange(len(dataset)) if number is None else dataset.order(number)
    if train:
        batch = n * trainer.period
        places = places[: len(places) // batch * batch]
        if not len(places):
            raise ShapeError(f"{len(dataset)} data points are less than a batch of {batch}")
        trainer.drop_micro_batches()  # of an interrupted epoch
    elif not trainer.is_class_labels and len(places) % n:
        raise ShapeError(f"{len(dataset)} data points are no multiple of the {n} of a micro-batch")
    result, start, of = OptResult(trainer.is_mean), time.monotonic(), -(-len(places) // n)
    for i in range(of):
        some = places[n * i : n * (i + 1)]
        if train and i % trainer.period == 0:
            trainer.weight.set([_weight(trainer, dataset, places[n * i :][:batch])])
        _set_batch(trainer, dataset, some)
        trainer.eval(train)
        _note(trainer, result, len(some))
        if callback is not None:
            callback(train, result, i + 1, of, time.monotonic() - start)
    return result


def fit(
    trainer: OptContext,
    dataset: Dataset,
    n_epoch: int,
    *,
    val: Dataset | None = None,
    callback: Callback | None = progress_bar,
    checkpoint: str | os.PathLike[str] | None = None,
) -> list[tuple[OptResult, OptResult | None]]:
    """Train for some epochs, and evaluate after each.

    Args:
        val: held-out data.
        checkpoint: a file that is written after each epoch; if it exists, training resumes from it,
            with the bits of an uninterrupted run. It records ``trainer.settings`` and a digest of
            the data.

    Returns:
        The results of training and of ``val`` for each epoch that was run.

    Raises:
        ShapeError, ComputeError: as ``epoch``; the checkpoint is that of the last epoch.
        GGUFError: the checkpoint is of another model, other data or other settings.
    """
    first = 0
    if checkpoint is not None:
        trainer.settings["data"] = dataset.digest()
    if checkpoint is not None and os.path.exists(checkpoint):
        first = load_checkpoint(checkpoint, trainer)
    results = []
    for number in range(first, n_epoch):
        trained = epoch(trainer, dataset, number, callback)
        tested = None if val is None else epoch(trainer, val, None, callback)
        results.append((trained, tested))
        if checkpoint is not None:
            save_checkpoint(checkpoint, trainer, number + 1)
    return results


def _check(trainer: OptContext, dataset: Dataset) -> None:
    """Check that data points and labels have the sizes of the model's. Raises: ShapeError."""
    n = trainer.n_micro_batch
    pairs = [("data point", dataset.data, trainer.inputs)]
    if trainer.labels is not None:
        if dataset.labels is None:
            raise ShapeError("the loss needs labels, and the data set has none")
        pairs.append(("label", dataset.labels, trainer.labels))
        if (dataset.labels.dtype.kind in "iu") != trainer.is_class_labels:
            kind = "integers" if trainer.is_class_labels else "floats"
            raise ShapeError(f"labels are {dataset.labels.dtype}, want {kind}: see OptParams")
    for name, array, tensor in pairs:
        if array[0].size != tensor.nelements // n:
            raise ShapeError(
                f"a {name} has {array[0].size} elements, the model wants {tensor.nelements // n}"
            )


def _weight(trainer: OptContext, dataset: Dataset, places: Array) -> float:
    """The factor that makes the gradients of a batch those of the mean over rows with a label."""
    if not trainer.is_class_labels:
        return 1.0
    assert dataset.labels is not None
    labels = dataset.labels[places]
    n = np.count_nonzero(labels.astype(np.int64) >= 0)
    return float(labels.size / n) if n else 0.0


def _set_batch(trainer: OptContext, dataset: Dataset, places: Array) -> None:
    """Write a micro-batch; missing data points are zeros without a label."""
    missing = trainer.n_micro_batch - len(places)
    trainer.set_inputs(_padded(dataset.data[places], missing, 0))
    if trainer.labels is not None:
        assert dataset.labels is not None
        labels = dataset.labels[places]
        if trainer.is_class_labels:
            labels = labels.astype(np.int64).clip(-1, _MAX_CLASS).astype(np.int32)  # none wraps
        labels = _padded(labels, missing, -1)
        trainer.labels.set(labels.reshape(trainer.labels.shape))


def _padded(values: Array, missing: int, value: int) -> Array:
    pad = ((0, missing), *((0, 0),) * (values.ndim - 1))
    return np.pad(values, pad, constant_values=value) if missing else values


def _note(trainer: OptContext, result: OptResult, n: int) -> None:
    """Add the results of ``n`` data points. Raises: ComputeError: the loss is not finite."""
    loss = trainer.loss_value()
    if not math.isfinite(loss):
        raise ComputeError(
            f"the loss is {loss} after {trainer.step} steps: lower the learning rate, or check the "
            "data"
        )
    rows = trainer.outputs.nrows // trainer.n_micro_batch * n
    n_correct, n_labels = trainer.count_correct(rows)
    n_rows = n_labels if trainer.is_class_labels else rows
    result.n_data += n
    result.losses.append((loss * trainer.outputs.nrows / max(1, n_rows), n_rows))
    if trainer.pred is not None:
        result.pred += trainer.pred.bytes().view(np.int32)[:rows].tolist()
        result.n_correct += n_correct
        result.n_labels += n_labels
