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

    # fmt: off
    use_mmap: bool = row(True,
        "Memory-map the file, or read it into memory. Truncating a mapped file kills the process "
        "(SIGBUS).", Flags("--mmap/--no-mmap"), arguments=("use_mmap",))
    use_mlock: bool = row(False, "Lock the model in RAM, so that it is not swapped.",
        Flags("--mlock"), arguments=("use_mlock",))
    repack: bool = row(True,
        "Repack weights for this CPU, or not: faster loading, slower inference.",
        Flags("--repack/-nr", " /--no-repack"))
    moe_cache_mib: float = row(0.0,
        "Size of a cache of experts, in MiB: experts stay in the file, and are read into the cache "
        "when a token chooses them. 0: load all experts into memory.",
        Flags("--moe-cache-mib", metavar="MIB", low=0), arguments=("moe_cache_mib",))
    kv_overrides: Mapping[str, bool | int | float | str] = row({},
        "Metadata to change or add, by key.",
        Flags("--override-kv", metavar="KEY=TYPE:VALUE", repeated=True, help="Override a value of "
        "the model's metadata; TYPE is int, float, bool or str. Repeatable, or a list separated by "
        "commas."), arguments=("kv_overrides",))
    check_tensors: bool = row(False,
        "Check the weights for NaN, infinity and invalid scales while loading.",
        Flags("--check-tensors"))
    sparse: str = row("auto",
        "How to select the active neurons of a ReLU model: predictor (PowerInfer's), cross (the "
        "same, a layer ahead; experimental), exact (lossless), signs, svd or svd=RANK, off "
        "(compute all). auto: predictor or exact if the file supports it. Per layer: "
        "predictor,exact:0-3. Experts: exact or off. head, besides: compute the logits of tokens "
        "that the file's predictor of the output matrix selects.",
        Flags("--sparse", metavar="SOURCE"), arguments=("sparse",))
    sparse_threshold: float | None = row(None,
        "Minimum score of a neuron that is computed.  [default: the file's, or 0]",
        Flags("--sparse-threshold", metavar="X"), arguments=("sparse_threshold",))
    # fmt: on


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class DeviceParams:
    """What of a model goes onto which devices, with llama.cpp's names and meanings."""

    # fmt: off
    devices: Any = row(None,
        "Devices to offload to, in order of preference; the CPU computes the rest. none: only the "
        "CPU. See --list-devices.  [default: all GPUs]",
        Flags("-dev", "--device", metavar="DEV,..."))
    n_gpu_layers: int | Literal["auto"] | None = row(None,
        "Layers to offload, counted from the last with the output as one: a number, all, or auto "
        "for as many as fit into the free memory less 1 GiB.  [default: auto]",
        Flags("-ngl", "--gpu-layers", "--n-gpu-layers"), arguments=("n_gpu_layers",))
    split_mode: str = row("layer",
        "layer: divide the layers and their KV cache among the GPUs. none: use one GPU.",
        Flags("-sm", "--split-mode", metavar="MODE"), arguments=("split_mode",))
    main_gpu: int = row(0, "Number of the GPU to use with `split_mode` none.  [default: 0]",
        Flags("-mg", "--main-gpu", low=-1, high=1 << 16, default=None), arguments=("main_gpu",))
    tensor_split: tuple[float, ...] = row((),
        "Proportions of the layers on each GPU, such as 3,1.  [default: free memory]",
        Flags("-ts", "--tensor-split", default=None), arguments=("tensor_split",))
    override_tensor: tuple[tuple[str, str], ...] = row((),
        "Put the tensors whose names contain a match on a device. Repeatable; the first match "
        "decides.", Flags("-ot", "--override-tensor", metavar="REGEX=DEV,...", repeated=True))
    vram_budget: tuple[float, ...] = row((),
        "GPU memory that may be used, in bytes, of all GPUs or of each.",
        Flags("--vram-budget", metavar="GIB,...", default=None, help="GPU memory that may be "
        "used, in GiB, of all GPUs or of each. Of a ReLU model with sparse inference, dense "
        "tensors go to the GPU first, then the most active neurons."))
    # fmt: on


