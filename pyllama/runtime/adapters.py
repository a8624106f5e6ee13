"""Adapters of a model in GGUF files: LoRA, aLoRA and control vectors, checked against the model.

    lora = load_lora("x.gguf", model)              # alpha, matrices, invocation tokens
    vector = load_control_vector("v.gguf", model, first=8, last=20)
    context.set_adapters([lora, vector])
    context.decode(Batch(tokens, adapters=context.scales({lora: 0.5})))

A file is read and checked as a whole; matrices stay in the mapped file until a context takes them.
Source: llama.cpp, ``llama_adapter_lora_init`` and ``common_control_vector_load``.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from pyggml.errors import TypeMismatch
from pyggml.gguf import GGUFFile
from pyggml.quants import dequantize

from ..errors import BatchError, ModelError
from ..graph.adapters import EMBEDDING, Floats, LowRank, Terms, layer_output
from .loader import adaptable_tensors
from .model import Model

log = logging.getLogger(__name__)
MAX_SCALE = 1e4  # of a factor's absolute value: larger ones are mistakes
_DIRECTION = re.compile(r"direction\.([0-9]{1,6})")


@dataclass(frozen=True, eq=False)
class Adapter:
    """Changes of a model's tensors, or vectors added to its layers.

    Attributes:
        path: the file, as given.
        terms: the changes by tensor, or by output of a layer.
        metadata: of the file.
        invocation: an aLoRA's tokens: it changes the last occurrence in the prompt and what
            follows; empty: it changes all tokens.
    """

    path: str
    terms: Terms
    metadata: Mapping[str, Any] = field(repr=False)
    invocation: tuple[int, ...] = ()

    @property
    def is_vector(self) -> bool:
        """Whether it is a control vector."""
        return all(term.a is None for term in self.terms.values())

    def first_token(self, tokens: Sequence[int]) -> int:
        """Index of the first token of a prompt that it changes; -1 for none."""
        n = len(self.invocation)
        starts = range(len(tokens) - n, -1, -1) if n else (0,)
        return next((i for i in starts if tuple(tokens[i : i + n]) == self.invocation), -1)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of its changes, by which saved states recognise it."""
        digest = sha256()
        for name, term in sorted(self.terms.items()):
            digest.update(f"{name} {term.gain}".encode())
            for x in (term.a, term.b):
                digest.update(b"" if x is None else np.ascontiguousarray(x).data)
        return digest.hexdigest()


class AdapterUse(NamedTuple):
    """An adapter of a sequence: its factor, and the first token that it changes."""

    adapter: Adapter
    scale: float
    first: int = 0


AdapterUses = frozenset[AdapterUse]  # of a sequence: what its tokens in the cache depend on


def uses_of(factors: Mapping[Adapter, float], tokens: Sequence[int]) -> AdapterUses:
    """The adapters of a prompt; an aLoRA whose invocation is not in it has no effect."""
    starts = ((one, scale, one.first_token(tokens)) for one, scale in factors.items() if scale)
    return frozenset(AdapterUse(*use) for use in starts if use[2] >= 0)


def n_alike(a: AdapterUses, b: AdapterUses) -> int:
    """The number of leading tokens that two sets of adapters change in the same way."""
    return min((use.first for use in a ^ b), default=sys.maxsize)


def shifted(uses: AdapterUses, first: int, n: int) -> AdapterUses:
    """The adapters of a sequence after ``n`` tokens were removed at ``first``."""
    return frozenset(
        use._replace(first=max(first, use.first - n)) if use.first > first else use for use in uses
    )


def key_of(uses: AdapterUses) -> str:
    """A digest of adapters by their content, for saved states; empty for none."""
    parts = sorted(f"{adapter.fingerprint} {scale!r} {at}" for adapter, scale, at in uses)
    return sha256(" ".join(parts).encode()).hexdigest() if parts else ""


def check_scale(scale: float, what: str) -> float:
    """A scale as a number. Raises: ModelError, for NaN and what can only be a mistake."""
    if not (isinstance(scale, SupportsFloat) and abs(float(scale)) <= MAX_SCALE):
        raise ModelError(f"{what}: the scale is {scale}, want -{MAX_SCALE:g} to {MAX_SCALE:g}")
    return float(scale)


