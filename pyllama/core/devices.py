"""The devices of a model, and which device holds each layer and its KV cache.

    backends = start_devices(("cpu",), n_threads=2)
    layer_buft = kv_buffer_types(backends, weights, hparams, type_k, type_v)
    layer_buft(3)                                  # of layer 3's keys and values

A model is loaded onto its devices (``Model.load(devices=...)``, ``--device``), and contexts follow.
Names are those of ``pyggml.backend.registry`` (``--list-devices``). The CPU is always in the list,
by default last: it computes the ops that no other device supports, and holds inputs and tables.
Source: llama.cpp, ``-dev/--device`` and its assignment of layers (``llama_model::load_tensors``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyggml import ops
from pyggml.backend.interface import Backend
from pyggml.backend.registry import available, init_backend
from pyggml.buffer import HOST, BufferType
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import BackendError
from pyggml.tensor import Tensor

from ..hparams import HParams

Devices = str | Sequence["str | Backend"]
CPU = "cpu"


def parse_devices(devices: Devices | None) -> tuple[str | Backend, ...]:
    """The devices of a model, including the CPU.

    Args:
        devices: names, as a list or separated by commas, or running backends; None for the default,
            ``none`` for the CPU alone.

    Raises:
        BackendError: there is no device of this name.
    """
    if devices is None or devices == "none":
        return (CPU,)
    given = [name.strip() for name in devices.split(",")] if isinstance(devices, str) else devices
    for device in given:
        if isinstance(device, str) and device not in available():
            raise BackendError(
                f"no device named '{device}'; use none or one of {', '.join(available())}"
            )
    names = [device if isinstance(device, str) else device.name for device in given]
    return (*given,) if CPU in names else (*given, CPU)


def start_devices(devices: Sequence[str | Backend], n_threads: int | None) -> tuple[Backend, ...]:
    """A backend for each device; running backends are used as they are. Raises: BackendError."""
    return tuple(
        init_backend(device, n_threads=n_threads) if isinstance(device, str) else device
        for device in devices
    )


def layer_devices(backends: Sequence[Backend], n_layer: int, n_gpu_layers: int) -> list[Backend]:
    """The device of each layer, then that of the output.

    Args:
        n_gpu_layers: number of layers, counted from the end with the output as one, to divide
            evenly among the devices other than the CPU. Negative for all.
    """
    cpu = backends[-1]
    others = [b for b in backends if b is not cpu and b.name != CPU]
    first = 0 if n_gpu_layers < 0 else max(0, n_layer + 1 - n_gpu_layers)
    n = n_layer + 1 - first
    return [
        others[(i - first) * len(others) // n] if others and i >= first else cpu
        for i in range(n_layer + 1)
    ]


def kv_buffer_types(
    backends: Sequence[Backend],
    weights: Mapping[str, Tensor],
    hparams: HParams,
    type_k: GGMLType,
    type_v: GGMLType,
) -> Callable[[int], BufferType]:
    """A function from a layer to the buffer type of its keys and values.

    That of the device that has the layer's attention weights; the host's if that device does not
    support the ops that write and read the cache.
    """
    able = {b.name: b for b in backends[:-1] if not b.buffer_type().is_host}
    able = {name: b for name, b in able.items() if _attends(b, hparams, type_k, type_v)}

    def buft(layer: int) -> BufferType:
        prefix = f"blk.{layer}.attn"
        for name, weight in weights.items():
            if name.startswith(prefix) and weight.n_dims > 1 and weight.buffer is not None:
                for backend in able.values():
                    if backend.supports_buft(weight.buffer.buft):
                        return backend.buffer_type()
                return HOST
        return HOST

    return buft


def _attends(backend: Backend, hparams: HParams, type_k: GGMLType, type_v: GGMLType) -> bool:
    """Whether a backend supports both ops that write and read caches of these types."""
    ctx, f32, i32 = Context(no_alloc=True), GGMLType.F32, GGMLType.I32
    d, heads, heads_kv = hparams.head_dim, hparams.n_head, hparams.n_head_kv
    caches = [ctx.new_tensor_3d(type, d, 256, heads_kv) for type in (type_k, type_v)]
    index = ctx.new_tensor_1d(GGMLType.I64, 1)
    new = ctx.new_tensor_3d(f32, d, 1, heads_kv)
    nodes = [ops.set_rows(ctx, cache, new, index) for cache in caches]
    q, table = ctx.new_tensor_3d(f32, d, 1, heads), ctx.new_tensor_3d(i32, 2, 256, 1)
    rows = ctx.new_tensor_2d(i32, 6, 1)
    k, v = caches
    nodes.append(ops.flash_attn_cells(ctx, q, k, v, table, rows, 1.0, branches=table))
    return all(map(backend.supports_op, nodes))
