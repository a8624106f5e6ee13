"""Places a sparse model on a GPU and the CPU within a memory budget.

    placed = place(inventory(file, hparams, n_ctx), 8 << 30, partial(choose_neurons, activity))
    placed.split.up[3]                             # ids of layer 3's neurons on the GPU, ascending
    placed.used_bytes <= placed.budget_bytes
    Model.load(path, devices="cuda", placement=placed)

Dense tensors come first, by level and layer, since every token reads them, up to the first item
that does not fit. If all dense weights fit, hot neurons get the rest. ``greedy`` takes the blocks
of neurons with the highest activity per byte over all layers; with equal row sizes this is the
optimum of PowerInfer's integer program at its default settings. ``balance`` adds neurons to a layer
until GPU and CPU take the same time. Both are deterministic and take milliseconds.
Source: PowerInfer, ``solver.py``, ``llm_load_gpu_split`` and its names of tensors; Q-Infer,
``qinfer-py/qinfer/solver.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.interface import Backend, WeightUse
from pyggml.buffer import HOST, AddressBufferType
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.tensor import BufferType, Dims, Tensor

from ..errors import ModelError
from ..hparams import HParams
from ..runtime.loader import weight_ops
from ..runtime.model import Model
from .inventory import KV, Inventory, NeuronRows, PlacedItem

Ids = npt.NDArray[np.int32]
Activity = npt.NDArray[np.float64]  # [n_layer, n_ff]: counts or shares
Counts = tuple[list[int], list[int]]  # neurons per layer: of up and gate, of down
Solver = Callable[[Activity, NeuronRows, int, int], Counts]
NeuronChooser = Callable[[NeuronRows, int], "NeuronSplit"]  # (rows, remaining bytes) -> split
BLOCK = 256  # neurons placed together; PowerInfer's value


@dataclass(frozen=True, eq=False)
class NeuronSplit:
    """The neurons of each layer that are on the GPU.

    Attributes:
        n_ff: neurons per layer.
        up: ids of the neurons whose rows of up and gate are on the GPU.
        down: ids of the neurons whose rows of down are on the GPU; often the same arrays.
    """

    n_ff: int
    up: tuple[Ids, ...]
    down: tuple[Ids, ...]

    @property
    def joint(self) -> bool:
        """Whether all rows of a neuron are on the same device."""
        pairs = zip(self.up, self.down, strict=True)
        return all(u is d or np.array_equal(u, d) for u, d in pairs)

    def share(self, activity: Activity) -> list[float]:
        """Return the share of each layer's activity covered by the rows of up on the GPU."""
        rows = zip(activity, self.up, strict=True)
        return [float(row[ids].sum() / (row.sum() or 1.0)) for row, ids in rows]


