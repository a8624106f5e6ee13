"""Loads the weights of a GGUF file into device memory, in the layout that each device prefers.

    weights = load_weights(file, arch, hparams, backends)

A backend lists its layouts for a weight, given the ops that read it (``Backend.layouts``). The CPU
has an interleaved layout for matrix products and reads other matrices in the mapped file. Vectors
are copied, so that a model without such matrices does not need the file any more.
Sparse layers may need tensors derived from the file's (``WeightPlan``). Names, types and sizes
are checked before anything is allocated.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyggml import host
from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.interface import Backend, WeightLayout, WeightUse
from pyggml.buffer import HOST, AddressBuffer, AddressBufferType, HostBuffer
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError
from pyggml.gguf import GGUFFile, TensorInfo
from pyggml.gguf.mapped import Mapped
from pyggml.quants import BLOCK_TYPES
from pyggml.quants.validity import count_invalid
from pyggml.tensor import BufferType, Dims, Tensor

from ..arch import Arch, get_arch, mtp_of
from ..errors import ModelError
from ..graph.builder import CLASSIFIER, DENSE, FUSED, HEAD, NEXTN_TENSORS, SCALED, GraphBuilder
from ..graph.sparse.weights import (
    ANY,
    UNREAD_SCALE,
    Bytes,
    WeightPlan,
    expert_patterns,
    is_of_experts,
    plan_weights,
    predictor_faults,
    sparse_patterns,
)
from ..graph.tensors import index_type
from ..hparams import HParams
from ..kv.memory import Memory
from .devices import Offload, check_overrides, layer_devices, override_device

if TYPE_CHECKING:
    from .expert_cache import ExpertCache, ExpertTensor

log = logging.getLogger(__name__)
Progress = Callable[[float], None]
RUNNABLE = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, *BLOCK_TYPES)  # types of weights
_CELLS = 256  # cells of the cache in a graph without memory
_MAX_GROWTH = 1.1  # a layout larger than the file's by this factor is optional
_RESERVED_FRACTION = 0.2  # of free memory, that optional layouts must leave


@dataclass(eq=False)
class Weight:
    """A weight to be loaded.

    Attributes:
        part: index of the mapped file that has it; -1 for a derived tensor.
        layouts: layouts that the device supports, the preferred one first.
        data: its bytes; None for a derived tensor not computed yet.
        dropped_bytes: size of a faster layout that did not fit into memory.
    """

    name: str
    type: GGMLType
    ne: Dims
    n_bytes: int
    part: int
    backend: Backend
    layouts: Sequence[WeightLayout]
    data: Bytes | None = None
    dropped_bytes: int = 0

    @property
    def in_place(self) -> bool:
        """Whether it stays in the file's pages."""
        return self.part >= 0 and self.layouts[0].buft.is_host and self.ne[1:] != (1, 1, 1)

    @property
    def allocated(self) -> bool:
        """Whether it is written into new memory; derived ones for the host have their own."""
        return not self.in_place and (self.part >= 0 or not self.layouts[0].buft.is_host)

    @property
    def new_bytes(self) -> int:
        """Bytes to allocate for it, without copies of vectors."""
        return 0 if self.part >= 0 and self.layouts[0].buft.is_host else self.layouts[0].nbytes

    @property
    def grows(self) -> bool:
        """Whether its preferred layout is much larger than the file's, and there is another."""
        layout, limit = self.layouts[0], _MAX_GROWTH * self.n_bytes
        return len(self.layouts) > 1 and not layout.buft.is_host and layout.nbytes > limit


