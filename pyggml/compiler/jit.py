"""Compile kernels for this host, once: instruction set, disk cache, progress.

    @kernel                                        # compiles on first use of .address
    def add_f32(node, chunk, n_chunks, scratch): ...

    add_f32.address                                # int: what a program calls

A kernel is a C function ``void(int64 node, int64 chunk, int64 n_chunks, int64 scratch)``; those
that kernels call by address may have any number of int64 arguments. Compiled code is kept in the
user's cache directory: a folder for the compilers' versions and the instruction set
(``code_cache``), in it an entry for each kernel, found by the digest of the sources that it is
compiled from (``sources``). So an edit or an upgrade never runs old code, and the edit of an op
compiles that op's kernels only. Processes that need the same code at the same time share the work.
A user's ``@njit(cache=True)`` is not touched.
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import os
import platform
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial, wraps
from pathlib import Path
from typing import Any

import numba as nb
from numba.extending import intrinsic

from .. import env
from ..errors import PyggmlError
from .code_cache import CodeCache, prune
from .numba_internals import (
    NO_CACHE,
    AskedCache,
    FunctionCache,
    IsCached,
    NotCached,
    OnlyCached,
    assembly,
    compile_cfunc,
    compile_function,
    inlined,
    own_numbers,
    rare_collections,
    retarget,
)
from .progress import progress
from .sources import Sources, digest

# name: (features it needs, the LLVM cpu that stands for it when it is forced)
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "f16c", "fma")
_X86 = {
    "avx512amx": (
        (*_AVX512, "avx512fp16", "amx-tile", "amx-int8", "amx-bf16"),
        "sapphirerapids",
    ),
    "avx512vnni": (_AVX512, "cascadelake"),
    "avxvnni": (("avx2", "f16c", "fma", "avxvnni"), "alderlake"),
    "avx2": (("avx2", "f16c", "fma"), "haswell"),
    "sse42": (("sse4.2", "popcnt"), "x86-64-v2"),
    "generic": ((), "x86-64"),
}
_AARCH64 = {
    "neon": (("dotprod", "fullfp16"), "neoverse-n1"),
    "asimd": ((), "generic"),
    "generic": ((), "generic"),
}
ISAS = _AARCH64 if platform.machine().lower() in ("aarch64", "arm64") else _X86
_CPUINFO = Path("/proc/cpuinfo")
_PACKAGE = __package__.partition(".")[0]


def _host_features() -> Any:
    """The features of this CPU by LLVM's names, ``{"avx2": True, ...}``.

    On AArch64, LLVM does not detect all that ``ISAS`` needs: Linux reports it, every Mac has it.
    Tiles are left out if the system does not permit them.
    """
    import llvmlite.binding as llvm

    have = llvm.get_host_cpu_features()
    if have.get("amx-tile", False):
        have["amx-tile"] = _request_tiles()
    if ISAS is _AARCH64 and sys.platform == "darwin":
        have |= {"dotprod": True, "fullfp16": True}
    elif ISAS is _AARCH64 and sys.platform == "linux":
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace") if _CPUINFO.exists() else ""
        have |= {"dotprod": "asimddp" in text.split(), "fullfp16": "asimdhp" in text.split()}
    return have


def _request_tiles() -> bool:
    """Ask Linux for AMX's tile registers, without which their first use is SIGILL.

    The permission holds for all threads of the process and for its forks, not after exec. Linux
    refuses if a thread's signal stack (sigaltstack) is too small for another 8 KB of registers.
    """
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        return False
    try:
        libc = ctypes.CDLL(None)
        arch_prctl, request_permission, tile_data = 158, 0x1023, 18
        numbers = map(ctypes.c_long, (arch_prctl, request_permission, tile_data))
        return int(libc.syscall(*numbers)) == 0
    except (OSError, AttributeError):
        return False


@lru_cache(maxsize=1)
def host_isas() -> tuple[str, ...]:
    """Names of the instruction sets that this host can run, best first."""
    have = _host_features()
    return tuple(n for n, (need, _) in ISAS.items() if all(have.get(f, False) for f in need))


_chosen: str | None = None


def isa() -> str:
    """The instruction set that kernels are compiled for (``PYGGML_ISA`` forces one).

    Raises:
        PyggmlError: the forced one is unknown or this host does not have it.
    """
    if _chosen is None:
        forced = env.ISA.get()
        use_isa(forced or host_isas()[0])
    assert _chosen is not None
    return _chosen


def use_isa(name: str) -> None:
    """Compile for an instruction set from now on; only before the first kernel is compiled.

    For any but the host's best, LLVM compiles for a plain host with that set.

    Raises:
        PyggmlError: it is unknown or this host does not have it.
    """
    global _chosen
    if name not in host_isas():
        raise PyggmlError(
            f"instruction set {name!r}: this host has {', '.join(host_isas())}; choose one of "
            "these with PYGGML_ISA, or unset it"
        )
    if name != host_isas()[0]:
        retarget(ISAS[name][1], "")
    elif name == "neon":  # Numba uses LLVM's features only, which lack the dot product
        retarget(None, _host_features().flatten())
    _chosen = name


KERNEL_SIG: Any = nb.types.void(*[nb.types.int64] * 4)
FAST = {"contract", "reassoc", "nsz"}  # never nnan or ninf: NaN and inf must propagate


@lru_cache(maxsize=len(ISAS))
def code_cache(isa_name: str) -> CodeCache:
    """The code compiled by these compilers for an instruction set."""
    import llvmlite

    versions = nb.__version__, llvmlite.__version__, sys.version_info[:3], isa_name
    base = env.code_dir()
    cache = CodeCache(base / hashlib.sha256(repr(versions).encode()).hexdigest()[:16])
    if cache.writable:
        prune(base, cache.path)
    return cache


@lru_cache(maxsize=1)
def _sources() -> Sources:
    return Sources()


def tree_digest(*packages: str) -> str:
    """The digest of all modules of some packages, for entries in the cache."""
    with _compile_lock:
        return _sources().tree(*packages)


def _cache_of(function: Callable[..., Any]) -> Any:
    """Numba's interface to the cache, for one function.

    A function of a user's file depends on all files of that folder, since any of them may be
    inlined, and on all of this package. A function without a file is not kept.
    """
    file = Path(function.__code__.co_filename)
    module = _sources().module(file)
    if module is None and not file.is_file():
        return NO_CACHE
    if module is not None:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        assert all(isinstance(x, (int, str)) for x in cells), "a closure's key differs by process"
        sources = _sources().closure(module)
    else:
        sources = digest(repr(_stamps(file.parent, file)), tree_digest(_PACKAGE))
    return FunctionCache(function, code_cache(isa()), module or str(file), sources)


@lru_cache(maxsize=16)
def _stamps(folder: Path, file: Path) -> tuple[tuple[str, int, int], ...]:
    try:
        files = [(path.name, path.stat()) for path in sorted({file, *folder.glob("*.py")})]
    except OSError:  # a file was deleted meanwhile
        return ()
    return tuple((name, info.st_mtime_ns, info.st_size) for name, info in files)


_compile_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # else a child could wait forever for a thread it lacks
    os.register_at_fork(
        before=_compile_lock.acquire,
        after_in_parent=_compile_lock.release,
        after_in_child=_compile_lock.release,
    )
on_compile: Callable[[str], None] | None = None  # called with what was compiled


class compiled_once:
    """``cached_property`` under the compile lock, which a fork leaves free.

    The lock of Python 3.11's own would stay locked in a child that is forked meanwhile.
    """

    def __init__(self, compile: Callable[[Any], Any]) -> None:
        self._compile = compile

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, kernel: Any, owner: type) -> Any:
        with _compile_lock:
            attributes = kernel.__dict__
            if self._name not in attributes:
                attributes[self._name] = self._compile(kernel)
            return attributes[self._name]


class Code:
    """A function that compiles, or loads from the cache, on first use."""

    function: Callable[..., Any]
    name: str
    _place: tuple[CodeCache, str] | None = None  # where it was looked for and is missing

    def _compile(self, cache: Any) -> Any:
        raise NotImplementedError

    @compiled_once
    def machine_code(self) -> Any:
        """What Numba made of the function."""
        if self.load():
            return self.__dict__["machine_code"]
        with progress.compiling(), self._claim():
            if self._place and self._place[0].has(self._place[1]) and self.load():
                return self.__dict__["machine_code"]  # another process compiled it meanwhile
            with own_numbers(), rare_collections():
                machine_code = self._compile(_cache_of(self.function))
        if on_compile is not None:
            on_compile(self.name)
        return machine_code

    def load(self) -> bool:
        """Load the code, unless that is done. Returns False if it must be compiled."""
        with _compile_lock:
            if "machine_code" not in self.__dict__:
                try:
                    with own_numbers():
                        machine_code = self._compile(OnlyCached(_cache_of(self.function)))
                except NotCached as missing:
                    self._place = missing.place
                    return False
                self.__dict__["machine_code"] = machine_code
            return True

    def _claim(self) -> AbstractContextManager[None]:
        if self._place is None:
            return nullcontext()
        cache, name = self._place
        return cache.claim(name)

    def is_claimed(self) -> bool:
        """Whether another process compiles it now; `load` has found that it is missing."""
        return self._place is not None and self._place[0].is_claimed(self._place[1])

    def is_kept(self) -> bool:
        """Whether it is loaded, or in the cache, which takes less time to find out than to load."""
        with _compile_lock:
            if "machine_code" in self.__dict__:
                return True
            try:
                with own_numbers():
                    self._compile(AskedCache(_cache_of(self.function)))
            except IsCached:
                return True
            except NotCached:
                return False
            raise AssertionError("a cache that is asked always raises an error")


def compile_all(functions: Iterable[Code]) -> None:
    """Load functions, or compile them: how many are missing is known before the first one.

    Functions that are loaded need no lock: another thread may hold it for seconds.
    """
    left = [one for one in dict.fromkeys(functions) if "machine_code" not in one.__dict__]
    if not left:
        return
    with _compile_lock:
        missing = [one for one in left if not one.load()]
        progress.expect(len(missing))
        for i, one in enumerate(_unclaimed_first(missing)):
            try:
                _ = one.machine_code
            except BaseException:
                progress.expect(-(len(missing) - i - 1))
                raise


def _unclaimed_first(functions: list[Code]) -> Iterator[Code]:
    """Functions in the order in which processes that need the same ones share the work."""
    claimed = []
    for one in functions:
        if one.is_claimed():
            claimed.append(one)
        else:
            yield one
    yield from claimed


class CpuKernel(Code):
    """A kernel that compiles (or loads from the cache) on first use."""

    def __init__(
        self, function: Callable[..., None], fastmath: set[str] | bool = False, name: str = ""
    ) -> None:
        self.function = function
        self.name = name or function.__name__
        self._options: Any = {"error_model": "numpy", "fastmath": fastmath}

    def __repr__(self) -> str:
        return f"<kernel {self.name}>"

    @property
    def _signature(self) -> Any:
        return nb.types.void(*[nb.types.int64] * self.function.__code__.co_argcount)

    def _compile(self, cache: Any) -> Any:
        return compile_cfunc(self.function, self._signature, self._options, cache)

    @property
    def address(self) -> int:
        """The address of the machine code."""
        return int(self.machine_code.address)

    def assembly(self) -> str:
        """The machine code as text; compiles it, since the cache keeps no assembly."""
        isa()  # sets Numba's target
        return assembly(compile_cfunc(self.function, self._signature, self._options, NO_CACHE))


def kernel(function: Callable[..., None], name: str = "") -> CpuKernel:
    """Declare a kernel with strict floating point; its name in profiles is the function's."""
    return CpuKernel(function, name=name)


