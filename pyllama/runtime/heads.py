"""Heads that draft, as models: multi-token prediction, EAGLE-3, Gemma 4's assistants.

    head = mtp_head(target.model)                  # shares embedding and output with the model
    head = eagle3_head(target.model, path)
    target.keep_hidden(head.reads)
    context = Context(head.model)                  # reads tokens and the hidden states before them

A layer of multi-token prediction follows those of the model in its file. As a model it has one
layer of the same architecture, whose input is a projection of a token's embedding and of the hidden
states of the token before it; so the architecture's own graph computes it. An EAGLE-3 head and
an assistant of Gemma 4 are files and architectures of their own.
Source: DeepSeek-AI 2024, "DeepSeek-V3", section 2.2; Li et al. 2025, "EAGLE-3"; llama.cpp,
``LLM_GRAPH_TYPE_DECODER_MTP``, ``common_speculative_impl_draft_eagle3``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, TensorInfo
from pyggml.gguf.mapped import Mapped
from pyggml.tensor import Tensor

from ..arch import Arch, arch_of, gemma4_assistant, mtp_of
from ..errors import ModelError
from ..graph.adapters import layer_output
from ..graph.builder import FUSED, NEXTN_TENSORS, TARGET_EMBEDDING
from ..graph.sparse.weights import ANY
from ..hparams import HParams, layer_keys
from ..hparams_reader import read_hparams
from ..kv.memory import HiddenReads
from .devices import start_devices
from .loader import check_tensors, load_weights, parts_in_use
from .model import Model

EAGLE3, DFLASH = "eagle3", "dflash"
_OWN = {  # tensors of a layer that it may share with the model -> their names in a model
    "nextn.embed_tokens.weight": "token_embd.weight",
    "layer_output_norm.weight": "output_norm.weight",
    "nextn.shared_head_norm.weight": "output_norm.weight",
    "nextn.shared_head_head.weight": "output.weight",
}


class Head(NamedTuple):
    """A head as a model.

    Attributes:
        model: drafts the first token after the text and, without ``later``, those after it too.
        reads: the target's hidden states that are its input.
        later: models that draft one token each after the first, if the head has several layers of
            multi-token prediction.
        target_layers: of a head without keys and values: for each of its layers, the target's layer
            whose keys and values it attends to.
    """

    model: Model
    reads: HiddenReads
    later: tuple[Model, ...] = ()
    target_layers: tuple[int, ...] = ()


def mtp_head(target: Model, path: Path | None = None) -> Head:
    """The layers of multi-token prediction, each as a model; an assistant of Gemma 4.

    Args:
        target: the model whose tokens they draft, which has the tensors that a layer lacks.
        path: the file of the layers or of the assistant; None for the target's.

    Raises:
        ModelError: the file has no such layer, or one of another model.
        GGUFError, AllocError: as ``Model.load``.
    """
    file = GGUFFile(target.path if path is None else path)
    if path is None:
        file.metadata = target.metadata  # with what overrides the file's
    arch, name = arch_of(file), file.get_str("general.architecture")
    if name == gemma4_assistant.NAME:
        return _assistant(file, target)
    if name != target.hparams.arch:
        raise ModelError(
            f"{file.path}: layers of multi-token prediction of a {name} model cannot draft for "
            f"{target.hparams.arch}"
        )
    shared = {n: t for n, t in target.weights.items() if not n.startswith("blk.")}
    shared.setdefault("output.weight", shared["token_embd.weight"])
    models = []
    for i in range(max(1, n_nextn(file))):
        layer, hparams = as_model(file, arch, target.tokenizer.n_vocab, i)
        if hparams.n_embd != target.hparams.n_embd:
            raise ModelError(
                f"{file.path}: {hparams.n_embd} columns, the model {target.path} has "
                f"{target.hparams.n_embd}: it is the head of another model"
            )
        models.append(_loaded(layer, hparams, target, shared)[0])
    node = hparams.hidden.replace("-0", f"-{target.hparams.n_layer - 1}")
    return Head(models[0], HiddenReads((node,)), tuple(models[1:]))


def _assistant(file: GGUFFile, target: Model) -> Head:
    """A Gemma 4 assistant as a model. Raises: ModelError: it is another model's."""
    sizes = target.hparams
    hparams = read_hparams(file, target.tokenizer.n_vocab, gemma4_assistant.HPARAMS)
    n_embd = hparams.own["n_embd_backbone"]
    check = partial(_check_pair, file, target)
    check(sizes.arch == "gemma4", "drafts for gemma4", f"is {sizes.arch}")
    check(n_embd == sizes.n_embd, f"reads {n_embd} columns", f"has {sizes.n_embd}")
    _check_tokens(file, target)
    layers = []
    for i in range(hparams.n_layer):
        kind = f"a window of {hparams.window(i)}" if hparams.window(i) else "full attention"
        same = [k for k in range(sizes.n_layer) if sizes.window(k) == hparams.window(i)]
        check(bool(same), f"has a layer with {kind}", "has none")
        owner, own = sizes.cache_layer(same[-1]), hparams.of_layer(i)
        columns = own.head_dim, own.head_dim_v
        found = sizes.head_dim_arr[owner], sizes.head_dim_v_arr[owner]
        check(columns == found, f"has heads of {columns} columns", f"of {found}")
        n, of = own.n_head, sizes.n_head_kv_arr[owner]
        check(n % of == 0, f"has {n} heads of queries", f"{of} of keys")
        layers.append(owner)
    shared = {TARGET_EMBEDDING: target.weights["token_embd.weight"]}
    head, _ = _loaded(file, replace(hparams, n_embd_target=n_embd), target, shared)
    return Head(head, HiddenReads(("result_norm",)), target_layers=tuple(layers))


