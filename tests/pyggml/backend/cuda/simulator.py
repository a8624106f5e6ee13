"""Runs a GPU kernel's Python as it stands, each thread a greenlet, in an order that a test chooses.

    simulate(KERNELS["scale_f32"], memory, Grid(4), 256, (x, y, 1024, 0.5), order="reverse")

The kernel's function and its device functions are rebuilt with other globals: ``cuda`` becomes
``_Cuda``, intrinsics their twins, Numba's types those of this module, pointers objects that
check bounds and alignment. Threads run one after the other from barrier to barrier, so a missing
barrier gives a result that depends on the order. Shared and local memory start as NaNs. These are
errors, which name kernel, line, block and thread: a barrier or an exchange of a warp that not all
threads reach at the same place, a shuffle from an absent lane, an access outside of an allocation.

Integers: a value read from memory or from ``cuda``, or made by a constructor such as ``int32(x)``,
has the width of its type. The result of arithmetic is a plain integer, since Numba makes it 64 bits
wide. It does not wrap: ``uint32(a) - uint32(b)`` may be negative here and is huge in Numba; write
``u32(a - b)``. Floats: ``float32(2) * 2.0`` and ``float32(2) * int32(2)`` are float32 here, float64
in Numba; a search of the PTX for f64 finds those. A store converts as the GPU does.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from types import CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet
from numba import cuda, types
from numba.cuda import libdevice

from pyggml.backend.cuda.kernel import GpuKernel, KernelImage

from .intrinsics import TWINS
from .memory import KernelFault, Memory, Space

_FULL = 0xFFFFFFFF
_NAMES = {"int32": "i32", "int64": "i64", "uint32": "u32", "float32": "f32"}


@dataclass(frozen=True)
class SimulatorImage(KernelImage):
    """An image that is the kernel itself."""

    kernel: GpuKernel | None = None


def simulator_image(kernel: GpuKernel, cc: tuple[int, int]) -> SimulatorImage:
    """A kernel that is not compiled."""
    kinds = tuple(_NAMES.get(str(t), "ptr") for _, t in kernel.parameters)
    return SimulatorImage(b"", kernel.name, kinds, kernel=kernel)


# Numbers


class Int(int):
    """An integer of a width; arithmetic with it gives a plain one."""

    bits: int
    signed: bool
    dtype: Any

    __slots__ = ()

    def __new__(cls, x: Any = 0) -> Int:
        value = int(x) & ((1 << cls.bits) - 1)
        if cls.signed and value >> (cls.bits - 1):
            value -= 1 << cls.bits
        return int.__new__(cls, value)


def _int_type(bits: int, signed: bool) -> type[Int]:
    name = f"{'' if signed else 'u'}int{bits}"
    return type(
        name, (Int,), {"__slots__": (), "bits": bits, "signed": signed, "dtype": np.dtype(name)}
    )


INTEGERS = {(n, s): _int_type(n, s) for n in (8, 16, 32, 64) for s in (True, False)}
_INT32, _UINT32 = INTEGERS[32, True], INTEGERS[32, False]


class _Float:
    """float32 and float64 as constructors and as types of arrays."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def __call__(self, x: Any = 0) -> Any:
        return self.dtype.type(x)


FLOATS = {t: _Float(t) for t in ("float16", "float32", "float64")}


def _constructor(dtype: Any) -> Any:
    """What makes values of a NumPy type."""
    if dtype.kind in "iu":
        return INTEGERS[8 * dtype.itemsize, dtype.kind == "i"]
    return bool if dtype.kind == "b" else FLOATS[dtype.name]


def _value(x: Any) -> Any:
    """A result of NumPy as a kernel's number."""
    if isinstance(x, tuple):
        return tuple(_value(v) for v in x)
    return _constructor(x.dtype)(x) if isinstance(x, np.integer) else x


def _stored(x: Any, dtype: Any) -> Any:
    return _constructor(dtype)(x)


# Memory


