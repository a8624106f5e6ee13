"""The devices of a model, and which device holds each layer and its KV cache.

    offload = Offload(n_gpu_layers=20, override_tensor=((r"ffn_.*_exps", "cpu"),))
    backends = start_devices(parse_devices("cuda0,cuda1"), n_threads=2)
    layer_devices(backends, hparams.n_layer, offload)[3]      # the backend of layer 3
    kv_buffer_types(backends, weights, hparams, params)(3)    # of layer 3's keys and values

A model is loaded onto its devices (``Model.load(devices=...)``, ``--device``), and contexts follow.
Names are those of ``pyggml.backend.registry`` (``--list-devices``), in any case. The CPU is always
in the list, by default last: it computes the ops that no other device supports, and holds inputs
and tables. A GPU here is any device that is not the CPU.
Source: llama.cpp, ``-dev/--device`` and its assignment of layers (``llama_model::load_tensors``).
"""

from __future__ import annotations

import logging
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, Literal, NamedTuple, Protocol

import pyggml as ops
from pyggml.backend.interface import Backend
from pyggml.backend.registry import HOST_BACKENDS, available, init_backend, missing
from pyggml.buffer import HOST, AddressBufferType
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import BackendError, PyggmlError
from pyggml.tensor import BufferType, Tensor

from ..graph.builder import GraphBuilder
from ..hparams import HParams
from ..kv.cache import cached_layers
from ..kv.states import ON_HOST, StatePlaces
from .params import ContextParams

log = logging.getLogger(__name__)
Devices = str | Sequence["str | Backend"]
CPU = "cpu"
_AUTO_MARGIN = 1 << 30  # bytes; llama.cpp's default of --fit-target
_RECURRENT = ("ssm", "shortconv", "time_mix", "attn")  # parts of layers that have states
_SPARE_SHARE = 16  # spare states take 1/16 of a GPU's memory


class Reserved(NamedTuple):
    """Bytes of a GPU that another model needs, such as the draft model.

    Attributes:
        total: all of it, which counts in a memory budget.
        pending: the part that is not allocated yet: it is free, but not to be used.
    """

    device: str
    total: int
    pending: int


@dataclass(frozen=True)
class Offload:
    """What of a model goes onto its GPUs, with llama.cpp's names and meanings.

    Attributes:
        n_gpu_layers: number of layers, counted from the end with the output as one; negative for
            all, ``auto`` for as many as fit (see ``runtime.offload``).
        main_gpu: index of the only GPU with split mode ``none``; negative for no GPU.
        split_mode: ``layer`` divides the layers among the GPUs, ``none`` uses one GPU.
        tensor_split: proportions of the layers on each GPU; empty for those of free memory.
        override_tensor: pairs of a regular expression and a device. The first expression found in
            a tensor's name decides where the tensor is.
        vram_budget: bytes of each GPU that may be used, one number for all GPUs or one for each;
            empty for no limit. Fewer layers are offloaded if not all of them fit.
        reserved: what others need.

    Raises:
        BackendError: a value is illegal.
    """

    n_gpu_layers: int | Literal["auto"] = -1
    main_gpu: int = 0
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    override_tensor: tuple[tuple[str, str], ...] = ()
    vram_budget: tuple[int, ...] = ()
    reserved: tuple[Reserved, ...] = ()

    def __post_init__(self) -> None:
        if self.split_mode not in ("layer", "none"):
            raise BackendError(
                f"`split_mode` '{self.split_mode}' is not supported: want layer (whole layers on "
                "each GPU) or none (one GPU)"
            )
        if any(not 0 <= share < math.inf for share in self.tensor_split):
            shares = ",".join(f"{share:g}" for share in self.tensor_split)
            raise BackendError(f"`tensor_split` {shares}: want proportions of 0 or more")
        for pattern, _ in self.override_tensor:
            try:
                re.compile(pattern)
            except re.error as error:
                raise BackendError(
                    f"`override_tensor` '{pattern}' is not a regular expression: {error}"
                ) from None

    @property
    def fits(self) -> bool:
        """Whether the number of layers depends on memory."""
        return self.n_gpu_layers == "auto" or bool(self.vram_budget)

    def max_layers(self, n_layer: int) -> int:
        """The most layers that may be offloaded, with the output as one."""
        if isinstance(self.n_gpu_layers, str) or self.n_gpu_layers < 0:
            return n_layer + 1
        return min(self.n_gpu_layers, n_layer + 1)


