"""Converts a Hugging Face folder: checks everything, then writes one tensor after the other.

    path = convert("Llama-3.2-1B", "llama.gguf", "bf16")

Needs memory for the largest tensor in float32 (the matrix of one expert, not the stack). Output
files are complete or do not exist, and pyllama can load them.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from pyggml.dtype import GGMLType, row_size
from pyggml.errors import GGUFError
from pyggml.files import working_folder
from pyggml.gguf import GGUFFile, copy_gguf, plan_split, write_split
from pyggml.gguf.encode import Entry, encode_header, encode_value
from pyggml.gguf.limits import DEFAULT_ALIGNMENT
from pyggml.gguf.magic import MAGIC
from pyggml.rounding import round_up

from ..arch import Arch
from ..errors import ModelError
from ..hparams import HParams
from ..hparams_reader import read_hparams
from ..mapping.rules import Config
from ..runtime.heads import check_layers
from ..runtime.loader import check_tensors
from ..tokenizer import load_tokenizer
from .files.checkpoint import read_checkpoint
from .files.decoded import CheckpointTensor
from .files.folder import Folder, read_config
from .files.mistral import is_mistral, read_params, rename_tensors, rotate_halves
from .general import fill_file_name, read_general
from .modules import dense_keys, dense_tensors, model_folder, pooling_keys
from .nextn import nextn_keys, nextn_layers
from .outtype import (
    OUTTYPES,
    auto_outtype,
    file_type,
    scaled_or_floats,
    tensor_chunks,
    tensor_type,
    with_scales,
)
from .plan import (
    ConvertedTensor,
    check_missing,
    config_errors,
    find_arch,
    of_layers,
    plan_tensors,
    value_keys,
)
from .quantized.methods import decode_checkpoint
from .sparse import Form, check_neurons, sparse_form
from .task_adapters import TaskAdapter, task_adapters
from .tokens.vocabulary import read_vocabulary

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConvertOptions:
    """Options of a conversion.

    Attributes:
        vocab_only: write no weights.
        model_name: replaces the name found in README, config.json or the folder's name.
        metadata: a JSON file with ``general.*`` keys that override those of the folder.
        predictor: a folder of predictors; writes a PowerInfer file with predictors, threshold and
            ``ffn_down_t``, the transposed down matrices.
        transpose_down: write ``ffn_down_t`` without predictors.
        split_max_bytes, split_max_tensors: limits of each part; None: one file.
        dry_run: check everything, write nothing.
        mtp: write layers of multi-token prediction, where they can be loaded.
        mtp_only: write only these, and what they need of the model.
        target_model: folder of the target model, if the checkpoint is a head that drafts for it.
    """

    vocab_only: bool = False
    model_name: str | None = None
    metadata: Path | None = None
    predictor: Path | None = None
    transpose_down: bool = False
    split_max_bytes: int | None = None
    split_max_tensors: int | None = None
    dry_run: bool = False
    mtp: bool = True
    mtp_only: bool = False
    target_model: Path | None = None


def convert(
    folder: str | os.PathLike[str],
    outfile: str | os.PathLike[str] | None = None,
    outtype: str = "auto",
    options: ConvertOptions | None = None,
    progress: Callable[[float], None] | None = None,
) -> Path:
    """Convert a Hugging Face folder to a GGUF file and return its path.

    Args:
        folder: contains config.json, weights and a tokenizer.
        outfile: a file, or a directory for a file of the default name; None: ``folder``. In the
            name of a file, ``{ftype}`` and ``{FTYPE}`` stand for ``outtype``.
        outtype: type of matrices: f32, f16, bf16, q8_0, or auto (f16 if the checkpoint has f16,
            else bf16). Vectors, norms and a few other tensors are float32.
        progress: called with the completed fraction.

    Returns:
        The path of the file, or of the first part.

    Raises:
        ModelError: the folder or a file in it is invalid; nothing was written.
        TokenizerError: the vocabulary cannot be converted.
        GGUFError: the file cannot be written.
    """
    if outtype not in (*OUTTYPES, "auto"):
        raise ModelError(f"outtype is {outtype!r}, must be one of {', '.join(OUTTYPES)}, auto")
    root, options = Folder(Path(folder)), options or ConvertOptions()
    source = model_folder(root)
    folder = source.path
    config = read_params(source) if is_mistral(source) else read_config(source)
    name, arch = find_arch(folder, config)
    config = arch.CONVERT.complete(config)
    vocabulary: tuple[Folder, Config, bool | None] = source, config, arch.CONVERT.add_bos
    if arch.CONVERT.drafts:
        vocabulary = _target(source, options.target_model)
        # a tied output matrix would be the target's
        names = frozenset(() if options.vocab_only else read_checkpoint(source))
        config |= {
            "target": vocabulary[1],
            "tie_word_embeddings": False,
            "tensor_names": names,
        }
    elif options.target_model is not None:
        raise ModelError(f"{folder}: is a model, not a draft head: leave `target_model` out")
    with config_errors(folder, arch):
        keys = arch.CONVERT.keys(config)
    keys |= pooling_keys(root)
    planned: list[ConvertedTensor] = []
    n_nextn = 0
    values: Mapping[str, Any] = {}
    adapters: list[TaskAdapter] = []
    if not options.vocab_only:
        checkpoint = _read_tensors(source, config)
        n_layer = int(keys.get("block_count", 0))
        checkpoint, n_nextn = nextn_layers(checkpoint, config, arch, n_layer, wanted=options.mtp)
        dense = dense_tensors(root)
        with config_errors(folder, arch):
            keys |= nextn_keys(keys, n_nextn, config, arch)
        keys |= dense_keys(dense)
        planned = plan_tensors(folder, checkpoint, config, arch) + dense
        values = value_keys(folder, checkpoint, arch)
        adapters = task_adapters(checkpoint, config, name, arch)
    if options.mtp_only:
        if not n_nextn:
            raise ModelError(f"{folder}: no layers of multi-token prediction that can be loaded")
        planned = of_layers(planned, int(keys["block_count"]) - n_nextn)
    planned = [scaled_or_floats(one) for one in planned]
    outtype = auto_outtype(planned) if outtype == "auto" else outtype
    matrices, _ = OUTTYPES[outtype]
    outtype, type_number = file_type(planned, outtype)
    shapes = {one.name: one.shape for one in planned}
    general = read_general(root, name, shapes, options.model_name, options.metadata)
    metadata = {
        **general.keys,
        **{f"{name}.{key}": value for key, value in keys.items() if not _is_of_file(key)},
        **values,
        **({"general.file_type": type_number} if planned else {}),
        "general.quantization_version": 2,
        **read_vocabulary(*vocabulary),
        **{key: value for key, value in keys.items() if _is_of_file(key)},
    }
    if "n_token_types" in arch.HPARAMS:
        metadata["tokenizer.ggml.token_type_count"] = int(config.get("type_vocab_size", 1))
    types = [tensor_type(one, matrices) for one in planned]
    with _trial(folder, _Content(metadata, planned, types)) as file:
        n_vocab = load_tokenizer(file.metadata, file.path).n_vocab
        hparams = read_hparams(file, n_vocab, arch.HPARAMS)
    if options.mtp_only:
        form = Form(planned)
    else:
        form = _form(source, planned, hparams, arch, keys, options)
    form = replace(form, planned=with_scales(form.planned, matrices))  # transposed ones are floats
    path = root.path if outfile is None else Path(outfile)
    if path.is_dir():
        file_name = general.file_name(outtype if planned else None, form.ending)
        path /= f"mtp-{file_name}" if options.mtp_only else file_name
    else:
        path = path.with_name(fill_file_name(path.name, outtype))
    for read in (root, source, vocabulary[0]):
        read.check_output(path)
    types = [tensor_type(one, matrices) for one in form.planned]
    for one, type in zip(form.planned, types, strict=True):
        stored = "/".join(sorted(one.dtypes))
        log.info("%s %s: %s -> %s", one.name, list(one.shape[::-1]), stored, type.name)
    content = _Content(metadata | form.keys, form.planned, types, form.magic)
    with _trial(folder, content) as file:
        if planned and not options.mtp_only:
            check_tensors(file, arch.TENSORS, hparams)
        if n_nextn:
            check_layers(file, arch, n_vocab)
        path = _write(file, content, path, options, progress)
    for adapter in [] if options.dry_run else adapters:
        adapter.write(path)
    return path


def _is_of_file(key: str) -> bool:
    """Whether a key does not get the architecture's name."""
    return key.startswith(("tokenizer.", "diffusion."))


