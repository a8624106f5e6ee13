"""Quantizes a GGUF file: reads, converts and writes a few megabytes at a time.

    plan = quantize_model("x.gguf", "y.gguf", find_file_type("Q4_K_M"), Options(), progress=bar)
    f"{plan.nbytes / 2**20:.2f} MiB"

The new file is written atomically, and never replaces the source.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.dtype import GGMLType, row_size
from pyggml.errors import GGUFError, QuantizeError
from pyggml.files import replacing
from pyggml.gguf import GGUFFile, write_gguf
from pyggml.gguf.parts import SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS, part_path
from pyggml.gguf.split import progress_of
from pyggml.host import default_threads
from pyggml.quants import dequantize, quantize
from pyggml.quants.validity import count_invalid

from ..errors import ModelError
from ..file_types import FileType
from .plan import QuantizedTensor, QuantizeOptions, QuantizePlan, check_plan, make_plan

_CHUNK = 1 << 21  # elements converted at a time
_F16_MAX = 65504.0
Progress = Callable[[float], None]
Floats = npt.NDArray[np.float32]


def quantize_model(
    source: str | os.PathLike[str],
    outfile: str | os.PathLike[str] | None,
    file_type: FileType,
    options: QuantizeOptions | None = None,
    progress: Progress | None = None,
) -> QuantizePlan:
    """Quantize a file, or all parts of a split model.

    Args:
        outfile: the new file; None: only plan. With ``keep_split`` the prefix of the parts' names,
            with or without ``.gguf``.
        progress: called with the completed fraction.

    Returns:
        The plan; its file is closed.

    Raises:
        ModelError: as ``make_plan`` and ``check_plan``; or a value does not fit the new type.
        GGUFError: a file cannot be read or written.
    """
    options = options or QuantizeOptions()
    options = replace(options, n_threads=options.n_threads or default_threads())
    with GGUFFile(source) as file:
        plan = make_plan(file, file_type, options)
        if outfile is None:
            return plan
        check_plan(plan, options)
        paths = _paths(plan, Path(outfile), options.keep_split)
        for path in paths:
            if any(path.exists() and path.samefile(part.path) for part in file.parts):
                raise ModelError(f"{path}: is the source; choose another name for the new file")
        if len(paths) == 1:
            _write(plan, paths[0], plan.tensors, plan.metadata, progress)
        else:
            _write_parts(plan, paths, progress)
    return plan


def _paths(plan: QuantizePlan, outfile: Path, keep_split: bool) -> list[Path]:
    count = len(plan.file.parts)
    if not keep_split or count == 1:
        return [outfile]
    prefix = outfile.with_name(outfile.name.removesuffix(".gguf"))
    return [part_path(prefix, i, count) for i in range(count)]


def _write_parts(plan: QuantizePlan, paths: list[Path], progress: Progress | None) -> None:
    """Write all parts, or none."""
    total, before = plan.nbytes or 1, 0.0
    try:
        with contextlib.ExitStack() as stack:
            for i, path in enumerate(paths):
                tensors = tuple(t for t in plan.tensors if t.source.part == i)
                own = {
                    SPLIT_NO: np.uint16(i),
                    SPLIT_COUNT: np.uint16(len(paths)),
                    SPLIT_TENSORS: np.int32(len(plan.tensors)),
                }
                share = sum(t.nbytes for t in tensors) / total
                temporary = stack.enter_context(replacing(path))
                metadata = {**plan.metadata, **own} if i == 0 else own
                _write(plan, temporary, tensors, metadata, progress_of(progress, before, share))
                before += share
    except OSError as error:
        raise GGUFError(f"{paths[0]}: cannot be written: {error.strerror or error}") from error


def _write(
    plan: QuantizePlan,
    path: Path,
    tensors: tuple[QuantizedTensor, ...],
    metadata: Any,
    progress: Progress | None,
) -> None:
    data = {t.name: (_pieces(plan, t), t.type, t.source.ne[: t.source.n_dims]) for t in tensors}
    write_gguf(path, metadata, data, arch=None, magic=plan.file.magic, progress=progress)


def _pieces(plan: QuantizePlan, planned: QuantizedTensor) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes of a tensor in its new type, converted lazily."""
    file, source = plan.file, planned.source
    if source.type is planned.type:
        for piece in file.chunks(source.name):
            _check_finite(file, planned, piece)
            yield piece
        return
    if not source.n_elements:  # avoids a division by a row size of 0
        return
    n, row = source.ne[0], row_size(source.type, source.ne[0])
    done = 0
    for piece in file.chunks(source.name, _CHUNK // n * row, unit=row):
        if not planned.type.is_quantized:
            _check_finite(file, planned, piece)
        rows = dequantize(piece.reshape(-1, row), source.type, n_threads=plan.n_threads)
        for part, weights in _by_expert(planned, rows, done):
            yield _convert(plan, planned, part, weights)
        done += len(rows)


def _by_expert(
    planned: QuantizedTensor, rows: Floats, first: int
) -> Iterator[tuple[Floats, Floats | None]]:
    """Yield the rows of each expert with its weights; ``first`` is the index of the first row."""
    if planned.weights is None:
        yield rows, None
        return
    _, n_rows, n_experts, _ = planned.source.ne
    end, i = first + len(rows), first
    while i < end:
        stop = min(end, (i // n_rows + 1) * n_rows)
        weights = planned.weights.reshape(n_experts, -1)[i // n_rows % n_experts]
        yield rows[i - first : stop - first], weights
        i = stop


def _convert(
    plan: QuantizePlan, planned: QuantizedTensor, rows: Floats, weights: Floats | None
) -> npt.NDArray[np.uint8]:
    where = f"{plan.file.path}: tensor {planned.source.name!r}"
    if planned.type is GGMLType.F16:
        peak = np.abs(rows).max(initial=0)
        if peak > _F16_MAX:
            raise ModelError(f"{where} has values up to {peak:.3g}, too large for F16: use BF16")
    try:
        return quantize(rows, planned.type, weights, n_threads=plan.n_threads)
    except QuantizeError as error:
        raise ModelError(f"{where}: {error}") from None


def _check_finite(file: GGUFFile, planned: QuantizedTensor, piece: npt.NDArray[np.uint8]) -> None:
    n_bad, _ = count_invalid(piece, planned.source.type)
    if n_bad:
        raise ModelError(
            f"{file.path}: tensor {planned.source.name!r} has {n_bad} NaN or infinite values; "
            "repair the source"
        )
