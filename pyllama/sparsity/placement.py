"""Which neurons a GPU gets: a memory budget spent on dense tensors first, then on hot neurons.

    placed = place(inventory(file, hparams, n_ctx), 8 << 30, partial(chosen, activity))
    placed.split.up[3]                             # ids of layer 3's neurons on the GPU, ascending
    placed.used_bytes <= placed.budget_bytes
    Model.load(path, devices="cuda", placement=placed)

Dense tensors come first, level by level and layer by layer, since every token reads them; the first
item that does not fit ends that. Neurons come when all dense weights are there. ``greedy`` takes
the blocks of neurons that are active most often for their bytes, over all layers: with rows of one
size that is the optimum of PowerInfer's integer program at its default settings. ``balance`` gives
a layer neurons until GPU and CPU would finish together. Both are deterministic, and take
milliseconds.
Source: PowerInfer, ``solver.py``, ``llm_load_gpu_split`` and its names of tensors; Q-Infer,
``qinfer-py/qinfer/solver.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
from .inventory import KV, Inventory, Item, NeuronRows

Ids = npt.NDArray[np.int32]
Activity = npt.NDArray[np.float64]  # [n_layer, n_ff]: counts or shares
Numbers = tuple[list[int], list[int]]  # of neurons of each layer: rows of up and gate, of down
Solver = Callable[[Activity, NeuronRows, int, int], Numbers]
Neurons = Callable[[NeuronRows, int], "NeuronSplit"]  # rows, bytes that are left -> which
BLOCK = 256  # neurons that are chosen together, as PowerInfer does


@dataclass(frozen=True, eq=False)
class NeuronSplit:
    """The neurons of each layer that a GPU has.

    Attributes:
        n_ff: neurons of a layer.
        up: ids whose rows of up (and gate) are there.
        down: ids whose rows of down are there; the same arrays where that is not told apart.
    """

    n_ff: int
    up: tuple[Ids, ...]
    down: tuple[Ids, ...]

    @property
    def joint(self) -> bool:
        """Whether a neuron is there with all of its rows or with none."""
        pairs = zip(self.up, self.down, strict=True)
        return all(u is d or np.array_equal(u, d) for u, d in pairs)

    def share(self, activity: Activity) -> list[float]:
        """Of each layer's activity, how much is of neurons whose rows of up are there."""
        rows = zip(activity, self.up, strict=True)
        return [float(row[ids].sum() / (row.sum() or 1.0)) for row, ids in rows]


@dataclass(frozen=True, eq=False)
class Placement:
    """What is where.

    Attributes:
        compute_bytes: set aside for intermediate results.
        on_gpu, on_cpu: dense items.
        ffn_bytes: of each layer's neurons on the GPU.
    """

    budget_bytes: int
    compute_bytes: int
    on_gpu: tuple[Item, ...]
    on_cpu: tuple[Item, ...]
    split: NeuronSplit
    ffn_bytes: tuple[int, ...]

    @property
    def used_bytes(self) -> int:
        """Of the budget."""
        dense = sum(item.nbytes for item in self.on_gpu)
        return dense + sum(self.ffn_bytes) + (self.compute_bytes if self.on_gpu else 0)

    def apply(self, model: Model, device: Backend) -> Model:
        """The same model with some of its weights in the memory of another device.

        The model that was given stays as it was, and both share the weights of the host. A layer
        whose neurons are split has sliced matrices on the device, with the rows of its bucket in
        order; the scheduler runs each part of the graph where its weights are. A layer's KV cache
        goes where its attention's weights are.

        Raises:
            ModelError: the placement is of another model, or a layer computes all of its neurons.
            AllocError: the device has not enough memory.
        """
        hp, split = model.hparams, self.split
        if (len(split.up), split.n_ff) != (hp.n_layer, hp.n_ff):
            raise ModelError(
                f"{model.path}: neurons of {len(split.up)} layers of {split.n_ff} are placed, the "
                f"model has {hp.n_layer} of {hp.n_ff}: the placement is of another model"
            )
        there, here = _Copies(device.buffer_type()), _Copies(HOST)
        for item in self.on_gpu:
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