def eagle3_head(target: Model, path: Path) -> Head:
    """An EAGLE-3 head as a model.

    Args:
        target: the model whose tokens it drafts, which has the embedding and the output matrix that
            the file lacks.

    Raises:
        ModelError: the file is no such head, or one of another model.
        GGUFError, AllocError: as ``Model.load``.
    """
    file = _file_of(path, EAGLE3, "EAGLE-3")
    hparams = read_hparams(file, target.tokenizer.n_vocab, arch_of(file).HPARAMS)
    layers = _read_layers(file, target)
    _check_eagle3(file, hparams, target, layers)
    shared = {"token_embd.weight": target.weights["token_embd.weight"], **_output_of(target)}
    head, files = _loaded(file, replace(hparams, n_embd_target=hparams.n_embd), target, shared)
    norm = head.weights["enc.output_norm.weight"] if hparams.own["norm_before_fc"] else None
    nodes = tuple(layer_output(layer - 1) for layer in layers)  # the inputs of these layers
    return Head(head, HiddenReads(nodes, head.weights[FUSED], norm, hparams.norm_eps, files))


def dflash_head(target: Model, path: Path) -> Head:
    """A DFlash or DSpark head as a model. Arguments and errors: as ``eagle3_head``."""
    file = _file_of(path, DFLASH, "DFlash")
    hparams = read_hparams(file, target.tokenizer.n_vocab, arch_of(file).HPARAMS)
    layers = _read_layers(file, target)
    _check_dflash(file, hparams, target)
    shared = {"token_embd.weight": target.weights["token_embd.weight"]}
    if "token_embd.weight" not in file.tensors:
        shared |= _output_of(target)
    head, files = _loaded(file, replace(hparams, n_embd_target=hparams.n_embd), target, shared)
    n, n_read = target.hparams.n_embd, head.weights[FUSED].ne[0]
    _check_pair(file, target, n_read == len(layers) * n, f"reads {n_read} columns", f"has {n}")
    nodes = tuple(layer_output(layer - 1) for layer in layers)
    return Head(head, HiddenReads(nodes, head.weights[FUSED], files=files))


def head_of_file(target: Model, path: Path) -> Head | None:
    """The head that is a file of its own; None: the file has another model.

    Raises:
        ModelError, GGUFError, AllocError: as of the function for such a head.
        OSError: the file cannot be read.
    """
    with GGUFFile(path) as file:
        name = file.get_str("general.architecture")
    loaders = {EAGLE3: eagle3_head, DFLASH: dflash_head, gemma4_assistant.NAME: mtp_head}
    found = loaders.get(name)
    return None if found is None else found(target, path)


