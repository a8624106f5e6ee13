"""Run one case of one op on a backend, in memory with guards around every tensor.

run = CaseRun(op, case, backend)
run.error()                                    # NMSE against the op's reference
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.backend.interface import Backend, Program
from pyggml.cgraph import CGraph
from pyggml.context import Context, place_view
from pyggml.dtype import GGMLType, numpy_dtype
from pyggml.ops.movement.view import PERMUTE
from pyggml.ops.op import Arg, Case, Op
from pyggml.quants import BLOCK_TYPES, dequantize, quantize
from pyggml.quants.block import Field, get, put
from pyggml.sched import to_numpy
from pyggml.tensor import Tensor

GUARD = 256  # bytes on both sides of each tensor
JUNK = 0xFF  # NaN in every float type, so that unwritten elements are seen

# Of sources, with which the cases run by default: one of each shape of the CPU's kernels.
TYPES = {GGMLType[n] for n in ("F32", "F16", "I8", "I32", "I64", "Q4_0", "Q8_0", "Q4_K", "IQ2_S")}
KINDS = {"silu", "gelu", "relu", "swiglu", "swiglu_oai"}  # of functions of one element


def by_default(op: Op, case: Case) -> bool:
    """One case of each way to compute; of every block format one token's product."""
    args = [a for a in case.args if a is not None]
    if op.name == "MUL_MAT" and args[0].type.is_quantized and prod(args[1].ne[1:]) == 1:
        return True
    if op.name in ("UNARY", "GLU") and case.params["kind"] not in KINDS:
        return False
    return not case.perf and {a.type for a in args} <= TYPES


def nmse(got: npt.NDArray[Any], want: npt.NDArray[Any]) -> float:
    """Sum of squared differences by sum of squares; infinities must agree."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    infinite = np.isinf(want)
    if not np.array_equal(got[infinite], want[infinite]):
        return float("inf")
    got, want = got[~infinite], want[~infinite]
    error = float(np.sum((got - want) ** 2))
    return error / scale if (scale := float(np.sum(want**2))) else error


def random_values(a: Arg, rng: np.random.Generator) -> npt.NDArray[Any]:
    """The array described by an Arg, in NumPy's order."""
    if a.values is not None:
        return np.asarray(a.values(rng))
    dtype = numpy_dtype(a.type)
    if dtype is not None and dtype.kind == "i":
        return rng.integers(int(a.low), int(a.high), a.ne[::-1])
    return rng.uniform(a.low, a.high, a.ne[::-1]).astype(np.float32)


