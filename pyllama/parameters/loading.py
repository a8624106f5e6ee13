"""How a model is loaded, onto which devices, and how large its context is.

Model.load(path, LoadOptions(use_mmap=False, n_gpu_layers=20))
Context(model, ContextParams(n_ctx=4096, type_k="q8_0"))

`pyllama.runtime` has these two classes, with the rows of this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from . import Flags, row

CACHE_TYPES = ("f16", "f32", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")  # KV_TYPES
MAX_THREADS = 1024


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class FileParams:
    """How a model's file is read."""

    use_mmap: bool = row(
        True,
        "Memory-map the file, or read it into memory. Truncating a mapped file kills the process "
        "(SIGBUS).",
        Flags("--mmap/--no-mmap"),
        arguments=("use_mmap",),
    )
    use_mlock: bool = row(
        False,
        "Lock the model in RAM, so that it is not swapped.",
        Flags("--mlock"),
        arguments=("use_mlock",),
    )
    repack: bool = row(
        True,
        "Repack weights for this CPU, or not: faster loading, slower inference.",
        Flags("--repack/-nr", " /--no-repack"),
    )
    kv_overrides: Mapping[str, bool | int | float | str] = row(
        {},
        "Metadata to change or add, by key.",
        Flags(
            "--override-kv",
            metavar="KEY=TYPE:VALUE",
            repeated=True,
            help="Override a value of the model's metadata; TYPE is int, float, bool or str. "
            "Repeatable, or a list separated by commas.",
        ),
        arguments=("kv_overrides",),
    )
    check_tensors: bool = row(
        False,
        "Check the weights for NaN, infinity and invalid scales while loading.",
        Flags("--check-tensors"),
    )
    sparse: str = row(
        "auto",
        "How to select the active neurons of a ReLU model: predictor (PowerInfer's), exact "
        "(lossless), signs, svd or svd=RANK, off (compute all). auto: predictor or exact if the "
        "file supports it. Per layer: predictor,exact:0-3.",
        Flags("--sparse", metavar="SOURCE"),
        arguments=("sparse",),
    )
    sparse_threshold: float | None = row(
        None,
        "Minimum score of a neuron that is computed.  [default: the file's, or 0]",
        Flags("--sparse-threshold", metavar="X"),
        arguments=("sparse_threshold",),
    )


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class DeviceParams:
    """What of a model goes onto which devices, with llama.cpp's names and meanings."""

    devices: Any = row(
        None,
        "Devices to offload to, in order of preference; the CPU computes the rest. none: only the "
        "CPU. See --list-devices.  [default: all GPUs]",
        Flags("-dev", "--device", metavar="DEV,..."),
    )
    n_gpu_layers: int | Literal["auto"] | None = row(
        None,
        "Layers to offload, counted from the last with the output as one: a number, all, or auto "
        "for as many as fit into the free memory less 1 GiB.  [default: auto]",
        Flags("-ngl", "--gpu-layers", "--n-gpu-layers"),
        arguments=("n_gpu_layers",),
    )
    split_mode: str = row(
        "layer",
        "layer: divide the layers and their KV cache among the GPUs. none: use one GPU.",
        Flags("-sm", "--split-mode", metavar="MODE"),
        arguments=("split_mode",),
    )
    main_gpu: int = row(
        0,
        "Number of the GPU to use with `split_mode` none.  [default: 0]",
        Flags("-mg", "--main-gpu", low=-1, high=1 << 16, default=None),
        arguments=("main_gpu",),
    )
    tensor_split: tuple[float, ...] = row(
        (),
        "Proportions of the layers on each GPU, such as 3,1.  [default: free memory]",
        Flags("-ts", "--tensor-split", default=None),
        arguments=("tensor_split",),
    )
    override_tensor: tuple[tuple[str, str], ...] = row(
        (),
        "Put the tensors whose names contain a match on a device. Repeatable; the first match "
        "decides.",
        Flags("-ot", "--override-tensor", metavar="REGEX=DEV,...", repeated=True),
    )
    vram_budget: tuple[float, ...] = row(
        (),
        "GPU memory that may be used, in bytes, of all GPUs or of each.",
        Flags(
            "--vram-budget",
            metavar="GIB,...",
            default=None,
            help="GPU memory that may be used, in GiB, of all GPUs or of each. Of a ReLU model "
            "with sparse inference, dense tensors go to the GPU first, then the most active "
            "neurons.",
        ),
    )


@dataclass(frozen=True, init=False, eq=False, repr=False)
class ContextSizes:
    """How many tokens a context has, where and in which types its cache is, and its threads."""

    n_ctx: int = row(
        0,
        "Size of the context in tokens. 0: the model's training context.",
        Flags("-c", "--ctx-size"),
        arguments=("n_ctx",),
    )
    n_batch: int = row(
        2048,
        "Logical batch size: maximum number of tokens per decode call.",
        Flags("-b", "--batch-size", low=1),
        arguments=("n_batch",),
    )
    n_ubatch: int = row(
        512,
        "Physical batch size: maximum number of tokens per graph; limits the memory for "
        "activations.",
        Flags("-ub", "--ubatch-size", low=1),
        arguments=("n_ubatch",),
    )
    n_threads: int | None = row(
        None,
        "Threads for generation. -1: min(affinity, cgroup quota, physical cores).",
        Flags("-t", "--threads", low=-1, high=MAX_THREADS, default=-1),
        arguments=("n_threads",),
    )
    n_threads_batch: int | None = row(
        None,
        "Threads for prompt processing. -1: same as -t.",
        Flags("-tb", "--threads-batch", low=-1, high=MAX_THREADS, default=-1),
        arguments=("n_threads_batch",),
    )
    type_k: Any = row(
        "f16",
        f"KV cache type for K: {', '.join(CACHE_TYPES)}. Relative to f16, f32 takes twice the "
        "memory, q8_0 about half, q4_0 about a quarter.",
        Flags("-ctk", "--cache-type-k", choices=CACHE_TYPES, metavar="TYPE"),
        arguments=("type_k",),
    )
    type_v: Any = row(
        "f16",
        "KV cache type for V.",
        Flags("-ctv", "--cache-type-v", choices=CACHE_TYPES, metavar="TYPE"),
        arguments=("type_v",),
    )
    swa_full: bool = row(
        False,
        "Use a full-size KV cache for sliding-window attention layers.",
        Flags("--swa-full"),
        arguments=("swa_full",),
    )
    offload_kqv: bool = row(
        True,
        "Keep the KV cache of a layer on the layer's device, or in host memory.",
        Flags("-kvo/-nkvo", "--kv-offload/--no-kv-offload"),
        arguments=("offload_kqv",),
    )
