"""Weights from a GGUF file into buffers: repacked for speed, or as they lie in the mapped file.

    weights = load_weights(file, arch.TENSORS, hparams, backend)

Matrices that matmuls read go to the repacked buffer, if their format has an interleaved layout;
everything else, and all of it with ``repack=False``, stays in the file's pages. What sparse layers
need and the file does not have is made of what it has. Names, types and sizes are checked before
anything is allocated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from pyggml import host
from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.cpu.buffer import REPACK, RepackBuffer
from pyggml.backend.cpu.codec import DECODED
from pyggml.backend.cpu.layout import INTERLEAVED, ROWS, block_bytes
from pyggml.backend.cpu.repack import repack as repack_tensors
from pyggml.buffer import HOST, HostBuffer
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError
from pyggml.gguf import GGUFFile, TensorInfo
from pyggml.quants.validity import count_invalid
from pyggml.tensor import Dims, Tensor

from .errors import ModelError
from .hparams import HParams
from .sparsity.weights import ANY, Bytes, plan_weights, predictor_faults, sparse_patterns

log = logging.getLogger(__name__)
Progress = Callable[[float], None]
RUNNABLE = tuple(dict.fromkeys([*INTERLEAVED, *map(GGMLType, DECODED)]))  # types of weights


def load_weights(
    file: GGUFFile,
    patterns: Mapping[str, tuple[str, ...]],
    hparams: HParams,
    backend: CpuBackend,
    *,
    repack: bool = True,
    mlock: bool = False,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """The weights by name, in buffers that they keep alive.

    Raises:
        ModelError: a tensor is missing, unknown, of a wrong size or a type without kernels.
        AllocError: no memory for the repacked copy.
    """
    infos = check_tensors(file, patterns, hparams)
    plan = plan_weights(infos, hparams)
    infos = {name: info for name, info in infos.items() if name not in plan.unread}
    made = plan.made_sizes
    matrices = {n: t.nbytes for n, t in infos.items() if _is_matrix(t)} | made
    plain = {n for n, t in infos.items() if t.type not in INTERLEAVED} | {*plan.by_rows}
    repacked = {n: size for n, size in matrices.items() if repack and n not in plain}
    repacked = _that_fit(repacked, infos, made)
    ctx, weights = Context(no_alloc=True), {}
    sources: list[tuple[Tensor, Bytes]] = []  # of what is repacked

    def place(name: str, type: GGMLType, ne: Dims, data: Bytes, buffer: HostBuffer) -> None:
        if name in repacked:
            weights[name] = ctx.new_tensor(type, ne).set_name(name)
            sources.append((weights[name], data))
        else:
            weights[name] = tensor = Tensor(type, ne).set_name(name)
            tensor.buffer, tensor.data = buffer, int(data.ctypes.data)

    mapped = [HostBuffer(part.data, HOST) for part in file.parts]
    for name, info in infos.items():
        place(name, info.type, info.ne, file.tensor_bytes(name), mapped[info.part])
    done, total = 0, sum(one.source.nbytes for one in plan.made) + sum(repacked.values())
    for one in plan.made:
        data = file.tensor_bytes(one.source.name)
        for (name, type, ne), x in zip(one.tensors, one.make(data), strict=True):
            place(name, type, ne, x, HostBuffer(x, HOST))
        host.drop_pages(data)
        done += data.nbytes
        _tell(progress, done / total)
    if sources:
        alloc_ctx_tensors(ctx, REPACK)
        for n in repack_tensors(backend, sources):
            _tell(progress, (done + n) / total)
    if mlock:
        _lock(weights)
    return weights


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
    patterns = sparse_patterns(patterns, file.tensors)
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
    return infos, faults + predictor_faults(infos, hparams.n_layer)


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


def _is_matrix(info: TensorInfo) -> bool:
    return any(n > 1 for n in info.ne[1:])  # a vector may be written with sizes of 1


def _growth(type: GGMLType) -> float:
    """How large a block is repacked, compared to the file."""
    return block_bytes(type) / (ROWS * type.type_size)


def _that_fit(
    repacked: dict[str, int], infos: Mapping[str, TensorInfo], made: Mapping[str, int]
) -> dict[str, int]:
    """What of these is repacked: formats that grow stay where they leave no fifth of memory free.

    Raises:
        AllocError: that is not enough.
    """
    copies = {n: REPACK.alloc_size(Tensor(t.type, t.ne)) for n, t in infos.items() if n in repacked}
    sizes, have = {**made, **copies}, host.available_memory()
    size = sum(sizes.values())
    growing = {n for n in copies if _growth(infos[n].type) > 1.1}
    if have is None or size <= (0.8 if growing else 1) * have:
        return repacked
    if sum(n_bytes for n, n_bytes in sizes.items() if n not in growing) <= have:
        log.warning(
            "%d matrices stay as they are in the file, which is slower: repacking all takes "
            "%.2f GiB, this machine has %.2f GiB free", len(growing), size / 2**30, have / 2**30
        )  # fmt: skip
        return {n: n_bytes for n, n_bytes in repacked.items() if n not in growing}
    what = "repacking the weights" + (", and making those of sparse layers," if made else "")
    raise AllocError(
        f"{what} needs {size / 2**30:.2f} GiB, this machine has {have / 2**30:.2f} GiB free; "
        "use --no-repack (repack=False) to read them in place"
    )


def _lock(weights: Mapping[str, Tensor]) -> None:
    for buffer in {id(t.buffer): t.buffer for t in weights.values()}.values():
        assert isinstance(buffer, (HostBuffer, RepackBuffer))
        memory = buffer.memory if isinstance(buffer, RepackBuffer) else buffer.mem
        problem = host.lock_memory(memory)
        if problem:
            log.warning("cannot lock %d bytes of weights: %s", memory.nbytes, problem)
