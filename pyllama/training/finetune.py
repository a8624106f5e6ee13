"""Fine-tuning: the graph of a model with its loss, gradients and optimizer, and the loop around it.

    tuner = Finetuner(model, train, TuneParams(epochs=2, lora=LoraParams(rank=16)))
    print(tuner.evaluate(held_out).perplexity)
    tuner.fit(held_out, checkpoint="run.gguf")     # a killed run goes on from its last epoch
    tuner.save("adapter.gguf")

All memory is allocated at the start. Results have the same bits for any number of threads.
Source: llama.cpp, ``llama-finetune`` (windows, rates of learning, names).
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.interface import Backend
from pyggml.backend.registry import init_backend
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError, UnsupportedOp
from pyggml.gguf import GGUFFile, copy_gguf, whole_metadata
from pyggml.opt import (
    SGD,
    AdamW,
    Callback,
    Dataset,
    OptContext,
    OptParams,
    OptResult,
    epoch,
    fit,
    progress_bar,
)
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph.builder import ROPE_FACTORS
from ..runtime.model import Model
from ..runtime.overrides import Overrides
from ..sparsity.fingerprint import weights_digest
from .graph import LoraPair, TrainingBuilder, within_layers
from .lora import LoraParams, new_pairs, write_lora

RATE, LORA_RATE = 1e-5, 2e-4  # learning rates of all weights and of adapters
OPTIMIZERS = ("adamw", "sgd")


@dataclass(frozen=True, kw_only=True)
class TuneParams:
    """How a model is fine-tuned; names are llama-finetune's.

    Args:
        lora: train an adapter of this shape; None: all weights, which must be F32.
        n_batch: tokens of an optimizer's step, of which gradients are added up window by window.
        epochs: how often all windows are visited.
        lr: learning rate; 0: 1e-5, of adapters 2e-4.
        lr_min: rate to which it decays exponentially, an epoch at a time; 0 or less: it stays.
        decay_epochs: number of epochs until then; 0 or less: all.
        wd: weight decay.
        optimizer: ``adamw`` or ``sgd``.
        max_norm: bound of the L2 norm of all gradients together; 0: none.
        recompute: keep only the outputs of layers, and compute other nodes again for gradients:
            less memory, for most of the time of a second forward pass.
        seed: of the new matrices of an adapter.
        n_threads: None: as many as the machine has cores.
    """

    lora: LoraParams | None = None
    n_batch: int = 2048
    epochs: int = 2
    lr: float = 0.0
    lr_min: float = 0.0
    decay_epochs: float = 0.0
    wd: float = 0.0
    optimizer: str = "adamw"
    max_norm: float = 0.0
    recompute: bool = False
    seed: int = 0
    n_threads: int | None = None

    @property
    def rate(self) -> float:
        """The learning rate of the first epoch."""
        return self.lr or (RATE if self.lora is None else LORA_RATE)

    @property
    def n_decaying(self) -> float:
        """Epochs until the rate is ``lr_min``; 0: it stays."""
        if not 0 < self.lr_min < self.rate:
            return 0.0
        return min(self.decay_epochs if self.decay_epochs > 0 else math.inf, self.epochs)

    def rate_at(self, epoch: float) -> float:
        """The learning rate of an epoch, counted from 0. Source: llama.cpp, ``lr_opt::get_lr``."""
        if not self.n_decaying:
            return self.rate
        decayed: float = self.rate * (self.lr_min / self.rate) ** (epoch / self.n_decaying)
        return max(self.lr_min, decayed)


class _WindowTrainer(OptContext):
    """Trains on windows of tokens and positions; what attention reads follows from positions."""

    def __init__(
        self, backend: Backend, builder: TrainingBuilder, logits: Tensor, params: OptParams,
        recomputed: Collection[Tensor],
    ) -> None:  # fmt: skip
        self._builder, self._positions = builder, b""
        super().__init__(backend, builder.ctx, builder.inputs, logits, params, recomputed)

    def set_inputs(self, points: npt.NDArray[Any]) -> None:
        super().set_inputs(points)
        positions = points[0, 1]
        if positions.tobytes() != self._positions:
            self._positions = positions.tobytes()
            self._builder.set_positions(positions)


class Finetuner:
    """A model that is being trained.

    Args:
        model: loaded with ``repack=False``; its own weights do not change.
        train: windows, see ``text_windows`` and ``chat_windows``.

    Attributes:
        windows: the data to train on; n_ctx: tokens of a window.
        trainer: the graph with its loss, gradients and optimizer.

    Raises:
        ModelError: models of this kind cannot be trained, or there are too few windows.
        AllocError: too little memory.
    """

    def __init__(self, model: Model, train: Dataset, params: TuneParams | None = None) -> None:
        p = self._params = params or TuneParams()
        self.model, self.windows = model, train
        if p.optimizer not in OPTIMIZERS:
            raise ModelError(f"optimizer is {p.optimizer!r}, want one of {', '.join(OPTIMIZERS)}")
        self.n_ctx = n_ctx = int(train.data.shape[-1])
        windows = min(max(1, p.n_batch // n_ctx), len(train))  # of a step
        self._backend = init_backend("cpu", n_threads=p.n_threads)
        self._pairs: Mapping[str, LoraPair] = {}
        hparams, weights = Overrides().apply(model.hparams, n_ctx), model.weights
        most = hparams.n_positions or hparams.n_sparse_keys  # an indexer has no gradient
        if 0 < most < n_ctx:
            raise ModelError(
                f"windows of {n_ctx} tokens are longer than the {most} positions of this "
                f"{hparams.arch} model, or keys that it chooses: use a smaller `n_ctx`"
            )
        if p.lora is None:
            weights = _trainable_copies(model, self._backend)
        else:
            self._pairs = new_pairs(model, p.lora, self._backend, p.seed)
        builder = TrainingBuilder(hparams, weights, n_ctx, self._pairs)
        logits = model.arch.build_graph(builder)
        per_epoch = len(train) // windows
        kind = AdamW if p.optimizer == "adamw" else SGD
        optimizer = kind(p.rate, wd=p.wd, schedule=lambda i: p.rate_at(i // per_epoch) / p.rate)
        how = OptParams(optimizer=optimizer, n_batch=windows, max_norm=p.max_norm)
        recomputed = within_layers(logits, hparams.n_layer) if p.recompute else ()
        try:
            self.trainer = _WindowTrainer(self._backend, builder, logits, how, recomputed)
        except UnsupportedOp as error:
            raise ModelError(f"{hparams.arch} models cannot be trained here: {error}") from None
        except AllocError as error:
            raise AllocError(f"{error}: a smaller `n_ctx`, or `recompute=True`") from None
        self._add_settings()

    def _add_settings(self) -> None:
        """Name what decides the bits of a run besides the data; checkpoints compare it."""
        p = self._params
        with GGUFFile(self.model.path) as file:
            base = weights_digest(file)
        lora = p.lora or LoraParams(0, 0.0, ())
        settings = self.trainer.settings
        settings["lr"] = settings.pop("alpha")
        decays = p.n_decaying
        if decays and p.epochs == 1:  # it has the first rate, also where the run goes on later
            decays = max(decays, p.decay_epochs)
        own: dict[str, str | float] = {
            "base": base, "n_ctx": self.n_ctx, "n_micro_batch": self.n_ctx, "seed": p.seed,
            "n_batch": self.trainer.period * self.n_ctx, "lr_min": p.lr_min,
            "decay_epochs": decays, "lora_rank": lora.rank, "lora_alpha": lora.factor,
            "lora_target": ",".join(lora.target),
        }  # fmt: skip
        settings |= own

    @property
    def n_params(self) -> int:
        """Number of trained values."""
        return sum(w.nelements for w in self.trainer.params.values())

    def evaluate(self, windows: Dataset, callback: Callback | None = None) -> OptResult:
        """The mean loss of windows, without training.

        Raises:
            ComputeError: the loss is not a number.
        """
        return epoch(self.trainer, windows, None, callback)

    def fit(
        self,
        held_out: Dataset | None = None,
        *,
        callback: Callback | None = progress_bar,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> list[tuple[OptResult, OptResult | None]]:
        """Train for the epochs that are left, and evaluate after each.

        Args:
            checkpoint: a file that is written after each epoch; if it exists, training resumes.

        Raises:
            ComputeError: the loss is not a number; the checkpoint is that of the last epoch.
            GGUFError: the checkpoint is of another model, other data or other settings than the
                number of epochs and threads and ``recompute``.
        """
        return fit(
            self.trainer, self.windows, self._params.epochs, val=held_out, callback=callback,
            checkpoint=checkpoint,
        )  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the adapter, or the whole model with its metadata; atomic.

        Raises:
            GGUFError: the file cannot be written.
        """
        if self._params.lora is not None:
            write_lora(path, self.model, self._params.lora, self._pairs)
            return
        with GGUFFile(self.model.path) as file:
            trained = {name: [w.bytes()] for name, w in self.trainer.params.items()}
            copy_gguf(file, path, whole_metadata(file), data=trained)


