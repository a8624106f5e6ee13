"""Weights of 1 to 8 bits, packed into words of 32, with a scale and a zero for a group of inputs.

    weight[o, i] = scales[g, o] * (code[i, o] - zeros[g, o])    g = g_idx[i], or i // group_size

    add_grouped(parts, "model.layers.0.mlp.up_proj.qweight", awq(128))
    parts.decoded["model.layers.0.mlp.up_proj.weight"].read()

GPTQ packs codes along inputs; AWQ along outputs, in its own order of places. Both store codes as
[n_in, n_out]; compressed-tensors stores [n_out, n_in], packed along inputs. A dimension of experts
may come before these.
Source: AutoGPTQ and GPTQModel, ``QuantLinear``; AutoAWQ, ``WQLinear_GEMM``; compressed-tensors,
``pack_to_int32``; llama.cpp, ``dequant_gptq`` and ``dequant_packed``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.rounding import ceil_div

from ...errors import ModelError
from ...inputs.budget import shown
from ..files.decoded import DecodedTensor
from ..files.stored import Floats, StoredTensor
from .parts import Parts, check_shape
from .scaled import FLOATS

Indices = npt.NDArray[np.int64]

_WORD = 32  # bits
_INTS = ("I32", "U32")
_CHUNK = 1 << 20  # codes converted at a time


@dataclass(frozen=True)
class Packing:
    """How codes lie in words.

    Attributes:
        bits: of a code. A word has as many as fit, the first in its lowest bits.
        group_size: inputs with one scale; -1: all.
        along_inputs: whether a word has codes of several inputs; else of several outputs.
        places: the place in a word of each code; None: in order.
        zero_offset: what is added to stored zeros.
    """

    bits: int
    group_size: int
    along_inputs: bool
    places: tuple[int, ...] | None = None
    zero_offset: int = 0

    @property
    def n(self) -> int:
        """The number of codes in a word."""
        return _WORD // self.bits

    def n_groups(self, n_in: int) -> int:
        """The number of groups of ``n_in`` inputs."""
        return 1 if self.group_size == -1 else int(ceil_div(n_in, self.group_size))

    def unpack(self, words: npt.NDArray[Any], axis: int) -> Floats:
        """Return the codes in words along an axis.

        Shape:
            NumPy order, [..., n_words, ...] -> [..., n_words * n, ...]
        """
        axis %= words.ndim
        shift = np.array(self.places or range(self.n), np.uint32) * np.uint32(self.bits)
        shift = shift.reshape(-1, *(1,) * (words.ndim - 1 - axis))
        codes = np.expand_dims(words.view(np.uint32), axis + 1) >> shift
        codes &= np.uint32((1 << self.bits) - 1)
        shape = list(words.shape)
        shape[axis] *= self.n
        return codes.reshape(shape).astype(np.float32)


def awq(group_size: int) -> Packing:
    """AWQ's packing: of the 8 outputs in a word, even ones come first."""
    return Packing(4, group_size, along_inputs=False, places=(0, 4, 1, 5, 2, 6, 3, 7))


def add_grouped(parts: Parts, name: str, packing: Packing) -> None:
    """Add the weight that ends in ``qweight``, with its zeros, scales and groups.

    Shape:
        NumPy order, scales [..., n_groups, n_out], qzeros [..., n_groups, n_out / n],
        qweight [..., n_in / n, n_out] (along inputs) or [..., n_in, n_out / n], g_idx [..., n_in]

    Raises:
        ModelError: a tensor is missing, or has another type or shape.
    """
    stem = name.removesuffix("qweight")
    words, zeros = parts.take(name, *_INTS), parts.take(f"{stem}qzeros", *_INTS)
    scales, g_idx = parts.take(f"{stem}scales", *FLOATS), parts.find(f"{stem}g_idx", *_INTS)
    if len(words.shape) < 2:
        raise ModelError(f"{words.path}: tensor {shown(name)} has {len(words.shape)} dimensions")
    *experts, n_in, n_out = words.shape
    if packing.along_inputs:
        n_in *= packing.n
    else:
        n_out *= packing.n
    n_groups = packing.n_groups(n_in)
    check_shape(f"{stem}scales", scales, (*experts, n_groups, n_out))
    check_shape(f"{stem}qzeros", zeros, (*experts, n_groups, ceil_div(n_out, packing.n)))
    if g_idx is not None:
        check_shape(f"{stem}g_idx", g_idx, (*experts, n_in))
    sources = (words, zeros, scales) if g_idx is None else (words, zeros, scales, g_idx)
    shape = (*experts, n_out, n_in)
    # the weight of a module, or a parameter without a module
    weight = f"{stem}weight" if stem.endswith(".") else stem.removesuffix("_")
    parts.add(weight, DecodedTensor(shape, sources, partial(_grouped, packing, shape, *sources)))


