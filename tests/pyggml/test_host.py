"""Calls into the operating system, and hosts without them."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy as np
import pytest

from pyggml import host
from pyggml.cgroup import Limits


def test_yield_and_sleep_can_be_called_like_kernels() -> None:
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
    for address, argument in zip(host.yield_addresses(), (0, 20), strict=True):
        call(address)(argument, 0, 0, 0)


@pytest.mark.parametrize(
    ("cores", "quota", "given", "want"),
    [
        (8, float("inf"), None, 8),
        (8, 2.5, None, 2),
        (2, 16.0, None, 2),
        (4, 0.25, None, 1),
        (8, 2.0, "5", 5),
    ],
)
def test_default_threads(
    monkeypatch: pytest.MonkeyPatch, cores: int, quota: float, given: str | None, want: int
) -> None:
    monkeypatch.setattr(host, "physical_cores", lambda: cores)
    monkeypatch.setattr(host, "cgroup_cpus", lambda: quota)
    if given is None:
        monkeypatch.delenv("PYGGML_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("PYGGML_NUM_THREADS", given)
    assert host.default_threads() == want


def test_hyper_threads_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(host, "read_limits", lambda *_: Limits())
    monkeypatch.setattr(Path, "read_text", lambda path: f"{int(path.parts[5][3:]) % 2}")
    assert host.physical_cores() == 2


def test_limits_of_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(0.5, (((1, 2),),), memory_bytes=3 << 20, available_bytes=1 << 20)
    monkeypatch.setattr(host, "read_limits", lambda *_: limits)
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.delenv("PYGGML_NUM_THREADS", raising=False)
    assert host.default_threads() == 1
    assert host.usable_cpus() == [1, 2]
    assert (host.available_memory(), host.total_memory()) == (1 << 20, 3 << 20)


def test_only_mapped_pages_are_dropped(tmp_path: Path) -> None:
    """MADV_DONTNEED on anonymous memory would zero it."""
    memory = np.full(1 << 16, 7, np.uint8)
    assert not host.drop_pages(memory)
    assert (memory == 7).all()
    path = tmp_path / "file"
    path.write_bytes(memory.tobytes())
    with path.open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    assert host.drop_pages(mapped[5000:]) == (host.sys.platform == "linux")
    assert (mapped == 7).all()


def test_calls_without_a_c_library_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_libc", lambda: None)
    memory = np.zeros(1 << 16, np.uint8)
    assert not host.advise_hugepages(memory)
    assert host.lock_memory(memory) == "this system has no mlock"


def test_available_memory_is_plausible() -> None:
    available = host.available_memory()
    assert available is None or 0 <= available < 1 << 50


SAMPLES = {
    "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD "
    "EPYC\nstepping\t: 1\n\nprocessor\t: 1\nmodel\t\t: 3\n":
    "AuthenticAMD, family 26, model 2, stepping 1",
    "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nstepping\t: 8\n":
    "GenuineIntel, family 6, model 143, stepping 8",
    "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\n"
    "CPU part\t: 0xd0c\nCPU revision\t: 1\n":
    "CPU implementer 0x41, CPU architecture 8, CPU variant 0x3, CPU part 0xd0c, CPU revision 1",
}  # fmt: skip


@pytest.mark.parametrize("text", SAMPLES)
def test_cpu_identity(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(host, "_CPUINFO", path)
    assert host.cpu_identity()  # from the platform module
    path.write_text(text)
    assert host.cpu_identity() == SAMPLES[text]