class Pointer:
    """A parameter: an address and the type of its elements."""

    def __init__(self, memory: Memory, address: int, dtype: Any) -> None:
        self._memory, self.address, self.dtype = memory, address, dtype
        self._make = _constructor(dtype)
        self._space: Space | None = None

    def _at(self, address: int, dtype: Any, n: int) -> tuple[Any, int]:
        size = n * dtype.itemsize
        space = self._space
        if space is None or not space.base <= address <= space.base + space.size - size:
            space = self._space = self._memory.find(address, size)
        if address % size:
            raise KernelFault(f"access of {size} bytes at {address:#x} is not aligned")
        return space.view(dtype), (address - space.base) // dtype.itemsize

    def __getitem__(self, i: Any) -> Any:
        view, at = self._at(self.address + int(i) * self.dtype.itemsize, self.dtype, 1)
        return self._make(view[at])

    def __setitem__(self, i: Any, value: Any) -> None:
        view, at = self._at(self.address + int(i) * self.dtype.itemsize, self.dtype, 1)
        view[at] = self._make(value)

    def load(self, dtype: Any, offset: int, n: int) -> Any:
        """``n`` elements of any type at a byte offset."""
        view, at = self._at(self.address + int(offset), dtype, n)
        return view[at : at + n].copy()

    def store(self, dtype: Any, offset: int, values: Sequence[Any]) -> None:
        view, at = self._at(self.address + int(offset), dtype, len(values))
        view[at : at + len(values)] = [_stored(v, dtype) for v in values]


class Array(Pointer):
    """Shared or local memory."""

    def __init__(self, space: Space, shape: Any, dtype: Any) -> None:
        self.shape = tuple(int(n) for n in shape) if isinstance(shape, tuple) else (int(shape),)
        super().__init__(Memory(0), space.base, dtype)
        self._memory.add(space)

    def _flat(self, i: Any) -> int:
        index = i if isinstance(i, tuple) else (i,)
        flat = 0
        if len(index) != len(self.shape):
            raise KernelFault(f"index {index} of an array of {self.shape}")
        for k, n in zip(index, self.shape, strict=True):
            if not 0 <= k < n:
                raise KernelFault(f"index {tuple(map(int, index))} of an array of {self.shape}")
            flat = flat * n + int(k)
        return flat

    def __getitem__(self, i: Any) -> Any:
        return super().__getitem__(self._flat(i))

    def __setitem__(self, i: Any, value: Any) -> None:
        super().__setitem__(self._flat(i), value)

    def __len__(self) -> int:
        return self.shape[0]


# Threads


class _Lane(greenlet):
    """A thread: where it is, what it waits for, and what it gives to the others."""

    thread: int
    thread_index: Any
    waits: Any
    gives: Any


class _Block:
    """The threads of a block, run from barrier to barrier."""

    def __init__(self, run: _Run, index: tuple[int, int, int]) -> None:
        self.run, self.index = run, index
        self.shared: dict[Any, Array] = {}
        self.dynamic = Space(run.shared_bytes)
        self.hub = getcurrent()
        self.lanes: list[_Lane] = []
        for t in range(run.threads):
            lane = _Lane(run.enter, self.hub)
            lane.thread, lane.waits = t, None
            lane.thread_index = run.thread_indices[t]
            self.lanes.append(lane)

    def execute(self) -> None:
        living = ready = list(self.lanes)
        answers: dict[int, Any] = {}
        while living:
            for lane in self.run.ordered(ready):
                self.run.lane = lane
                try:
                    lane.switch(answers.pop(lane.thread, None))
                except Exception as error:
                    raise self._fault(lane, error) from error
            living = [lane for lane in living if not lane.dead]
            answers = self._meet(living)
            ready = [lane for lane in living if lane.thread in answers]
            if living and not ready:
                raise self._divergent(living)

    def _fault(self, lane: _Lane, error: Exception) -> KernelFault:
        line, trace = "", error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if code in self.run.rebuilt.codes:
                line = f"{code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}"
            trace = trace.tb_next
        what = error if isinstance(error, KernelFault) else f"{type(error).__name__}: {error}"
        place = f"block {self.index}, thread {lane.thread}"
        return KernelFault(f"{self.run.name}: {what}; {line}, {place}")

    def _divergent(self, living: list[_Lane]) -> KernelFault:
        waits: dict[str, list[int]] = {}
        for lane in living:
            kind, code, _, line, *_ = lane.waits
            where = f"{kind} at {code.co_filename.rsplit('/', 1)[-1]}:{line}"
            waits.setdefault(where, []).append(lane.thread)
        text = "; ".join(f"threads {t[:8]} of {len(t)} wait for {w}" for w, t in waits.items())
        return KernelFault(f"{self.run.name}: divergent barrier in block {self.index}: {text}")

    def _meet(self, living: list[_Lane]) -> dict[int, Any]:
        """What each lane gets whose partners are all there, by thread."""
        groups: dict[Any, list[_Lane]] = {}
        alive: dict[int, int] = {}
        for lane in living:
            warp = lane.thread >> 5
            alive[warp] = alive.get(warp, 0) | 1 << (lane.thread & 31)
            mask = lane.waits[-1]
            groups.setdefault((None if mask is None else warp, lane.waits), []).append(lane)
        answers: dict[int, Any] = {}
        for (warp, waits), lanes in groups.items():
            if warp is None:
                if len(lanes) == len(living):
                    given = [lane.gives for lane in lanes]
                    answers |= {lane.thread: given for lane in lanes}
                continue
            here = sum(1 << (lane.thread & 31) for lane in lanes)
            if waits[-1] & alive[warp] & ~here == 0:
                values = {lane.thread & 31: lane.gives for lane in lanes}
                answers |= {lane.thread: values for lane in lanes}
        return answers


