"""The host machine: CPUs, memory, threads, and calls to the operating system.

    n = default_threads()                          # min(affinity, cgroup quota, physical cores)
    set_thread_options(ThreadOptions(poll=0))      # how the threads of all backends wait

Functions that a system does not support do nothing, or return None.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from . import env
from .cgroup import read_limits
from .rounding import round_up


@dataclass(frozen=True)
class ThreadOptions:
    """Waiting and CPU affinity of compute threads.

    Attributes:
        poll: 0 to 100, the time for which an idle thread spins before it yields and sleeps. 50 is
            about 250 us, longer than Python needs between two tokens; 0 saves power but is slower.
        pinned: thread i runs on the CPU ``pinned[i % len(pinned)]`` only; empty lets the system
            choose.
    """

    poll: int = 50
    pinned: tuple[int, ...] = ()

    def cpu(self, index: int) -> list[int]:
        """Return a list with the CPU that a thread is pinned to; empty if it is not pinned."""
        return [self.pinned[index % len(self.pinned)]] if self.pinned else []


_thread_options = ThreadOptions()


def thread_options() -> ThreadOptions:
    """Return the current options of this process."""
    return _thread_options


def set_thread_options(options: ThreadOptions) -> None:
    """Set the options for the next compute; running threads keep their CPU."""
    global _thread_options
    _thread_options = options


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL | None:
    if sys.platform == "win32":
        return None
    try:
        return ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None


@lru_cache(maxsize=1)
def yield_addresses() -> tuple[int, int]:
    """Return the addresses of ``sched_yield`` and ``usleep(microseconds)``."""
    libc = _libc()
    if libc is not None:
        functions = [libc.sched_yield, libc.usleep]
    else:
        kernel32 = ctypes.CDLL("kernel32")  # SwitchToThread() and Sleep(milliseconds)
        functions = [kernel32.SwitchToThread, kernel32.SwitchToThread]
    a, b = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions)
    return a, b


def physical_cores() -> int:
    """Return the number of physical cores that this process may use (hyper-threads count once)."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = set()
    for cpu in usable_cpus():
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(path.read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


def usable_cpus() -> list[int]:
    """Return the numbers of the CPUs that this process may use, by affinity and cgroups."""
    try:
        cpus = sorted(os.sched_getaffinity(0))
    except AttributeError:
        return list(range(os.cpu_count() or 1))
    limits = read_limits("cpuset")
    return [cpu for cpu in cpus if limits.allows(cpu)] or cpus


def set_cpus(cpus: Collection[int]) -> str:
    """Restrict the calling thread, and threads that it starts, to these CPUs.

    Returns:
        An empty string, or the reason of a failure.
    """
    if not hasattr(os, "sched_setaffinity"):
        return "this system cannot bind threads to CPUs"
    missing = sorted(set(cpus) - set(usable_cpus()))
    if missing or not cpus:
        return f"CPUs {missing} are not available to this process, which may use {usable_cpus()}"
    os.sched_setaffinity(0, cpus)
    return ""


PRIORITIES = {-1: "low", 0: "normal", 1: "medium", 2: "high", 3: "realtime"}


def set_priority(level: int) -> str:
    """Set the priority of the calling thread, and of threads that it starts.

    Args:
        level: a key of ``PRIORITIES``.

    Returns:
        An empty string, or the reason of a failure.

    Source: ggml, ``ggml_thread_apply_priority``.
    """
    if not hasattr(os, "sched_setscheduler"):
        return "this system has no scheduling classes"
    policy, value = {
        -1: (os.SCHED_BATCH, 0),
        0: (os.SCHED_OTHER, 0),
        1: (os.SCHED_FIFO, 40),
        2: (os.SCHED_FIFO, 80),
        3: (os.SCHED_FIFO, 90),
    }[level]
    try:
        os.sched_setscheduler(0, policy, os.sched_param(value))
    except OSError as e:
        return f"{e.strerror}; {PRIORITIES[level]} priority needs root or CAP_SYS_NICE"
    return ""


def cache_sizes() -> dict[str, int]:
    """Return the sizes of the CPU caches in bytes, ``{"L1d": 32768, ...}``; {} if unknown."""
    sizes = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text().strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        name = f"L{level}" + {"Data": "d", "Instruction": "i"}.get(kind, "")
        if size[:-1].isdigit() and size[-1] in "KM":
            sizes[name] = int(size[:-1]) << (10 if size[-1] == "K" else 20)
    return sizes


_CPUINFO = Path("/proc/cpuinfo")
_IDENTITY = (
    "vendor_id", "cpu family", "model", "stepping",  # x86
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision",  # ARM
)  # fmt: skip


def cpu_identity() -> str:
    """Return the exact model of the CPU: ``"AuthenticAMD, family 26, model 2, stepping 1"``.

    Falls back to the platform's description if the system does not list these numbers.
    """
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        text = ""
    found = {name.strip(): value.strip() for name, _, value in
             (line.partition(":") for line in text.splitlines())}  # fmt: skip
    parts = [f"{name.removeprefix('cpu ')} {found[name]}".removeprefix("vendor_id ")
             for name in _IDENTITY if name in found]  # fmt: skip
    return ", ".join(parts) or platform.processor() or platform.machine()


def cgroup_cpus() -> float:
    """Return the CPU quota of the process's cgroups in CPUs; infinity without a quota."""
    return read_limits("cpu").cpus


def default_threads() -> int:
    """Return ``PYGGML_NUM_THREADS``, or min(affinity, cgroup quota, physical cores), at least 1.

    Raises:
        PyggmlError: the variable is not a whole number above 0.
    """
    given = env.NUM_THREADS.whole()
    if given is not None:
        return given
    return max(1, int(min(physical_cores(), max(1.0, cgroup_cpus()))))


def _madvise(mem: npt.NDArray[np.uint8], advice: int) -> bool:
    libc = _libc()
    if libc is None or not hasattr(libc, "madvise") or mem.nbytes == 0:
        return False
    page = mmap.PAGESIZE
    start = round_up(int(mem.ctypes.data), page)
    end = (int(mem.ctypes.data) + mem.nbytes) // page * page
    if end <= start:
        return False
    return bool(libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice) == 0)


