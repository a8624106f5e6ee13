"""Weights from a GGUF file into the memory of devices, laid out as each device wants them.

    weights = load_weights(file, arch, hparams, backends)

A device is asked how it would keep a weight that is read by these ops (``Backend.layouts``): the
CPU has an interleaved layout for what matmuls read, and takes everything else from the file's
pages. What variants of layers need and the file does not have is made of what it has. Names, types
and sizes are checked before anything is allocated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyggml import host
from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.interface import Backend, Layout, WeightUse
from pyggml.buffer import HOST, BufferType, HostBuffer
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError
from pyggml.gguf import GGUFFile, TensorInfo
from pyggml.quants import BLOCK_TYPES
from pyggml.quants.validity import count_invalid
from pyggml.tensor import Dims, Tensor

from ..arch import Arch
from ..errors import ModelError
from ..graph.builder import GraphBuilder
from ..graph.variants import ANY, Bytes, WeightPlan, weight_faults, weight_patterns, weight_plan
from ..hparams import HParams
from ..kv.memory import Memory
from .devices import layer_devices

log = logging.getLogger(__name__)
Progress = Callable[[float], None]
RUNNABLE = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, *BLOCK_TYPES)  # types of weights
_CELLS = 256  # of the cache in a graph without memory
_GROWN = 1.1  # a layout that is larger than the file by this factor is one to do without
_KEPT_FREE = 0.2  # of memory, before such a layout is taken


@dataclass(eq=False)
class _Weight:
    """A weight on its way into memory.

    Attributes:
        data: its bytes; None until they are made.
        part: of the file that it is mapped from; -1 for one that is made.
        layouts: how its device may keep it, the best first.
    """

    name: str
    type: GGMLType
    ne: Dims
    n_bytes: int
    part: int
    backend: Backend
    layouts: Sequence[Layout]
    data: Bytes | None = None

    @property
    def in_place(self) -> bool:
        """Whether it can stay in the file's pages."""
        return self.part >= 0 and self.layouts[0].buft.is_host

    @property
    def new_bytes(self) -> int:
        """Memory that is allocated for it."""
        return 0 if self.in_place else self.layouts[0].nbytes

    @property
    def grows(self) -> bool:
        """Whether its layout is much larger than the file's, and there is another."""
        best = self.layouts[0]
        return (
            len(self.layouts) > 1 and not best.buft.is_host and best.nbytes > _GROWN * self.n_bytes
        )