def load_weights(
    file: GGUFFile,
    arch: Arch,
    hparams: HParams,
    backends: Sequence[Backend],
    offload: Offload | None = None,
    *,
    repack: bool = True,
    mlock: bool = False,
    progress: Progress | None = None,
    shared: Mapping[str, Tensor] = MappingProxyType({}),
    experts: ExpertCache | None = None,
) -> dict[str, Tensor]:
    """The weights by name; the tensors keep their buffers alive.

    Args:
        backends: the model's devices, the CPU last.
        offload: which weights are on which device.
        repack: False keeps weights in the file's layout where their device can read it.
        mlock: pin the weights in RAM.
        shared: weights of another model that the graph reads too.
        experts: a cache of experts; its tensors of slots replace the experts' tensors.

    Raises:
        ModelError: a tensor is missing, unknown, of a wrong size or a type without kernels.
        AllocError: not enough memory for the devices' copies.
    """
    weights, plan = assign_weights(
        file, arch, hparams, backends, offload or Offload(), repack, shared
    )
    slots: Mapping[str, Tensor] = {} if experts is None else experts.weights
    weights = {name: w for name, w in weights.items() if name not in slots}
    for backend in {id(w.backend): w.backend for w in weights.values()}.values():
        more = experts.n_bytes if experts is not None and backend is backends[-1] else 0
        here = [w for w in weights.values() if w.backend is backend]
        _check_memory(here, backend, plan, more)
    return _load_data(file, plan, weights, mlock, progress) | dict(slots)


def expert_tensors(
    file: GGUFFile,
    arch: Arch,
    hparams: HParams,
    backends: Sequence[Backend],
    repack: bool = True,
) -> dict[str, ExpertTensor]:
    """The tensors of experts by name, for a cache of them; none in a model without experts.

    Raises:
        ModelError: as ``load_weights``, or a device other than the CPU has weights.
    """
    if len(backends) > 1 or backends[0].device.kind != "cpu":
        raise ModelError(
            "a cache of experts (`moe_cache_mib`) needs a model whose layers are all on the CPU: "
            "use `n_gpu_layers=0`, or no cache"
        )
    from .expert_cache import ExpertTensor

    weights, plan = assign_weights(file, arch, hparams, backends, Offload(), repack)
    for derived in plan.derived:
        if is_of_experts(derived.source.name):
            raise ModelError(
                f"{file.path}: a cache of experts (`moe_cache_mib`) cannot transpose "
                f"'{derived.source.name}': convert the model with `transpose_down`, or use "
                "`sparse='off'`"
            )
    return {
        name: ExpertTensor(file.tensors[name], weight.layouts[0], weight.backend)
        for name, weight in weights.items()
        if is_of_experts(name) and weight.part >= 0
    }


def assign_weights(
    file: GGUFFile,
    arch: Arch,
    hparams: HParams,
    backends: Sequence[Backend],
    offload: Offload,
    repack: bool = True,
    shared: Mapping[str, Tensor] = MappingProxyType({}),
) -> tuple[dict[str, Weight], WeightPlan]:
    """The weights that ``load_weights`` would load, with devices and layouts, in the file's order.

    Raises:
        ModelError: as ``load_weights``. BackendError: as ``override_device``.
    """
    patterns, nextn = dict(arch.TENSORS), mtp_of(arch)
    if hparams.n_embd_target and nextn is not None:
        patterns |= {**NEXTN_TENSORS, **nextn.tensors}
    patterns = {p: sizes for p, sizes in patterns.items() if p.rstrip("?") not in shared}
    infos = check_tensors(file, patterns, hparams)
    plan = plan_weights(infos, hparams)
    weights = _assign_devices(file, hparams, infos, plan, backends, offload, shared)
    for weight in weights.values():
        hosted = [layout for layout in weight.layouts if layout.buft.is_host]
        if not repack and hosted:
            weight.layouts = hosted
    for backend in {id(w.backend): w.backend for w in weights.values()}.values():
        _choose_layouts([w for w in weights.values() if w.backend is backend], backend)
    return weights, plan


def planned_tensors(weights: Mapping[str, Weight]) -> dict[str, Tensor]:
    """The weights by name, with addresses but no memory: for plans."""
    tensors, contexts = _new_tensors(weights)
    for buft, ctx in contexts.items():
        alloc_ctx_tensors(ctx, AddressBufferType(buft))
    for name, weight in weights.items():
        if not weight.allocated:
            buffer = AddressBuffer(weight.n_bytes, HOST)
            tensors[name].buffer, tensors[name].data = buffer, buffer.base
    return tensors


