"""A registry of variants of the feed-forward part, such as sparse inference.

    register(SparseFFN())                          # in the __init__ of a package in ``_PACKAGES``
    y = variant_ffn(b, x, i, "relu", "", x)        # in ``ffn``; None: no variant, a dense layer

The loader and ``graph.ffn`` use variants only through this registry. A variant may change the
tensors that an architecture declares, derive weights from others when a model is loaded, and build
the feed-forward part of some layers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyggml.dtype import GGMLType, row_size
from pyggml.gguf import TensorInfo
from pyggml.tensor import Dims, Tensor

from ..hparams import HParams
from .builder import GraphBuilder

Bytes = npt.NDArray[np.uint8]
Patterns = Mapping[str, tuple[str, ...]]  # sizes by tensor name; "?" marks optional tensors
ANY = "any"  # a size that the file chooses
_PACKAGES = ("pyllama.sparsity",)


@dataclass(frozen=True)
class Made:
    """Tensors derived from one tensor of the file.

    Attributes:
        source: the tensor of the file.
        tensors: name, type and sizes of each derived tensor.
        make: returns the bytes of each derived tensor, given those of the source.
    """

    source: TensorInfo
    tensors: tuple[tuple[str, GGMLType, Dims], ...]
    make: Callable[[Bytes], Sequence[Bytes]]


@dataclass(frozen=True)
class WeightPlan:
    """How the weights of a model are loaded.

    Attributes:
        unread: tensors of the file that no layer reads.
        made: tensors to derive from others.
    """

    unread: frozenset[str] = frozenset()
    made: tuple[Made, ...] = ()

    @property
    def made_sizes(self) -> dict[str, int]:
        """The size in bytes of each derived tensor."""
        return {
            name: row_size(type, ne[0]) * ne[1]
            for one in self.made
            for name, type, ne in one.tensors
        }


class Variant(Protocol):
    """A variant of the feed-forward part; a package registers one."""

    def patterns(self, patterns: Patterns, names: Collection[str]) -> Patterns:
        """An architecture's tensors in a file with these tensor names, in the order of use."""
        ...

    def faults(self, infos: Mapping[str, TensorInfo], n_layer: int) -> list[str]:
        """A message for each fault in the variant's tensors."""
        ...

    def plan(self, infos: Mapping[str, TensorInfo], hparams: HParams) -> WeightPlan:
        """How its weights are loaded."""
        ...

    def ffn(
        self, b: GraphBuilder, x: Tensor, i: int, act: str, up_act: str, pred_in: Tensor
    ) -> Tensor | None:
        """The feed-forward part of layer ``i`` without the residual; None for other layers.

        Args:
            pred_in: input of the predictors.

        Shape:
            x, pred_in [n_embd, T] -> [n_embd, T]
        """
        ...


_registered: list[Variant] = []


def register(variant: Variant) -> None:
    """Add a variant."""
    _registered.append(variant)


@cache
def _variants() -> tuple[Variant, ...]:
    for package in _PACKAGES:
        import_module(package)
    return tuple(_registered)


def weight_patterns(patterns: Patterns, names: Collection[str]) -> Patterns:
    """An architecture's tensors in a file with these tensor names, with all variants."""
    for variant in _variants():
        patterns = variant.patterns(patterns, names)
    return patterns


def weight_faults(infos: Mapping[str, TensorInfo], n_layer: int) -> list[str]:
    """A message for each fault in the tensors of variants."""
    return [fault for variant in _variants() for fault in variant.faults(infos, n_layer)]


def weight_plan(infos: Mapping[str, TensorInfo], hparams: HParams) -> WeightPlan:
    """How the weights of a model are loaded."""
    plans = [variant.plan(infos, hparams) for variant in _variants()]
    unread = frozenset(name for plan in plans for name in plan.unread)
    return WeightPlan(unread, tuple(made for plan in plans for made in plan.made))


def variant_ffn(
    b: GraphBuilder, x: Tensor, i: int, act: str, up_act: str, pred_in: Tensor
) -> Tensor | None:
    """The feed-forward part by the first variant that builds it; None for a dense layer."""
    for variant in _variants():
        y = variant.ffn(b, x, i, act, up_act, pred_in)
        if y is not None:
            return y
    return None
