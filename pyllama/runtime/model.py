"""A model: hyperparameters, tokenizer and weights of a GGUF file.

    model = Model.load("x.gguf")
    model.desc, model.n_params                     # "llama 135M Q4_1", 134515008

Immutable once loaded; any number of contexts and threads may share it.
"""

from __future__ import annotations

import copy
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyggml.backend.interface import Backend
from pyggml.errors import PyggmlError
from pyggml.gguf import GGUFError, GGUFFile
from pyggml.gguf.mapped import Mapped
from pyggml.tensor import Tensor

from ..arch import Arch, arch_of, get_arch
from ..errors import ModelError
from ..file_types import file_type_name
from ..graph.sparse.sources import choose_sources
from ..graph.sparse.weights import normalize_powerinfer_metadata
from ..hparams import KEYS, POOLINGS, HParams, Key
from ..hparams_reader import read_hparams
from ..parameters import documented, row
from ..parameters.loading import DeviceParams, FileParams
from ..tokenizer import Tokenizer, load_tokenizer
from .devices import (
    CPU,
    Offload,
    PlannedPlacement,
    gpu_devices,
    gpus_of,
    parse_devices,
    placed_offload,
    start_devices,
    used_devices,
    why_no_gpu,
)
from .params import ContextParams

if TYPE_CHECKING:
    from .expert_cache import ExpertCache

log = logging.getLogger(__name__)
_SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


@documented
@dataclass(frozen=True, kw_only=True)
class LoadOptions(FileParams, DeviceParams):
    """How ``Model.load`` reads a file and where it puts the weights.

    ``devices`` are names of ``pyllama info --list-devices``, as a list or separated by commas, or
    running backends. None: all GPUs found if layers are asked for (``n_gpu_layers``,
    ``vram_budget``), as the tools do; else the CPU, since results on another device may differ in
    the last bits.
    """

    vocab_only: bool = row(
        False, "Load no weights; the architecture need not be supported.", arguments=("vocab_only",)
    )
    params: ContextParams | None = row(
        None, "Sizes of the context, for what fits. None: the defaults."
    )
    placement: PlannedPlacement | None = row(
        None,
        "Neurons of a sparse model to put on the GPUs, instead of whole layers (see "
        "sparsity.placement and sparsity.division).",
    )
    n_threads: int | None = row(None, "Threads for repacking.")