class _Run:
    """One launch."""

    def __init__(
        self,
        kernel: GpuKernel,
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        order: str,
    ) -> None:
        self.name, self.grid, self.threads = kernel.name, grid, threads
        self.shared_bytes, self.order = shared_bytes, order
        self.random = random.Random(0)
        zero = _INT32(0)
        self.thread_indices = [SimpleNamespace(x=_INT32(t), y=zero, z=zero) for t in range(threads)]
        self.cuda = _Cuda(self)
        self.rebuilt = _Rebuilt(self.cuda)
        self.function = self.rebuilt.value(kernel.function)
        self.arguments: tuple[Any, ...] = ()
        self.lane: Any = None
        self.block: Any = None

    def enter(self, _: Any) -> None:
        with np.errstate(all="ignore"):
            self.function(*self.arguments)

    def ordered(self, lanes: list[_Lane]) -> list[_Lane]:
        if self.order == "reverse":
            return lanes[::-1]
        if self.order == "random":
            return self.random.sample(lanes, len(lanes))
        return lanes

    def execute(self) -> None:
        x, y, z = self.grid
        for k, j, i in product(range(z), range(y), range(x)):
            self.cuda.blockIdx = SimpleNamespace(x=_INT32(i), y=_INT32(j), z=_INT32(k))
            self.block = _Block(self, (i, j, k))
            self.block.execute()


def simulate(
    kernel: GpuKernel,
    memory: Memory,
    grid: tuple[int, int, int],
    threads: int,
    arguments: Sequence[float],
    shared_bytes: int = 0,
    *,
    order: str = "forward",
) -> None:
    """Run a grid.

    Args:
        arguments: addresses and scalars.
        order: of the threads: forward, reverse or random.

    Raises:
        KernelFault: see the module.
    """
    run = _Run(kernel, (grid[0], grid[1], grid[2]), threads, shared_bytes, order)
    given: list[Any] = []
    for (_, type_), argument in zip(kernel.parameters, arguments, strict=True):
        if isinstance(type_, types.CPointer):
            given.append(Pointer(memory, int(argument), np.dtype(str(type_.dtype))))
        else:
            given.append(_constructor(np.dtype(str(type_)))(argument))
    run.arguments = tuple(given)
    run.execute()


# The kernel's names


