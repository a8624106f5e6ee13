"""Validates a GGUF file without running it.

    report = validate("x.gguf")
    report.faults                                  # a line each; empty: none found

Checks the container (alignment, types, offsets, sizes), the vocabulary, the shapes of the tensors
against the architecture, and the weights: NaN, infinity, invalid scales of blocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from pyggml.errors import PyggmlError
from pyggml.gguf import GGUFError, GGUFFile

from ..arch import arch_of
from ..errors import ModelError
from ..graph.sparse.weights import normalize_powerinfer_metadata
from ..hparams_reader import read_hparams
from ..runtime.loader import Progress, check_data, match_tensors

_TOKENS = "tokenizer.ggml.tokens"


@dataclass
class Report:
    """The result of a validation.

    Attributes:
        faults: descriptions of the faults.
        notes: checks that were skipped, and why; values that are ignored when a model is loaded.
        n_tensors: number of tensors whose weights were read.
    """

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    n_tensors: int = 0


def validate(path: str | os.PathLike[str], progress: Progress | None = None) -> Report:
    """Check a file, or all parts of a split model, and return a report; weights are read once."""
    report = Report()
    try:
        file = GGUFFile(path)
    except GGUFError as error:  # nothing else can be read after a fault of the container
        report.faults.append(str(error))
        return report
    with file:
        report.n_tensors = len(file.tensors)
        checks = (
            _vocabulary(file, report.notes),
            _architecture(file, report.notes),
            check_data(file, progress),
        )
        for check in checks:
            try:
                report.faults += check
            except PyggmlError as error:  # metadata of a wrong type; continue with other checks
                report.faults.append(str(error).removeprefix(f"{path}: "))
    return report


def _vocabulary(file: GGUFFile, notes: list[str]) -> Iterator[str]:
    """Yield faults: arrays that are not as long as the tokens, ids that are none.

    Ids out of range are noted: converters write -1 for a token that a model does not have.
    """
    if _TOKENS not in file.metadata:
        return
    n = len(file.get_strings(_TOKENS))
    for key in ("tokenizer.ggml.token_type", "tokenizer.ggml.scores"):
        if key in file.metadata and len(file.get_numbers(key)) != n:
            yield f"{key} has {len(file.get_numbers(key))} entries for {n} tokens"
    for key, value in file.metadata.items():
        if not (key.startswith("tokenizer.ggml.") and key.endswith("_token_id")):
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            yield f"{key} is {value!r:.40}, want a token id"
        elif not 0 <= value < n:
            notes.append(f"{key} is {value}: there is no such token among {n}, it is ignored")


def _architecture(file: GGUFFile, notes: list[str]) -> Iterator[str]:
    """Yield faults of hyperparameters and shapes, if the architecture is supported."""
    if not file.tensors:
        notes.append("shapes are not checked: there are no tensors (a vocabulary only)")
        return
    try:
        arch = arch_of(file)
    except (ModelError, GGUFError) as error:
        notes.append(f"shapes are not checked: {error}")
        return
    if _TOKENS in file.metadata:
        n_vocab = len(file.get_strings(_TOKENS))
    else:
        n_vocab = file.get_int(f"{file.get_str('general.architecture')}.vocab_size", 0)
    if not n_vocab:
        notes.append(f"shapes are not checked: there is no {_TOKENS}")
        return
    normalize_powerinfer_metadata(file)
    hparams = read_hparams(file, n_vocab, arch.HPARAMS)
    yield from match_tensors(file, arch.TENSORS, hparams)[1]
