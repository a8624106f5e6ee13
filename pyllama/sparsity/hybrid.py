"""A model whose weights are where a placement says: dense tensors and hot neurons on a device.

    there = place_weights(model, placed, gpu)
    context = Context(there, n_ctx=4096)           # runs on both

The graph is made for it: a layer whose neurons are split has sliced matrices on the device, with
the rows of its bucket in order, and the scheduler runs each part where its weights are. The model
that was given stays as it was, and both share the weights of the host. A layer's KV cache goes
where its attention's weights are.
Source: PowerInfer, ``llm_load_gpu_split`` and its names of tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.interface import Backend
from pyggml.buffer import HOST, BufferType
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor

from ..core.model import Model
from ..errors import ModelError
from .placement import Ids, NeuronSplit, Placement

_GPU = {"ffn_gate": "ffn_gate_gpu", "ffn_up": "ffn_up_gpu", "ffn_down_t": "ffn_down_gpu"}


def place_weights(model: Model, placed: Placement, device: Backend) -> Model:
    """The same model with some of its weights in the memory of another device.

    Raises:
        ModelError: the placement is of another model, or a layer computes all of its neurons.
        AllocError: the device has not enough memory.
    """
    hp, split = model.hparams, placed.split
    if (len(split.up), split.n_ff) != (hp.n_layer, hp.n_ff):
        raise ModelError(
            f"{model.path}: neurons of {len(split.up)} layers of {split.n_ff} are placed, the "
            f"model has {hp.n_layer} of {hp.n_ff}: the placement is of another model"
        )
    there, here = _Copies(device.buffer_type()), _Copies(HOST)
    for item in placed.on_gpu:
        for name in item.names:
            if name in model.weights:  # not a cache
                tied = name == "token_embd.weight"  # the host reads its rows as well
                there.add("output.weight" if tied else name, model.weights[name])
    for i in range(hp.n_layer):
        _place_layer(model, i, split, there, here)
    placed_model = copy.copy(model)
    placed_model.weights = {**model.weights, **here.made(), **there.made()}
    placed_model.devices = (device, *model.devices)
    return placed_model


class _Copies:
    """Tensors to be made in one buffer."""

    def __init__(self, buft: BufferType) -> None:
        self.buft, self.ctx = buft, Context(no_alloc=True)
        self.bytes: dict[str, npt.NDArray[np.uint8]] = {}

    def add(self, name: str, weight: Tensor, rows: Ids | None = None) -> None:
        """A weight, or some of its rows."""
        data, ne = weight.bytes(), weight.ne
        if rows is not None:
            data = data.reshape(ne[1], -1)[rows].reshape(-1)
            ne = (ne[0], len(rows), 1, 1)
        self.ctx.new_tensor(weight.type, ne).set_name(name)
        self.bytes[name] = data

    def add_ids(self, name: str, ids: Ids) -> None:
        """Numbers of neurons."""
        self.ctx.new_tensor_1d(GGMLType.I32, len(ids)).set_name(name)
        self.bytes[name] = np.ascontiguousarray(ids, np.int32).view(np.uint8)

    def made(self) -> Mapping[str, Tensor]:
        """All of them, in memory."""
        if not self.bytes:
            return {}
        buffer = alloc_ctx_tensors(self.ctx, self.buft)
        tensors = {t.name: t for t in self.ctx}
        for name, tensor in tensors.items():
            buffer.set_tensor(tensor, self.bytes.pop(name))
        return tensors


def _place_layer(model: Model, i: int, split: NeuronSplit, device: _Copies, host: _Copies) -> None:
    up, down = split.up[i], split.down[i]
    if not up.size and not down.size:
        return
    prefix, source = f"blk.{i}.", model.hparams.source(i)
    if source in ("off", "topk"):
        raise ModelError(
            f"{model.path}: layer {i} computes all of its neurons (--sparse {source}): none can be "
            "placed; load the model with a source that leaves some out, such as exact"
        )
    whole = up.size == down.size == split.n_ff
    gated = f"{prefix}ffn_gate.weight" in model.weights
    parts = ["ffn_up", "ffn_gate"] if gated else ["ffn_up"]
    if source == "exact":  # every token reads the first matrix in full
        parts.remove("ffn_gate" if gated else "ffn_up")
    for part, rows in [*((part, up) for part in parts), ("ffn_down_t", down)]:
        weight = model.weights[f"{prefix}{part}.weight"]
        if whole:
            device.add(f"{prefix}{part}.weight", weight)
        else:
            device.add(f"{prefix}{_GPU[part]}.weight", weight, rows)
        bias = model.weights.get(f"{prefix}{part}.bias")
        if bias is not None and part != "ffn_down_t":
            device.add(f"{prefix}{part if whole else _GPU[part]}.bias", bias)
    if whole:
        return
    joint = np.array_equal(up, down)
    for suffix, ids in [("", up)] if joint else [("", up), ("_down", down)]:
        marks = np.zeros(split.n_ff, np.int32)
        marks[ids] = 1
        host.add_ids(f"{prefix}gpu_idx{suffix}", marks)
        device.add_ids(f"{prefix}gpu_bucket{suffix}", ids)
