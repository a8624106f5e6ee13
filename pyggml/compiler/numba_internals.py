"""The inner workings of Numba that we use, in one place: an upgrade is checked here.

    made = compile_cfunc(function, signature, options, cache)    # machine code of a C function
    with own_numbers(): ...                        # symbols that no other process gives

Numba has no types and promises none of this; ``setup`` pins its version. What is a part of its
documented interface for extensions (``numba.extending``, ``numba.types``) is imported from there.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import pickle
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType, SimpleNamespace
from typing import Any

import numba as nb
from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core import caching, compiler, config, serialize
from numba.core import cgutils as _cgutils
from numba.core.bytecode import FunctionIdentity
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import register_pass
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys
from numba.core.typed_passes import (
    AnnotateTypes,
    NativeLowering,
    NopythonRewrites,
    NopythonTypeInference,
)
from numba.core.typing import templates as _templates
from numba.core.untyped_passes import InlineClosureLikes

from .code_cache import CodeCache

cgutils: Any = _cgutils  # helpers of code generators
templates: Any = _templates  # typing of attributes and operators
_caching: Any = caching
_config: Any = config  # its attributes are made at run time
_functions: Any = FunctionIdentity
_jit_library: Any = JITCodeLibrary
_compiler: Any = compiler.CompilerBase
_passes: Any = compiler.DefaultPassBuilder
_inference: Any = NopythonTypeInference
_lowering: Any = NativeLowering
_result: Any = compiler.CompileResult
_dumps: Any = serialize.dumps


_target: tuple[str | None, str, Any] | None = None  # CPU, features, code generator


def retarget(cpu_name: str | None, features: str) -> None:
    """Compile our functions for another CPU from now on; those of the user keep theirs.

    Args:
        cpu_name: None for the host's.
    """
    global _target
    _target = cpu_name, features, None
    with _own_target():
        codegen: Any = JITCPUCodegen("pyggml.exec")  # looks at Numba's settings once
    _target = cpu_name, features, codegen


@contextmanager
def _own_target() -> Iterator[None]:
    """Numba compiles for the CPU of ``retarget`` meanwhile, and nobody else does."""
    if _target is None:
        yield
        return
    cpu_name, features, codegen = _target
    context: Any = cpu_target.target_context
    with global_compiler_lock:
        before = _config.CPU_NAME, _config.CPU_FEATURES, context._internal_codegen
        _config.CPU_NAME, _config.CPU_FEATURES = cpu_name or before[0], features
        context._internal_codegen = codegen or before[2]
        try:
            yield
        finally:
            _config.CPU_NAME, _config.CPU_FEATURES, context._internal_codegen = before


# --- symbols ---


@lru_cache(maxsize=1)
def _numbers(process: int) -> Iterator[int]:
    """The numbers by which Numba tells functions of one name apart, in their symbols.

    Its own numbers begin at 1 in every process: what comes from the cache could have the symbols of
    what is compiled now, and each would call the other's functions.
    """
    return itertools.count(secrets.randbits(62))


@contextmanager
def own_numbers() -> Iterator[None]:
    """Functions that are declared meanwhile get this process's numbers."""
    before = _functions._unique_ids
    _functions._unique_ids = _numbers(os.getpid())
    try:
        yield
    finally:
        _functions._unique_ids = before


# --- the pipeline ---
#
# Numba optimises each function twice, and generates machine code of inlined functions, which nobody
# calls. Here an inlined function is simplified once, without vectorisation; a kernel is optimised
# once, together with the functions that are inlined in it.


class _KernelLibrary(_jit_library):  # type: ignore[misc]
    """The machine code of a function and of the functions inlined in it."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout


class _InlinedLibrary(_jit_library):  # type: ignore[misc]
    """LLVM's IR of a function that is inlined."""

    has_machine_code = False

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager(
            loop_vectorize=False, slp_vectorize=False, opt=0, cost="cheap"
        )
        passes.run(self._final_module, builder)

    def _finalize_final_module(self) -> None:
        if self.has_machine_code:
            super()._finalize_final_module()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _KernelLowering(_lowering):  # type: ignore[misc]
    _name = "pyggml_kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        _use_library(state, _KernelLibrary)
        return bool(super().run_pass(state))