def perplexity(result: OptResult) -> float:
    """``exp`` of the mean loss."""
    return math.exp(result.loss) if result.loss < 700 else math.inf


def _trainable_copies(model: Model, backend: Backend) -> dict[str, Tensor]:
    """Copies of an F32 model's weights, as parameters; tables of rope are not copied.

    Raises:
        ModelError: a matrix has another type.
    """
    other = next((w for w in model.weights.values() if w.type not in _FULL), None)
    if other is not None:
        raise ModelError(
            f"{model.path}: '{other.name}' is {other.type.name}, and only F32 weights can be "
            f"trained: make an F32 file with pyllama-quantize --allow-requantize {model.path.name} "
            "FILE f32 first, or train an adapter (`lora`)"
        )
    ctx, weights = Context(no_alloc=True), dict(model.weights)
    for name, w in model.weights.items():
        if w.type is GGMLType.F32 and f"{name}?" not in ROPE_FACTORS:
            weights[name] = ctx.new_tensor(w.type, w.ne).set_name(name).set_param()
    alloc_ctx_tensors(ctx, backend.buffer_type())
    for tensor in ctx:
        tensor.set(model.weights[tensor.name].numpy())
    return weights


_FULL = (GGMLType.F32, GGMLType.I64, GGMLType.I32)