class _Rebuilt:
    """Functions and other values of a kernel's module, made for the simulator."""

    def __init__(self, api: _Cuda) -> None:
        self._api = api
        self._functions: dict[Any, Any] = {}
        self.codes: set[CodeType] = set()

    def value(self, x: Any) -> Any:
        """What a name of the kernel's module stands for here."""
        if x is cuda:
            return self._api
        if x is math or x is libdevice:
            return _MATH
        if isinstance(x, ModuleType):
            return x if x is np else _Module(self, x)
        if isinstance(x, types.Integer):
            return INTEGERS[x.bitwidth, x.signed]
        if isinstance(x, types.Float):
            return FLOATS[str(x)]
        if isinstance(x, tuple) and type(x) is tuple:
            return tuple(self.value(v) for v in x)
        if isinstance(x, np.ndarray):
            return _table(x)
        if isinstance(x, np.integer):
            return _value(x)
        if isinstance(x, FunctionType):
            return self._function(x)
        if getattr(x, "__module__", "") == "math":
            return getattr(_MATH, x.__name__)
        if callable(x):
            try:
                if x in TWINS:
                    return _twin(TWINS[x])
            except TypeError:
                return x
            if hasattr(x, "py_func"):
                return self._function(x.py_func)
        return x

    def _function(self, f: Any) -> Any:
        if f in self._functions:
            return self._functions[f]
        scope: dict[str, Any] = {"__builtins__": f.__globals__["__builtins__"]}
        cells = tuple(CellType() for _ in f.__closure__ or ())
        made = FunctionType(f.__code__, scope, f.__name__, f.__defaults__, cells)
        self._functions[f] = made
        self.codes.add(f.__code__)
        for name in _global_names(f.__code__):
            if name in f.__globals__:
                scope[name] = self.value(f.__globals__[name])
        for cell, old in zip(cells, f.__closure__ or (), strict=True):
            cell.cell_contents = self.value(old.cell_contents)
        return made


def _global_names(code: CodeType) -> set[str]:
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return set(code.co_names).union(*(_global_names(c) for c in inner))