@register_pass(mutates_CFG=True, analysis_only=False)
class _InlinedLowering(_lowering):  # type: ignore[misc]
    """Lowering without machine code, except of calls of Python (``print``): they need its data."""

    _name = "pyggml_inlined_lowering"

    def run_pass(self, state: Any) -> bool:
        _use_library(state, _InlinedLibrary)
        state.flags.no_compile = True
        super().run_pass(state)
        library, context, lowered = state.library, state.targetctx, state["cr"]
        fndesc, env = lowered.fndesc, lowered.env
        library.has_machine_code = any(
            one.name == "numba_gil_ensure" for one in library._final_module.functions
        )
        if library.has_machine_code:
            function = context.get_executable(library, fndesc, env)
        else:
            module, name = fndesc.lookup_module(), fndesc.qualname
            function = _dynfunc.make_function(module, name, "", 0, env, (library,))
        context.insert_user_function(function, fndesc, [library])
        state["cr"] = lowered._replace(cfunc=function)
        return True


def _use_library(state: Any, kind: Any) -> None:
    state.library = kind(state.targetctx.codegen(), state.func_id.func_qualname)
    state.library.enable_object_caching()


@register_pass(mutates_CFG=True, analysis_only=False)
class _TypeInference(_inference):  # type: ignore[misc]
    _name = "pyggml_type_inference"

    def run_pass(self, state: Any) -> bool:
        with known_operators(state.typingctx):
            return bool(super().run_pass(state))


_operators: dict[Any, Any] = {}  # signatures by context, function and types of arguments


@contextmanager
def known_operators(context: Any) -> Iterator[None]:
    """Signatures of calls with numbers are kept: for each ``x + 1`` Numba would try all ufuncs.

    A new overload makes a new function type, so a kept signature is never out of date.

    Args:
        context: Numba's typing context, of CPUs or of GPUs.
    """
    if "resolve_function_type" in vars(context):  # a caller's block
        yield
        return
    resolve = context.resolve_function_type

    def resolve_known(function: Any, args: Any, kws: Any) -> Any:
        numbers = all(isinstance(one, (nb.types.Number, nb.types.Boolean)) for one in args)
        if kws or not numbers or type(function) is not nb.types.Function:
            return resolve(function, args, kws)
        key = context, function, tuple(args)
        signature = _operators.get(key) or resolve(function, args, kws)
        if signature is not None:
            _operators[key] = signature
        return signature

    context.resolve_function_type = resolve_known
    try:
        yield
    finally:
        del context.resolve_function_type


class _KernelCompiler(_compiler):  # type: ignore[misc]
    """Numba's compiler pipeline, without the passes that have no effect on our functions."""

    _lowering: Any = _KernelLowering

    def define_pipelines(self) -> list[Any]:
        ours = {NopythonTypeInference: _TypeInference, NativeLowering: self._lowering}
        left_out = {AnnotateTypes, NopythonRewrites}  # texts to print; array expressions
        if not any(isinstance(one, CodeType) for one in self.state.func_id.code.co_consts):
            left_out.add(InlineClosureLikes)
        pipeline: Any = _passes.define_nopython_pipeline(self.state)
        pipeline.passes = [
            (ours.get(one, one), text) for one, text in pipeline.passes if one not in left_out
        ]
        pipeline.finalize()
        return [pipeline]


class _InlinedCompiler(_KernelCompiler):
    _lowering = _InlinedLowering


# --- compiling ---