def scales_of(adapters: Sequence[Adapter], factors: Mapping[Adapter, float]) -> Floats:
    """The factors of ``adapters`` in their order: float32 [n]; 0 for one that has none.

    Raises:
        BatchError: a factor of another adapter. ModelError: an absurd factor.
    """
    for adapter, scale in factors.items():
        if adapter not in adapters:
            raise BatchError(f"{adapter.path}: this adapter is not loaded (any more)")
        check_scale(scale, adapter.path)
    return np.array([factors.get(one, 0) for one in adapters], np.float32)


def load_lora(path: str | os.PathLike[str], model: Model) -> Adapter:
    """A LoRA adapter of llama.cpp's format.

    Raises:
        GGUFError: the file cannot be read, or is damaged or incomplete.
        ModelError: it is no adapter, or not of this model.
    """
    file = _open(path)
    arch = file.get_str("general.architecture", "")
    if arch != model.hparams.arch:
        raise ModelError(
            f"{file.path}: the adapter is for {arch or 'unnamed'} models, this model is "
            f"{model.hparams.arch}: use it with its own base"
        )
    return Adapter(
        os.fspath(path), _lora_terms(file, model), file.metadata, _invocation(file, model)
    )


def read_lora(path: str | os.PathLike[str]) -> tuple[GGUFFile, dict[str, LowRank]]:
    """The file of an adapter, and its matrices by the name of the tensor that they change.

    Raises: as `load_lora`.
    """
    file = _open(path)
    return file, _pairs(file)


def _open(path: str | os.PathLike[str]) -> GGUFFile:
    file = GGUFFile(path)
    for key, want in (("general.type", "adapter"), ("adapter.type", "lora")):
        value = file.get_str(key, "")
        if value != want:
            raise ModelError(
                f"{file.path}: {key} is {value!r}, want {want!r}: this is no LoRA adapter; "
                "pyllama-convert-lora makes one of a PEFT folder"
            )
    return file


def _invocation(file: GGUFFile, model: Model) -> tuple[int, ...]:
    tokens = file.get_numbers("adapter.alora.invocation_tokens", np.empty(0, np.uint32))
    bad = [int(t) for t in tokens if not 0 <= t < model.hparams.n_vocab]
    if bad:
        raise ModelError(f"{file.path}: invocation token {bad[0]} is not in the vocabulary")
    return tuple(int(t) for t in tokens)


def _pairs(file: GGUFFile) -> dict[str, LowRank]:
    """The matrices by tensor, as views of the file or decoded. Raises: ModelError."""
    alpha = file.get_float("adapter.lora.alpha", 0.0)
    if not (math.isfinite(alpha) and abs(alpha) <= MAX_SCALE**2):
        raise ModelError(f"{file.path}: adapter.lora.alpha is {alpha:g}")
    found: dict[str, dict[str, Floats]] = {}
    for name in file.tensors:
        tensor, _, part = name.rpartition(".")
        if tensor == "token_types.weight":
            log.warning("%s: '%s' is not applied, nor is it by llama.cpp", file.path, name)
        elif part in ("lora_a", "lora_b"):
            found.setdefault(tensor, {})[part] = _values(file, name)
        elif name.endswith("_norm.weight"):
            log.warning("%s: '%s' is not applied, nor is it by llama.cpp", file.path, name)
        else:
            raise ModelError(
                f"{file.path}: tensor '{name}' is neither A nor B of a LoRA adapter; DoRA and "
                "other methods are not supported"
            )
    if not found:
        raise ModelError(f"{file.path}: the adapter has no matrices")
    return {name: _pair(file, name, parts, alpha) for name, parts in found.items()}


def _pair(file: GGUFFile, name: str, parts: Mapping[str, Floats], alpha: float) -> LowRank:
    for part in ("lora_a", "lora_b"):
        if part not in parts:
            raise ModelError(f"{file.path}: '{name}.{part}' is missing; the pair is incomplete")
    a, b = parts["lora_a"], parts["lora_b"]
    rank = int(b.shape[-1])
    if a.shape[-1 if name == EMBEDDING else -2] != rank or a.ndim != b.ndim:
        raise ModelError(
            f"{file.path}: '{name}': A has sizes {_ne(a)} and B {_ne(b)}, which do not multiply"
        )
    if rank == 0:
        raise ModelError(f"{file.path}: '{name}' has rank 0, want at least 1: convert it again")
    return LowRank(a, b, alpha / rank if alpha else 1.0)