def weight_headers(infos: Mapping[str, TensorInfo], plan: WeightPlan) -> dict[str, Tensor]:
    """The weights of a model by name, as tensors without memory."""
    shapes = [(t.name, t.type, t.ne) for t in infos.values() if t.name not in plan.unread]
    shapes += [tensor for one in plan.derived for tensor in one.tensors]
    return {name: Tensor(type, ne).set_name(name) for name, type, ne in shapes}


def header_graph(
    arch: Arch, hparams: HParams, weights: Mapping[str, Tensor], n_tokens: int = 1
) -> CGraph:
    """The graph of a ubatch of ``n_tokens`` with one output; its tensors have no memory.

    Of a model with a classification head also with its scores.
    """
    return _header_builders(arch, hparams, weights, n_tokens)[0].graph


def _header_builders(
    arch: Arch, hparams: HParams, weights: Mapping[str, Tensor], n_tokens: int = 1
) -> list[GraphBuilder]:
    """The builder of `header_graph`; of a model with encoder and decoder also the encoder's."""
    sizes = (0, 1) if hparams.encoder else (1, int(HEAD in weights))
    n_chosen = hparams.own.get("n_pool", 1)
    if hparams.n_sparse_keys:
        hparams = replace(hparams, n_sparse_keys=n_chosen)  # fewer than cells: with the indexer
    memory = Memory(hparams, _CELLS + n_chosen)
    made = [GraphBuilder(hparams, weights, memory, n_tokens, *sizes)]
    if hparams.has_encoder:
        made.append(GraphBuilder(hparams, weights, memory, n_tokens, 0, 1, encodes=True))
    for builder in made:
        builder.finish(arch.build_graph(builder))
    return made


def adaptable_tensors(
    arch: Arch, hparams: HParams, weights: Mapping[str, Tensor]
) -> dict[str, Dims]:
    """The tensors, and outputs of layers, that adapters may change, with (n_in, n_out, n_expert).

    Of token embeddings both are ``n_embd``.
    """
    builders = _header_builders(arch, hparams, weights)
    return {name: ne for builder in builders for name, ne in builder.adaptable.items()}


def _assign_devices(
    file: GGUFFile,
    hparams: HParams,
    infos: Mapping[str, TensorInfo],
    plan: WeightPlan,
    backends: Sequence[Backend],
    offload: Offload,
    shared: Mapping[str, Tensor],
) -> dict[str, Weight]:
    """Each weight with its device and the layouts supported there, in the file's order."""
    headers = weight_headers(infos, plan)
    check_overrides(backends, offload)
    devices = layer_devices(backends, hparams.n_layer, offload)
    output = override_device("output.weight", backends, offload) or devices[-1]
    tied = headers.get("token_embd.weight")
    if tied is not None and "output.weight" not in headers and not _reads_host(output):
        headers["output.weight"] = tied  # a second copy: GET_ROWS reads the embedding on the host
    ops = weight_ops(hparams, {**shared, **headers})
    final = _final(hparams, [*ops])
    weights: dict[str, Weight] = {}
    for name, header in headers.items():
        source = name if name in infos or name != "output.weight" else "token_embd.weight"
        placed = "output" if name in final else name
        device = override_device(name, backends, offload) or _device(placed, devices, backends)
        use = WeightUse(header.type, header.ne, frozenset(ops.get(name, ())))
        for backend in dict.fromkeys((device, backends[-1])):
            layouts = backend.layouts(use)
            if layouts:
                break
        else:
            raise ModelError(
                f"{file.path}: no device ({', '.join(b.name for b in backends)}) can store tensor "
                f"'{name}', {header.type.name} {list(header.ne)}"
            )
        info = infos.get(source)
        data = None if info is None else file.tensor_bytes(source)
        n_bytes, part = header.nbytes, -1 if info is None else info.part
        weights[name] = Weight(name, header.type, header.ne, n_bytes, part, backend, layouts, data)
    return weights


