"""Converts a PEFT folder with a LoRA adapter to llama.cpp's adapter GGUF.

    path = convert_lora("my-adapter", base="Llama-3.2-1B", outfile="lora.gguf")

Of the base only config.json is read. An architecture's ``CONVERT`` changes rows or columns of a
matrix W; for W = B A these are rows of B or columns of A, which is checked with random matrices.
Source: llama.cpp, ``convert_lora_to_gguf.py``; PEFT, ``LoraLayer`` (factors, ranks, aLoRA).
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyggml.dtype import GGMLType
from pyggml.files import replacing
from pyggml.gguf import write_gguf
from pyggml.quants import quantize

from ..arch import Arch
from ..errors import ModelError
from ..graph.adapters import EMBEDDING
from ..inputs.budget import shown
from ..mapping.rules import Array, Config, Tensors
from .files.decoded import CheckpointTensor
from .files.folder import Folder, read_config
from .files.safetensors import read_safetensors
from .files.torch_files import read_torch
from .general import fill_file_name, read_general
from .outtype import OUTTYPES
from .plan import config_errors, find_arch, name_finder

log = logging.getLogger(__name__)
_PREFIX = "base_model.model."
_PART = re.compile(r"(.+?)\.lora_(embedding_)?([AB])(?:\.weight)?")
_LAYER = re.compile(r"\.\d+\.")
_REPETITION, _REPEATED_GROUP = re.compile(r"[*+{]"), re.compile(r"\)[*+{]")
_MAX_REPETITIONS = 3  # of a pattern: time is a power of the name's length with this exponent
_REFUSED = {  # settings of adapter_config.json that change the product
    "use_dora": "DoRA (use_dora) is not supported",
    "use_qalora": "QA-LoRA (use_qalora) is not supported",
    "lora_bias": "biases of LoRA layers (lora_bias) are not supported",
    "modules_to_save": "whole modules beside the adapter (modules_to_save) are not supported: "
    "merge them into the base",
    "trainable_token_indices": "changed rows of embeddings (trainable_token_indices) are not "
    "supported",
    "target_parameters": "target_parameters is not supported",
    "use_bdlora": "block-diagonal LoRA (use_bdlora) is not supported",
    "arrow_config": "routing between adapters (arrow_config) is not supported",
    "kasa_config": "KaSA (kasa_config) is not supported",
    "layer_replication": "replicated layers (layer_replication) are not supported",
}
_OF_BASE = ("pissa", "corda", "olora", "loftq", "lora_ga")  # start from parts of the base's weights
Pair = tuple[Array, Array]  # A and B


@dataclass
class _Module:
    """The matrices of one adapted module."""

    a: CheckpointTensor | None = None
    b: CheckpointTensor | None = None
    is_embedding: bool = False


def convert_lora(
    folder: str | os.PathLike[str],
    base: str | os.PathLike[str] | None = None,
    outfile: str | os.PathLike[str] | None = None,
    outtype: str = "f32",
    *,
    dry_run: bool = False,
) -> Path:
    """Convert a LoRA adapter and return the file's path.

    Args:
        folder: contains adapter_config.json and adapter_model.safetensors (or .bin).
        base: a folder with the base's config.json; None: what the adapter names, if it is a folder.
        outfile: a file, or a directory for a file of the default name; None: ``folder``.
        outtype: f32, f16, bf16, q8_0, or auto (f16 if the adapter has f16, else bf16).

    Raises:
        ModelError: the folder is no LoRA adapter of a supported base; nothing was written.
        GGUFError: the file cannot be written.
    """
    if outtype not in (*OUTTYPES, "auto"):
        raise ModelError(f"outtype is {outtype!r}, must be one of {', '.join(OUTTYPES)}, auto")
    source = Folder(Path(folder))
    settings = _settings(source)
    base_folder = Folder(_base(source, settings, base))
    config = read_config(base_folder)
    name, arch = find_arch(base_folder.path, config)
    config = arch.CONVERT.complete(config)
    modules, vectors, dtypes = _modules(source)
    alpha = float(settings["lora_alpha"])
    tensors = _tensors(source, modules, settings, config, arch)
    if outtype == "auto":
        outtype = "f16" if dtypes == {"F16"} else "bf16"
    kind, _ = OUTTYPES[outtype]
    n_adapted = sum(x.size // x.shape[-1] * tensors[f"{key[:-1]}a"].shape[-1]
                    for key, x in tensors.items() if key.endswith(".lora_b"))  # fmt: skip
    general = read_general(source, name, {}, n_adapted=n_adapted)
    metadata = {
        **general.keys,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": np.float32(alpha),
        **_invocation(source, settings),
        "general.quantization_version": 2,
    }
    for theirs, stored in vectors.items():
        ours, _ = _gguf_name(source, theirs, config, arch)
        tensors |= dict(arch.CONVERT.change(ours, stored.read(), config))
    path = source.path if outfile is None else Path(outfile)
    if path.is_dir():
        path /= general.file_name(outtype.upper(), "-LoRA")
    else:
        path = path.with_name(fill_file_name(path.name, outtype))
    for read in (source, base_folder):
        read.check_output(path)
    if not dry_run:
        encoded = {key: _encoded(key, x, kind) for key, x in tensors.items()}
        with replacing(path) as temporary:
            write_gguf(temporary, metadata, encoded)
    return path


def _settings(source: Folder) -> dict[str, Any]:
    path = source.path / "adapter_config.json"
    if not source.has("adapter_config.json"):
        raise ModelError(f"{source.path}: there is no adapter_config.json; is it a PEFT folder?")
    settings = source.json("adapter_config.json")
    if settings.get("peft_type", "LORA") != "LORA":
        raise ModelError(f"{path}: peft_type is {shown(settings.get('peft_type'))}, want 'LORA'")
    for key, why in _REFUSED.items():
        if settings.get(key):
            raise ModelError(f"{path}: {why}")
    if settings.get("bias", "none") != "none":
        raise ModelError(
            f"{path}: trained biases (bias={shown(settings['bias'])}) are not supported"
        )
    start = settings.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_OF_BASE):
        raise ModelError(
            f"{path}: init_lora_weights is {shown(start)}, which changes the base's weights, too: "
            "let PEFT save it as a LoRA of the base (path_initial_model_for_weight_conversion)"
        )
    for key in ("lora_alpha", "r"):
        value = settings.get(key)
        if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
            raise ModelError(f"{path}: {key} is {shown(value)}, want a number above 0")
    for key in ("rank_pattern", "alpha_pattern"):
        _check_patterns(f"{path}: {key}", settings.get(key) or {})
    return settings


def _check_patterns(what: str, patterns: Any) -> None:
    """Raise ModelError unless these are numbers by patterns that match in a short time."""
    if not isinstance(patterns, dict):
        raise ModelError(f"{what} is {shown(patterns)}, want an object")
    for pattern, value in patterns.items():
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ModelError(f"{what}: {shown(pattern)} has {shown(value)}, want a number")
        if _REPEATED_GROUP.search(pattern) or len(_REPETITION.findall(pattern)) > _MAX_REPETITIONS:
            raise ModelError(f"{what}: {shown(pattern)} repeats too much, want names of modules")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ModelError(f"{what}: {shown(pattern)} is no pattern: {error}") from None


def _base(source: Folder, settings: Mapping[str, Any], base: str | os.PathLike[str] | None) -> Path:
    if base is not None:
        return Path(base)
    named = settings.get("base_model_name_or_path")
    if isinstance(named, str) and Path(named).is_dir():
        return Path(named)
    raise ModelError(
        f"{source.path}: the base {shown(named)} is no folder here; give the folder of the base "
        "model with its config.json"
    )


def _modules(
    source: Folder,
) -> tuple[dict[str, _Module], dict[str, CheckpointTensor], set[str]]:
    """The adapted modules by the name of their weight, vectors of norms, and all dtypes."""
    for name, read in (("adapter_model.safetensors", read_safetensors),
                       ("adapter_model.bin", read_torch)):  # fmt: skip
        if source.has(name):
            stored = read(source.path / name, source.budget)
            break
    else:
        raise ModelError(f"{source.path}: there is no adapter_model.safetensors")
    modules: dict[str, _Module] = {}
    vectors: dict[str, CheckpointTensor] = {}
    for name, tensor in stored.items():
        theirs = name.replace(_PREFIX, "", 1)
        match = _PART.fullmatch(theirs)
        if match is not None:
            module = modules.setdefault(f"{match[1]}.weight", _Module())
            module.is_embedding |= match[2] is not None
            setattr(module, match[3].lower(), tensor)
        elif "_layernorm" in theirs or ".norm" in theirs:
            vectors[theirs] = tensor
        elif ".base_layer.weight" not in theirs:
            what = (
                "DoRA is not supported"
                if "magnitude" in theirs
                else ("embeddings of another size, and other whole tensors, are not supported")
            )
            raise ModelError(f"{tensor.path}: {shown(name)} is no A or B of LoRA: {what}")
    if not modules:
        raise ModelError(f"{source.path}: the adapter has no matrices")
    for theirs, module in modules.items():
        if module.a is None or module.b is None:
            part = "A" if module.a is None else "B"
            raise ModelError(f"{source.path}: lora_{part} of {shown(theirs)} is missing")
    return modules, vectors, set().union(*(tensor.dtypes for tensor in stored.values()))


def _tensors(
    source: Folder, modules: Mapping[str, _Module], settings: Mapping[str, Any], config: Config,
    arch: Arch,
) -> dict[str, Array]:  # fmt: skip
    """The matrices by their names in the file."""
    stacks: dict[str, dict[int, Pair]] = {}  # by expert; -1: the tensor has one pair
    ways: dict[object, str] = {}
    for theirs, module in modules.items():
        ours, number = _gguf_name(source, theirs, config, arch)
        assert module.a is not None and module.b is not None
        a, b = module.a.read().astype(np.float32), module.b.read().astype(np.float32)
        if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
            raise ModelError(
                f"{source.path}: {shown(theirs)}: A {list(a.shape)} and B {list(b.shape)} do not "
                "multiply"
            )
        b = b * np.float32(_factor(theirs, a.shape[0], settings))
        try:
            if ours == EMBEDDING or module.is_embedding:  # W = (B A).T
                results = {ours: (arch.CONVERT.change(ours, a.T, config)[ours], b)}
            else:
                results = _changed(ours, (a, b), config, arch, ways)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise ModelError(
                f"{source.path}: {shown(theirs)} cannot be converted to {ours!r}: {error!s:.200}"
            ) from None
        for name, pair in results.items():
            stacks.setdefault(name, {})[number] = pair
    found: dict[str, Array] = {}
    for name, stack in stacks.items():
        pairs = [stack[number] for number in sorted(stack)]
        if len(pairs) > 1 and sorted(stack) != list(range(len(pairs))):
            raise ModelError(f"{source.path}: {name!r} has not all experts")
        is_stack = -1 not in stack
        for part, matrices in zip(("lora_a", "lora_b"), zip(*pairs, strict=True), strict=True):
            if len({x.shape for x in matrices}) > 1:
                raise ModelError(f"{source.path}: experts of {name!r} have different ranks")
            found[f"{name}.{part}"] = np.stack(matrices) if is_stack else matrices[0]
    return found


def _changed(
    ours: str, pair: Pair, config: Config, arch: Arch, ways: dict[object, str]
) -> dict[str, Pair]:
    """The pairs that the architecture makes of one; ValueError if they are not of low rank.

    Args:
        ways: what is changed of each kind of tensor (``_way``); kinds not seen yet are added.
    """

    def change(x: Array) -> Tensors:
        return arch.CONVERT.change(ours, np.ascontiguousarray(x), config)

    kind = _LAYER.sub(".", ours), pair[0].shape, pair[1].shape
    if kind not in ways:
        ways[kind] = _way(pair, change)
    return {
        name: (np.ascontiguousarray(a), np.ascontiguousarray(b))
        for name, (a, b) in _apply(ways[kind], pair, change).items()
    }


def _apply(way: str, pair: Pair, change: Callable[[Array], Tensors]) -> dict[str, Pair]:
    """The changed pairs, if ``way`` is what is changed."""
    a, b = pair
    if way == "rows":
        return {name: (a, x) for name, x in change(b).items()}
    if way == "columns":
        return {name: (x, b) for name, x in change(a).items()}
    return dict.fromkeys(change((b @ a).T), pair)


def _way(pair: Pair, change: Callable[[Array], Tensors]) -> str:
    """What is changed of a matrix: its ``rows``, its ``columns``, or that it is ``transposed``.

    PEFT ignores ``fan_in_fan_out`` if it is wrong, and may save a wrong one. Found with random
    matrices of the shapes: those of an adapter may be 0.

    Raises:
        ValueError: something else.
    """
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(x.shape, np.float32) for x in pair)
    for way, whole in (("rows", b @ a), ("columns", b @ a), ("transposed", (b @ a).T)):
        try:
            wanted, got = change(whole), _apply(way, (a, b), change)
            products = {name: y @ x for name, (x, y) in got.items()}
        except (IndexError, ModelError, ValueError):  # the shapes do not fit
            continue
        if products.keys() == wanted.keys() and all(
            x.shape == wanted[name].shape and np.allclose(x, wanted[name], 1e-4, 1e-5)
            for name, x in products.items()
        ):
            return way
    raise ValueError("the conversion changes more than rows or columns, so it has no low rank")


def _gguf_name(source: Folder, theirs: str, config: Config, arch: Arch) -> tuple[str, int]:
    with config_errors(source.path, arch):
        found = name_finder(arch, config)(theirs)
    if found is None:
        raise ModelError(
            f"{source.path}: {shown(theirs)} is unknown in a {arch.CONVERT.models[0]}; is it the "
            "adapter's base?"
        )
    return found


def _factor(theirs: str, rank: int, settings: Mapping[str, Any]) -> float:
    """What B is multiplied by, so that the file's alpha by the rank is PEFT's factor."""
    module = theirs.removesuffix(".weight")

    def of(key: str, default: float) -> float:
        for pattern, value in (settings.get(key) or {}).items():
            if re.fullmatch(rf"(.*\.)?({pattern})", module):
                return float(value)
        return default

    alpha = float(settings["lora_alpha"])
    wanted = of("alpha_pattern", alpha) / (math.sqrt(rank) if settings.get("use_rslora") else rank)
    return wanted * rank / alpha


def _invocation(source: Folder, settings: Mapping[str, Any]) -> dict[str, Any]:
    tokens = settings.get("alora_invocation_tokens")
    if not tokens and settings.get("invocation_string"):
        raise ModelError(
            f"{source.path}: invocation_string without alora_invocation_tokens is not supported: "
            "add the tokens to adapter_config.json"
        )
    if not tokens:
        return {}
    if not isinstance(tokens, list) or not all(type(t) is int and 0 <= t < 1 << 31 for t in tokens):
        raise ModelError(f"{source.path}: alora_invocation_tokens is {shown(tokens)}")
    return {"adapter.alora.invocation_tokens": np.array(tokens, np.uint32)}


def _encoded(name: str, x: Array, kind: GGMLType) -> Any:
    x = np.ascontiguousarray(x, np.float32)
    if x.ndim < 2:
        return x
    kind = GGMLType.F16 if x.shape[-1] % kind.block_size else kind
    return quantize(x, kind), kind, x.shape[::-1]
