"""Train graphs: data sets, optimizers, epochs, checkpoints.

    from pyggml import opt

    trainer = opt.OptContext(backend, ctx, inputs, logits, opt.OptParams(n_batch=64))
    train, held_out = opt.Dataset(images, labels).split(0.2)
    opt.fit(trainer, train, n_epoch=10, val=held_out)

The shape is that of ggml-opt; docs/training.md is the guide.
"""

from .checkpoint import load_checkpoint, save_checkpoint
from .context import LOSSES, OptContext, OptParams
from .dataset import Dataset
from .fit import Callback, OptResult, epoch, fit, progress_bar
from .optimizer import SGD, AdamW, Optimizer, warmup_cosine

__all__ = [
    "LOSSES",
    "SGD",
    "AdamW",
    "Callback",
    "Dataset",
    "OptContext",
    "OptParams",
    "OptResult",
    "Optimizer",
    "epoch",
    "fit",
    "load_checkpoint",
    "progress_bar",
    "save_checkpoint",
    "warmup_cosine",
]
