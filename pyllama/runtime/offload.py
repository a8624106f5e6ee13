"""Plans what of a model is on which device, to the byte, before any weight is loaded.

    planner = Planner(file, arch, hparams, backends, ContextParams(n_ctx=4096))
    plan = planner.plan(Offload(n_gpu_layers="auto"))
    plan.offload.n_gpu_layers                      # as many layers as fit
    for use in plan.devices: use.name, use.weights, use.kv, use.compute, use.limit

Nothing is estimated: weights are assigned as the loader does it, caches and graphs are built as a
context does it, in buffers that have addresses but no memory, the allocator plans the largest
graph, and backends say how much their kernels work with. What a driver needs is not included.
Source: llama.cpp, ``common_fit_params`` (the idea).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyggml.backend.interface import Backend
from pyggml.buffer import HOST, AddressBufferType
from pyggml.gguf import GGUFFile
from pyggml.rounding import round_up
from pyggml.sched import Sched
from pyggml.tensor import BufferType, Tensor

from ..arch import Arch
from ..graph.builder import GraphBuilder
from ..hparams import HParams
from .decode_graph import largest_graphs
from .devices import (
    Offload,
    PlannedPlacement,
    gpus_of,
    kv_buffer_types,
    layer_devices,
    limit_bytes,
    placed_offload,
    state_places,
)
from .loader import assign_weights, planned_tensors
from .params import ContextParams


@dataclass(frozen=True)
class DeviceUse:
    """The memory of one device that a model and a context need, in bytes.

    Attributes:
        kv: keys, values, recurrent states and, on a GPU, its copy of the lists of cells.
        compute: intermediate results of the largest graph, copies between devices, and work memory
            of kernels.
        free, total: of the device; None if not known.
        limit: bytes that may be used: what is free, or less with a budget; None if not known.
    """

    name: str
    weights: int
    kv: int
    compute: int
    free: int | None
    total: int | None
    limit: int | None

    @property
    def used(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.compute

    @property
    def fits(self) -> bool:
        """Whether it is within the limit."""
        return self.limit is None or self.used <= self.limit


@dataclass(frozen=True)
class LayerUse:
    """Where a layer's weights and cache are: bytes by the name of the device."""

    weights: Counter[str]
    kv: Counter[str]


@dataclass(frozen=True, eq=False)
class OffloadPlan:
    """What is where.

    Attributes:
        offload: as given, with the number of layers and their proportions decided.
        params: sizes of the context, resolved.
        devices: in order of preference, the CPU last.
        layers: what comes before the layers (embeddings), each layer, and the output.
    """

    offload: Offload
    params: ContextParams
    devices: tuple[DeviceUse, ...]
    layers: tuple[LayerUse, ...]

    @property
    def fits(self) -> bool:
        """Whether each GPU is within its limit."""
        return all(use.fits for use in self.devices[:-1])