def _grouped(
    packing: Packing,
    shape: tuple[int, ...],
    words: StoredTensor,
    zeros: StoredTensor,
    scales: StoredTensor,
    g_idx: StoredTensor | None = None,
) -> Floats:
    """Return a weight, [..., n_out, n_in]."""
    out, raw, s = np.empty(shape, np.float32), words.raw(), scales.read()
    n_out, n_in = shape[-2:]
    z = packing.unpack(zeros.raw(), -1)[..., :n_out] + np.float32(packing.zero_offset)
    groups = _groups(packing, g_idx, shape[:-2], n_in, s.shape[-2])
    for e in np.ndindex(shape[:-2]):
        for inputs in _chunks(n_in, n_out, packing.n):
            if packing.along_inputs:
                packed = raw[e][inputs.start // packing.n : inputs.stop // packing.n]
                codes = packing.unpack(packed, 0)
            else:
                codes = packing.unpack(raw[e][inputs], 1)
            g = groups[e][inputs]
            out[e][:, inputs] = ((codes - z[e][g]) * s[e][g]).T
    return out


def add_rows(parts: Parts, name: str, packing: Packing) -> None:
    """Add the weight ``name``, which compressed-tensors has packed along inputs of an output.

    Shape:
        NumPy order, weight_packed [..., n_out, n_in / n], weight_scale [..., n_out, n_groups],
        weight_zero_point [..., n_out / n, n_groups] packed, or [..., n_out, n_groups] of I8,
        weight_shape [n_dims], weight_g_idx [n_in]

    Raises:
        ModelError: a tensor is missing, or has another type or shape.
    """
    words = parts.take(f"{name}_packed", *_INTS)
    scale = parts.take(f"{name}_scale", *FLOATS)
    zero = parts.find(f"{name}_zero_point", *_INTS, "I8")
    g_idx = parts.find(f"{name}_g_idx", *_INTS)
    stored_shape = parts.take(f"{name}_shape", "I64", "I32")
    check_shape(f"{name}_shape", stored_shape, (len(words.shape),))
    shape = tuple(map(int, stored_shape.raw()))
    if len(shape) < 2 or min(shape) < 0:
        raise ModelError(f"{words.path}: {shown(name)}_shape is {list(shape)}, must be sizes")
    *experts, n_out, n_in = shape
    check_shape(f"{name}_packed", words, (*experts, n_out, ceil_div(n_in, packing.n)))
    if scale.size != 1:
        check_shape(f"{name}_scale", scale, (*experts, n_out, packing.n_groups(n_in)))
    if zero is not None:
        n = n_out if zero.dtype == "I8" else ceil_div(n_out, packing.n)
        n_groups = scale.shape[-1] if scale.shape else 1
        check_shape(f"{name}_zero_point", zero, (*experts, n, n_groups))
    if g_idx is not None:
        check_shape(f"{name}_g_idx", g_idx, (n_in,))
    sources = tuple(x for x in (words, scale, zero, g_idx) if x is not None)
    read = partial(_rows, packing, shape, words, scale, zero, g_idx)
    parts.add(name, DecodedTensor(shape, sources, read))


def _rows(
    packing: Packing,
    shape: tuple[int, ...],
    words: StoredTensor,
    scale: StoredTensor,
    zero: StoredTensor | None,
    g_idx: StoredTensor | None,
) -> Floats:
    """Return a weight, [..., n_out, n_in]."""
    out, raw, s = np.empty(shape, np.float32), words.raw(), scale.read()
    n_out, n_in = shape[-2:]
    half = np.float32(1 << packing.bits - 1)  # added to signed values in storage
    z = np.full_like(s, half)
    if zero is not None and zero.dtype == "I8":
        z += zero.read()
    elif zero is not None:
        z = packing.unpack(zero.raw(), -2)[..., :n_out, :]
    if s.size == 1:
        s, z = (np.broadcast_to(x.reshape(-1)[0], (*shape[:-1], 1)) for x in (s, z))
    groups = _groups(packing, g_idx, (), n_in, s.shape[-1])
    for e in np.ndindex(shape[:-2]):
        for rows in _chunks(n_out, n_in, 1):
            codes = packing.unpack(raw[e][rows], 1)[:, :n_in]
            out[e][rows] = (codes - z[e][rows][:, groups]) * s[e][rows][:, groups]
    return out


def _groups(
    packing: Packing,
    g_idx: StoredTensor | None,
    experts: tuple[int, ...],
    n_in: int,
    n_groups: int,
) -> Indices:
    """Return the group of each input, [..., n_in]. Raises: ModelError: there is no such group."""
    if g_idx is None:
        size = max(n_in, 1) if n_groups == 1 else packing.group_size
        return np.broadcast_to(np.arange(n_in) // size, (*experts, n_in))
    groups = g_idx.raw().astype(np.int64)
    if groups.size and not 0 <= groups.min() <= groups.max() < n_groups:
        odd = int(groups.min()) if groups.min() < 0 else int(groups.max())
        raise ModelError(
            f"{g_idx.path}: an input is of group {odd}, but there are {n_groups}: download the "
            "file again"
        )
    return groups


def _chunks(n: int, n_others: int, unit: int) -> Iterator[slice]:
    """Yield slices of ``n``, of whole units and about as many elements as are converted at a time.

    Args:
        n_others: elements for one of ``n``.
    """
    step = unit * max(1, _CHUNK // max(1, n_others * unit))
    for i in range(0, n, step):
        yield slice(i, min(i + step, n))