def parse_devices(devices: Devices | None) -> tuple[str | Backend, ...]:
    """The devices of a model, including the CPU.

    Args:
        devices: names, as a list or separated by commas, or running backends; None or ``none`` for
            the CPU alone.

    Raises:
        BackendError: there is no device of this name.
    """
    if devices is None or (isinstance(devices, str) and devices.strip().lower() == "none"):
        return (CPU,)
    given = [name.strip() for name in devices.split(",")] if isinstance(devices, str) else devices
    device_names = {name.lower(): name for name in available()}
    found: list[str | Backend] = []
    for device in given:
        name = device_names.get(device.lower()) if isinstance(device, str) else device
        if name is None:
            raise BackendError(
                f"no device named '{device}'; use none or one of {', '.join(device_names.values())}"
            )
        found.append(name)
    names = [device if isinstance(device, str) else device.name for device in found]
    return (*found,) if CPU in names else (*found, CPU)


def gpu_devices() -> tuple[Backend, ...]:
    """The GPUs of this machine, started; one that cannot be started is a warning in the log."""
    found = []
    for name in available():
        if name in HOST_BACKENDS:
            continue
        try:
            backend = init_backend(name)
        except PyggmlError as error:
            log.warning("device '%s' is left out: %s", name, error)
            continue
        if backend.device.kind == "gpu":
            found.append(backend)
        else:
            backend.close()
    return tuple(found)


def why_no_gpu() -> str:
    """Why ``gpu_devices`` is empty, in a few words."""
    reasons = [f"{family}: {why}" for family, why in missing().items()]
    return "; ".join(reasons) or "no backend for one is registered"


def start_devices(devices: Sequence[str | Backend], n_threads: int | None) -> tuple[Backend, ...]:
    """A backend for each device; running backends are used as they are. Raises: BackendError."""
    return tuple(
        init_backend(device, n_threads=n_threads) if isinstance(device, str) else device
        for device in devices
    )


def used_devices(backends: Sequence[Backend], offload: Offload) -> tuple[Backend, ...]:
    """The backends that a model uses: all, or one GPU and the CPU with split mode ``none``.

    Raises:
        BackendError: the main GPU does not exist, or there are more proportions or budgets than
            GPUs.
    """
    gpus = gpus_of(backends)
    for name in ("tensor_split", "vram_budget"):
        given = getattr(offload, name)
        if gpus and len(given) > len(gpus):
            raise BackendError(f"`{name}` has {len(given)} values for {len(gpus)} GPUs")
    if offload.split_mode == "layer" or not gpus:
        return tuple(backends)
    if offload.main_gpu >= len(gpus):
        raise BackendError(
            f"`main_gpu` is {offload.main_gpu}, want 0 to {len(gpus) - 1}: "
            + ", ".join(gpu.name for gpu in gpus)
        )
    main = gpus[offload.main_gpu] if offload.main_gpu >= 0 else None
    return tuple(b for b in backends if b is main or b not in gpus)


def gpus_of(backends: Sequence[Backend]) -> list[Backend]:
    """The devices other than the CPU, in order of preference."""
    return [b for b in backends if b is not backends[-1] and b.name != CPU]


def layer_devices(backends: Sequence[Backend], n_layer: int, offload: Offload) -> list[Backend]:
    """The device of each layer, then that of the output.

    The last layers are on the GPUs, each with consecutive ones: GPU ``d`` has those whose index
    among ``n`` is in ``[n * sum(shares[:d]), n * sum(shares[:d + 1]))``.
    """
    gpus, n = gpus_of(backends), offload.max_layers(n_layer)
    first = n_layer + 1 - n
    if not gpus or not n:
        return [backends[-1]] * (n_layer + 1)
    ends = [*accumulate(_shares(gpus, offload))]
    owners = [bisect_right([n * end for end in ends], k * ends[-1]) for k in range(n)]
    return [backends[-1]] * first + [gpus[i] for i in owners]


def _shares(gpus: Sequence[Backend], offload: Offload) -> list[float]:
    """The proportions of layers on each GPU: as given, or of free memory, or equal."""
    if any(offload.tensor_split):
        return [*offload.tensor_split, *[0.0] * (len(gpus) - len(offload.tensor_split))]
    limits = [limit_bytes(gpu, i, offload) for i, gpu in enumerate(gpus)]
    if None in limits or not any(limits):
        return [1.0] * len(gpus)
    return [float(limit or 0) for limit in limits]


