"""Low-rank changes of matrices, and vectors added to layers, of several adapters in one graph.

    bank = AdapterBank([lora.terms, other.terms], weights, backends)
    b = GraphBuilder(hparams, weights, kv, 4, 4, adapters=bank)
    b.adapter_scales                               # F32 [2, 4], the factors of each token; 0: none

An adapter adds ``scale gain B (A x)`` to the product of a matrix with x. A control vector adds
``scale v`` to the output of a layer: a B of one column without A. For each tensor the matrices of
all adapters are stacked, so that one op applies to each token its own adapters.
Source: Hu et al. 2021, "LoRA"; Chen et al. 2023, "Punica"; llama.cpp, ``build_lora_mm``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyggml.alloc.tallocr import alloc_ctx_tensors
from pyggml.backend.interface import Backend, Bytes, WeightUse
from pyggml.buffer import HostBuffer
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.host import advise_hugepages
from pyggml.ops.matrix.lora import PANEL, fits_blocks, pieces
from pyggml.quants import quantize
from pyggml.rounding import ceil_div
from pyggml.tensor import BufferType, Tensor

Floats = npt.NDArray[Any]  # float32 or float16
Values = npt.NDArray[Any]  # float32 or int32
EMBEDDING = "token_embd.weight"
_OUTPUT = "l_out-"  # of a layer, before its number


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


def _normalized(part: LowRank) -> LowRank:
    """The same change by matrices whose largest values are 0.5 to 1, times powers of two.

    float16, also as scale of a block, has few exponents; the gain is float32.
    """
    made: list[Floats | None] = []
    exponent = 0
    for x in (part.a, part.b):
        if x is not None:
            e = int(np.frexp(np.abs(x).max(initial=0))[1])
            x, exponent = np.ldexp(x.astype(np.float32), -e), exponent + e
        made.append(x)
    a, b = made
    assert b is not None
    return LowRank(a, b, math.ldexp(part.gain, exponent))


def _with_rank(part: LowRank, rank: int, axis: int) -> LowRank:
    """The same change by matrices of a larger rank; ``axis``: that of the rank in A."""
    n = rank - part.rank

    def filled(x: Floats, axis: int) -> Floats:
        return np.pad(x, [(0, n if i == axis % x.ndim else 0) for i in range(x.ndim)])

    a = None if part.a is None else filled(part.a, axis)
    return LowRank(a, filled(part.b, -1), part.gain)


Terms = Mapping[str, LowRank]  # by the name of the tensor, or of a layer's output


def layer_output(i: int) -> str:
    """The name of the output of a layer, to which control vectors are added."""
    return f"{_OUTPUT}{i}"


class BankTerm(NamedTuple):
    """The matrices of all adapters of one tensor, as sources of LORA."""

    a: Tensor | None
    b: Tensor
    spans: Tensor
    gains: Tensor


class AdapterBank:
    """The stacked matrices of several adapters, each on the device whose tensor they change.

    Their type depends on that tensor alone: F32 for F32, on the CPU Q8_0 for quantized ones, else
    F16 (as A, if blocks of 32 do not fit). Ranks that are no whole blocks of Q8_0 are filled up
    with zeros. They are multiplied by powers of two, which the gains contain inverted.

    Args:
        adapters: the terms of each, already checked against the model.
        weights: the model's.
        backends: the devices that have the weights, the CPU last.

    Attributes:
        n: number of adapters.
        terms: the stacked matrices by the name of the tensor.

    Raises:
        AllocError: the matrices do not fit into memory.
    """

    def __init__(
        self, adapters: Sequence[Terms], weights: Mapping[str, Tensor], backends: Sequence[Backend]
    ) -> None:
        self.n, self._weights, self._backends = len(adapters), weights, backends
        self._contexts: dict[BufferType, Context] = {}
        self._values: dict[Backend, list[tuple[Tensor, Bytes]]] = {}
        self._shared: dict[tuple[Backend, GGMLType, bytes], Tensor] = {}  # spans and gains
        found = {name for terms in adapters for name in terms}
        names = [*(name for name in weights if name in found), *sorted(found - weights.keys())]
        self.terms: dict[str, BankTerm] = {}
        for name in names:
            given = (terms.get(name) for terms in adapters)
            parts = [
                None if part is None else self._fitted(name, _normalized(part)) for part in given
            ]
            matrices = self._a(name, parts), self._b(name, parts)
            self.terms[name] = BankTerm(*matrices, *self._spans_and_gains(name, parts))
        for buft, ctx in self._contexts.items():
            buffer = alloc_ctx_tensors(ctx, buft)
            if isinstance(buffer, HostBuffer):
                advise_hugepages(buffer.mem)
        for backend, values in self._values.items():
            for _ in backend.set_weights(values):
                pass
        self._values.clear()

    def _backend(self, name: str) -> Backend:
        """The backend that has the tensor; of a layer's output, the layer's first one."""
        weight = self._weights.get(name)
        if name.startswith(_OUTPUT):
            layer = f"blk.{name.removeprefix(_OUTPUT)}."
            weight = next((w for key, w in self._weights.items() if key.startswith(layer)), None)
        if weight is None or weight.buffer is None:
            return self._backends[-1]
        buft = weight.buffer.buft
        return next((b for b in self._backends if b.supports_buft(buft)), self._backends[-1])

    def _fitted(self, name: str, part: LowRank) -> LowRank:
        """The same change of a tensor, of a rank that fits the type of its B."""
        if not self._stored_type(name).is_quantized:
            return part
        rank = next(n for n in count(part.rank) if fits_blocks(n, part.b.shape[-2]))
        if rank == part.rank:
            return part
        return _with_rank(part, rank, -1 if name == EMBEDDING else -2)

    def _stored_type(self, name: str, in_blocks: bool = True) -> GGMLType:
        """The type of matrices that change a tensor; ``in_blocks``: whether they can be Q8_0."""
        kind = self._weights[name].type if name in self._weights else GGMLType.F32
        if kind is GGMLType.F32:
            return GGMLType.F32
        in_codes = kind.is_quantized and self._backend(name).device.kind == "cpu"
        return GGMLType.Q8_0 if in_codes and in_blocks else GGMLType.F16

    def _a(self, name: str, parts: Sequence[LowRank | None]) -> Tensor | None:
        given = [part.a for part in parts if part is not None and part.a is not None]
        if not given:
            return None
        a = np.concatenate(given, -1 if name == EMBEDDING else -2, dtype=np.float32)
        in_blocks = name != EMBEDDING and a.shape[-1] % GGMLType.Q8_0.block_size == 0
        kind = self._stored_type(name, in_blocks)
        op = "GET_ROWS" if name == EMBEDDING else "LORA"
        return self._tensor(self._backend(name), f"{name}.lora_a", kind, a, op)

    def _b(self, name: str, parts: Sequence[LowRank | None]) -> Tensor:
        kind = self._stored_type(name)
        given = [part.b for part in parts if part is not None]
        b = np.concatenate([_panels(b, kind.is_quantized) for b in given], -2)
        op = "LORA" if kind.is_quantized else ""
        return self._tensor(self._backend(name), f"{name}.lora_b", kind, b, op)

    def _spans_and_gains(self, name: str, parts: Sequence[LowRank | None]) -> tuple[Tensor, Tensor]:
        """Tensors that all matrices of a backend with the same spans or gains share."""
        backend = self._backend(name)
        spans = np.cumsum([0, *(0 if part is None else part.rank for part in parts)])
        with np.errstate(over="ignore"):
            gains = np.array([0 if part is None else part.gain for part in parts], np.float32)
        made = []
        for values, kind in ((spans.astype(np.int32), GGMLType.I32), (gains, GGMLType.F32)):
            key = backend, kind, values.tobytes()
            if key not in self._shared:
                self._shared[key] = self._tensor(backend, kind.name, kind, values)
            made.append(self._shared[key])
        return made[0], made[1]

    def _tensor(
        self, backend: Backend, name: str, kind: GGMLType, values: Values, op: str = ""
    ) -> Tensor:
        """A tensor of some values, which is allocated and filled at the end of ``__init__``.

        Args:
            op: the only one that reads it, in any of its layouts; else it has the plain layout.
        """
        data = values if kind is GGMLType.I32 else quantize(values, kind)
        a, b, c, d = (*values.shape[::-1], 1, 1, 1)[:4]
        ne, buft = (a, b, c, d), backend.buffer_type()
        if op:
            buft = backend.layouts(WeightUse(kind, ne, frozenset([op])))[0].buft
        ctx = self._contexts.setdefault(buft, Context(no_alloc=True))
        tensor = ctx.new_tensor(kind, ne).set_name(name)
        self._values.setdefault(backend, []).append((tensor, data.reshape(-1).view(np.uint8)))
        return tensor


def _panels(b: Floats, in_blocks: bool) -> Floats:
    """A matrix B as LORA reads it: [.., n_out, rank] -> [.., rank * panels, 16].

    Args:
        in_blocks: for Q8_0: -> [.., rank * panels / 2, 32].
    """
    *experts, m, rank = b.shape
    n = ceil_div(m, PANEL)
    padded = np.zeros((*experts, n * PANEL, rank), np.float32)
    padded[..., :m, :] = b
    if not in_blocks:
        columns = padded.reshape(*experts, n, PANEL, rank).swapaxes(-1, -2)
        return columns.reshape(*experts, n * rank, PANEL)
    found, first = [], 0
    for size in pieces(rank):
        part = padded[..., first : first + size].reshape(*experts, -1, 32 // size, PANEL, size)
        found.append(part.swapaxes(-2, -3).reshape(*experts, -1, 32))
        first += size
    return np.concatenate(found, -2)