def _target(head: Folder, path: Path | None) -> tuple[Folder, Config, bool | None]:
    """The folder of a head's target, its config.json, and whether its tokenizer adds BOS."""
    if path is None:
        raise ModelError(
            f"{head.path}: is a head that drafts for another model: give the folder of this target "
            "(`target_model`)"
        )
    target = Folder(path, head.budget)
    config = read_params(target) if is_mistral(target) else read_config(target)
    _, arch = find_arch(path, config)
    return target, arch.CONVERT.complete(config), arch.CONVERT.add_bos


def _read_tensors(source: Folder, config: Mapping[str, Any]) -> Mapping[str, CheckpointTensor]:
    """Return the tensors of the folder as floats under Hugging Face's names. Raises: ModelError."""
    stored = read_checkpoint(source)
    if not is_mistral(source):
        return decode_checkpoint(source, stored, config)
    stored = rename_tensors(source, stored)
    return rotate_halves(decode_checkpoint(source, stored, config), config)


def _form(
    source: Folder,
    planned: list[ConvertedTensor],
    hparams: HParams,
    arch: Arch,
    keys: Mapping[str, Any],
    options: ConvertOptions,
) -> Form:
    """Return the tensors in the requested form: dense, transposed or PowerInfer.

    Raises:
        ModelError: a tensor is missing, or the model is not suited for sparse inference.
    """
    if planned:
        check_missing(source.path, planned, hparams, arch)
    if not planned or (options.predictor is None and not options.transpose_down):
        return Form(planned)
    act = keys.get("hidden_act", "relu" if arch.CONVERT.relu else "")
    check_neurons(source.path, hparams, act, options.predictor is not None)
    if options.predictor is None:
        return sparse_form(planned, hparams)
    return sparse_form(planned, hparams, Folder(options.predictor, source.budget))