def limit_bytes(gpu: Backend, i: int, offload: Offload) -> int | None:
    """The bytes of GPU ``i`` that may be used; None if not known.

    Its free memory, or less with a budget, without what others need. ``auto`` without a budget
    leaves some of it free.
    """
    memory, budgets = gpu.memory(), offload.vram_budget
    margin = _AUTO_MARGIN if offload.n_gpu_layers == "auto" and not budgets else 0
    others = [other for other in offload.reserved if other.device == gpu.name]
    limits = [] if memory is None else [memory[0] - margin - sum(o.pending for o in others)]
    if budgets:
        budget = budgets[0] if len(budgets) == 1 else (*budgets, *[0] * (i + 1))[i]
        limits.append(budget - sum(other.total for other in others))
    return max(0, min(limits)) if limits else None


def override_device(name: str, backends: Sequence[Backend], offload: Offload) -> Backend | None:
    """The device that ``override_tensor`` gives a tensor; None if it does not match.

    Raises:
        BackendError: the model does not use that device.
    """
    for pattern, device in offload.override_tensor:
        if re.search(pattern, name):
            return _device_named(device, backends)
    return None


def check_overrides(backends: Sequence[Backend], offload: Offload) -> None:
    """Check the devices of ``override_tensor``. Raises: as ``override_device``."""
    for _, device in offload.override_tensor:
        _device_named(device, backends)


def _device_named(name: str, backends: Sequence[Backend]) -> Backend:
    for backend in backends:
        if backend.name.lower() == name.lower():
            return backend
    raise BackendError(
        f"`override_tensor` names device '{name}', which this model does not use; it has "
        + ", ".join(backend.name for backend in backends)
    )


class PlannedPlacement(Protocol):
    """A plan that moves weights to GPUs, such as ``sparsity.placement.Placement``."""

    @property
    def parts(self) -> Sequence[PlannedPart]:
        """What is on each GPU, in their order."""
        ...


class PlannedPart(Protocol):
    """A plan that moves weights to one GPU.

    Attributes:
        host_kv: layers whose keys and values stay in host memory.
    """

    @property
    def host_kv(self) -> frozenset[int]: ...

    def whole_weights(self, hparams: HParams, names: Container[str]) -> set[str]:
        """The names of the weights that are on the device as a whole; ``names``: of the file."""
        ...

    def planned(
        self, hparams: HParams, weights: Mapping[str, Tensor], device: Backend
    ) -> dict[str, Tensor]:
        """The weights as they will be placed, as tensors with addresses but no memory."""
        ...

    def apply(self, model: Any, device: Backend) -> Any:
        """A copy of a loaded `Model` with some of its weights on a device."""
        ...


def placed_offload(
    placement: PlannedPlacement,
    hparams: HParams,
    names: Container[str],
    backends: Sequence[Backend],
) -> Offload:
    """The offload that loads the whole weights of a placement onto its devices."""
    moved = []
    for part, device in zip(placement.parts, backends, strict=False):
        pattern = "|".join(map(re.escape, sorted(part.whole_weights(hparams, names))))
        if pattern:
            moved.append((f"^({pattern})$", device.name))
    return Offload(n_gpu_layers=0, override_tensor=tuple(moved))


def kv_buffer_types(
    backends: Sequence[Backend],
    weights: Mapping[str, Tensor],
    hparams: HParams,
    params: ContextParams,
    on_host: Collection[int] = (),
) -> Callable[[int], BufferType]:
    """A function from a layer to the buffer type of its keys and values.

    That of the device that has the layer's attention weights; the host's for layers ``on_host``, if
    that device does not support the ops that write and read the cache, or without ``offload_kqv``.
    """
    able = [
        b for b in _offloads(backends, params) if _attends(b, hparams, params.type_k, params.type_v)
    ]

    def buft(layer: int) -> BufferType:
        owner = None if layer in on_host else _owner(able, weights, (f"blk.{layer}.attn",))
        return HOST if owner is None else owner.buffer_type()

    return buft