def _values(file: GGUFFile, name: str) -> Floats:
    info = file.tensors[name]
    shape = info.ne[: max(2, 1 + max((i for i in range(4) if info.ne[i] > 1), default=0))][::-1]
    data = file.tensor_bytes(name)
    if info.type.name in ("F32", "F16"):
        values: Floats = data.view(np.float32 if info.type.name == "F32" else np.float16)
    else:
        try:
            values = dequantize(data, info.type)
        except TypeMismatch as error:
            raise ModelError(f"{file.path}: '{name}': {error}") from None
    values = values.reshape(shape)
    if not np.isfinite(values).all():
        raise ModelError(f"{file.path}: '{name}' has values that are NaN or infinite")
    return values


def _ne(x: Floats) -> list[int]:
    return list(x.shape[::-1])


def _lora_terms(file: GGUFFile, model: Model) -> Terms:
    """The matrices of a file, checked against a model's. Raises: ModelError."""
    terms, known = _pairs(file), adaptable_tensors(model.arch, model.hparams, model.weights)
    for name, term in terms.items():
        ne = known.get(name)
        if ne is None:
            exists = name in model.weights
            raise ModelError(
                f"{file.path}: tensor '{name}' "
                + (
                    "cannot be changed by adapters in this "
                    if exists
                    else "does not exist in this "
                )
                + f"{model.hparams.arch} model"
                + ("" if exists else "; is it the adapter's base?")
            )
        assert term.a is not None
        want_a = (term.rank, model.hparams.n_vocab) if name == EMBEDDING else (ne[0], term.rank)
        experts = (ne[2],) if ne[2] > 1 else ()
        sizes = tuple(_ne(term.a)), tuple(_ne(term.b))
        want = (*want_a, *experts), (term.rank, ne[1], *experts)
        if sizes != want:
            raise ModelError(
                f"{file.path}: '{name}' has A {list(sizes[0])} and B {list(sizes[1])}, this model "
                f"wants {list(want[0])} and {list(want[1])}; is it the adapter's base?"
            )
    return terms


def load_control_vector(
    path: str | os.PathLike[str], model: Model, first: int = 0, last: int = 0
) -> Adapter:
    """A control vector of llama.cpp's format: one direction for each layer but the first.

    Args:
        first, last: the layers to which it is added; 0: from the second, to the last.

    Raises:
        GGUFError: the file cannot be read, or is damaged or incomplete.
        ModelError: it is no control vector, or not of this model.
    """
    file, known = GGUFFile(path), adaptable_tensors(model.arch, model.hparams, model.weights)
    last = last if last > 0 else model.hparams.n_layer
    terms: dict[str, LowRank] = {}
    for name, info in file.tensors.items():
        match = _DIRECTION.fullmatch(name)
        if match is None or int(match[1]) == 0:
            raise ModelError(
                f"{file.path}: tensor '{name}' is no direction of a layer from 1 on: this is no "
                "control vector"
            )
        if info.type.name != "F32" or info.ne != (model.hparams.n_embd, 1, 1, 1):
            raise ModelError(
                f"{file.path}: '{name}' is {info.type.name} {list(info.ne)}, this model wants F32 "
                f"[{model.hparams.n_embd}]"
            )
        layer, values = int(match[1]), _values(file, name).reshape(-1, 1)
        if layer_output(layer) not in known and layer < model.hparams.n_layer:
            raise ModelError(
                f"{file.path}: control vectors are not supported for {model.hparams.arch} models"
            )
        if max(first, 1) <= layer <= last and layer < model.hparams.n_layer:
            terms[layer_output(layer)] = LowRank(None, values)
    if not file.tensors:
        raise ModelError(f"{file.path}: the control vector has no directions")
    if not terms:
        raise ModelError(f"{file.path}: no direction lies in the layers {max(first, 1)} to {last}")
    return Adapter(os.fspath(path), terms, file.metadata)