def load_weights(
    file: GGUFFile,
    arch: Arch,
    hparams: HParams,
    backends: Sequence[Backend],
    *,
    n_gpu_layers: int = -1,
    repack: bool = True,
    mlock: bool = False,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """The weights by name, in buffers that they keep alive.

    Args:
        backends: the model's devices, the CPU last.
        n_gpu_layers: see ``layer_devices``.
        repack: False leaves weights in the file's layout where their device can read that.

    Raises:
        ModelError: a tensor is missing, unknown, of a wrong size or a type without kernels.
        AllocError: no memory for the copies that devices want.
    """
    infos = check_tensors(file, arch.TENSORS, hparams)
    plan = weight_plan(infos, hparams)
    weights = _placed(file, arch, hparams, infos, plan, backends, n_gpu_layers)
    for weight in weights.values():
        hosted = [layout for layout in weight.layouts if layout.buft.is_host]
        if not repack and hosted:
            weight.layouts = hosted
    for backend in {id(w.backend): w.backend for w in weights.values()}.values():
        _fit([w for w in weights.values() if w.backend is backend], backend, bool(plan.made))
    return _filled(file, plan, weights, mlock, progress)


def weight_headers(infos: Mapping[str, TensorInfo], plan: WeightPlan) -> dict[str, Tensor]:
    """The weights of a model as headers without memory."""
    shapes = [(t.name, t.type, t.ne) for t in infos.values() if t.name not in plan.unread]
    shapes += [tensor for one in plan.made for tensor in one.tensors]
    return {name: Tensor(type, ne).set_name(name) for name, type, ne in shapes}


def header_graph(
    arch: Arch, hparams: HParams, weights: Mapping[str, Tensor], n_tokens: int = 1
) -> CGraph:
    """The graph of a ubatch of ``n_tokens`` with one output; its tensors have no memory."""
    builder = GraphBuilder(hparams, weights, Memory(hparams, _CELLS), n_tokens, n_outputs=1)
    builder.finish(arch.build_graph(builder))
    return builder.graph


def _placed(
    file: GGUFFile,
    arch: Arch,
    hparams: HParams,
    infos: Mapping[str, TensorInfo],
    plan: WeightPlan,
    backends: Sequence[Backend],
    n_gpu_layers: int,
) -> dict[str, _Weight]:
    """Each weight with its device and how that would keep it, in the file's order."""
    headers = weight_headers(infos, plan)
    devices = layer_devices(backends, hparams.n_layer, n_gpu_layers)
    output = devices[-1]
    tied = headers.get("token_embd.weight")
    if tied is not None and "output.weight" not in headers and not _reads_host(output):
        headers["output.weight"] = tied  # a copy of its own: the host reads rows of the other
    # A context may choose another activation: it decides nothing about who reads a weight.
    ops = _readers(header_graph(arch, replace(hparams, hidden_act="relu"), headers))
    weights: dict[str, _Weight] = {}
    for name, header in headers.items():
        source = "token_embd.weight" if header is tied else name
        wanted = _device(name, devices, backends)
        use = WeightUse(header.type, header.ne, frozenset(ops.get(name, ())))
        for backend in dict.fromkeys((wanted, backends[-1])):
            layouts = backend.layouts(use)
            if layouts:
                break
        else:
            raise ModelError(
                f"{file.path}: no device ({', '.join(b.name for b in backends)}) keeps tensor "
                f"'{name}', {header.type.name} {list(header.ne)}"
            )
        info = infos.get(source)
        data = None if info is None else file.tensor_bytes(source)
        n_bytes, part = header.nbytes, -1 if info is None else info.part
        weights[name] = _Weight(name, header.type, header.ne, n_bytes, part, backend, layouts, data)
    return weights


def _readers(graph: CGraph) -> dict[str, set[str]]:
    """By weight the ops that read it."""
    found: dict[str, set[str]] = {}
    for node in graph.nodes:
        for source in node.src:
            if source is not None and source.op is None and node.op is not None:
                root = source if source.view_src is None else source.view_src
                found.setdefault(root.name, set()).add(node.op.name)
    return found


def _reads_host(backend: Backend) -> bool:
    return backend.buffer_type().is_host


def _device(name: str, devices: Sequence[Backend], backends: Sequence[Backend]) -> Backend:
    """Where a weight goes: with its layer, or with the output; embeddings stay with the host."""
    if name.startswith("blk."):
        return devices[int(name.split(".")[1])]
    if name.startswith("output") or _reads_host(backends[0]):
        return devices[-1]
    return backends[-1]


def _fit(weights: Sequence[_Weight], backend: Backend, made: bool) -> None:
    """Do without layouts that grow where they would leave little memory free.

    Raises:
        AllocError: that is not enough.
    """
    memory = backend.memory()
    size, growing = sum(w.new_bytes for w in weights), [w for w in weights if w.grows]
    if memory is None or size <= (1 - _KEPT_FREE if growing else 1) * memory[0]:
        return
    free = memory[0]
    needed = sum(w.new_bytes for w in weights if not w.grows)
    if growing and needed <= free:
        log.warning(
            "%d matrices stay as they are in the file, which is slower: repacking all takes "
            "%.2f GiB, this machine has %.2f GiB free", len(growing), size / 2**30, free / 2**30
        )  # fmt: skip
        for weight in growing:
            weight.layouts = weight.layouts[1:]
        return
    if backend.device.kind != "cpu":
        raise AllocError(
            f"the weights on {backend.name} need {size / 2**30:.2f} GiB, it has "
            f"{free / 2**30:.2f} GiB free; put fewer layers there (`n_gpu_layers`)"
        )
    what = "repacking the weights" + (", and making those of sparse layers," if made else "")
    raise AllocError(
        f"{what} needs {size / 2**30:.2f} GiB, this machine has {free / 2**30:.2f} GiB free; "
        "use `repack=False` to read them in place"
    )


def _filled(
    file: GGUFFile,
    plan: WeightPlan,
    weights: Mapping[str, _Weight],
    mlock: bool,
    progress: Progress | None,
) -> dict[str, Tensor]:
    """Allocate, and write what is not read where it is."""
    contexts: dict[BufferType, Context] = {}
    mapped = [HostBuffer(part.data, HOST) for part in file.parts]
    tensors: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.in_place:
            tensor = Tensor(weight.type, weight.ne)
            assert weight.data is not None
            tensor.buffer, tensor.data = mapped[weight.part], int(weight.data.ctypes.data)
        elif weight.layouts[0].buft.is_host:
            tensor = Tensor(weight.type, weight.ne)  # made, where its bytes will be
        else:
            buft = weight.layouts[0].buft
            ctx = contexts.setdefault(buft, Context(no_alloc=True))
            tensor = ctx.new_tensor(weight.type, weight.ne)
        tensors[name] = tensor.set_name(name)
    done = 0
    total = sum(one.source.nbytes for one in plan.made)
    total += sum(w.n_bytes for w in weights.values() if not w.in_place and w.part >= 0)
    for one in plan.made:
        data = file.tensor_bytes(one.source.name)
        for (name, _, _), x in zip(one.tensors, one.make(data), strict=True):
            weights[name].data = x
            if weights[name].layouts[0].buft.is_host:
                buffer = HostBuffer(x, HOST)
                tensors[name].buffer, tensors[name].data = buffer, buffer.base
            else:
                total += x.nbytes
        host.drop_pages(data)
        done += data.nbytes
        _tell(progress, done / total)
    for buft, ctx in contexts.items():
        alloc_ctx_tensors(ctx, buft)
    for backend in {id(w.backend): w.backend for w in weights.values()}.values():
        pairs = [
            (tensors[name], w.data)
            for name, w in weights.items()
            if w.backend is backend and not w.layouts[0].buft.is_host and w.data is not None
        ]
        n = 0
        for n in backend.set_weights(pairs):
            _tell(progress, (done + n) / total)
        done += n
    if mlock:
        _lock(tensors)
    return tensors


def _tell(progress: Progress | None, fraction: float) -> None:
    if progress is not None:
        progress(fraction)


def check_tensors(
    file: GGUFFile, patterns: Mapping[str, tuple[str, ...]], hparams: HParams
) -> dict[str, TensorInfo]:
    """The tensors of a file that an architecture wants, by name. Raises: ModelError."""
    infos, faults = match_tensors(file, patterns, hparams)
    faults += [
        f"tensor '{info.name}' is {info.type.name}, which cannot be run yet; "
        f"there are: {', '.join(t.name for t in RUNNABLE)}"
        for info in infos.values()
        if info.type not in RUNNABLE
    ]
    if faults:
        raise ModelError(f"{file.path}: {faults[0]}")
    return infos


def match_tensors(
    file: GGUFFile, patterns: Mapping[str, tuple[str, ...]], hparams: HParams
) -> tuple[dict[str, TensorInfo], list[str]]:
    """The tensors that an architecture wants, by name, and all that is wrong with them."""
    infos: dict[str, TensorInfo] = {}
    faults: list[str] = []
    patterns = weight_patterns(patterns, file.tensors)
    whole = [(pattern, pattern) for pattern in patterns if "{i}" not in pattern]
    layers = [
        (pattern, pattern.replace("{i}", str(i)))
        for i in range(hparams.n_layer)
        for pattern in patterns
        if "{i}" in pattern
    ]
    for pattern, name in layers + whole:  # in the order of use: memory streams from one to the next
        ne = tensor_sizes(hparams, patterns[pattern])
        if 0 in ne:  # experts of a model without, or what they replace
            continue
        optional, name = name.endswith("?"), name.rstrip("?")
        info = file.tensors.get(name)
        if info is not None:
            faults += _wrong_sizes(info, ne)
            infos[name] = info
        elif not optional:
            faults.append(
                f"tensor '{name}' is missing; the file is not a whole {hparams.arch} model"
            )
    unknown = [n for n in file.tensors if n not in infos]
    if unknown:
        faults.append(
            f"{len(unknown)} tensors that a {hparams.arch} model does not have, such as "
            f"'{unknown[0]}'; this variant is not supported"
        )
    return infos, faults + weight_faults(infos, hparams.n_layer)


def _wrong_sizes(info: TensorInfo, ne: tuple[int, ...]) -> list[str]:
    wanted = (*ne, *(1,) * (4 - len(ne)))
    if not all(n == m or (m < 0 and n > 0) for n, m in zip(info.ne, wanted, strict=True)):
        sizes = ", ".join(str(n) if n > 0 else ANY for n in wanted)
        return [f"tensor '{info.name}' has sizes {list(info.ne)}, want [{sizes}]"]
    if len(ne) == 1 and info.type is not GGMLType.F32:
        return [f"tensor '{info.name}' is {info.type.name}, want F32 for a vector"]
    return []


def check_data(file: GGUFFile, progress: Progress | None = None) -> Iterator[str]:
    """What is wrong with the weights of a file: a line for each tensor with NaN, infinity or a
    scale that is none.

    They are read once, a few megabytes at a time.
    """
    total, done = sum(info.nbytes for info in file.tensors.values()) or 1, 0
    for info in file.tensors.values():
        n_bad, first, before = 0, 0, 0
        for piece in file.chunks(info.name):
            n, at = count_invalid(piece, info.type)
            first = before + at if n and not n_bad else first
            n_bad += n
            before += piece.size // info.type.type_size
            done += piece.size
            if progress is not None:
                progress(done / total)
        if n_bad:
            what = "blocks with an illegal scale" if info.type.is_quantized else "NaN or infinite"
            yield (
                f"tensor '{info.name}' ({info.type.name}): {n_bad} of {before} {what}, the first "
                f"at {first}"
            )


def tensor_sizes(hparams: HParams, names: Sequence[str]) -> tuple[int, ...]:
    """The sizes, in ne order, that an architecture's ``TENSORS`` names; -1 for any."""

    def size(name: str) -> int:
        half = name.endswith("/2")
        return -1 if name == ANY else getattr(hparams, name.removesuffix("/2")) // (1 + half)

    return tuple(size(name) for name in names)


def _lock(weights: Mapping[str, Tensor]) -> None:
    for buffer in {id(t.buffer): t.buffer for t in weights.values()}.values():
        assert buffer is not None
        problem = buffer.lock()
        if problem:
            log.warning("cannot lock %d bytes of weights: %s", buffer.size, problem)