class Model:
    """A loaded model; see ``Model.load``.

    Attributes:
        path, metadata: of the GGUF file.
        tokenizer: built from its metadata.
        weights: tensors by name (empty with ``vocab_only``).
        devices: devices that hold the weights and run the graphs; the CPU is the last.
        n_gpu_layers: layers that are not on the CPU, with the output as one.
        host_kv: layers whose keys and values stay in host memory on any device.
        files: mapped files that have some of the weights.
        experts: the cache of experts, if not all of them are in memory.
        n_params, size_bytes: sums over all tensors in the file.
    """

    def __init__(
        self, file: GGUFFile, hparams: HParams | PyggmlError, tokenizer: Tokenizer
    ) -> None:
        """``hparams`` is the error that reading them raised in a model of the vocabulary only."""
        self.path: Path = file.path
        self.metadata: Mapping[str, Any] = file.metadata
        self._hparams, self.tokenizer = hparams, tokenizer
        self.weights: dict[str, Tensor] = {}
        self.devices: tuple[str | Backend, ...] = (CPU,)
        self.n_gpu_layers = 0
        self.host_kv: frozenset[int] = frozenset()
        infos = file.tensors.values()
        self.n_params = sum(t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3] for t in infos)
        self.size_bytes = sum(t.nbytes for t in infos)
        self._types = Counter(t.type.name for t in infos if t.n_dims > 1)
        self.files: tuple[Mapped, ...] = ()
        self.experts: ExpertCache | None = None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        options: LoadOptions | None = None,
        *,
        progress: Callable[[float], None] | None = None,
        **fields: Any,
    ) -> Model:
        """Load a GGUF file; of a split model, give the first part.

        Args:
            options: None for the defaults.
            progress: called with the completed fraction.
            fields: fields of `LoadOptions` that replace those of ``options``.

        Raises:
            GGUFError: the file cannot be read, or is not a legal GGUF file.
            ModelError: the model cannot be run.
            TokenizerError: the vocabulary cannot be used.
            AllocError: not enough memory.
            BackendError: there is no such device, or an argument for devices is illegal.
        """
        given = replace(options or LoadOptions(), **fields)
        n_gpu_layers, devices = given.n_gpu_layers, given.devices
        offload = Offload(
            -1 if n_gpu_layers is None else n_gpu_layers, given.main_gpu, given.split_mode,
            tuple(given.tensor_split), tuple(given.override_tensor),
            tuple(map(int, given.vram_budget)),
        )  # fmt: skip
        if devices is None and (n_gpu_layers not in (None, 0) or given.vram_budget):
            devices = gpu_devices()
            if not devices:
                log.warning("no GPU was found (%s): all layers are on the CPU", why_no_gpu())
        requested = parse_devices(devices)
        file = GGUFFile(path, mmap=given.use_mmap)
        file.override(given.kv_overrides or {})
        if file.get_str("general.type", "model") == "adapter":
            raise ModelError(
                f"{file.path}: is an adapter, not a model: load its base, and this file as "
                "`lora_path`"
            )
        normalize_powerinfer_metadata(file)
        tokenizer = load_tokenizer(file.metadata, file.path)
        try:
            hparams = read_hparams(file, tokenizer.n_vocab, arch_of(file).HPARAMS)
        except (ModelError, GGUFError) as error:
            if not given.vocab_only:
                raise
            return cls(file, error, tokenizer)
        hparams = choose_sources(file, hparams, given.sparse, given.sparse_threshold)
        model = cls(file, hparams, tokenizer)
        if given.vocab_only:
            return model
        if not file.tensors:
            raise ModelError(f"{file.path}: the file has no weights, only a vocabulary")
        from .loader import check_data, expert_tensors, load_weights, parts_in_use
        from .offload import Planner

        for fault in check_data(file) if given.check_tensors else ():
            raise ModelError(f"{file.path}: {fault}; fetch the file again")
        started = start_devices(requested, given.n_threads)
        backends = used_devices(started, offload)
        placement = given.placement
        if placement is not None:
            offload = placed_offload(placement, hparams, file.tensors, backends)
        elif offload.fits and gpus_of(backends):
            planner = Planner(
                file,
                model.arch,
                hparams,
                backends,
                given.params or ContextParams(),
                repack=given.repack,
            )
            offload = planner.plan(offload).offload
        if given.moe_cache_mib:
            from .expert_cache import ExpertCache

            tensors = expert_tensors(file, model.arch, hparams, backends, given.repack)
            if tensors:
                model.experts = ExpertCache(file.parts, tensors, given.moe_cache_mib * 2**20)
            else:
                log.warning("%s has no experts that a cache could hold", file.path)
        model.n_gpu_layers = offload.max_layers(hparams.n_layer) if gpus_of(backends) else 0
        model.weights = load_weights(
            file,
            model.arch,
            hparams,
            backends,
            offload,
            repack=given.repack,
            mlock=given.use_mlock,
            progress=progress,
            experts=model.experts,
        )
        model.files = parts_in_use(file, model.weights)
        model.devices = tuple(
            name if backend.buffer_type().is_host else backend
            for name, backend in zip(requested, started, strict=True)
            if backend in backends
        )
        for part, device in zip(
            () if placement is None else placement.parts, backends, strict=False
        ):
            model = part.apply(model, device)
        return model

    @property
    def hparams(self) -> HParams:
        """The hyperparameters.

        Raises:
            ModelError, GGUFError: only the vocabulary was loaded, since the model cannot be run.
        """
        if isinstance(self._hparams, PyggmlError):
            raise self._hparams.with_traceback(None)
        return self._hparams

    def with_hparams(self, hparams: HParams) -> Model:
        """A copy with other hyperparameters, which shares the weights."""
        changed = copy.copy(self)
        changed._hparams = hparams
        changed.__dict__.pop("fingerprint", None)  # cached from the old hyperparameters
        return changed

    @cached_property
    def arch(self) -> Arch:
        """The module of the architecture. Raises: as `hparams`."""
        return get_arch(self.hparams.arch)

    @property
    def n_ctx_train(self) -> int:
        """Context length of training; 0 if only the vocabulary is known."""
        return self._size("n_ctx_train")

    @property
    def n_embd(self) -> int:
        """Width of an embedding; 0 if only the vocabulary is known."""
        return self._size("n_embd")

    @property
    def pooling(self) -> str:
        """How the file says that embeddings of texts are computed, one of ``POOLINGS``."""
        return POOLINGS[self.hparams.pooling_type]

    @property
    def classifier_labels(self) -> list[str]:
        """A name for each output of the classification head; its number if it has none."""
        named = self.metadata.get(f"{self._arch_name}.classifier.output_labels") or ()
        labels = [str(label) for label in named]
        return [
            labels[i] if i < len(labels) and labels[i] else str(i)
            for i in range(self.hparams.n_cls_out)
        ]

    def _size(self, field: str) -> int:
        if isinstance(self._hparams, HParams):
            return int(getattr(self._hparams, field))
        key = KEYS[field]
        assert isinstance(key, Key)
        value = self.metadata.get(f"{self._arch_name}.{key.name}")
        return int(value) if isinstance(value, (int, np.integer)) and value > 0 else 0

    @property
    def _arch_name(self) -> str:
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def desc(self) -> str:
        """Architecture, size and file type, such as ``llama 135M Q4_K_M``."""
        factor, suffix = next(((f, s) for f, s in _SUFFIXES if self.n_params >= f), (1, ""))
        return f"{self._arch_name} {self.n_params / factor:.0f}{suffix} {self.file_type}"

    @property
    def file_type(self) -> str:
        """The name of ``general.file_type``; without it the most frequent type of matrices.

        ``vocab`` for a file without weights.
        """
        if not self._types:
            return "vocab"
        named = file_type_name(self.metadata.get("general.file_type"))
        return named or self._types.most_common(1)[0][0]

    @cached_property
    def fingerprint(self) -> str:
        """A digest of hyperparameters and vectors, by which saved states recognise their model."""
        digest = sha256(repr(self.hparams).encode())
        for name in sorted(self.weights):
            if self.weights[name].n_dims == 1:
                digest.update(name.encode() + self.weights[name].bytes().tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        """Drop the references to the weights; existing contexts keep them alive."""
        self.weights, self.files, self.experts = {}, (), None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
