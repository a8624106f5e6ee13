"""Plans the content of a quantized file before anything is written.

    with GGUFFile("x.gguf") as file:
        plan = make_plan(file, find_file_type("Q4_K_M"), Options())
        plan.nbytes, plan.bits_per_weight

All checks are made here. Only the header is read.
Source: llama.cpp, ``llama_model_quantize_impl``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pyggml.dtype import GGMLType, row_size
from pyggml.gguf import GGUFFile, TensorInfo, whole_metadata
from pyggml.gguf.magic import MAGIC

from ..errors import ModelError
from ..file_types import FileType, can_read, can_write
from .importance import Floats, Importance
from .mixes import Sizes
from .rules import TypeChoice, TypeOverrides, choose_types

_LAYER = re.compile(r"blk\.(\d+)\.")
_QNT_VERSION = 2  # GGML_QNT_VERSION
_FILE_TYPE = "general.file_type"
_F32 = GGMLType.F32


@dataclass(frozen=True)
class QuantizeOptions:
    """Options of quantization.

    Attributes:
        allow_requantize: requantize tensors that are already quantized.
        keep_split: write as many parts as the source has.
        prune_layers: layers to remove.
        overrides: metadata that replaces the source's.
        importance: the importance matrix.
        imatrix_file: file name of the importance matrix, for the metadata.
        n_threads: None: one per core.
        type_overrides: types that replace those of the mix.
    """

    allow_requantize: bool = False
    keep_split: bool = False
    prune_layers: frozenset[int] = frozenset()
    overrides: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    importance: Importance | None = None
    imatrix_file: str = ""
    n_threads: int | None = None
    type_overrides: TypeOverrides = field(default_factory=TypeOverrides)


@dataclass(frozen=True)
class QuantizedTensor:
    """A tensor of the new file.

    Attributes:
        source: the tensor in the source file.
        name: name in the new file.
        type: type in the new file.
        requested: the type chosen first; differs if the row size is no multiple of its block size.
        weights: float32, importance by expert and column, or None.
        needs_imatrix: whether the type needs ``weights``.
    """

    source: TensorInfo
    name: str
    type: GGMLType
    requested: GGMLType
    weights: Floats | None = None
    needs_imatrix: bool = False

    @property
    def nbytes(self) -> int:
        """Size of the data in the new file."""
        ne = self.source.ne
        return row_size(self.type, ne[0]) * ne[1] * ne[2] * ne[3]


@dataclass(frozen=True)
class QuantizePlan:
    """The content of the new file.

    Attributes:
        tensors: in the order of writing.
        metadata: for ``write_gguf``, without ``split.*`` keys.
        without_weights: matrices to quantize that are missing in the importance matrix.
        n_threads: None: one per core.
    """

    file: GGUFFile
    file_type: FileType
    tensors: tuple[QuantizedTensor, ...]
    metadata: Mapping[str, Any]
    without_weights: tuple[str, ...] = ()
    n_threads: int | None = None

    @property
    def nbytes(self) -> int:
        """Size of all tensors in the new file."""
        return sum(t.nbytes for t in self.tensors)

    @property
    def source_nbytes(self) -> int:
        """Size of the same tensors in the source."""
        return sum(t.source.nbytes for t in self.tensors)

    @property
    def n_elements(self) -> int:
        """Number of elements of all tensors."""
        return sum(t.source.n_elements for t in self.tensors)

    @property
    def fallbacks(self) -> list[QuantizedTensor]:
        """Tensors whose row size is no multiple of the requested type's block size."""
        return [t for t in self.tensors if t.type is not t.requested]


def read_sizes(file: GGUFFile) -> Sizes:
    """Return the model's sizes that decide on types. Raises: GGUFError: a key is invalid."""
    arch = file.get_str("general.architecture")
    n_head = _first(file, f"{arch}.attention.head_count", 0)
    return Sizes(
        arch,
        file.get_int(f"{arch}.block_count"),
        n_head,
        _first(file, f"{arch}.attention.head_count_kv", n_head),
        file.get_int(f"{arch}.expert_count", 0),
    )


def _first(file: GGUFFile, key: str, default: int) -> int:
    """Return a number, or the first element of a per-layer array."""
    value = file.metadata.get(key)
    if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu":
        return int(value[0])
    return file.get_int(key, default)


def make_plan(file: GGUFFile, file_type: FileType, options: QuantizeOptions) -> QuantizePlan:
    """Return the plan: the type of every tensor, and the metadata.

    Raises:
        ModelError: a layer to prune does not exist, or the importance matrix is of another model.
        GGUFError: the file's metadata is invalid.
    """
    file.override(options.overrides)
    sizes = read_sizes(file) if file_type.type is not None or options.prune_layers else None
    tensors = _ordered(file, options.keep_split)
    names = _names(file, tensors, options.prune_layers)
    kept = [replace(t, name=names[t.name]) for t in tensors if t.name in names]
    sources = {names[t.name]: t for t in tensors if t.name in names}
    choices: dict[str, TypeChoice] = {}
    if file_type.type is not None:
        assert sizes is not None
        type_overrides = replace(
            options.type_overrides,
            imatrix=options.importance is not None,
            powerinfer=file.magic != MAGIC,
        )
        choices = choose_types(kept, file_type, sizes, type_overrides)
    planned = [_planned(sources[t.name], t.name, choices.get(t.name), options) for t in kept]
    lacking = [t.name for t in planned if _changes(t) and t.weights is None]
    return QuantizePlan(
        file,
        file_type,
        tuple(planned),
        _metadata(file, file_type, options, len(_layers(names.values()))),
        tuple(lacking) if options.importance is not None else (),
        options.n_threads,
    )


