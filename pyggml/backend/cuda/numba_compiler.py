"""Numba-CUDA as a compiler: a kernel's Python becomes PTX or a cubin. Nothing is launched by it.

    image = compile_cubin(KERNELS["scale_f32"], (9, 0))
    image.registers, image.local_bytes

Works without a driver and without a GPU. The only module that knows Numba-CUDA's inner workings;
`intrin` and the kernels know its language.
Source: numba-cuda 0.30.4 (in maintenance: this module is what a successor would replace).
"""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...compiler.numba_internals import known_operators
from .kernel import GpuKernel, KernelImage

_ANY = (7, 5)  # a capability for parts of the compiler that want one
_REGISTER_FILE = 65536  # registers of a multiprocessor
_NAMES = {"int32": "i32", "int64": "i64", "uint32": "u32", "float32": "f32"}


_lock = threading.RLock()
_STAND_IN = SimpleNamespace(compute_capability=(9, 0), id=0, name=b"none")


@contextmanager
def prepared() -> Iterator[None]:
    """Compiling works with NumPy 2.5, and leaves the driver alone, whether there is one or not.

    Device functions ask the current device for its capability, which starts Numba's own runtime.
    For this thread it is a stand-in meanwhile; all is as before afterwards.
    """
    with _lock:
        added = not hasattr(np, "row_stack")  # NumPy 2.5 removed it; numba-cuda looks at it
        if added:
            np.row_stack = np.vstack
        try:
            from numba.cuda import compiler, dispatcher

            before = [(module, module.get_current_device) for module in (compiler, dispatcher)]
            for module, found in before:
                module.get_current_device = _for_this_thread(found)
            try:
                yield
            finally:
                for module, found in before:
                    module.get_current_device = found
        finally:
            if added:
                del np.row_stack


def _for_this_thread(others: Callable[[], Any]) -> Callable[[], Any]:
    """The stand-in for the thread that calls this, and what ``others`` gives for others."""
    mine = threading.get_ident()
    return lambda: _STAND_IN if threading.get_ident() == mine else others()


@cache
def _blocks(kernel: GpuKernel) -> int:
    """Blocks that a multiprocessor has registers for: it makes the compiler keep to the ceiling."""
    return max(1, _REGISTER_FILE // (kernel.threads * kernel.max_registers))


@lru_cache(maxsize=1)
def _compile(kernel: GpuKernel) -> Any:
    """The library of a kernel, for all capabilities: they differ from NVVM on."""
    from numba.cuda import compiler
    from numba.cuda.descriptor import cuda_target

    types = tuple(t for _, t in kernel.parameters)
    with known_operators(cuda_target.typing_context):
        library, _ = compiler._compile_pyfunc_with_fixup(
            kernel.function,
            types,
            device=False,
            abi="numba",
            cc=_ANY,
            launch_bounds=(kernel.threads, _blocks(kernel)),
        )
    if kernel.unroll:
        library._llvm_strs = [_unrolled(text) for text in library.llvm_strs]
    return library


_LABEL, _BRANCH = re.compile(r"B(\d+)\S*:"), re.compile(r'  br .*?label %"B(\d+)".*')
_UNROLL = 1 << 20  # the number of the metadata, above those that Numba gives


def _unrolled(text: str) -> str:
    """LLVM IR in which branches back, to blocks of Numba that begin earlier, ask to unroll."""
    block, lines = -1, []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            block = int(label[1])
        elif _BRANCH.match(line) and any(int(n) <= block for n in re.findall(r'%"B(\d+)"', line)):
            line += f", !llvm.loop !{_UNROLL}"
        elif line.startswith("define"):
            block = -1
        lines.append(line)
    lines.append(f"!{_UNROLL} = distinct !{{!{_UNROLL}, !{_UNROLL + 1}}}")
    lines.append(f'!{_UNROLL + 1} = !{{!"llvm.loop.unroll.full"}}')
    return "\n".join(lines)


def _image(kernel: GpuKernel, library: Any, code: bytes, **numbers: int) -> KernelImage:
    parameters = tuple(_NAMES.get(str(t), "ptr") for _, t in kernel.parameters)
    return KernelImage(code, library._entry_name, parameters, **numbers)


@prepared()
def compile_ptx(kernel: GpuKernel, cc: tuple[int, int]) -> KernelImage:
    """The PTX that NVVM makes of a kernel, for emulators."""
    return _ptx(kernel, cc, _compile(kernel))


@prepared()
def compile_cubin(kernel: GpuKernel, cc: tuple[int, int]) -> KernelImage:
    """A kernel's machine code for a compute capability.

    PTX of the next lower one, which the driver translates, if the compiler is older than the GPU.
    """
    from numba.cuda.cudadrv import nvrtc

    known = [tuple(one) for one in nvrtc.get_supported_ccs()]
    if cc not in known and cc > min(known):
        return compile_ptx(kernel, max(one for one in known if one < cc))
    return _cubin(kernel, cc, _compile(kernel))


@prepared()
def compile_both(kernel: GpuKernel, cc: tuple[int, int]) -> tuple[KernelImage, KernelImage]:
    """A kernel's PTX and its machine code."""
    library = _compile(kernel)
    return _ptx(kernel, cc, library), _cubin(kernel, cc, library)


def _ptx(kernel: GpuKernel, cc: tuple[int, int], library: Any) -> KernelImage:
    return _image(kernel, library, "\n".join(library.get_asm_strs(cc=cc)).encode())


def _cubin(kernel: GpuKernel, cc: tuple[int, int], library: Any) -> KernelImage:
    code = bytes(library.get_cubin(cc=cc).code)
    return _image(kernel, library, code, **cubin_numbers(code, library._entry_name))


_REGISTERS, _FRAME = 0x2F, 0x11  # attributes of .nv.info: (symbol, value)
_SIZED = 0x04  # the format of an attribute that has its size before its value


def cubin_numbers(code: bytes, entry: str) -> dict[str, int]:
    """The registers, local and shared memory of the one kernel of a cubin.

    Source: the layout of ELF64; NVIDIA's ``.nv.info`` as cuobjdump prints it.
    """
    sections = _sections(code)
    found = {_REGISTERS: 0, _FRAME: 0}
    info, at = sections.get(".nv.info", b""), 0
    while at + 4 <= len(info):
        format, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if format != _SIZED:
            continue
        if attribute in found and size == 8:
            found[attribute] = max(found[attribute], struct.unpack_from("<I", info, at + 4)[0])
        at += size
    shared = len(sections.get(f".nv.shared.{entry}", b""))
    return {
        "registers": found[_REGISTERS],
        "local_bytes": found[_FRAME],
        "shared_bytes": shared,
    }


def _sections(code: bytes) -> dict[str, bytes]:
    """An ELF64 file's sections; those without bytes in the file (NOBITS) as zeros."""
    (table,), (n, names) = (
        struct.unpack_from("<Q", code, 0x28),
        struct.unpack_from("<HH", code, 0x3C),
    )
    entry_bytes = 64
    heads = [struct.unpack_from("<IIQQQQIIQQ", code, table + i * entry_bytes) for i in range(n)]
    strings = code[heads[names][4] :]
    out = {}
    for name, kind, _, _, offset, size, *_ in heads:
        text = strings[name : strings.index(b"\0", name)].decode()
        out[text] = bytes(size) if kind == 8 else code[offset : offset + size]
    return out