@dataclass(frozen=True, eq=False)
class Planner:
    """Plans of one model on some devices.

    Attributes:
        backends: the devices, see ``used_devices``.
        placement: neurons and dense weights of a sparse model to put on the GPUs, instead of whole
            layers.
    """

    file: GGUFFile
    arch: Arch
    hparams: HParams
    backends: Sequence[Backend]
    params: ContextParams
    repack: bool = True
    placement: PlannedPlacement | None = None

    def plan(self, offload: Offload) -> OffloadPlan:
        """The plan of an offload; of as many layers as fit, if that is asked for.

        Raises:
            ModelError: the model cannot be run. BatchError: illegal sizes of the context.
            BackendError: no device can do a part of it.
            AllocError: the host's part of the KV cache does not fit into its memory.
        """
        if self.placement is not None:
            names = self.file.tensors
            moved = placed_offload(self.placement, self.hparams, names, self.backends)
            return self._measured(moved, offload)
        n, none = offload.max_layers(self.hparams.n_layer), 0
        first = self._decided(offload, n)
        if not offload.fits or not gpus_of(self.backends):
            return self._measured(first, offload)
        best = self._fitting(first, offload)
        if best is not None:
            return best
        best = self._measured(self._decided(offload, 0), offload)
        while n - none > 1:  # none: fits; n: does not
            middle = (none + n) // 2
            found = self._fitting(self._decided(offload, middle), offload)
            best, none, n = (best, none, middle) if found is None else (found, middle, n)
        return best

    def _decided(self, offload: Offload, n_layers: int) -> Offload:
        """The offload of so many layers, with the number on each GPU."""
        n_layer = self.hparams.n_layer
        owners = layer_devices(self.backends, n_layer, replace(offload, n_gpu_layers=n_layers))
        counts = tuple(float(owners.count(gpu)) for gpu in gpus_of(self.backends))
        return replace(offload, n_gpu_layers=n_layers, tensor_split=counts, vram_budget=())

    def _fitting(self, decided: Offload, asked: Offload) -> OffloadPlan | None:
        """The plan of an offload if it fits, or with other numbers of layers on each GPU."""
        plan = self._measured(decided, asked)
        if plan.fits or len(plan.devices) < 3 or any(asked.tensor_split):
            return plan if plan.fits else None
        counts = _packed(plan)
        if sum(counts) < sum(decided.tensor_split):
            return None
        plan = self._measured(replace(decided, tensor_split=counts), asked)
        return plan if plan.fits else None

    def _measured(self, offload: Offload, asked: Offload) -> OffloadPlan:
        """The plan of a decided offload, with the limits of the one that was asked for."""
        params = self.params.resolve(self.hparams)
        hparams = params.overrides.apply(self.hparams, params.n_ctx_seq)
        weights, _ = assign_weights(
            self.file, self.arch, self.hparams, self.backends, offload, self.repack
        )
        tensors, host_kv = planned_tensors(weights), frozenset[int]()
        if self.placement is not None:
            for part, device in zip(self.placement.parts, self.backends, strict=False):
                tensors = part.planned(hparams, tensors, device)
                host_kv |= part.host_kv
        real = kv_buffer_types(self.backends, tensors, hparams, params, host_kv)
        build = self.arch.build_graph
        states = state_places(self.backends, tensors, hparams, params, build)
        planned = {b.buffer_type(): AddressBufferType(b.buffer_type()) for b in self.backends}
        planned[HOST] = AddressBufferType(HOST)
        memory = params.memory(
            hparams,
            lambda layer: planned[real(layer)],
            states._replace(layer_buft=lambda layer: planned[states.layer_buft(layer)]),
        )
        kv, compute = Counter[str](), Counter[str]()
        for size in largest_graphs(hparams, params.n_ubatch):
            builder = GraphBuilder(hparams, tensors, memory, *size[:3], encodes=size.encodes)
            builder.finish(build(builder))
            sizes = Counter[str]()
            for buft, n_bytes in Sched(self.backends).sizes(builder.graph).items():
                sizes[self._owner(buft)] += n_bytes
            compute |= sizes  # they share the memory of the largest
        layers = [LayerUse(Counter(), Counter()) for _ in range(hparams.n_layer + 2)]
        for buft, addresses in planned.items():
            kv[self._owner(buft)] += addresses.n_bytes
        for name, tensor in tensors.items():
            layer = layers[_place_of(name, hparams.n_layer)]
            layer.weights[self._owner(_buft(tensor))] += _size(tensor)
        for cache in memory.caches:
            for i in cache.layers:
                owned = (x for x in cache.with_compressed(i) if x.view_src is None)
                layers[1 + i].kv[self._owner(real(i))] += sum(map(_size, owned))
                if i in cache.indexer_keys:
                    layers[1 + i].kv[self._owner(HOST)] += _size(cache.indexer_keys[i])
        for by_layer in {} if memory.states is None else memory.states.tensors.values():
            for i, tensor in by_layer.items():
                layers[1 + i].kv[self._owner(_buft(tensor))] += _size(tensor)
        gpus = gpus_of(self.backends)
        uses = []
        for backend in self.backends:
            name, known = backend.name, backend.memory()
            free, total = (None, None) if known is None else known
            limit = limit_bytes(backend, gpus.index(backend), asked) if backend in gpus else None
            on_device = sum(layer.weights[name] for layer in layers)
            uses.append(DeviceUse(name, on_device, kv[name], compute[name], free, total, limit))
        return OffloadPlan(offload, params, tuple(uses), tuple(layers))

    def _owner(self, buft: BufferType) -> str:
        """The name of the first device that works in memory of a type."""
        return next(b.name for b in self.backends if b.supports_buft(buft))


def _packed(plan: OffloadPlan) -> tuple[float, ...]:
    """The number of layers on each GPU if each takes as many as fit, from the first one on."""
    n_layers = int(sum(plan.offload.tensor_split))
    sizes = [layer.weights.total() + layer.kv.total() for layer in plan.layers]
    waiting, counts = sizes[len(sizes) - n_layers :], []
    for use in plan.devices[:-1]:
        here = sum(layer.weights[use.name] + layer.kv[use.name] for layer in plan.layers)
        left = 1 << 62 if use.limit is None else use.limit - (use.used - here)
        count = 0
        while waiting and waiting[0] <= left:
            left -= waiting.pop(0)
            count += 1
        counts.append(float(count))
    return tuple(counts)


def _place_of(name: str, n_layer: int) -> int:
    """The index of a weight's layer in ``OffloadPlan.layers``."""
    if name.startswith("blk."):
        return 1 + int(name.split(".")[1])
    return 1 + n_layer if name.startswith("output") else 0


def _buft(tensor: Tensor) -> BufferType:
    assert tensor.buffer is not None
    return tensor.buffer.buft


def _size(tensor: Tensor) -> int:
    """Bytes of a tensor in its buffer, with padding."""
    return round_up(_buft(tensor).alloc_size(tensor), _buft(tensor).alignment)