@dataclass(frozen=True)
class _Content:
    """Metadata and tensors of the output file."""

    metadata: Mapping[str, Any]
    planned: Sequence[ConvertedTensor] = ()
    types: Sequence[GGMLType] = ()
    magic: bytes = MAGIC


@contextmanager
def _trial(folder: Path, content: _Content) -> Iterator[GGUFFile]:
    """Yield the output file, opened, with a real header and a sparse hole for the data.

    The usual checks of a loaded file run on it before anything is written.
    """
    entries = []
    for one, type in zip(content.planned, content.types, strict=True):
        ne = one.shape[::-1] or (1,)
        entries.append(Entry(one.name, ne, type, row_size(type, ne[0]) * prod(ne[1:])))
    try:
        encoded = {key: encode_value(key, value) for key, value in content.metadata.items()}
        header = encode_header(encoded, entries, DEFAULT_ALIGNMENT, content.magic)
    except GGUFError as error:
        raise ModelError(f"{folder}: {error}") from None
    size = len(header) + sum(round_up(entry.nbytes, DEFAULT_ALIGNMENT) for entry in entries)
    with working_folder(Path(tempfile.gettempdir()), "pyllama-convert-") as directory:
        path = directory / "trial.gguf"
        path.write_bytes(header)
        os.truncate(path, size)
        try:
            trial = GGUFFile(path)
        except GGUFError as error:
            reason = str(error).removeprefix(f"{path}: ")
            raise ModelError(f"{folder}: cannot be converted to GGUF: {reason}") from None
        with trial as file:
            file.path = folder  # error messages name the folder
            yield file


def _write(
    file: GGUFFile,
    content: _Content,
    path: Path,
    options: ConvertOptions,
    progress: Callable[[float], None] | None,
) -> Path:
    """Write the content, unless it is a dry run; return the path of the file."""
    data = {
        p.name: tensor_chunks(p, t) for p, t in zip(content.planned, content.types, strict=True)
    }
    if options.split_max_bytes or options.split_max_tensors:
        plans = plan_split(
            file,
            path.with_name(path.name.removesuffix(".gguf")),
            max_tensors=options.split_max_tensors or len(data) + 1,
            max_bytes=options.split_max_bytes,
        )
        if len(plans) > 1:
            if not options.dry_run:
                write_split(file, plans, progress, data)
            return plans[0].path
    if not options.dry_run:
        copy_gguf(file, path, content.metadata, data=data, progress=progress)
    return path
