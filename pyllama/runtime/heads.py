"""Heads that draft: layers of multi-token prediction as models of their own.

    head = mtp_head(target.model)                  # shares embedding and output with the model
    target.keep_hidden(head.reads)
    context = Context(head.model)                  # reads tokens and the hidden states before them

Such a layer follows those of the model in its file. As a model it has one layer of the same
architecture, whose input is a projection of a token's embedding and of the hidden states of the
token before it; so the architecture's own graph computes it.
Source: DeepSeek-AI 2024, "DeepSeek-V3", section 2.2; llama.cpp, ``LLM_GRAPH_TYPE_DECODER_MTP``.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from pyggml.gguf import GGUFFile, TensorInfo

from ..arch import Arch, arch_of, mtp_of
from ..errors import ModelError
from ..graph.builder import NEXTN_TENSORS
from ..graph.sparse.weights import ANY
from ..hparams import PER_LAYER_KEYS, HParams, Key
from ..hparams_reader import read_hparams
from .devices import start_devices
from .loader import check_tensors, load_weights, parts_in_use
from .model import Model

_OWN = {  # tensors of a layer that it may share with the model -> their names in a model
    "nextn.embed_tokens.weight": "token_embd.weight",
    "layer_output_norm.weight": "output_norm.weight",
    "nextn.shared_head_norm.weight": "output_norm.weight",
    "nextn.shared_head_head.weight": "output.weight",
}


class Head(NamedTuple):
    """A head as a model.

    Attributes:
        reads: the nodes of the target's graph whose columns are its input.
    """

    model: Model
    reads: tuple[str, ...]


def mtp_head(target: Model, path: Path | None = None) -> Head:
    """The first layer of multi-token prediction as a model.

    Args:
        target: the model whose tokens it drafts, which has the tensors that the layer lacks.
        path: the file of the layer; None for the target's.

    Raises:
        ModelError: the file has no such layer, or one of another model.
        GGUFError, AllocError: as ``Model.load``.
    """
    file = GGUFFile(target.path if path is None else path)
    if path is None:
        file.metadata = target.metadata  # with what overrides the file's
    arch, name = arch_of(file), file.get_str("general.architecture")
    if name != target.hparams.arch:
        raise ModelError(
            f"{file.path}: layers of multi-token prediction of a {name} model cannot draft for "
            f"{target.hparams.arch}"
        )
    tokenizer = target.tokenizer
    file, hparams = as_model(file, arch, tokenizer.n_vocab)
    if hparams.n_embd != target.hparams.n_embd:
        raise ModelError(
            f"{file.path}: {hparams.n_embd} columns, the model {target.path} has "
            f"{target.hparams.n_embd}: it is the head of another model"
        )
    head = Model(file, hparams, tokenizer)
    shared = {n: t for n, t in target.weights.items() if not n.startswith("blk.")}
    shared.setdefault("output.weight", shared["token_embd.weight"])
    shared = {n: t for n, t in shared.items() if n not in file.tensors}
    devices = start_devices(target.devices, None)
    own = load_weights(file, arch, hparams, devices, shared=shared)
    head.weights = {**shared, **own}
    head.files = (*parts_in_use(file, own), *target.files)
    head.devices = target.devices
    return Head(head, (hparams.hidden.replace("-0", f"-{target.hparams.n_layer - 1}"),))


def as_model(file: GGUFFile, arch: Arch, n_vocab: int) -> tuple[GGUFFile, HParams]:
    """A file with its first layer of multi-token prediction as the only layer.

    Raises:
        ModelError: there is none, or such layers of the architecture are not supported.
    """
    name, settings = file.get_str("general.architecture"), mtp_of(arch)
    n_all = file.get_int(f"{name}.block_count")
    n_nextn = file.get_int(f"{name}.nextn_predict_layers", 0)
    prefix = f"blk.{n_all - n_nextn}."
    if not n_nextn or f"{prefix}nextn.eh_proj.weight" not in file.tensors:
        raise ModelError(
            f"{file.path}: the model has no layers of multi-token prediction, or the file is "
            "without them; use another drafter"
        )
    if settings is None:
        raise ModelError(
            f"{file.path}: multi-token prediction of {name} models is not supported; use another "
            "drafter"
        )
    tensors: dict[str, TensorInfo] = {}
    for info in file.tensors.values():
        if info.name.startswith(prefix):
            end = info.name.removeprefix(prefix)
            own = _OWN.get(end, f"blk.0.{end}")
            tensors[own] = replace(info, name=own)
    metadata: dict[str, Any] = dict(file.metadata)
    declared = [key.name for key in arch.HPARAMS.values() if isinstance(key, Key)]
    for key in (f"{name}.{end}" for end in (*PER_LAYER_KEYS.values(), *declared)):
        values = metadata.get(key)
        if isinstance(values, np.ndarray):  # without one for the layer, that of the last one
            at = n_all - n_nextn if values.size == n_all else -1
            metadata[key] = values[at:][:1]
    metadata[f"{name}.block_count"] = 1
    metadata[f"{name}.nextn_predict_layers"] = 0
    metadata[f"{name}.leading_dense_block_count"] = int("blk.0.ffn_gate_inp.weight" not in tensors)
    head = copy.copy(file)
    head.metadata, head.tensors = MappingProxyType(metadata), tensors
    hparams = read_hparams(head, n_vocab, {**arch.HPARAMS, **settings.hparams})
    return head, replace(hparams, n_embd_target=hparams.n_embd)


def check_layer(file: GGUFFile, arch: Arch, n_vocab: int) -> None:
    """Raise ModelError unless a file's layer of multi-token prediction is complete."""
    head, hparams = as_model(file, arch, n_vocab)
    patterns = {name: sizes for name, sizes in arch.TENSORS.items() if name.startswith("blk.")}
    for own in _OWN.values():
        if own in head.tensors:
            patterns[own] = (ANY,) if "norm" in own else (ANY, ANY)
    check_tensors(head, {**patterns, **NEXTN_TENSORS}, hparams)