def advise_hugepages(mem: npt.NDArray[np.uint8]) -> bool:
    """Request huge pages for this memory (fewer TLB misses when weights stream)."""
    return _madvise(mem, getattr(mmap, "MADV_HUGEPAGE", 14)) if sys.platform == "linux" else False


def drop_pages(mem: npt.NDArray[np.uint8]) -> bool:
    """Release the pages of a mapped file that will not be read again.

    Does nothing for other memory, which would lose its content.
    """
    base: object = mem
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if sys.platform != "linux" or not isinstance(base, mmap.mmap):
        return False
    return _madvise(mem, getattr(mmap, "MADV_DONTNEED", 4))


def lock_memory(mem: npt.NDArray[np.uint8]) -> str:
    """Lock memory in RAM; return an empty string, or the reason of a failure."""
    libc = _libc()
    if libc is None or not hasattr(libc, "mlock"):
        return "this system has no mlock"
    if libc.mlock(ctypes.c_void_p(mem.ctypes.data), ctypes.c_size_t(mem.nbytes)) == 0:
        return ""
    return os.strerror(ctypes.get_errno())


def available_memory() -> int | None:
    """Return the bytes available without swapping, within cgroups' limits; None if unknown."""
    limits = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError):
        pass
    of_groups = read_limits("memory").available_bytes
    if of_groups is not None:
        limits.append(of_groups)
    return min(limits) if limits else None


def total_memory() -> int | None:
    """Return the total memory of this machine or its cgroups in bytes; None if unknown."""
    limits = []
    with contextlib.suppress(OSError, ValueError, AttributeError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    of_groups = read_limits("memory").memory_bytes
    if of_groups is not None:
        limits.append(of_groups)
    return min(limits) if limits else None