def named_kernel(function: Callable[..., None], *variant: object) -> CpuKernel:
    """Declare one variant of a kernel, named after the function and the variant."""
    return CpuKernel(
        function, name="_".join([function.__name__, *(str(v).lower() for v in variant)])
    )


def fast_kernel(function: Callable[..., None], name: str = "") -> CpuKernel:
    """Declare a kernel in which LLVM may reorder sums and use FMA (NaN and inf propagate)."""
    return CpuKernel(function, FAST, name)


def inline(function: Callable[..., Any]) -> Any:
    """Declare a function that is compiled into the kernels that call it, never cached on its own.

    Python cannot call it: it has no machine code of its own.
    """
    return inlined(function, FAST)


def inline_strict(function: Callable[..., Any]) -> Any:
    """Like ``inline`` with strict floating point: the same bits in every kernel.

    Without a setting, Numba would compile it with the fast-math flags of its first caller.
    """
    return inlined(function, False)


def intrinsic_from_ir(
    emit: Any = None,
    *,
    literals: int = 0,
    result: Any = nb.types.void,
    args: Any = None,
    typed: Callable[..., Any] | None = None,
) -> Any:
    """Make a function that emits LLVM's IR callable from jitted code.

    The function is called with the builder, then the literals as Python integers, then the other
    arguments as IR values, and returns the result's IR value.

    Args:
        literals: how many of the first arguments must be literal integers in jitted code.
        result: Numba's type of the result.
        args: Numba's types of the other arguments; int64 by default, which addresses are.
        typed: the signature for Numba's types of all arguments, where it depends on them.
    """
    if emit is None:
        return partial(intrinsic_from_ir, literals=literals, result=result, args=args, typed=typed)
    parameters = list(inspect.signature(emit).parameters.values())
    arg_types = args or (nb.types.int64,) * (len(parameters) - 1 - literals)

    def define(typingctx: Any, *numba_types: Any) -> Any:
        literal_types = numba_types[:literals]
        if not all(isinstance(x, nb.types.IntegerLiteral) for x in literal_types):
            return None  # Numba tries again with literals
        signature = typed(*numba_types) if typed else result(*literal_types, *arg_types)

        def codegen(context: Any, b: Any, sig: Any, values: Any) -> Any:
            value = emit(b, *(x.literal_value for x in literal_types), *values[literals:])
            is_void = signature.return_type is nb.types.void
            return context.get_dummy_value() if is_void else value

        return signature, codegen

    wraps(emit)(define)
    define.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return intrinsic(prefer_literal=literals > 0)(define)