def state_places(
    backends: Sequence[Backend],
    weights: Mapping[str, Tensor],
    hparams: HParams,
    params: ContextParams,
    build_graph: Callable[[GraphBuilder], Tensor],
) -> StatePlaces:
    """Where the states of recurrent layers are, as `kv_buffer_types`.

    Spare slots take a sixteenth of a GPU's memory: of its total, which is the same before and after
    weights are loaded.
    """
    if not any(hparams.states):
        return ON_HOST
    able = _offloads(backends, params)
    if able:
        addresses = AddressBufferType(able[0].buffer_type())
        nodes = _updates(weights, hparams, params, build_graph, addresses)
        able = [b for b in able if all(map(b.supports_op, nodes))]
    owners = {
        layer: _owner(able, weights, tuple(f"blk.{layer}.{part}" for part in _RECURRENT))
        for layer, shapes in enumerate(hparams.states)
        if shapes
    }
    n_spare = []
    for backend in able:
        size = sum(4 * prod(ne) for layer, owner in owners.items() if owner is backend
                   for ne in hparams.states[layer].values())  # fmt: skip
        memory = backend.memory()
        if size and memory is not None:
            n_spare.append(memory[1] // _SPARE_SHARE // size)

    def buft(layer: int) -> BufferType:
        owner = owners[layer]
        return HOST if owner is None else owner.buffer_type()

    return StatePlaces(buft, min(n_spare, default=None))


def _offloads(backends: Sequence[Backend], params: ContextParams) -> list[Backend]:
    """The devices with memory of their own that may have caches and states."""
    return [b for b in backends[:-1] if not b.buffer_type().is_host and params.offload_kqv]


def _owner(
    able: Sequence[Backend], weights: Mapping[str, Tensor], prefixes: tuple[str, ...]
) -> Backend | None:
    """The device that has the first matrix with one of these prefixes; None: no able one."""
    for name, weight in weights.items():
        if name.startswith(prefixes) and weight.n_dims > 1 and weight.buffer is not None:
            buft = weight.buffer.buft
            return next((backend for backend in able if backend.supports_buft(buft)), None)
    return None


def _updates(
    weights: Mapping[str, Tensor],
    hparams: HParams,
    params: ContextParams,
    build_graph: Callable[[GraphBuilder], Tensor],
    addresses: BufferType,
) -> list[Tensor]:
    """The nodes of a token's graph that update states."""
    memory = params.memory(hparams, lambda layer: addresses, StatePlaces(lambda layer: addresses))
    builder = GraphBuilder(hparams, weights, memory, 1, 1)
    builder.finish(build_graph(builder))
    return [node for node in builder.graph.nodes if node.op and node.op.updated(node)]


def _attends(backend: Backend, hparams: HParams, type_k: GGMLType, type_v: GGMLType) -> bool:
    """Whether a backend supports both ops that write and read caches of these types."""
    sizes = {
        (hparams.head_dim_arr[i], hparams.head_dim_v_arr[i], hparams.n_head_arr[i],
         hparams.n_head_kv_arr[i])
        for i in cached_layers(hparams)
    }  # fmt: skip
    if hparams.values_in_keys:
        type_v = type_k
    nodes = [node for n in sizes for node in _attention_nodes(n, type_k, type_v)]
    return all(map(backend.supports_op, nodes))


def _attention_nodes(
    sizes: tuple[int, int, int, int], type_k: GGMLType, type_v: GGMLType
) -> list[Tensor]:
    """The nodes that write and read a cache.

    Args:
        sizes: head_dim, head_dim_v, n_head, n_head_kv.
    """
    ctx, f32, i32 = Context(no_alloc=True), GGMLType.F32, GGMLType.I32
    d, d_v, heads, heads_kv = sizes
    columns = ((type_k, d), (type_v, d_v))
    caches = [ctx.new_tensor_3d(type, n, 256, heads_kv) for type, n in columns]
    index = ctx.new_tensor_1d(GGMLType.I64, 1)
    nodes = [
        ops.set_rows(ctx, cache, ctx.new_tensor_3d(f32, n, 1, heads_kv), index)
        for cache, (_, n) in zip(caches, columns, strict=True)
    ]
    q, table = ctx.new_tensor_3d(f32, d, 1, heads), ctx.new_tensor_3d(i32, 2, 256, 1)
    rows = ctx.new_tensor_2d(i32, 6, 1)
    k, v = caches
    nodes.append(ops.flash_attn_cells(ctx, q, k, v, table, rows, 1.0, branches=table))
    return nodes