def weight_ops(hparams: HParams, weights: Mapping[str, Tensor]) -> dict[str, set[str]]:
    """The names of the ops that read each weight, by the weight's name; only sizes are used.

    The weights are in the order in which a graph reads them.
    """
    headers = {name: Tensor(w.type, w.ne).set_name(name) for name, w in weights.items()}
    # Any activation will do: contexts may override it, and it has no weights.
    hparams = replace(hparams, hidden_act="relu")
    found: dict[str, set[str]] = {}
    builders = _header_builders(get_arch(hparams.arch), hparams, headers)
    for node in (node for builder in builders for node in builder.graph.nodes):
        for source in node.src:
            if source is not None and source.op is None and node.op is not None:
                found.setdefault(source.root.name, set()).add(node.op.name)
    return {FUSED: {"MUL_MAT"}, **found}  # a head's matrix, computed in the target's graph


def _final(hparams: HParams, names: list[str]) -> set[str]:
    """Of a decoder's weights, in the order of the graph, those after all layers.

    They belong with the output whatever they are called: LFM2's last norm is ``token_embd_norm``.
    """
    of_layers = [i for i, name in enumerate(names) if name.startswith("blk.")]
    return set(names[of_layers[-1] + 1 :]) if of_layers and hparams.causal else set()


def _reads_host(backend: Backend) -> bool:
    return backend.buffer_type().is_host


def _device(name: str, devices: Sequence[Backend], backends: Sequence[Backend]) -> Backend:
    """The device of a weight: its layer's, or the output's; embeddings stay on the host."""
    if name.startswith("blk."):
        return devices[int(name.split(".")[1])]
    if name.startswith("output") or _reads_host(backends[0]):
        return devices[-1]
    return backends[-1]


def _choose_layouts(weights: Sequence[Weight], backend: Backend) -> None:
    """Drop optional large layouts if they would leave little memory free."""
    growing = [w for w in weights if w.grows]
    memory = backend.memory() if growing else None  # the system takes a millisecond to tell
    size = sum(w.new_bytes for w in weights)
    if memory is None or size <= (1 - _RESERVED_FRACTION) * memory[0]:
        return
    if sum(w.new_bytes for w in weights if not w.grows) <= memory[0]:
        for weight in growing:
            weight.dropped_bytes, weight.layouts = weight.new_bytes, weight.layouts[1:]


def _check_memory(
    weights: Sequence[Weight], backend: Backend, plan: WeightPlan, more: int = 0
) -> None:
    """Check that the weights of a device fit, and log the layouts that were dropped.

    Args:
        more: bytes of a cache of experts on the device.

    Raises:
        AllocError: they do not fit.
    """
    memory = backend.memory()
    if memory is None:
        return
    size, free = more + sum(w.new_bytes for w in weights), memory[0]
    dropped = [w for w in weights if w.dropped_bytes]
    if dropped:
        whole = size + sum(w.dropped_bytes for w in dropped)
        log.warning(
            "%d matrices stay in the file's layout, which is slower: repacking all would take "
            "%.2f GiB, this machine has %.2f GiB free", len(dropped), whole / 2**30, free / 2**30
        )  # fmt: skip
    if size <= free:
        return
    if backend.device.kind != "cpu":
        raise AllocError(
            f"the weights on {backend.name} need {size / 2**30:.2f} GiB, it has "
            f"{free / 2**30:.2f} GiB free; put fewer layers there (`n_gpu_layers`), or as many as "
            "fit (`n_gpu_layers=auto`)"
        )
    what = "repacking the weights" + (
        ", and deriving those of sparse layers," if plan.derived else ""
    )
    raise AllocError(
        f"{what} needs {size / 2**30:.2f} GiB, this machine has {free / 2**30:.2f} GiB free; "
        "use `repack=False` to read them in place"
    )


