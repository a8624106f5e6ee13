"""Every call into the operating system, each with a twin that does nothing where there is none.

    n = default_threads()                          # min(affinity, cgroup quota, physical cores)

What a system lacks is a no-op, or a plain answer such as None.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ... import env


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
    """Addresses of ``sched_yield`` and ``usleep(microseconds)``."""
    libc = _libc()
    if libc is not None:
        functions = [libc.sched_yield, libc.usleep]
    else:
        kernel32 = ctypes.CDLL("kernel32")  # SwitchToThread() and Sleep(milliseconds)
        functions = [kernel32.SwitchToThread, kernel32.SwitchToThread]
    a, b = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions)
    return a, b


def physical_cores() -> int:
    """Physical cores that this process may run on (hyper-threads count once)."""
    try:
        cpus = os.sched_getaffinity(0)
    except AttributeError:
        return os.cpu_count() or 1
    cores = set()
    for cpu in cpus:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(path.read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


def cgroup_cpus() -> float:
    """CPUs that the control group may use at once; infinity without a quota."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return float("inf") if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        base = Path("/sys/fs/cgroup/cpu")
        us = int((base / "cpu.cfs_quota_us").read_text())
        return us / int((base / "cpu.cfs_period_us").read_text()) if us > 0 else float("inf")
    except (OSError, ValueError):
        return float("inf")


def default_threads() -> int:
    """min(affinity, cgroup quota, physical cores), at least 1; ``PYGGML_NUM_THREADS`` wins."""
    given = env.NUM_THREADS.get() or ""
    if given.isdigit() and int(given) > 0:
        return int(given)
    return max(1, int(min(physical_cores(), max(1.0, cgroup_cpus()))))


def _madvise(mem: npt.NDArray[np.uint8], advice: int) -> bool:
    libc = _libc()
    if libc is None or not hasattr(libc, "madvise") or mem.nbytes == 0:
        return False
    page = mmap.PAGESIZE
    start = -(-int(mem.ctypes.data) // page) * page
    end = (int(mem.ctypes.data) + mem.nbytes) // page * page
    if end <= start:
        return False
    return bool(libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice) == 0)


def advise_hugepages(mem: npt.NDArray[np.uint8]) -> bool:
    """Ask for huge pages behind this memory (fewer TLB misses when weights stream)."""
    return _madvise(mem, getattr(mmap, "MADV_HUGEPAGE", 14)) if sys.platform == "linux" else False


def drop_pages(mem: npt.NDArray[np.uint8]) -> bool:
    """Let go of the pages of mapped file content that will not be read again.

    Does nothing for other memory, which would lose its content.
    """
    base: object = mem
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if sys.platform != "linux" or not isinstance(base, mmap.mmap):
        return False
    return _madvise(mem, getattr(mmap, "MADV_DONTNEED", 4))


def lock_memory(mem: npt.NDArray[np.uint8]) -> str:
    """Pin memory in RAM; an empty string, or why it could not be done."""
    libc = _libc()
    if libc is None or not hasattr(libc, "mlock"):
        return "this system has no mlock"
    if libc.mlock(ctypes.c_void_p(mem.ctypes.data), ctypes.c_size_t(mem.nbytes)) == 0:
        return ""
    return os.strerror(ctypes.get_errno())


def available_memory() -> int | None:
    """Bytes that can be taken without swapping, by this machine and by the control group."""
    limits = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError):
        pass
    try:
        group = Path("/sys/fs/cgroup")
        most = (group / "memory.max").read_text().strip()
        if most != "max":
            limits.append(int(most) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return max(0, min(limits)) if limits else None