@dataclass(frozen=True, eq=False)
class Placement:
    """The placement of dense items and neurons.

    Attributes:
        compute_bytes: reserved for intermediate results.
        on_gpu, on_cpu: dense items.
        ffn_bytes: size of the neurons on the GPU, by layer.
    """

    budget_bytes: int
    compute_bytes: int
    on_gpu: tuple[PlacedItem, ...]
    on_cpu: tuple[PlacedItem, ...]
    split: NeuronSplit
    ffn_bytes: tuple[int, ...]

    @property
    def used_bytes(self) -> int:
        """The used part of the budget."""
        dense = sum(item.nbytes for item in self.on_gpu)
        return dense + sum(self.ffn_bytes) + (self.compute_bytes if self.on_gpu else 0)

    @property
    def parts(self) -> tuple[Placement]:
        """What is on each GPU: there is one."""
        return (self,)

    @property
    def takes_neurons(self) -> bool:
        """Whether all dense tensors are on the GPU, so that the rest is for neurons."""
        return all(item.level == KV for item in self.on_cpu)

    @property
    def host_kv(self) -> frozenset[int]:
        """Layers whose keys and values stay in host memory."""
        return frozenset(item.layer for item in self.on_cpu if item.level == KV)

    def whole_weights(self, hparams: HParams, names: Container[str]) -> set[str]:
        """The names of the weights that are on the GPU as a whole.

        Args:
            names: of the weights in the file.
        """
        found = {
            "output.weight" if name == "token_embd.weight" else name  # the host keeps the embedding
            for item in self.on_gpu
            for name in item.names
        }
        for i in range(hparams.n_layer):
            if len(self.split.up[i]) == len(self.split.down[i]) == self.split.n_ff:
                found |= {name for _, name in _of_layer(hparams, i, names, biases=True)}
        return found

    def apply(self, model: Model, device: Backend) -> Model:
        """Return a copy of the model with the placed weights in the device's memory.

        The original is unchanged; both share the host's weights, and those that are on the device
        already. A layer with split neurons has sliced matrices on the device, with rows in the
        order of its bucket. The scheduler runs each part of the graph where its weights are.

        Raises:
            ModelError: the placement is of another model, or a layer computes all of its neurons.
            AllocError: the device does not have enough memory.
        """
        placed_model = copy.copy(model)
        new = self._new_tensors(model.hparams, model.weights, device, str(model.path))
        placed_model.weights = {**model.weights, **new.alloc()}
        if device not in model.devices:
            placed_model.devices = (device, *model.devices)
        placed_model.host_kv = model.host_kv | self.host_kv
        return placed_model

    def planned(
        self, hparams: HParams, weights: Mapping[str, Tensor], device: Backend
    ) -> dict[str, Tensor]:
        """The weights after ``apply`` with addresses but no memory. Raises: as ``apply``."""
        return {**weights, **self._new_tensors(hparams, weights, device, "the model").plan()}

    def _new_tensors(
        self, hparams: HParams, weights: Mapping[str, Tensor], device: Backend, model: str
    ) -> _NewTensors:
        split = self.split
        if (len(split.up), split.n_ff) != (hparams.n_layer, hparams.n_ff):
            raise ModelError(
                f"{model}: the placement has {len(split.up)} layers of {split.n_ff} neurons, the "
                f"model {hparams.n_layer} of {hparams.n_ff}: it belongs to another model"
            )
        whole = self.whole_weights(hparams, weights)
        sources = {name: weight for name, weight in weights.items() if name in whole}
        if "output.weight" in whole and "output.weight" not in weights:
            sources["output.weight"] = weights["token_embd.weight"]
        new = _NewTensors(device, weight_ops(hparams, {**weights, **sources}))
        for name, weight in sources.items():
            if weight.buffer is None or not device.supports_buft(weight.buffer.buft):
                new.add(name, name, weight)
        for i in range(hparams.n_layer):
            _slice_layer(hparams, weights, i, split, new, model)
        return new


def place(
    needs: Inventory,
    budget_bytes: int,
    neurons: NeuronChooser | None = None,
    *,
    compute_bytes: int = 0,
) -> Placement:
    """Return the placement for a memory budget.

    Args:
        neurons: chooses neurons for the remaining bytes; None places no neurons.
        compute_bytes: memory reserved for intermediate results.

    Raises:
        ModelError: the statistics of the neurons are of another model.
    """
    left, n = budget_bytes - compute_bytes, 0
    while n < len(needs.items) and needs.items[n].nbytes <= left:
        left -= needs.items[n].nbytes
        n += 1
    rows, on_gpu, on_cpu = needs.rows, needs.items[:n], needs.items[n:]
    none = empty_split(len(rows.down), rows.n_ff)
    dense = Placement(budget_bytes, compute_bytes, on_gpu, on_cpu, none, (0,) * len(rows.down))
    if neurons is None or not dense.takes_neurons:
        return dense
    split = neurons(rows, left)
    pairs = enumerate(zip(split.up, split.down, strict=True))
    ffn_bytes = tuple(rows.nbytes(i, len(up), len(down)) for i, (up, down) in pairs)
    return replace(dense, split=split, ffn_bytes=ffn_bytes)


def choose_neurons(
    activity: Activity, rows: NeuronRows, left: int, solver: Solver | None = None,
    block: int = BLOCK,
) -> NeuronSplit:  # fmt: skip
    """Return the hottest neurons of each layer; the solver decides how many.

    With ``activity`` bound (``functools.partial``) it is a ``NeuronChooser``.

    Args:
        left: remaining bytes of the budget.
        solver: ``greedy``, or ``balance`` with its ratios bound.
        block: neurons placed together.

    Raises:
        ModelError: ``activity`` is of another model.
    """
    check_activity(activity, len(rows.down), rows.n_ff)
    return hottest(activity, *(solver or greedy)(activity, rows, left, block))


def check_activity(activity: Activity, n_layer: int, n_ff: int) -> None:
    """Check that statistics fit a model. Raises: ModelError."""
    if activity.shape != (n_layer, n_ff):
        raise ModelError(
            f"the statistics have {activity.shape[0]} layers of {activity.shape[1]} neurons, the "
            f"model {n_layer} of {n_ff}: recreate them for this model (pyllama-powerinfer stats)"
        )