def _load_data(
    file: GGUFFile,
    plan: WeightPlan,
    weights: Mapping[str, Weight],
    mlock: bool,
    progress: Progress | None,
) -> dict[str, Tensor]:
    """Allocate the tensors, and fill those that do not stay in the mapped file."""
    tensors, contexts = _new_tensors(weights)
    mapped = [HostBuffer(part.data, HOST) for part in file.parts]
    for name, weight in weights.items():
        if not weight.allocated and weight.data is not None:  # derived ones are set below
            tensors[name].buffer = mapped[weight.part]
            tensors[name].data = int(weight.data.ctypes.data)
    done = 0
    total = sum(one.source.nbytes for one in plan.derived)
    total += sum(w.n_bytes for w in weights.values() if not w.in_place and w.part >= 0)
    for one in plan.derived:
        data = file.tensor_bytes(one.source.name)
        for (name, _, _), x in zip(one.tensors, one.make(data), strict=True):
            weights[name].data = x
            if weights[name].allocated:
                total += x.nbytes
            else:
                buffer = HostBuffer(x, HOST)
                tensors[name].buffer, tensors[name].data = buffer, buffer.base
        host.drop_pages(data)
        done += data.nbytes
        _report(progress, done / total)
    for buft, ctx in contexts.items():
        alloc_ctx_tensors(ctx, buft)
    for backend in {id(w.backend): w.backend for w in weights.values()}.values():
        pairs = [
            (tensors[name], w.data)
            for name, w in weights.items()
            if w.backend is backend and w.allocated and w.data is not None
        ]
        n = 0
        for n in backend.set_weights(pairs):
            _report(progress, (done + n) / total)
        done += n
    if mlock:
        _lock(tensors)
    return tensors


def _new_tensors(
    weights: Mapping[str, Weight],
) -> tuple[dict[str, Tensor], dict[BufferType, Context]]:
    """The weights as tensors without memory, and those to be allocated by buffer type."""
    contexts: dict[BufferType, Context] = {}
    tensors: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.allocated:
            ctx = contexts.setdefault(weight.layouts[0].buft, Context(no_alloc=True))
            tensor = ctx.new_tensor(weight.type, weight.ne)
        else:
            tensor = Tensor(weight.type, weight.ne)
        tensors[name] = tensor.set_name(name)
    return tensors, contexts


def parts_in_use(file: GGUFFile, weights: Mapping[str, Tensor]) -> tuple[Mapped, ...]:
    """The parts of a file that weights from ``load_weights`` are in."""
    used = {id(t.buffer.mem) for t in weights.values() if isinstance(t.buffer, HostBuffer)}
    return tuple(part for part in file.parts if id(part.data) in used)


def _report(progress: Progress | None, fraction: float) -> None:
    if progress is not None:
        progress(fraction)


def check_tensors(
    file: GGUFFile, patterns: Mapping[str, tuple[str, ...]], hparams: HParams
) -> dict[str, TensorInfo]:
    """The tensors of a file that an architecture declares, by name. Raises: ModelError."""
    infos, faults = match_tensors(file, patterns, hparams)
    faults += [
        f"tensor '{info.name}' is {info.type.name}, which has no kernels yet; "
        f"supported types: {', '.join(t.name for t in RUNNABLE)}"
        for info in infos.values()
        if info.type not in RUNNABLE and index_type(info.name) is None
    ]
    if faults:
        raise ModelError(f"{file.path}: {faults[0]}")
    return infos


def match_tensors(
    file: GGUFFile, patterns: Mapping[str, tuple[str, ...]], hparams: HParams
) -> tuple[dict[str, TensorInfo], list[str]]:
    """The tensors that an architecture declares, by name, and a message for each fault."""
    infos: dict[str, TensorInfo] = {}
    faults: list[str] = []
    patterns = {**qkv_patterns(patterns, file.tensors), **CLASSIFIER, **DENSE}
    patterns = expert_patterns(sparse_patterns(patterns, file.tensors), file)
    patterns = scale_patterns(patterns)
    whole = [(pattern, pattern, hparams) for pattern in patterns if "{i}" not in pattern]
    layers = [
        (pattern, pattern.replace("{i}", str(i)), hparams.of_layer(i))
        for i in range(hparams.n_layer)
        for pattern in patterns
        if "{i}" in pattern
    ]
    for pattern, name, sizes in layers + whole:  # in the order of use, for prefetching
        ne = tensor_sizes(sizes, patterns[pattern])
        if 0 in ne:  # a tensor that this variant does not have, such as experts
            continue
        optional, name = name.endswith("?"), name.rstrip("?")
        info = file.tensors.get(name)
        if info is not None and len(ne) == 3 and info.ne == (ne[0], ne[1] * ne[2], 1, 1):
            info = replace(info, ne=(*ne, 1))  # matrices one after the other
        if info is not None:
            faults += _size_faults(info, ne)
            infos[name] = info
        elif not optional:
            faults.append(
                f"tensor '{name}' is missing; the file is not a whole {hparams.arch} model"
            )
    drafting = tuple(f"blk.{hparams.n_layer + i}." for i in range(hparams.n_layer_nextn))
    unknown = [n for n in file.tensors if n not in infos and not n.startswith(drafting)]
    if unknown:
        faults.append(
            f"{len(unknown)} unknown tensors in a {hparams.arch} model, such as "
            f"'{unknown[0]}'; this variant is not supported"
        )
    return infos, faults + predictor_faults(infos, hparams.n_layer)