@contextmanager
def rare_collections() -> Iterator[None]:
    """Garbage is collected rarely meanwhile.

    Numba makes many objects, and few in cycles: with Python's threshold, collections would take a
    tenth of the time.
    """
    before = gc.get_threshold()
    if before[0]:  # 0: never
        gc.set_threshold(max(before[0], 100_000), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def inlined(function: Callable[..., Any], fastmath: set[str] | bool) -> Any:
    """A function that is only inlined into its callers: it gets no machine code."""
    options: Any = {"error_model": "numpy", "fastmath": fastmath}
    options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return nb.njit(nogil=True, pipeline_class=_InlinedCompiler, **options)(function)


def compile_cfunc(function: Callable[..., Any], signature: Any, options: Any, cache: Any) -> Any:
    """A compiled or loaded ``CFunc``; ``cache_hits`` tells which."""
    types = signature.args, signature.return_type
    cfunc: Any = CFunc(function, types, {}, options, pipeline_class=_KernelCompiler)
    cfunc._cache = cache
    with _own_target():
        cfunc.compile()
    return cfunc


def compile_function(function: Callable[..., Any], signature: Any, cache: Any, nogil: bool) -> Any:
    """A compiled or loaded dispatcher of one signature."""
    options: Any = {"error_model": "numpy", "pipeline_class": _KernelCompiler}
    dispatcher: Any = nb.njit(nogil=nogil, **options)(function)
    dispatcher._cache = cache
    with _own_target():
        dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


def assembly(cfunc: Any) -> str:
    """The assembly of a ``CFunc`` that was compiled, not loaded."""
    return str(cfunc._library.get_asm_str())


# --- the disk cache ---


class _Result(_caching.CompileResultCacheImpl):  # type: ignore[misc]
    """Numba's rule of what can be kept; its search for a directory is not ours."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._locator = SimpleNamespace(_py_file=function.__code__.co_filename)


class FunctionCache(_caching.FunctionCache):  # type: ignore[misc]
    """The cache of one function, in place of Numba's.

    Numba numbers the variants of a function in an index: of two processes that compile different
    variants at the same time, both may write under the same number, and then run each other's code.
    Here each variant is an entry whose name follows from its key, of which the digest of the
    function's ``sources`` is a part. A hit does not fill Numba's
    tables of types and functions: machine code needs only the runtime's symbols; the tables, 0.3 s
    at every start, are filled when something is compiled.
    """

    def __init__(
        self, function: Callable[..., Any], cache: CodeCache, file: str, sources: str
    ) -> None:
        self._name = repr(function)
        self._py_func = function
        self._impl = _Result(function)
        self._place = file, function.__qualname__, function.__code__.co_firstlineno, sources
        self._entries = cache

    @property
    def cache_path(self) -> str:
        return str(self._entries.path)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """A variant that was compiled from these sources; or None."""
        rtsys.initialize(target_context)
        data = self._entries.read(self._entry(sig, target_context.codegen()))
        if data is None:
            return None
        try:
            parts = pickle.loads(data)
        except (ImportError, AttributeError):  # it names a module that this process does not have
            return None
        return _result._rebuild(target_context, *parts)

    def has_overload(self, sig: Any, target_context: Any) -> bool:
        """Whether a variant is kept; it is not read, so it may be damaged."""
        return self._entries.has(self._entry(sig, target_context.codegen()))

    def place(self, sig: Any, target_context: Any) -> tuple[CodeCache, str]:
        """The cache of a variant, and its name there."""
        return self._entries, self._entry(sig, target_context.codegen())

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a variant in place of an older one."""
        if self._entries.writable and self._impl.check_cachable(data):
            self._entries.write(self._entry(sig, data.codegen), _dumps(data._reduce()))

    def _entry(self, sig: Any, codegen: Any) -> str:
        digest = hashlib.sha256(repr((self._place, self._index_key(sig, codegen))).encode())
        return f"{self._py_func.__name__}-{digest.hexdigest()[:24]}.nbc"


NO_CACHE: Any = caching.NullCache()


class NotCached(Exception):
    """A function is not in the cache.

    Attributes:
        place: the cache, and the name that it would have there; None if it is never kept.
    """

    def __init__(self, place: tuple[CodeCache, str] | None = None) -> None:
        self.place = place


class IsCached(Exception):
    """A function is in the cache."""


class OnlyCached:
    """A cache for which a missing function is an error, NotCached, so that it is not compiled."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        overload = self._cache.load_overload(sig, target_context)
        if overload is None:
            is_kept = self._cache is not NO_CACHE
            raise NotCached(self._cache.place(sig, target_context) if is_kept else None)
        return overload


class AskedCache:
    """A cache that tells whether it has a function, by an error: IsCached or NotCached."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        is_kept = self._cache is not NO_CACHE and self._cache.has_overload(sig, target_context)
        raise IsCached if is_kept else NotCached