@dataclass(frozen=True, init=False, eq=False, repr=False)
class ContextSizes:
    """How many tokens a context has, where and in which types its cache is, and its threads."""

    # fmt: off
    n_ctx: int = row(0, "Size of the context in tokens. 0: the model's training context.",
        Flags("-c", "--ctx-size"), arguments=("n_ctx",))
    n_batch: int = row(2048, "Logical batch size: maximum number of tokens per decode call.",
        Flags("-b", "--batch-size", low=1), arguments=("n_batch",))
    n_ubatch: int = row(512,
        "Physical batch size: maximum number of tokens per graph; limits the memory for "
        "activations.", Flags("-ub", "--ubatch-size", low=1), arguments=("n_ubatch",))
    n_threads: int | None = row(None,
        "Threads for generation. -1: min(affinity, cgroup quota, physical cores).",
        Flags("-t", "--threads", low=-1, high=MAX_THREADS, default=-1), arguments=("n_threads",))
    n_threads_batch: int | None = row(None, "Threads for prompt processing. -1: same as -t.",
        Flags("-tb", "--threads-batch", low=-1, high=MAX_THREADS, default=-1),
        arguments=("n_threads_batch",))
    type_k: Any = row("f16",
        f"KV cache type for K: {', '.join(CACHE_TYPES)}. Relative to f16, f32 takes twice the "
            "memory, q8_0 about half, q4_0 about a quarter.",
        Flags("-ctk", "--cache-type-k", choices=CACHE_TYPES, metavar="TYPE"), arguments=("type_k",))
    type_v: Any = row("f16", "KV cache type for V.",
        Flags("-ctv", "--cache-type-v", choices=CACHE_TYPES, metavar="TYPE"), arguments=("type_v",))
    swa_full: bool = row(False, "Use a full-size KV cache for sliding-window attention layers.",
        Flags("--swa-full"), arguments=("swa_full",))
    n_checkpoints: int = row(32,
        "Maximum number of checkpoints of a sequence, to which its text can go back although a "
        "recurrent state cannot forget tokens, or a sliding window has evicted entries. Other "
        "models have none.",
        Flags("-ctxcp", "--ctx-checkpoints", low=0, high=1 << 16), arguments=("ctx_checkpoints",))
    checkpoint_every: int = row(8192,
        "Make a checkpoint every so many tokens, besides those at ends of messages. "
        "0: only these.",
        Flags("-cms", "--checkpoint-every-n-tokens", "--checkpoint-min-step", low=0),
        arguments=("checkpoint_every_n_tokens",))
    kv_keep: int = row(0,
        "Experimental: number of tokens of a sequence that each head keeps in the KV cache: the "
        "first 4, the last --kv-window, and between them those with the most attention. The others "
        "are removed after the prompt, and each time a quarter of N has been added. 0: keep all.",
        Flags("--kv-keep", low=0), arguments=("kv_keep",))
    kv_window: int = row(64, "Number of last tokens that each head keeps, with --kv-keep.",
        Flags("--kv-window", low=1), arguments=("kv_window",))
    offload_kqv: bool = row(True,
        "Keep the KV cache of a layer on the layer's device, or in host memory.",
        Flags("-kvo/-nkvo", "--kv-offload/--no-kv-offload"), arguments=("offload_kqv",))
    # fmt: on


@dataclass(frozen=True, init=False, eq=False, repr=False)
class AdapterParams:
    """Files of adapters that change a model while it computes; several are separated by commas."""

    # fmt: off
    lora: tuple[str, ...] = row((), "LoRA adapters. Repeatable, or separated by commas.",
        Flags("--lora", metavar="FILE,...", repeated=True))
    lora_scaled: tuple[str, ...] = row((), "LoRA adapters with factors.",
        Flags("--lora-scaled", metavar="FILE:SCALE,...", repeated=True))
    control_vector: tuple[str, ...] = row((), "Control vectors, added to the outputs of layers.",
        Flags("--control-vector", metavar="FILE,...", repeated=True))
    control_vector_scaled: tuple[str, ...] = row((), "Control vectors with factors.",
        Flags("--control-vector-scaled", metavar="FILE:SCALE,...", repeated=True))
    control_vector_layers: Any = row(None,
        "The layers that control vectors are added to, both included.  [default: all but the "
        "first]", Flags("--control-vector-layer-range", metavar="START END", nargs=2, type=int))
    # fmt: on


@dataclass(frozen=True, init=False, eq=False, repr=False)
class OverrideParams:
    """Hyperparameters that a context overrides; None keeps the model's."""

    # fmt: off
    rope_scaling: str | None = row(None,
        "RoPE frequency scaling method. none ignores the rest.  [default: the model's]",
        Flags("--rope-scaling", choices=("none", "linear", "yarn")))
    rope_freq_base: float | None = row(None,
        "RoPE base frequency of layers with full attention, used by NTK-aware scaling.",
        Flags("--rope-freq-base"), arguments=("rope_freq_base",), unset=(0.0,))
    rope_freq_scale: float | None = row(None,
        "RoPE frequency scaling factor; expands the context by 1/N.",
        Flags("--rope-freq-scale"), arguments=("rope_freq_scale",), unset=(0.0,))
    yarn_orig_ctx: int | None = row(None, "YaRN: original context size of the model.",
        Flags("--yarn-orig-ctx"), arguments=("yarn_orig_ctx",), unset=(0,))
    yarn_ext_factor: float | None = row(None,
        "YaRN: extrapolation mix factor. 0: full interpolation.",
        Flags("--yarn-ext-factor"), arguments=("yarn_ext_factor",), unset=(-1.0,))
    yarn_attn_factor: float | None = row(None, "YaRN: scale of the attention magnitude.",
        Flags("--yarn-attn-factor"), arguments=("yarn_attn_factor",), unset=(1.0, -1.0))
    yarn_beta_slow: float | None = row(None, "YaRN: high correction dim, alpha in the paper.",
        Flags("--yarn-beta-slow"), arguments=("yarn_beta_slow",), unset=(1.0, -1.0))
    yarn_beta_fast: float | None = row(None, "YaRN: low correction dim, beta in the paper.",
        Flags("--yarn-beta-fast"), arguments=("yarn_beta_fast",), unset=(32.0, -1.0))
    hidden_act: str | None = row(None,
        "Activation of the feed-forward network: relu, gelu, silu, gelu_erf, gelu_quick or "
        "relu_sqr.  [default: the model's]", Flags("--act", choices=("relu", "gelu", "silu",
            "gelu_erf", "gelu_quick", "relu_sqr"), metavar="NAME"))
    causal: bool | None = row(None,
        "False lets tokens attend to later ones of their batch, for embeddings.")
    sparse_threshold: float | None = row(None,
        "Minimum score of an active neuron, in layers with predicted scores.")
    n_layer: int | None = row(None,
        "Number of layers to run, the first ones; the output norm and the head follow. The KV "
        "cache has these layers only.")
    # fmt: on