class JittedFunction(Code):
    """A function with one signature that compiles (or loads) at its first call.

    Args:
        nogil: whether calls release the GIL.
    """

    def __init__(self, function: Callable[..., Any], signature: Any, nogil: bool = True) -> None:
        self.function = self.py_func = function
        self.name = function.__name__.lstrip("_")
        self._signature, self._nogil = signature, nogil
        _functions.add(self)

    def _compile(self, cache: Any) -> Any:
        return compile_function(self.function, self._signature, cache, self._nogil)

    def __call__(self, *args: Any) -> Any:
        return self.machine_code(*args)


_functions: weakref.WeakSet[JittedFunction] = weakref.WeakSet()


def functions_of(package: str) -> list[JittedFunction]:
    """The functions of a package's imported modules that Python calls, in order of their names."""
    inside = f"{package}."
    functions = [one for one in _functions if f"{one.function.__module__}.".startswith(inside)]
    return sorted(functions, key=lambda one: (one.function.__module__, one.name))


def jitted(signature: Any, nogil: bool = True) -> Callable[[Callable[..., Any]], JittedFunction]:
    """Declare a function that Python calls; cached like a kernel.

    Args:
        nogil: whether calls release the GIL. A call of less than a millisecond should not: beside
            busy threads of Python, getting it back takes longer.
    """
    return lambda function: JittedFunction(function, signature, nogil)
