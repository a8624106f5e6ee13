"""Merges LoRA adapters into the matrices of a model file.

    merge_lora("base.gguf", [("a.gguf", 1.0), ("b.gguf", 0.5)], "merged.gguf", "f16")

``W + sum of scale alpha / rank B A`` is computed in float32, one matrix at a time; other tensors
and the metadata are copied.
Source: llama.cpp, ``llama-export-lora``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyggml.dtype import GGMLType
from pyggml.files import replacing
from pyggml.gguf import GGUFFile, TensorInfo, write_gguf
from pyggml.quants import dequantize, quantize

from ..errors import ModelError
from ..graph.adapters import EMBEDDING, Floats, LowRank
from ..runtime.adapters import check_scale, load_lora
from ..runtime.model import Model

KEEP = "keep"


def merge_lora(
    model: str | os.PathLike[str],
    loras: Sequence[tuple[str | os.PathLike[str], float]],
    outfile: str | os.PathLike[str],
    outtype: str = "f16",
    progress: Callable[[float], None] | None = None,
) -> int:
    """Write a model with some adapters merged; returns the number of changed matrices.

    Args:
        loras: the adapters and their factors.
        outtype: type of the changed matrices by ggml's name, or ``keep``.

    Raises:
        ModelError: an adapter is not of this model, the type is unknown, or ``outfile`` is read.
        GGUFError: a file cannot be read or written.
        QuantizeError: a matrix cannot have the type.
    """
    names = {type.name.lower(): type for type in GGMLType}
    if outtype != KEEP and outtype.lower() not in names:
        raise ModelError(f"outtype is {outtype!r}, want a type such as f16, q8_0, or {KEEP}")
    with Model.load(model) as loaded:
        adapters = [(load_lora(path, loaded), check_scale(x, str(path))) for path, x in loras]
    file, target = GGUFFile(model), Path(outfile)
    for source in (*(part.path for part in file.parts), *(path for path, _ in loras)):
        if target.exists() and target.samefile(source):
            raise ModelError(f"{target}: is a source; choose another name for the new file")
    changes: dict[str, list[tuple[LowRank, float]]] = {}
    for adapter, scale in adapters:
        for name, term in adapter.terms.items():
            changes.setdefault(name, []).append((term, scale * term.gain))
    sources = {name: name for name in file.tensors}
    if "output.weight" in changes and "output.weight" not in sources:  # no longer tied
        sources["output.weight"] = EMBEDDING
    elif EMBEDDING in changes and "output.weight" not in sources:
        raise ModelError(
            f"{file.path}: the output matrix is tied to the embeddings, of which the adapter "
            "changes one: apply it at run time"
        )
    done, total = 0, sum(info.nbytes for info in file.tensors.values())

    def kind_of(name: str) -> GGMLType:
        info = file.tensors[sources[name]]
        return info.type if outtype == KEEP or name not in changes else names[outtype.lower()]

    def data(name: str) -> Iterator[npt.NDArray[np.uint8]]:
        nonlocal done
        info = file.tensors[sources[name]]
        if name in changes:
            x = dequantize(file.tensor_bytes(info.name), info.type)
            x = _merged(name, x.reshape(_sizes(info)[::-1]), changes[name], _scale(file, name))
            yield quantize(x, kind_of(name)).reshape(-1)
        else:
            yield from file.chunks(info.name)
        done += info.nbytes
        if progress is not None:
            progress(done / total)

    metadata = file.typed_metadata()
    if outtype != KEEP and outtype.lower() in ("f32", "f16", "bf16", "q8_0"):
        metadata["general.file_type"] = np.uint32({"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}[
            outtype.lower()
        ])  # fmt: skip
    tensors = {
        name: (data(name), kind_of(name), _sizes(file.tensors[source]))
        for name, source in sources.items()
    }
    with replacing(target) as temporary:
        write_gguf(temporary, metadata, tensors)
    return len(changes)


def _sizes(info: TensorInfo) -> tuple[int, ...]:
    n_dims: int = info.n_dims
    return tuple(info.ne[:n_dims])


def _scale(file: GGUFFile, name: str) -> Floats:
    """What the products with a matrix are multiplied by: one number, or one for each expert."""
    scale = file.tensors.get(f"{name.removesuffix('.weight')}.scale")
    if scale is None:
        return np.ones(1, np.float32)
    return file.tensor_bytes(scale.name).view(np.float32)


def _merged(
    name: str, x: Floats, changes: Sequence[tuple[LowRank, float]], scale: Floats
) -> Floats:
    """A tensor with its changes. Experts may be transposed."""
    scale = scale.reshape(-1, *(1,) * (x.ndim - 1)) if scale.size > 1 else scale
    for term, factor in changes:
        assert term.a is not None
        a, b = term.a.astype(np.float32), term.b.astype(np.float32)
        if name == EMBEDDING:
            a, b = b.T, a  # [rank, n_embd] and [n_vocab, rank]
        change = b @ a
        if change.shape != x.shape:
            change = change.swapaxes(-1, -2)
        x = x + np.float32(factor) * change / scale
    return x
