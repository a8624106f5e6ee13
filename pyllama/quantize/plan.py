"""What a quantized file will hold, before anything is written.

    with GGUFFile("x.gguf") as file:
        plan = make_plan(file, find_file_type("Q4_K_M"), Options())
        plan.nbytes, plan.bits_per_weight

Everything that can be refused is refused here. Nothing but the header is read.
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
from .file_types import FileType, can_read, can_write
from .importance import Floats, Importance
from .mixes import Sizes
from .rules import Choice, Wishes, choose_types

_LAYER = re.compile(r"blk\.(\d+)\.")
_QNT_VERSION = 2  # of ggml's formats
_FILE_TYPE = "general.file_type"
_F32 = GGMLType.F32


@dataclass(frozen=True)
class Options:
    """How to quantize.

    Attributes:
        allow_requantize: take tensors that are quantized already.
        keep_split: write as many parts as the source has.
        prune_layers: layers to leave out.
        overrides: metadata in place of the source's.
        importance: the importance matrix; imatrix_file: its name, for the metadata.
        n_threads: None for one a core.
        wishes: of types.
    """

    allow_requantize: bool = False
    keep_split: bool = False
    prune_layers: frozenset[int] = frozenset()
    overrides: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    importance: Importance | None = None
    imatrix_file: str = ""
    n_threads: int | None = None
    wishes: Wishes = field(default_factory=Wishes)


@dataclass(frozen=True)
class Planned:
    """A tensor of the new file.

    Attributes:
        source: in the old file.
        name: in the new one.
        type: in the new one; wanted: what it would have been if its rows filled blocks.
        weights: float32, importance by expert and column; None where there is none.
    """

    source: TensorInfo
    name: str
    type: GGMLType
    wanted: GGMLType
    weights: Floats | None = None
    needs_imatrix: bool = False

    @property
    def nbytes(self) -> int:
        """Of the data in the new file."""
        ne = self.source.ne
        return row_size(self.type, ne[0]) * ne[1] * ne[2] * ne[3]


@dataclass(frozen=True)
class Plan:
    """A new file.

    Attributes:
        tensors: in the order that they are written.
        metadata: as ``write_gguf`` takes it, without what says that the file is a part.
        without_weights: matrices to be quantized that the importance matrix does not have.
        n_threads: to convert with; None for one a core.
    """

    file: GGUFFile
    file_type: FileType
    tensors: tuple[Planned, ...]
    metadata: Mapping[str, Any]
    without_weights: tuple[str, ...] = ()
    n_threads: int | None = None

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(t.nbytes for t in self.tensors)

    @property
    def source_nbytes(self) -> int:
        """Of the same tensors in the source."""
        return sum(t.source.nbytes for t in self.tensors)

    @property
    def n_elements(self) -> int:
        """Numbers in all tensors."""
        return sum(t.source.n_elements for t in self.tensors)

    @property
    def fallbacks(self) -> list[Planned]:
        """Tensors whose rows do not fill the blocks of the type that they should have."""
        return [t for t in self.tensors if t.type is not t.wanted]


def read_sizes(file: GGUFFile) -> Sizes:
    """What the choice of types wants to know. Raises: GGUFError: a key is missing or wrong."""
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
    """A number, or the first layer's of an array."""
    value = file.metadata.get(key)
    if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu":
        return int(value[0])
    return file.get_int(key, default)


def make_plan(file: GGUFFile, file_type: FileType, options: Options) -> Plan:
    """Decide on every tensor.

    Raises:
        ModelError: a tensor is quantized already, would need an importance matrix, or a type that
        cannot be written; a layer to prune is not there. GGUFError: the file's metadata is wrong.
    """
    file.override(options.overrides)
    sizes = read_sizes(file) if file_type.type is not None or options.prune_layers else None
    tensors = _ordered(file, options.keep_split)
    names = _names(file, tensors, options.prune_layers)
    kept = [replace(t, name=names[t.name]) for t in tensors if t.name in names]
    sources = {names[t.name]: t for t in tensors if t.name in names}
    choices: dict[str, Choice] = {}
    if file_type.type is not None:
        assert sizes is not None
        wishes = replace(
            options.wishes,
            imatrix=options.importance is not None,
            powerinfer=file.magic != MAGIC,
        )
        choices = choose_types(kept, file_type, sizes, wishes)
    planned = [_planned(sources[t.name], t.name, choices.get(t.name), options) for t in kept]
    lacking = [t.name for t in planned if _changes(t) and t.weights is None]
    return Plan(
        file,
        file_type,
        tuple(planned),
        _metadata(file, file_type, options, len(_layers(names.values()))),
        tuple(lacking) if options.importance is not None else (),
        options.n_threads,
    )


def check_plan(plan: Plan, options: Options) -> None:
    """That the plan can be carried out. Raises: ModelError: it cannot; see ``make_plan``."""
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
            raise ModelError(f"{where} is {t.source.type.name}, which holds no weights to convert")
        if not can_write(t.type):
            raise ModelError(
                f"{where} would become {t.type.name}, which can be read here but not written; "
                "choose another type, such as Q2_K or IQ4_XS"
            )
        if t.needs_imatrix and t.weights is None:
            raise ModelError(
                f"{where} would become {t.type.name}, which is garbage without an importance "
                "matrix of it: give one with `imatrix` (pyllama-imatrix makes it)"
            )


def _changes(planned: Planned) -> bool:
    return planned.type is not planned.source.type


def _ordered(file: GGUFFile, keep_split: bool) -> list[TensorInfo]:
    """llama.cpp's order: by layer and name, or as they lie where parts are kept."""
    if keep_split:
        return sorted(file.tensors.values(), key=lambda t: (t.part, t.offset))

    def key(tensor: TensorInfo) -> tuple[int, bytes]:
        match = _LAYER.match(tensor.name)
        return int(match[1]) if match else -1, tensor.name.encode()

    return sorted(file.tensors.values(), key=key)


def _layers(names: Any) -> list[int]:
    return sorted({int(match[1]) for match in map(_LAYER.search, names) if match})


def _names(file: GGUFFile, tensors: list[TensorInfo], prune: frozenset[int]) -> dict[str, str]:
    """Old name -> new name, of the tensors that stay."""
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


def _planned(source: TensorInfo, name: str, choice: Choice | None, options: Options) -> Planned:
    if choice is None:
        return Planned(source, name, source.type, source.type)
    planned = Planned(source, name, choice.type, choice.wanted, needs_imatrix=choice.needs_imatrix)
    if options.importance is None or choice.type is source.type:
        return planned
    weights = options.importance.weights(source.name)
    if weights is None:
        return planned
    n = source.ne[0] * source.ne[2]
    if weights.size == n:
        return replace(planned, weights=weights)
    if name.endswith("token_embd.weight"):
        return planned  # of tied embeddings the inputs of the output are no use for the other use
    raise ModelError(
        f"the importance matrix of {source.name!r} has {weights.size} columns, the tensor {n}: it "
        "was made from another model"
    )


def _metadata(
    file: GGUFFile, file_type: FileType, options: Options, n_layer: int
) -> dict[str, Any]:
    """As llama-quantize writes it, in its order: what it sets goes to the end."""
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
    """The number of layers, and arrays that have a value for each of them."""
    arch = file.get_str("general.architecture")
    count = f"{arch}.block_count"
    old = file.get_int(count)
    keys: dict[str, Any] = {count: np.uint32(n_layer)}
    for key, value in metadata.items():
        per_layer = isinstance(value, np.ndarray) and value.size == old
        if per_layer and key.startswith(f"{arch}."):
            keys[key] = np.delete(value, sorted(prune))
    return keys