def _twin(f: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        return _value(f(*args))

    return call


class _Module:
    """A module whose attributes are made for the simulator."""

    def __init__(self, rebuilt: _Rebuilt, module: ModuleType) -> None:
        self._rebuilt, self._module = rebuilt, module

    def __getattr__(self, name: str) -> Any:
        value = self._rebuilt.value(getattr(self._module, name))
        setattr(self, name, value)
        return value


def _table(x: Any) -> Array:
    space = Space(x.nbytes)
    space.bytes[:] = np.ascontiguousarray(x).view(np.uint8).reshape(-1)
    return Array(space, x.shape, x.dtype)


_RENAMED = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2"}
_RENAMED |= {"pow": "power", "ceil": "ceil", "fabs": "abs", "fast_expf": "exp", "rsqrt": "rsqrt"}


class _Math:
    """``math`` and ``libdevice``, at float64 and rounded to the type of the arguments."""

    def __getattr__(self, name: str) -> Any:
        if isinstance(getattr(math, name, None), float):
            return getattr(math, name)
        plain = name.removeprefix("fast_")
        if not hasattr(math, plain) and plain.endswith("f"):
            plain = plain[:-1]  # libdevice's for float32
        plain = plain.removeprefix("fast_")
        f = getattr(np, _RENAMED.get(plain, plain), None)
        if plain == "rsqrt":
            f = _rsqrt
        elif f is None:
            f = getattr(math, plain)

        def call(*args: Any) -> Any:
            result = f(*(np.float64(a) for a in args))
            if isinstance(result, bool | np.bool_):
                return bool(result)
            return np.float32(result) if any(isinstance(a, np.float32) for a in args) else result

        setattr(self, name, call)
        return call


def _rsqrt(x: Any) -> Any:
    return 1 / np.sqrt(x)


_MATH = _Math()


class _Cuda:
    """``numba.cuda`` as a kernel sees it."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        x, y, z = run.grid
        self.blockIdx: Any = None
        self.gridDim = SimpleNamespace(x=_INT32(x), y=_INT32(y), z=_INT32(z))
        self.blockDim = SimpleNamespace(x=_INT32(run.threads), y=_INT32(1), z=_INT32(1))
        self.warpsize = 32
        self.shared = SimpleNamespace(array=self._shared)
        self.local = SimpleNamespace(array=_local)
        self.const = SimpleNamespace(array_like=lambda x: x)
        self.atomic = _Atomic()
        self.libdevice = _MATH

    @property
    def threadIdx(self) -> Any:
        return self._run.lane.thread_index

    @property
    def laneid(self) -> Any:
        return _INT32(self._run.lane.thread & 31)

    def grid(self, n: int) -> Any:
        if n != 1:
            raise KernelFault("launches have one dimension of threads: cuda.grid(1)")
        return _INT32(self.blockIdx.x * self._run.threads + self._run.lane.thread)

    def gridsize(self, n: int) -> Any:
        return _INT32(self.gridDim.x * self._run.threads)

    # Memory

    def _shared(self, shape: Any, dtype: Any, alignment: Any = None) -> Array:
        frame, block = sys._getframe(1), self._run.block
        dtype = _dtype(dtype)
        if shape == 0:
            return Array(block.dynamic, block.dynamic.size // dtype.itemsize, dtype)
        key = (frame.f_code, frame.f_lasti)  # one array for each place in the source
        if key not in block.shared:
            block.shared[key] = _array(shape, dtype)
        array: Array = block.shared[key]
        return array

    # Barriers and exchanges between lanes

    def _wait(self, kind: str, mask: int | None, gives: Any) -> Any:
        frame, lane = sys._getframe(2), self._run.lane
        if mask is not None and not mask >> (lane.thread & 31) & 1:
            raise KernelFault(f"{kind}: the lane is not in its own mask {mask:#x}")
        lane.waits = (kind, frame.f_code, frame.f_lasti, frame.f_lineno, mask)
        lane.gives = gives
        return self._run.block.hub.switch()

    def syncthreads(self) -> None:
        self._wait("syncthreads", None, None)

    def syncthreads_count(self, p: Any) -> Any:
        return _INT32(sum(self._wait("syncthreads_count", None, bool(p))))

    def syncthreads_and(self, p: Any) -> Any:
        return _INT32(all(self._wait("syncthreads_and", None, bool(p))))

    def syncthreads_or(self, p: Any) -> Any:
        return _INT32(any(self._wait("syncthreads_or", None, bool(p))))

    def syncwarp(self, mask: Any = _FULL) -> None:
        self._wait("syncwarp", int(mask) & _FULL, None)

    def _from(self, values: Any, lane: int, own: Any, inside: bool) -> Any:
        if not inside:
            return own
        if lane not in values:
            raise KernelFault(f"shuffle from lane {lane}, which takes no part")
        return values[lane]

    def shfl_sync(self, mask: Any, value: Any, source: Any) -> Any:
        values = self._wait("shfl_sync", int(mask) & _FULL, value)
        return self._from(values, int(source) & 31, value, True)

    def shfl_up_sync(self, mask: Any, value: Any, delta: Any) -> Any:
        values = self._wait("shfl_up_sync", int(mask) & _FULL, value)
        source = (self._run.lane.thread & 31) - int(delta)
        return self._from(values, source, value, source >= 0)

    def shfl_down_sync(self, mask: Any, value: Any, delta: Any) -> Any:
        values = self._wait("shfl_down_sync", int(mask) & _FULL, value)
        source = (self._run.lane.thread & 31) + int(delta)
        return self._from(values, source, value, source < 32)

    def shfl_xor_sync(self, mask: Any, value: Any, by: Any) -> Any:
        values = self._wait("shfl_xor_sync", int(mask) & _FULL, value)
        return self._from(values, (self._run.lane.thread & 31) ^ int(by), value, True)

    def ballot_sync(self, mask: Any, p: Any) -> Any:
        values = self._wait("ballot_sync", int(mask) & _FULL, bool(p))
        return _UINT32(sum(1 << lane for lane, v in values.items() if v))

    def all_sync(self, mask: Any, p: Any) -> bool:
        return all(self._wait("all_sync", int(mask) & _FULL, bool(p)).values())

    def any_sync(self, mask: Any, p: Any) -> bool:
        return any(self._wait("any_sync", int(mask) & _FULL, bool(p)).values())

    def eq_sync(self, mask: Any, p: Any) -> bool:
        return len(set(self._wait("eq_sync", int(mask) & _FULL, bool(p)).values())) == 1

    def match_any_sync(self, mask: Any, value: Any) -> Any:
        values = self._wait("match_any_sync", int(mask) & _FULL, value)
        return _UINT32(sum(1 << lane for lane, v in values.items() if v == value))

    def match_all_sync(self, mask: Any, value: Any) -> Any:
        values = self._wait("match_all_sync", int(mask) & _FULL, value)
        same = all(v == value for v in values.values())
        return _UINT32(sum(1 << lane for lane in values) if same else 0), same

    def lanemask_lt(self) -> Any:
        return _UINT32((1 << (self._run.lane.thread & 31)) - 1)

    def threadfence(self) -> None:
        pass

    threadfence_block = threadfence_system = threadfence

    def nanosleep(self, ns: Any) -> None:
        pass

    # Bits and numbers: a plain integer has 64 bits

    def popc(self, x: Any) -> Any:
        return _INT32(_pattern(x)[0].bit_count())

    def clz(self, x: Any) -> Any:
        pattern, bits = _pattern(x)
        return _INT32(bits - pattern.bit_length())

    def ffs(self, x: Any) -> Any:
        pattern, _ = _pattern(x)
        return _INT32((pattern & -pattern).bit_length())

    def brev(self, x: Any) -> Any:
        pattern, bits = _pattern(x)
        return INTEGERS[bits, False](int(f"{pattern:0{bits}b}"[::-1], 2))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        result = np.float64(a) * np.float64(b) + np.float64(c)
        return np.float32(result) if isinstance(a, np.float32) else result

    def selp(self, p: Any, a: Any, b: Any) -> Any:
        return a if p else b

    def cbrt(self, x: Any) -> Any:
        return np.cbrt(x)


def _pattern(x: Any) -> tuple[int, int]:
    bits = x.bits if isinstance(x, Int) else 64
    return int(x) & ((1 << bits) - 1), bits


def _dtype(type_: Any) -> Any:
    return type_.dtype if hasattr(type_, "dtype") else np.dtype(str(type_))


def _array(shape: Any, dtype: Any) -> Array:
    return Array(Space(math.prod(np.atleast_1d(shape).tolist()) * dtype.itemsize), shape, dtype)


def _local(shape: Any, dtype: Any, alignment: Any = None) -> Array:
    return _array(shape, _dtype(dtype))


class _Atomic:
    """``cuda.atomic``: threads change only at barriers, so that each call is whole."""

    @staticmethod
    def _replace(array: Any, i: Any, f: Callable[[Any], Any]) -> Any:
        old = array[i]
        array[i] = f(old)
        return old

    def add(self, array: Any, i: Any, x: Any) -> Any:
        return self._replace(array, i, lambda old: old + x)

    def sub(self, array: Any, i: Any, x: Any) -> Any:
        return self._replace(array, i, lambda old: old - x)

    def max(self, array: Any, i: Any, x: Any) -> Any:
        return self._replace(array, i, lambda old: x if x > old or old != old else old)

    def min(self, array: Any, i: Any, x: Any) -> Any:
        return self._replace(array, i, lambda old: x if x < old or old != old else old)

    def and_(self, array: Any, i: Any, x: Any) -> Any:
        return self._replace(array, i, lambda old: old & x)

    def or_(self, array: Any, i: Any, x: Any) -> Any:
        return self._replace(array, i, lambda old: old | x)

    def xor(self, array: Any, i: Any, x: Any) -> Any:
        return self._replace(array, i, lambda old: old ^ x)

    def exch(self, array: Any, i: Any, x: Any) -> Any:
        return self._replace(array, i, lambda old: x)

    def inc(self, array: Any, i: Any, x: Any) -> Any:
        return self._replace(array, i, lambda old: 0 if old >= x else old + 1)

    def dec(self, array: Any, i: Any, x: Any) -> Any:
        return self._replace(array, i, lambda old: x if old == 0 or old > x else old - 1)

    def cas(self, array: Any, i: Any, old: Any, x: Any) -> Any:
        return self._replace(array, i, lambda now: x if now == old else now)