@dataclass
class CaseRun:
    """A case that has been computed; ``got`` and ``want`` have four dimensions."""

    op: Op
    case: Case
    backend: Backend
    ctx: Context = field(default_factory=lambda: Context(no_alloc=True))

    def __post_init__(self) -> None:
        self.filled: list[tuple[Tensor, Arg]] = []
        self.rng = np.random.default_rng(zlib.crc32(f"{self.op.name} {self.case.id}".encode()))
        self.sources = [self._source(a) for a in self.case.args]
        self.node = self.op.build(self.ctx, *self.sources, **self.case.params)
        self.graph = CGraph()
        self.graph.build_forward_expand(self.node)

    def compute(self) -> None:
        self._allocate()
        for tensor, a in self.filled:
            tensor.set(stored(random_values(a, self.rng), a.type))
        sources = [None if s is None else self._values(s) for s in self.node.src]
        old = self._values(self.node) if self.node.view_src is not None else None
        assert self.op.reference is not None
        want = self.op.reference(*sources, **self.node.op_params)
        self.updated = self.op.updated(self.node)
        if self.updated:
            want, *self.want_updated = want
        self.want = self._rounded(want, old)
        self.start = np.array(self.memory.bytes())
        self.program = self.backend.compile(self.graph)
        self.run(self.program)
        self.got = self._values(self.node)
        self.got_updated = [self._values(t) for t in self.updated]

    def run(self, program: Program) -> None:
        """Run a program of the case's graph in memory as it was before the first run."""
        self.buffer.set_tensor(self.memory, self.start)
        kept = self._outside()
        program.enqueue()
        self.backend.queue.synchronize()
        assert np.array_equal(self._outside(), kept), "bytes outside of the result were written"

    def error(self) -> float:
        """NMSE of the result, or of the updated source if larger; 0 only if all are equal."""
        if not self.updated:
            return _error(self.got, self.want)
        pairs = zip([self.got, *self.got_updated], [self.want, *self.want_updated], strict=True)
        return max(_error(got, want) for got, want in pairs)

    def _source(self, a: Arg | None) -> Tensor | None:
        if a is None:
            return None
        tensor = self.ctx.new_tensor(a.type, a.ne)
        self.filled.append((tensor, a))
        return tensor if a.permute is None else PERMUTE.build(self.ctx, tensor, axes=a.permute)

    def _allocate(self) -> None:
        buft = self.backend.buffer_type()
        roots = [t for t in self.ctx if t.view_src is None]
        offsets, size = [], GUARD
        for t in roots:
            offsets.append(size)
            size += -(-buft.alloc_size(t) // 64) * 64 + GUARD
        self.buffer = buft.alloc_buffer(size)
        self.memory = Tensor(GGMLType.I8, (size, 1, 1, 1))  # all of it
        self.memory.buffer, self.memory.data = self.buffer, self.buffer.base
        self.buffer.set_tensor(self.memory, np.full(size, JUNK, np.uint8))
        for t, offset in zip(roots, offsets, strict=True):
            t.buffer, t.data = self.buffer, self.buffer.base + offset
        for t in self.ctx:
            place_view(t)

    def _outside(self) -> npt.NDArray[np.uint8]:
        """All bytes except those of the result and of updated sources."""
        kept = np.ones(self.memory.nbytes, bool)
        for tensor in (self.node, *self.updated):
            start = tensor.data - self.buffer.base
            kept[start : start + tensor.nbytes] = False
        return self.memory.bytes()[kept]

    def _values(self, tensor: Tensor) -> npt.NDArray[Any]:
        """A copy of a tensor's values, from memory of the host or of a device."""
        return to_numpy(tensor)

    def _rounded(self, result: npt.NDArray[Any], old: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        """The reference's result in the precision of the node's type."""
        type = self.node.type
        dtype = numpy_dtype(type)
        if type == GGMLType.BF16 or dtype is None:
            stored = dequantize(quantize(result, type), type)
            if old is not None:  # rows that an op does not write keep their bytes
                stored = np.where(np.all(old == result, -1, keepdims=True), old, stored)
            return stored
        stored = result.astype(dtype)
        return stored.astype(np.float32) if type == GGMLType.F16 else stored


def _error(got: npt.NDArray[Any], want: npt.NDArray[Any]) -> float:
    """The NMSE of ``got``; 0 only if all elements are equal."""
    assert got.shape == want.shape
    return 0.0 if np.array_equal(got, want) else max(nmse(got, want), np.nextafter(0, 1))


def stored(values: npt.NDArray[Any], type: GGMLType) -> npt.NDArray[Any]:
    """Values in the form in which a tensor of ``type`` is set."""
    if type == GGMLType.BF16:
        return quantize(values, type).view(np.uint16)
    if not type.is_quantized:
        return values
    return encoded(values, type)


def encoded(values: npt.NDArray[Any], type: GGMLType) -> npt.NDArray[np.uint8]:
    """Values as ggml's bytes of any type."""
    return random_blocks(values, type) if is_only_read(type) else quantize(values, type)


def is_only_read(type: GGMLType) -> bool:
    """Whether there is no quantization to a format."""
    return type in BLOCK_TYPES and BLOCK_TYPES[type].encode is None


def random_blocks(values: npt.NDArray[Any], type: GGMLType) -> npt.NDArray[Any]:
    """Random blocks for the shape of ``values``, of about their magnitude."""
    rng = np.random.default_rng(values.size)
    n_bytes = values.shape[-1] // type.block_size * type.type_size
    out = rng.integers(0, 256, (*values.shape[:-1], n_bytes), np.uint8)
    blocks = out.reshape(-1, type.type_size)
    set_scales(blocks, BLOCK_TYPES[type].d, 2.0**-6 if type is not GGMLType.IQ1_M else 2.0**-7)
    return out


def set_scales(blocks: npt.NDArray[np.uint8], field: Field, value: float) -> None:
    """Write a float16 to a field of blocks [n, type_size]."""
    changed = np.zeros_like(blocks)
    put(field, get(field, blocks) ^ np.float16(value).view(np.uint16), changed)
    blocks ^= changed