def check_plan(plan: QuantizePlan, options: QuantizeOptions) -> None:
    """Check that a plan can be carried out.

    Raises:
        ModelError: a tensor is already quantized, cannot be read or written, or needs an importance
            matrix.
    """
    path = plan.file.path
    for t in plan.tensors:
        if not _changes(t):
            continue
        where = f"{path}: tensor {t.name!r}"
        if t.source.type.is_quantized and not options.allow_requantize:
            raise ModelError(
                f"{where} is {t.source.type.name} already: quantize from F16, BF16 or F32, or "
                "allow a loss of quality with `allow_requantize=True`"
            )
        if not can_read(t.source.type):
            raise ModelError(f"{where} is {t.source.type.name}, which cannot be converted")
        if not can_write(t.type):
            raise ModelError(
                f"{where} would become {t.type.name}, which can be read here but not written; "
                "choose another type, such as Q2_K or IQ4_XS"
            )
        if t.needs_imatrix and t.weights is None:
            raise ModelError(
                f"{where} would become {t.type.name}, which is garbage without an importance "
                "matrix: give one with `imatrix` (pyllama-imatrix computes it)"
            )


def _changes(planned: QuantizedTensor) -> bool:
    return planned.type is not planned.source.type


def _ordered(file: GGUFFile, keep_split: bool) -> list[TensorInfo]:
    """Return the tensors in llama.cpp's order (layer, name), or in file order to keep parts."""
    if keep_split:
        return sorted(file.tensors.values(), key=lambda t: (t.part, t.offset))

    def key(tensor: TensorInfo) -> tuple[int, bytes]:
        match = _LAYER.match(tensor.name)
        return int(match[1]) if match else -1, tensor.name.encode()

    return sorted(file.tensors.values(), key=key)


def _layers(names: Any) -> list[int]:
    return sorted({int(match[1]) for match in map(_LAYER.search, names) if match})


def _names(file: GGUFFile, tensors: list[TensorInfo], prune: frozenset[int]) -> dict[str, str]:
    """Return old name -> new name of the tensors that are kept."""
    if not prune:
        return {t.name: t.name for t in tensors}
    layers = _layers(t.name for t in tensors)
    missing = sorted(prune - set(layers))
    if missing:
        raise ModelError(
            f"{file.path}: layer {missing[0]} cannot be pruned: there is no such layer"
        )
    number = {old: new for new, old in enumerate(i for i in layers if i not in prune)}
    if not number:
        raise ModelError(f"{file.path}: all {len(layers)} layers would be pruned; keep one")
    names = {}
    for t in tensors:
        match = _LAYER.search(t.name)
        if match is None:
            names[t.name] = t.name
        elif int(match[1]) in number:
            start, end = match.span(1)
            names[t.name] = f"{t.name[:start]}{number[int(match[1])]}{t.name[end:]}"
    return names


def _planned(
    source: TensorInfo, name: str, choice: TypeChoice | None, options: QuantizeOptions
) -> QuantizedTensor:
    if choice is None:
        return QuantizedTensor(source, name, source.type, source.type)
    planned = QuantizedTensor(
        source, name, choice.type, choice.requested, needs_imatrix=choice.needs_imatrix
    )
    if options.importance is None or choice.type is source.type:
        return planned
    weights = options.importance.weights(source.name)
    if weights is None:
        return planned
    n = source.ne[0] * source.ne[2]
    if weights.size == n:
        return replace(planned, weights=weights)
    if name.endswith("token_embd.weight"):
        return planned  # tied embeddings: the sums are those of the output matrix's inputs
    raise ModelError(
        f"the importance matrix has {weights.size} columns for {source.name!r}, the tensor {n}: it "
        "belongs to another model"
    )


def _metadata(
    file: GGUFFile, file_type: FileType, options: QuantizeOptions, n_layer: int
) -> dict[str, Any]:
    """Return the metadata in llama-quantize's order: changed keys at the end."""
    metadata = whole_metadata(file)
    formats: dict[str, Any] = {"general.quantization_version": np.uint32(_QNT_VERSION)}
    if file_type.number is not None:
        formats[_FILE_TYPE] = np.uint32(file_type.number)
    elif _FILE_TYPE in metadata:
        formats[_FILE_TYPE] = metadata[_FILE_TYPE]
    changes = [formats, {key: metadata[key] for key in options.overrides if key in metadata}]
    if options.importance is not None:
        changes.append(_imatrix_keys(options.importance, options.imatrix_file))
    if options.prune_layers:
        changes.append(_pruned_keys(file, metadata, options.prune_layers, n_layer))
    for change in changes:
        metadata = {k: v for k, v in metadata.items() if k not in change} | change
    return metadata


def _imatrix_keys(importance: Importance, name: str) -> dict[str, Any]:
    keys: dict[str, Any] = {"quantize.imatrix.file": name}
    if importance.datasets:
        keys["quantize.imatrix.dataset"] = importance.datasets[0]
    keys["quantize.imatrix.entries_count"] = np.uint32(len(importance.entries))
    if importance.n_chunks > 0:
        keys["quantize.imatrix.chunks_count"] = np.uint32(importance.n_chunks)
    return keys


def _pruned_keys(
    file: GGUFFile, metadata: Mapping[str, Any], prune: frozenset[int], n_layer: int
) -> dict[str, Any]:
    """Return the keys that depend on the number of layers: the count and per-layer arrays."""
    arch = file.get_str("general.architecture")
    count = f"{arch}.block_count"
    old = file.get_int(count)
    keys: dict[str, Any] = {count: np.uint32(n_layer)}
    for key, value in metadata.items():
        per_layer = isinstance(value, np.ndarray) and value.size == old
        if per_layer and key.startswith(f"{arch}."):
            keys[key] = np.delete(value, sorted(prune))
    return keys
