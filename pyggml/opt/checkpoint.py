"""Checkpoints: parameters and the optimizer's state in a GGUF file.

save_checkpoint("run.gguf", trainer, epoch=3)  # atomic: a killed run leaves the last one whole
epoch = load_checkpoint("run.gguf", trainer)   # training goes on with the same bits
"""

from __future__ import annotations

import os

import numpy as np

from ..errors import GGUFError
from ..gguf import GGUFFile, write_gguf
from ..tensor import Tensor
from .context import RESERVED, OptContext

_STEP, _EPOCH, _OPTIMIZER = (RESERVED + key for key in ("step", "epoch", "optimizer"))
_SETTINGS = RESERVED + "settings."


def _tensors(trainer: OptContext) -> dict[str, Tensor]:
    """The tensors of a checkpoint: parameters, moments such as ``training.m.0``, other state."""
    tensors = trainer.params | {f"{RESERVED}state.{k}": t for k, t in trainer.state.items()}
    for i, w in enumerate(trainer.params.values()):
        kept = zip(trainer.optimizer.moments, trainer.moments.get(w, ()), strict=False)
        tensors |= {f"{RESERVED}{moment}.{i}": tensor for moment, tensor in kept}
    return tensors


def save_checkpoint(path: str | os.PathLike[str], trainer: OptContext, epoch: int = 0) -> None:
    """Write parameters, moments and counters; call it between steps. Raises: GGUFError."""
    metadata = {
        _STEP: np.uint64(trainer.step),
        _EPOCH: np.uint64(epoch),
        _OPTIMIZER: trainer.optimizer.name,
        **{_SETTINGS + name: str(value) for name, value in trainer.settings.items()},
    }
    tensors = {name: (t.bytes(), t.type, t.ne) for name, t in _tensors(trainer).items()}
    write_gguf(path, metadata, tensors, arch="checkpoint")


def load_checkpoint(path: str | os.PathLike[str], trainer: OptContext) -> int:
    """Read parameters and the optimizer's state; returns the epoch.

    Settings that the file does not have, as in those of older versions, are not compared.

    Raises:
        GGUFError: the file is missing, or of another model, optimizer or other settings; nothing
            was changed.
    """
    with GGUFFile(path) as file:
        if _STEP not in file.metadata:
            raise GGUFError(f"{path}: not a checkpoint of training")
        step, epoch, optimizer = (
            file.get_int(_STEP), file.get_int(_EPOCH), file.get_str(_OPTIMIZER)
        )  # fmt: skip
        if optimizer != trainer.optimizer.name:
            raise GGUFError(f"{path}: the optimizer is {optimizer}, not {trainer.optimizer.name}")
        _check_settings(file, trainer)
        tensors = _tensors(trainer)
        for name, tensor in tensors.items():
            info = file.tensors.get(name)
            if info is None or info.type != tensor.type or _dims(info.ne) != tensor.ne:
                has = "none" if info is None else f"{info.type.name} {tuple(info.ne)}"
                raise GGUFError(
                    f"{path}: tensor '{name}' is {has}, want {tensor.type.name} {tensor.ne}: the "
                    "file is of another model"
                )
        for name, tensor in tensors.items():
            assert tensor.buffer is not None
            tensor.buffer.set_tensor(tensor, np.frombuffer(file.tensor_bytes(name), np.uint8))
        trainer.drop_micro_batches()
        trainer.step = step
        return epoch


def _check_settings(file: GGUFFile, trainer: OptContext) -> None:
    """Raises: GGUFError: the file's settings are not the trainer's; it names those."""
    differences = []
    for name, value in trainer.settings.items():
        key = _SETTINGS + name
        if key in file.metadata and not _equal(was := file.get_str(key), str(value)):
            differences.append(f"{name} {was or 'none'}, now {str(value) or 'none'}")
    if differences:
        raise GGUFError(
            f"{file.path}: the run began with other settings: {'; '.join(differences)}. Resume it "
            "with its own, or name another checkpoint"
        )


def _equal(a: str, b: str) -> bool:
    """Whether two settings are the same text or number."""
    try:
        return a == b or float(a) == float(b)
    except ValueError:
        return False


def _dims(ne: tuple[int, ...]) -> tuple[int, ...]:
    return (*ne, *(1,) * (4 - len(ne)))