def place(
    needs: Inventory, budget_bytes: int, neurons: Neurons | None = None, *, compute_bytes: int = 0
) -> Placement:
    """Spend a budget.

    Args:
        neurons: chooses them for the bytes that are left; None places no neurons.
        compute_bytes: that intermediate results need; they come before everything.

    Raises:
        ModelError: the statistics that neurons are chosen by are of another model.
    """
    left, n = budget_bytes - compute_bytes, 0
    while n < len(needs.items) and needs.items[n].nbytes <= left:
        left -= needs.items[n].nbytes
        n += 1
    rows, on_cpu = needs.rows, needs.items[n:]
    split = nothing(len(rows.down), rows.n_ff)
    if neurons is not None and all(item.level == KV for item in on_cpu):
        split = neurons(rows, left)
    pairs = enumerate(zip(split.up, split.down, strict=True))
    ffn_bytes = tuple(rows.nbytes(i, len(up), len(down)) for i, (up, down) in pairs)
    return Placement(budget_bytes, compute_bytes, needs.items[:n], on_cpu, split, ffn_bytes)


def chosen(
    activity: Activity, rows: NeuronRows, left: int, solver: Solver | None = None,
    block: int = BLOCK,
) -> NeuronSplit:  # fmt: skip
    """The hottest neurons of each layer, as many as a solver gives it: bind ``activity``.

    Args:
        solver: ``greedy``, or ``balance`` with its ratios bound.
        block: neurons that are chosen together.

    Raises:
        ModelError: ``activity`` is of another model.
    """
    check_activity(activity, len(rows.down), rows.n_ff)
    return hottest(activity, *(solver or greedy)(activity, rows, left, block))


def check_activity(activity: Activity, n_layer: int, n_ff: int) -> None:
    """Whether statistics fit a model. Raises: ModelError."""
    if activity.shape != (n_layer, n_ff):
        raise ModelError(
            f"the statistics are of {activity.shape[0]} layers of {activity.shape[1]} neurons, the "
            f"model has {n_layer} of {n_ff}: make them with this model (pyllama-powerinfer stats)"
        )


def hottest(activity: Activity, n_up: Sequence[int], n_down: Sequence[int]) -> NeuronSplit:
    """So many of each layer's most active neurons, the first of equal ones."""
    up, down = [], []
    for row, u, d in zip(activity, n_up, n_down, strict=True):
        order = np.argsort(-row, kind="stable").astype(np.int32)
        up.append(np.sort(order[:u]))
        down.append(up[-1] if u == d else np.sort(order[:d]))
    return NeuronSplit(activity.shape[1], tuple(up), tuple(down))


def nothing(n_layer: int, n_ff: int) -> NeuronSplit:
    """A split of no neurons."""
    none = np.empty(0, np.int32)
    return NeuronSplit(n_ff, (none,) * n_layer, (none,) * n_layer)


def greedy(activity: Activity, rows: NeuronRows, left: int, block: int) -> Numbers:
    """Blocks of the hottest neurons by activity a byte, over all layers."""
    n_layer, n_ff = activity.shape
    if sum(rows.nbytes(i, n_ff, n_ff) for i in range(n_layer)) <= left:  # then without buckets
        return [n_ff] * n_layer, [n_ff] * n_layer
    sums = _blocks(activity, block)  # [n_layer, n_blocks]
    sizes = np.minimum(block, n_ff - block * np.arange(sums.shape[1]))
    per_byte = sums / sizes / np.array([[rows.of_one(i)] for i in range(n_layer)])
    layer, number = (x.ravel() for x in np.indices(sums.shape))
    taken = [0] * n_layer
    for at in np.lexsort((layer, number, -per_byte.ravel())):
        i, start = int(layer[at]), block * int(number[at])
        if taken[i] != start:  # the block before it did not fit
            continue
        end = min(start + block, n_ff)
        extra = rows.nbytes(i, end, end) - rows.nbytes(i, start, start)
        if extra <= left:
            left -= extra
            taken[i] = end
    return taken, list(taken)


def balance(
    activity: Activity, rows: NeuronRows, left: int, block: int, *, up: float, down: float
) -> Numbers:
    """Blocks for each layer in turn, until activity here and there is as the speeds are.

    Args:
        up, down: how many times as fast the GPU computes active rows of up (and gate), and of
            down: ``A_gpu / A_cpu`` comes to this.
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
    """Sums over blocks of each layer's neurons, the hottest first; the last may be short."""
    ordered = -np.sort(-activity, axis=1)
    starts = np.arange(0, activity.shape[1], block)
    sums: Activity = np.add.reduceat(ordered, starts, axis=1)
    return sums


_GPU = {"ffn_gate": "ffn_gate_gpu", "ffn_up": "ffn_up_gpu", "ffn_down_t": "ffn_down_gpu"}


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
            f"{model.path}: layer {i} computes all of its neurons (`sparse={source!r}`): none can "
            "be placed; load the model with a source that leaves some out, such as exact"
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