def _file_of(path: Path, name: str, kind: str) -> GGUFFile:
    """The file of a head. Raises: ModelError: its architecture is not ``name``."""
    file = GGUFFile(path)
    found = file.get_str("general.architecture")
    if found != name:
        raise ModelError(f"{path}: a {found} model is no {kind} head; use another drafter")
    return file


def _read_layers(file: GGUFFile, target: Model) -> list[int]:
    """The layers (from 1) whose inputs a head reads. Raises: ModelError: the target lacks one."""
    name, n_layer = file.get_str("general.architecture"), target.hparams.n_layer
    layers = [int(layer) for layer in file.get_numbers(f"{name}.target_layers")]
    legal = bool(layers) and all(1 <= layer <= n_layer for layer in layers)
    reads = f"reads the inputs of layers {layers}"
    _check_pair(file, target, legal, reads, f"has layers 1 to {n_layer}")
    return layers


def _check_eagle3(file: GGUFFile, hparams: HParams, target: Model, layers: list[int]) -> None:
    """Raise ModelError unless a file is a head of the target."""
    check, sizes = partial(_check_pair, file, target), target.hparams
    n_read = hparams.own["n_embd_read"]
    check(n_read == sizes.n_embd, f"reads {n_read} columns of a layer", f"has {sizes.n_embd}")
    check(len(layers) == 3, f"reads the inputs of layers {layers}", "needs one that reads three")
    _check_tokens(file, target)
    check(hparams.n_layer == 1, f"has {hparams.n_layer} layers", "needs one of one layer")
    infos = file.tensors
    lacks = [name for name in ("token_embd.weight", "output.weight") if name not in infos]
    if lacks:
        columns = f"lacks {lacks[0]!r} and has {hparams.n_embd} columns"
        check(hparams.n_embd == sizes.n_embd, columns, f"has {sizes.n_embd}")
    _check_drafted(file, target)


def _check_dflash(file: GGUFFile, hparams: HParams, target: Model) -> None:
    """Raise ModelError unless a file is a DFlash or DSpark head of the target."""
    kinds = {
        "selector_hidden.weight": "DFlash 2",
        "hc_head_fn.weight": "a DSpark head of DeepSeek-V4",
    }
    for tensor, kind in kinds.items():
        if tensor in file.tensors:
            raise ModelError(
                f"{file.path}: {kind} is not supported, only DFlash and DSpark; use another drafter"
            )
    check, n, n_vocab = partial(_check_pair, file, target), hparams.n_embd, target.tokenizer.n_vocab
    check(n == target.hparams.n_embd, f"has {n} columns", f"has {target.hparams.n_embd}")
    _check_tokens(file, target)
    _check_drafted(file, target)
    mask = hparams.own["mask_token"]
    check(mask < n_vocab, f"has the mask token {mask}", f"has {n_vocab} tokens")
    check(hparams.block_size > 1, f"drafts blocks of {hparams.block_size}", "needs 2 or more")


def _check_drafted(file: GGUFFile, target: Model) -> None:
    """Raise ModelError unless the tokens that a head drafts are the target's."""
    infos, n_vocab = file.tensors, target.tokenizer.n_vocab
    check = partial(_check_pair, file, target)
    n_drafted = infos["d2t"].ne[0] if "d2t" in infos else n_vocab
    if "d2t" in infos and infos["d2t"].type is GGMLType.I64:
        ids = file.tensor_bytes("d2t").view(np.int64)
        in_range = bool(((ids >= 0) & (ids < n_vocab)).all())
        check(
            in_range and 0 < np.unique(ids).size == ids.size,
            "drafts other tokens ('d2t')",
            f"has {n_vocab}",
        )
    n_out = infos["output.weight"].ne[1] if "output.weight" in infos else n_vocab
    check(n_out == n_drafted, f"has {n_out} outputs for {n_drafted} tokens", f"has {n_vocab}")