def hottest(activity: Activity, n_up: Sequence[int], n_down: Sequence[int]) -> NeuronSplit:
    """Return the ``n_up`` and ``n_down`` most active neurons of each layer, the first of ties."""
    up, down = [], []
    for row, u, d in zip(activity, n_up, n_down, strict=True):
        order = np.argsort(-row, kind="stable").astype(np.int32)
        up.append(np.sort(order[:u]))
        down.append(up[-1] if u == d else np.sort(order[:d]))
    return NeuronSplit(activity.shape[1], tuple(up), tuple(down))


def empty_split(n_layer: int, n_ff: int) -> NeuronSplit:
    """Return a split without neurons on the GPU."""
    none = np.empty(0, np.int32)
    return NeuronSplit(n_ff, (none,) * n_layer, (none,) * n_layer)


def greedy(activity: Activity, rows: NeuronRows, left: int, block: int) -> Counts:
    """Return neurons per layer: take blocks by activity per byte, over all layers."""
    n_layer, n_ff = activity.shape
    if sum(rows.nbytes(i, n_ff, n_ff) for i in range(n_layer)) <= left:  # then without buckets
        return [n_ff] * n_layer, [n_ff] * n_layer
    sums = _blocks(activity, block)  # [n_layer, n_blocks]
    sizes = np.minimum(block, n_ff - block * np.arange(sums.shape[1]))
    per_byte = sums / sizes / np.array([[rows.of_one(i)] for i in range(n_layer)])
    layer, number = (x.ravel() for x in np.indices(sums.shape))
    n_placed = [0] * n_layer
    for at in np.lexsort((layer, number, -per_byte.ravel())):
        i, start = int(layer[at]), block * int(number[at])
        if n_placed[i] != start:  # the block before it did not fit
            continue
        end = min(start + block, n_ff)
        extra = rows.nbytes(i, end, end) - rows.nbytes(i, start, start)
        if extra <= left:
            left -= extra
            n_placed[i] = end
    return n_placed, list(n_placed)


def balance(
    activity: Activity, rows: NeuronRows, left: int, block: int, *, up: float, down: float
) -> Counts:
    """Return neurons per layer: add blocks round-robin until ``A_gpu / A_cpu`` reaches a ratio.

    ``A`` is the activity on a device.

    Args:
        up, down: speed of the GPU relative to the CPU for active rows of up and gate, and of down.
    """
    n_layer, n_ff = activity.shape
    sums = _blocks(activity, block)
    totals = sums.sum(axis=1)
    numbers = [0] * n_layer, [0] * n_layer
    covered = np.zeros((2, n_layer))
    for b in range(sums.shape[1]):
        start, end = b * block, min((b + 1) * block, n_ff)
        for i in range(n_layer):
            for matrix, ratio in enumerate((up, down)):
                here = covered[matrix, i]
                if numbers[matrix][i] != start or not here < ratio * (totals[i] - here):
                    continue
                before = rows.nbytes(i, numbers[0][i], numbers[1][i])
                numbers[matrix][i] = end
                extra = rows.nbytes(i, numbers[0][i], numbers[1][i]) - before
                if extra > left:
                    numbers[matrix][i] = start
                    continue
                left -= extra
                covered[matrix, i] += sums[i, b]
    return numbers


def _blocks(activity: Activity, block: int) -> Activity:
    """Return sums over blocks of each layer's neurons in descending order; the last may be short.

    Shape:
        NumPy order, [n_layer, n_ff] -> [n_layer, n_blocks]
    """
    ordered = -np.sort(-activity, axis=1)
    starts = np.arange(0, activity.shape[1], block)
    sums: Activity = np.add.reduceat(ordered, starts, axis=1)
    return sums


_GPU = {"ffn_gate": "ffn_gate_gpu", "ffn_up": "ffn_up_gpu", "ffn_down_t": "ffn_down_gpu"}