def qkv_patterns(
    patterns: Mapping[str, tuple[str, ...]], names: Container[str]
) -> dict[str, tuple[str, ...]]:
    """``patterns`` with one matrix for queries, keys and values if that is what the file has.

    Where they have one already, it is that of other layers than of attention.
    Source: llama.cpp, ``create_tensor_qkv``.
    """
    if "blk.0.attn_qkv.weight" not in names or "blk.{i}.attn_qkv.weight" in patterns:
        return dict(patterns)
    found: dict[str, tuple[str, ...]] = {}
    for pattern, sizes in patterns.items():
        if pattern.startswith("blk.{i}.attn_q."):
            found[pattern.replace("attn_q.", "attn_qkv.")] = (*sizes[:-1], "n_embd_qkv")
        elif not pattern.startswith(("blk.{i}.attn_k.", "blk.{i}.attn_v.")):
            found[pattern] = sizes
    return found


def scale_patterns(patterns: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """``patterns`` with scales of matrices, and of the inputs that their quantizer saw.

    Source: llama.cpp, ``llama_model_base::load_tensors``, the pass after the architecture's.
    """
    found: dict[str, tuple[str, ...]] = {}
    for pattern, sizes in patterns.items():
        found[pattern] = sizes
        prefix, _, end = pattern.rstrip("?").rpartition(".")
        if end == "weight" and prefix in SCALED:
            size = ("n_expert",) if prefix.endswith("_exps") else ("1",)
            found |= {f"{prefix}.{name}?": size for name in ("scale", UNREAD_SCALE)}
    return found


def _size_faults(info: TensorInfo, ne: tuple[int, ...]) -> list[str]:
    declared = (*ne, *(1,) * (4 - len(ne)))
    if not all(n == m or (m < 0 and n > 0) for n, m in zip(info.ne, declared, strict=True)):
        sizes = ", ".join(str(n) if n > 0 else ANY for n in declared)
        return [f"tensor '{info.name}' has sizes {list(info.ne)}, want [{sizes}]"]
    type = index_type(info.name)
    if type is not None and info.type is not type:
        return [f"tensor '{info.name}' is {info.type.name}, want {type.name} for indices"]
    if type is None and len(ne) == 1 and info.type is not GGMLType.F32:
        return [f"tensor '{info.name}' is {info.type.name}, want F32 for a vector"]
    return []


def check_data(file: GGUFFile, progress: Progress | None = None) -> Iterator[str]:
    """Messages for the tensors with NaN, infinity or an illegal scale.

    The weights are read once, a few megabytes at a time.
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
    """Sizes in ne order from an architecture's ``TENSORS``; -1 for any.

    A name is a field of ``HParams``, a product with it, or a part: ``2*n_ff``, ``n_rot/2``.

    Args:
        hparams: ``of_layer(i)`` for a tensor of a layer.
    """

    def size(name: str) -> int:
        if name == ANY:
            return -1
        product, _, divisor = name.partition("/")
        factors = (int(x) if x.isdigit() else hparams.size(x) for x in product.split("*"))
        return math.prod(factors) // int(divisor or 1)

    return tuple(size(name) for name in names)


def _lock(weights: Mapping[str, Tensor]) -> None:
    for buffer in {id(t.buffer): t.buffer for t in weights.values()}.values():
        assert buffer is not None
        problem = buffer.lock()
        if problem:
            log.warning("cannot lock %d bytes of weights: %s", buffer.size, problem)