def _output_of(target: Model) -> dict[str, Tensor]:
    """The output matrix of a target, for a head without one."""
    whole = target.weights
    if "output.weight" not in whole:
        return {"output.weight": whole["token_embd.weight"]}
    return {name: whole[name] for name in ("output.weight", "output.scale") if name in whole}


def _check_tokens(file: GGUFFile, target: Model) -> None:
    """Raise ModelError if a head's file has another number of tokens than the target."""
    n, n_vocab = len(file.get_strings("tokenizer.ggml.tokens", ())), target.tokenizer.n_vocab
    _check_pair(file, target, n in (0, n_vocab), f"is for {n} tokens", f"has {n_vocab}")


def _check_pair(file: GGUFFile, target: Model, ok: bool, of_head: str, of_target: str) -> None:
    """Raise ModelError unless ``ok``; the text says what the head and the target have instead."""
    if not ok:
        raise ModelError(
            f"{file.path}: the head {of_head}, the model {target.path} {of_target}: it is the "
            "head of another model"
        )


def _loaded(
    file: GGUFFile, hparams: HParams, target: Model, shared: Mapping[str, Tensor]
) -> tuple[Model, tuple[Mapped, ...]]:
    """A head as a model, and the mapped parts of its file.

    Args:
        shared: weights of the target, used where the file has no tensor of the name.
    """
    head = Model(file, hparams, target.tokenizer)
    shared = {name: weight for name, weight in shared.items() if name not in file.tensors}
    devices = start_devices(target.devices, None)
    own = load_weights(file, head.arch, hparams, devices, shared=shared)
    files = parts_in_use(file, own)
    head.weights, head.devices = {**shared, **own}, target.devices
    head.files = (*files, *target.files)
    return head, files


def n_nextn(file: GGUFFile) -> int:
    """The number of layers of multi-token prediction by a file's keys."""
    return file.get_int(f"{file.get_str('general.architecture')}.nextn_predict_layers", 0)


def as_model(file: GGUFFile, arch: Arch, n_vocab: int, i: int = 0) -> tuple[GGUFFile, HParams]:
    """A file whose only layer is layer ``i`` (from 0) of multi-token prediction.

    Raises:
        ModelError: there is none, or such layers of the architecture are not supported.
    """
    name, settings, n = file.get_str("general.architecture"), mtp_of(arch), n_nextn(file)
    n_all = file.get_int(f"{name}.block_count")
    at = n_all - n + i  # among all layers
    prefix = f"blk.{at}."
    if not n or f"{prefix}nextn.eh_proj.weight" not in file.tensors:
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
    for key in (f"{name}.{end}" for end in layer_keys(arch.HPARAMS)):
        values = metadata.get(key)
        if isinstance(values, np.ndarray):  # without one for the layer, that of the last one
            metadata[key] = values[at : at + 1] if values.size == n_all else values[-1:]
    metadata[f"{name}.block_count"] = 1
    metadata[f"{name}.nextn_predict_layers"] = 0
    metadata[f"{name}.leading_dense_block_count"] = int("blk.0.ffn_gate_inp.weight" not in tensors)
    head = copy.copy(file)
    head.metadata, head.tensors = MappingProxyType(metadata), tensors
    hparams = read_hparams(head, n_vocab, {**arch.HPARAMS, **settings.hparams})
    return head, replace(hparams, n_embd_target=hparams.n_embd)


def check_layers(file: GGUFFile, arch: Arch, n_vocab: int) -> None:
    """Raise ModelError unless a file's layers of multi-token prediction are complete."""
    settings = mtp_of(arch)
    own = {**NEXTN_TENSORS, **({} if settings is None else settings.tensors)}
    for i in range(n_nextn(file)):
        head, hparams = as_model(file, arch, n_vocab, i)
        patterns = {name: sizes for name, sizes in arch.TENSORS.items() if name.startswith("blk.")}
        for name in _OWN.values():
            if name in head.tensors:
                patterns[name] = (ANY,) if "norm" in name else (ANY, ANY)
        check_tensors(head, {**patterns, **own}, hparams)