class _NewTensors:
    """Tensors to be allocated on a device, in the layouts that it prefers, and on the host.

    Args:
        ops: names of the ops that read each weight.
    """

    def __init__(self, device: Backend, ops: Mapping[str, Set[str]]) -> None:
        self._device, self._ops = device, ops
        self._contexts: dict[BufferType, Context] = {}
        self._weights: dict[str, tuple[Tensor, Ids | None]] = {}
        self._ids: dict[str, Ids] = {}

    def add(self, name: str, source: str, weight: Tensor, rows: Ids | None = None) -> None:
        """Add a weight to the device, or some rows of it, that is read as ``source`` is."""
        ne = weight.ne if rows is None else (weight.ne[0], len(rows), 1, 1)
        layouts = self._device.layouts(
            WeightUse(weight.type, ne, frozenset(self._ops.get(source, ())))
        )
        if not layouts and name == source:
            return  # it stays on the host
        if not layouts:
            raise ModelError(
                f"{self._device.name} cannot store tensor '{name}', {weight.type.name} {list(ne)}"
            )
        self._new(name, layouts[0].buft, weight.type, ne)
        self._weights[name] = weight, rows

    def add_ids(self, name: str, ids: Ids, buft: BufferType) -> None:
        """Add a tensor of neuron ids."""
        self._new(name, buft, GGMLType.I32, (len(ids), 1, 1, 1))
        self._ids[name] = ids

    def plan(self) -> dict[str, Tensor]:
        """All tensors by name, with addresses but no memory."""
        for buft, ctx in self._contexts.items():
            alloc_ctx_tensors(ctx, AddressBufferType(buft))
        return {t.name: t for ctx in self._contexts.values() for t in ctx}

    def alloc(self) -> dict[str, Tensor]:
        """Allocate and fill all tensors, and return them by name."""
        for buft, ctx in self._contexts.items():
            alloc_ctx_tensors(ctx, buft)
        tensors = {t.name: t for ctx in self._contexts.values() for t in ctx}
        pairs = ((tensors[name], _bytes(*source)) for name, source in self._weights.items())
        for _ in self._device.set_weights(pairs):
            pass
        for name, ids in self._ids.items():
            buffer = tensors[name].buffer
            assert buffer is not None
            buffer.set_tensor(tensors[name], np.ascontiguousarray(ids, np.int32).view(np.uint8))
        return tensors

    def _new(self, name: str, buft: BufferType, type: GGMLType, ne: Dims) -> None:
        ctx = self._contexts.setdefault(buft, Context(no_alloc=True))
        ctx.new_tensor(type, ne).set_name(name)

    @property
    def device_type(self) -> BufferType:
        """The type of the device's memory."""
        return self._device.buffer_type()


def _bytes(weight: Tensor, rows: Ids | None) -> npt.NDArray[np.uint8]:
    """The bytes of a weight, or of some of its rows."""
    data = weight.bytes()
    return data if rows is None else data.reshape(weight.ne[1], -1)[rows].reshape(-1)


def _of_layer(
    hparams: HParams, i: int, names: Container[str], *, biases: bool
) -> list[tuple[str, str]]:
    """(part, name) of each weight of a layer that is read by neurons."""
    prefix = f"blk.{i}."
    gated = f"{prefix}ffn_gate.weight" in names
    parts = ["ffn_up", "ffn_gate", "ffn_down_t"] if gated else ["ffn_up", "ffn_down_t"]
    if hparams.source(i) == "exact":  # the first matrix is computed in full
        parts.remove("ffn_gate" if gated else "ffn_up")
    found = [(part, f"{prefix}{part}.weight") for part in parts]
    if biases:
        found += [(part, f"{prefix}{part}.bias") for part in parts if part != "ffn_down_t"]
    return found


def _slice_layer(
    hparams: HParams, weights: Mapping[str, Tensor], i: int, split: NeuronSplit, new: _NewTensors,
    model: str,
) -> None:  # fmt: skip
    """Add the rows of a layer's neurons on the device, if these are some but not all."""
    up, down, prefix = split.up[i], split.down[i], f"blk.{i}."
    if not up.size and not down.size:
        return
    source = hparams.source(i)
    if source in ("off", "topk"):
        raise ModelError(
            f"{model}: layer {i} computes all of its neurons (`sparse={source!r}`), so none "
            "can be placed; load the model with a sparse source, such as exact"
        )
    if up.size == down.size == split.n_ff:
        return
    for part, name in _of_layer(hparams, i, weights, biases=True):
        target = name.replace(part, _GPU[part])
        if name.endswith(".bias"):
            if name in weights:
                new.add(target, name, weights[name])
        else:
            new.add(target, name, weights[name], down if part == "ffn_down_t" else up)
    joint = np.array_equal(up, down)
    for suffix, ids in [("", up)] if joint else [("", up), ("_down", down)]:
        marks = np.zeros(split.n_ff, np.int32)
        marks[ids] = 1
        new.add_ids(f"{prefix}gpu_idx{suffix}", marks, HOST)
        new.add_ids(f"{prefix}gpu_bucket{suffix}", ids, new.device_type)
