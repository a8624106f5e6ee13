"""Low-rank changes of matrices, and vectors added to layers, of several adapters in one graph.

    bank = AdapterBank([lora.terms, other.terms], weights)
    b = GraphBuilder(hparams, weights, kv, 4, 4, adapters=bank)
    b.adapter_scales                               # F32 [2, 4], the factors of each token; 0: none

An adapter adds ``scale gain B (A x)`` to the product of a matrix with x. A control vector adds
``scale v`` to the output of a layer: a B of one column without A. The matrices of all adapters of
a tensor are stacked, so one op multiplies each token with those of its own adapters.
Source: Hu et al. 2021, "LoRA"; Chen et al. 2023, "Punica"; llama.cpp, ``build_lora_mm``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyggml.buffer import HOST, HostBuffer
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor

Floats = npt.NDArray[Any]  # float32 or float16
EMBEDDING = "token_embd.weight"
_MAX_F16 = 65504.0


class LowRank(NamedTuple):
    """The change of one tensor by one adapter.

    Attributes:
        a: [rank, n_in], or [n_expert, rank, n_in]; of token embeddings [n_vocab, rank]; None for
            a vector that is added to a layer's output.
        b: [n_out, rank], or [n_expert, n_out, rank].
        gain: factor of the product: alpha / rank.
    """

    a: Floats | None
    b: Floats
    gain: float = 1.0

    @property
    def rank(self) -> int:
        """Number of columns of B."""
        return int(self.b.shape[-1])


Terms = Mapping[str, LowRank]  # by the name of the tensor, or of a layer's output


def layer_output(i: int) -> str:
    """The name of the output of a layer, to which control vectors are added."""
    return f"l_out-{i}"


class BankTerm(NamedTuple):
    """The matrices of all adapters of one tensor, as sources of LORA_SHRINK and LORA_EXPAND."""

    a: Tensor | None
    b: Tensor
    spans: Tensor
    gains: Tensor


class AdapterBank:
    """The matrices of some adapters in host memory.

    They are F32 where the tensor that they change is F32, else F16.

    Args:
        adapters: their terms, which have been checked against the model.
        weights: the model's.

    Attributes:
        n: number of adapters.
        terms: by the name of the tensor.
    """

    def __init__(self, adapters: Sequence[Terms], weights: Mapping[str, Tensor]) -> None:
        self.n = len(adapters)
        self.terms = {
            name: _joined(name, [terms.get(name) for terms in adapters], weights)
            for name in dict.fromkeys(name for terms in adapters for name in terms)
        }

    @property
    def n_bytes(self) -> int:
        """Bytes of the matrices."""
        pairs = ((term.a, term.b) for term in self.terms.values())
        return sum(t.nbytes for pair in pairs for t in pair if t is not None)


def _joined(name: str, parts: Sequence[LowRank | None], weights: Mapping[str, Tensor]) -> BankTerm:
    given = [part for part in parts if part is not None]
    spans = np.cumsum([0, *(0 if part is None else part.rank for part in parts)]).astype(np.int32)
    gains = np.array([0 if part is None else part.gain for part in parts], np.float32)
    weight = weights.get(name)
    exact = weight is None or weight.type is GGMLType.F32
    b = [part.b.swapaxes(-1, -2) for part in given]  # a column of B is a row
    a = [part.a for part in given if part.a is not None]
    return BankTerm(
        _tensor(f"{name}.lora_a", a, -1 if name == EMBEDDING else -2, exact) if a else None,
        _tensor(f"{name}.lora_b", b, -2, exact),
        _host(spans, GGMLType.I32, f"{name}.spans"),
        _host(gains, GGMLType.F32, f"{name}.gains"),
    )


def _tensor(name: str, parts: Sequence[Floats], axis: int, exact: bool) -> Tensor:
    large = any(np.abs(part).max(initial=0) > _MAX_F16 for part in parts)
    kind = GGMLType.F32 if exact or large else GGMLType.F16
    dtype = np.float32 if kind is GGMLType.F32 else np.float16
    return _host(np.concatenate([part.astype(dtype) for part in parts], axis), kind, name)


def _host(values: npt.NDArray[Any], type: GGMLType, name: str) -> Tensor:
    """A tensor of its own buffer."""
    values = np.ascontiguousarray(values)
    tensor = Tensor(type, (*values.shape[::-1], *(1,) * (4 - values.ndim)))
    buffer = HostBuffer(values.reshape(-1).view(np.uint8), HOST)
    tensor.buffer, tensor.data = buffer, buffer.base
    return tensor.set_name(name)
