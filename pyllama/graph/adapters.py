"""Low-rank changes of matrices, and vectors added to layers, of several adapters in one graph.

    bank = AdapterBank([lora.terms, other.terms], weights)
    b = GraphBuilder(hparams, weights, kv, 4, 4, adapters=bank)
    b.adapter_scales                               # F32 [2, 4], the factors of each token; 0: none

An adapter adds ``scale gain B (A x)`` to the product of a matrix with x. A control vector adds
``scale v`` to the output of a layer: a B of one column without A. For each tensor the matrices of
all adapters are stacked, so that one op applies to each token its own adapters.
Source: Hu et al. 2021, "LoRA"; Chen et al. 2023, "Punica"; llama.cpp, ``build_lora_mm``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyggml.alloc.tallocr import alloc_ctx_tensors
from pyggml.backend.interface import Backend, Bytes, WeightUse
from pyggml.buffer import HOST, HostBuffer
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.host import advise_hugepages
from pyggml.ops.matrix.lora import PANEL
from pyggml.quants import quantize
from pyggml.rounding import ceil_div
from pyggml.tensor import BufferType, Tensor

Floats = npt.NDArray[Any]  # float32 or float16
Values = npt.NDArray[Any]  # float32 or int32
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
    """The matrices of all adapters of one tensor, as sources of LORA."""

    a: Tensor | None
    b: Tensor
    spans: Tensor
    gains: Tensor


class AdapterBank:
    """The matrices of some adapters, in host memory in the order in which a graph reads them.

    Their type depends on the tensor that they change: F32 for F32, Q8_0 for quantized ones if
    blocks of 32 fit, else F16. Values too large for F16 stay F32.

    Args:
        adapters: the terms of each, already checked against the model.
        weights: the model's.
        backend: on which LORA runs.

    Attributes:
        n: number of adapters.
        terms: the stacked matrices by the name of the tensor.

    Raises:
        AllocError: the matrices do not fit into memory.
    """

    def __init__(
        self, adapters: Sequence[Terms], weights: Mapping[str, Tensor], backend: Backend
    ) -> None:
        self.n, self._backend = len(adapters), backend
        self._contexts: dict[BufferType, Context] = {}
        self._values: list[tuple[Tensor, Bytes]] = []
        self._shared: dict[tuple[GGMLType, bytes], Tensor] = {}  # spans and gains
        found = {name for terms in adapters for name in terms}
        names = [*(name for name in weights if name in found), *sorted(found - weights.keys())]
        parts = {name: [terms.get(name) for terms in adapters] for name in names}
        types = {name: weights[name].type if name in weights else GGMLType.F32 for name in names}
        a = {name: self._a(name, parts[name], types[name]) for name in names}
        b = {name: self._b(name, parts[name], types[name]) for name in names}
        self.terms = {
            name: BankTerm(a[name], b[name], *self._spans_and_gains(parts[name])) for name in names
        }
        for buft, ctx in self._contexts.items():
            buffer = alloc_ctx_tensors(ctx, buft)
            if isinstance(buffer, HostBuffer):
                advise_hugepages(buffer.mem)
        for _ in backend.set_weights(self._values):
            pass
        self._values.clear()

    def _a(self, name: str, parts: Sequence[LowRank | None], kind: GGMLType) -> Tensor | None:
        given = [part.a for part in parts if part is not None and part.a is not None]
        if not given:
            return None
        a = np.concatenate(given, -1 if name == EMBEDDING else -2, dtype=np.float32)
        in_blocks = name != EMBEDDING and a.shape[-1] % GGMLType.Q8_0.block_size == 0
        return self._tensor(f"{name}.lora_a", _stored_type(a, kind, in_blocks), a)

    def _b(self, name: str, parts: Sequence[LowRank | None], kind: GGMLType) -> Tensor:
        given = [_panels(part.b.astype(np.float32)) for part in parts if part is not None]
        b = np.concatenate(given, -2)
        in_blocks = all(part is None or part.rank % 2 == 0 for part in parts)
        kind = _stored_type(b, kind, in_blocks)
        if kind.is_quantized:  # two columns of 16 rows are a block
            b = b.reshape(*b.shape[:-2], -1, 2 * PANEL)
        return self._tensor(f"{name}.lora_b", kind, b)

    def _spans_and_gains(self, parts: Sequence[LowRank | None]) -> tuple[Tensor, Tensor]:
        """Tensors that all matrices with the same spans or gains share."""
        spans = np.cumsum([0, *(0 if part is None else part.rank for part in parts)])
        gains = np.array([0 if part is None else part.gain for part in parts], np.float32)
        made = []
        for values, kind in ((spans.astype(np.int32), GGMLType.I32), (gains, GGMLType.F32)):
            key = kind, values.tobytes()
            if key not in self._shared:
                self._shared[key] = self._tensor(kind.name, kind, values)
            made.append(self._shared[key])
        return made[0], made[1]

    def _tensor(self, name: str, kind: GGMLType, values: Values) -> Tensor:
        """A tensor of some values, which is allocated and filled at the end of ``__init__``."""
        data = values if kind is GGMLType.I32 else quantize(values, kind)
        op = "GET_ROWS" if name.startswith(EMBEDDING) else "LORA"
        a, b, c, d = (*values.shape[::-1], 1, 1, 1)[:4]
        ne = a, b, c, d
        layouts = self._backend.layouts(WeightUse(kind, ne, frozenset([op])))
        buft = layouts[0].buft if name.endswith(".lora_a") else HOST
        ctx = self._contexts.setdefault(buft, Context(no_alloc=True))
        tensor = ctx.new_tensor(kind, ne).set_name(name)
        self._values.append((tensor, data.reshape(-1).view(np.uint8)))
        return tensor


def _stored_type(values: Floats, kind: GGMLType, in_blocks: bool) -> GGMLType:
    """The type of matrices that change a tensor of type ``kind``.

    Args:
        in_blocks: whether they can be Q8_0.
    """
    if kind is GGMLType.F32 or np.abs(values).max(initial=0) > _MAX_F16:
        return GGMLType.F32
    return GGMLType.Q8_0 if kind.is_quantized and in_blocks else GGMLType.F16


def _panels(b: Floats) -> Floats:
    """A matrix B as LORA reads it: [.., n_out, rank] -> [.., rank * panels, 16]."""
    *experts, m, rank = b.shape
    n = ceil_div(m, PANEL)
    padded = np.zeros((*experts, n * PANEL, rank), np.float32)
    padded[..., :m, :] = b
    columns = padded.reshape(*experts, n, PANEL, rank).swapaxes(-1, -2)
    return columns.reshape(*experts, n * rank, PANEL)
