"""Limits of nested control groups, in made-up trees of files and in a group of this machine."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyggml.cgroup import Limits, read_limits

MIB = 1 << 20
V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "".join(
    f"3{i} 31 0:3{i} {{top}} /sys/fs/cgroup/{names} rw shared:9 - cgroup cgroup rw,{names}\n"
    for i, names in enumerate(("cpu,cpuacct", "cpuset", "memory"))
)


ALL = ("cpu", "cpuset", "memory")


def tree(root: Path, own: str, mounts: str, files: dict[str, object]) -> Path:
    """Write ``/proc/self`` and the files below ``/sys/fs/cgroup``."""
    texts = {"proc/self/cgroup": own, "proc/self/mountinfo": mounts}
    texts |= {f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in files.items()}
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def v2(root: Path, own: str, files: dict[str, object]) -> Limits:
    return read_limits(*ALL, root=tree(root, f"0::{own}\n", V2, files))


def v1(root: Path, own: str, files: dict[str, object], top: str = "/") -> Limits:
    lines = f"9:name=systemd:/x\n4:memory:{own}\n3:cpuset:{own}\n1:cpu,cpuacct:{own}\n0::/x\n"
    mounts = V1.replace("{top}", top) + V2.replace("cgroup rw,no", "cgroup/unified rw,no")
    return read_limits(*ALL, root=tree(root, lines, mounts, files))


@pytest.mark.parametrize("level", ["", "system.slice/", "system.slice/x.service/", "a/b/c/d/"])
def test_each_level_of_version_2_limits(tmp_path: Path, level: str) -> None:
    """As systemd's CPUQuota=50% and MemoryMax=2G of a slice or service."""
    own = "/" + (level or "other/").rstrip("/")
    files = {
        f"{level}cpu.max": "50000 100000",
        f"{level}memory.max": 2048 * MIB,
        f"{level}memory.current": 512 * MIB,
        f"{level}cpuset.cpus.effective": "2-3,7",
    }
    limits = v2(tmp_path, own + "/leaf", files)
    assert (limits.cpus, limits.memory_bytes, limits.available_bytes) == (
        0.5, 2048 * MIB, 1536 * MIB,
    )  # fmt: skip
    assert [cpu for cpu in range(12) if limits.allows(cpu)] == [2, 3, 7]


@pytest.mark.parametrize("level", ["", "slurm/", "slurm/uid_1/job_2/", "a/b/c/d/"])
def test_each_level_of_version_1_limits(tmp_path: Path, level: str) -> None:
    own = "/" + (level or "other/").rstrip("/")
    files = {
        f"cpu,cpuacct/{level}cpu.cfs_quota_us": 50000,
        f"cpu,cpuacct/{level}cpu.cfs_period_us": 100000,
        f"memory/{level}memory.limit_in_bytes": 2048 * MIB,
        f"memory/{level}memory.usage_in_bytes": 512 * MIB,
        f"cpuset/{level}cpuset.cpus": "2-3,7",
    }
    limits = v1(tmp_path, own + "/leaf", files)
    assert (limits.cpus, limits.memory_bytes, limits.available_bytes) == (
        0.5, 2048 * MIB, 1536 * MIB,
    )  # fmt: skip
    assert [cpu for cpu in range(12) if limits.allows(cpu)] == [2, 3, 7]


def test_the_tightest_of_several_levels(tmp_path: Path) -> None:
    files = {
        "a/cpu.max": "max 100000", "a/b/cpu.max": "300000 100000", "a/b/c/cpu.max": "800000 100000",
        "a/memory.max": 100 * MIB, "a/memory.current": 90 * MIB,  # leaves less than the others
        "a/b/memory.max": 50 * MIB, "a/b/memory.current": 10 * MIB, "a/b/c/memory.max": "max",
        "a/b/c/memory.current": MIB, "a/cpuset.cpus.effective": "0-3",
        "a/b/cpuset.cpus.effective": "2-5", "other/cpu.max": "1000 100000",
    }  # fmt: skip
    limits = v2(tmp_path, "/a/b/c", files)
    assert (limits.cpus, limits.memory_bytes, limits.available_bytes) == (3.0, 50 * MIB, 10 * MIB)
    assert [cpu for cpu in range(9) if limits.allows(cpu)] == [2, 3]


def test_pages_that_the_system_can_drop_are_available(tmp_path: Path) -> None:
    files = {
        "a/memory.max": 100 * MIB, "a/memory.current": 90 * MIB,
        "a/memory.stat": f"anon 5\ninactive_file {60 * MIB}\nactive_file 7",
    }  # fmt: skip
    assert v2(tmp_path / "2", "/a", files).available_bytes == 70 * MIB
    files = {
        "memory/a/memory.limit_in_bytes": 100 * MIB, "memory/a/memory.usage_in_bytes": 90 * MIB,
        "memory/a/memory.stat": f"inactive_file 1\ntotal_inactive_file {60 * MIB}",
    }  # fmt: skip
    assert v1(tmp_path / "1", "/a", files).available_bytes == 70 * MIB


@pytest.mark.parametrize("own", ["/docker/x", "/docker/x/y", "/../host", "/elsewhere"])
def test_a_container_sees_its_group_as_the_root(tmp_path: Path, own: str) -> None:
    files = {"cpu,cpuacct/cpu.cfs_quota_us": 150000, "cpu,cpuacct/cpu.cfs_period_us": 100000}
    assert v1(tmp_path, own, files, top="/docker/x").cpus == 1.5


def test_both_versions_together(tmp_path: Path) -> None:
    """Version 2 has the processes, version 1 the controllers."""
    files = {"memory/a/memory.limit_in_bytes": 8 * MIB, "memory/a/memory.usage_in_bytes": MIB,
             "unified/x/cpu.max": "50000 100000"}  # fmt: skip
    limits = v1(tmp_path, "/a", files)
    assert (limits.cpus, limits.available_bytes) == (0.5, 7 * MIB)


def test_mount_points_with_spaces(tmp_path: Path) -> None:
    mounts = V2.replace("/sys/fs/cgroup", r"/sys/fs/cgroup/my\040groups")
    root = tree(tmp_path, "0::/a\n", mounts, {"my groups/a/cpu.max": "50000 100000"})
    assert read_limits(*ALL, root=root).cpus == 0.5


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"a/cpu.max": "max 100000", "a/memory.max": "max", "a/cpuset.cpus.effective": ""},
        {"a/cpu.max": "?", "a/memory.max": "?", "a/cpuset.cpus.effective": "1-2-x"},
        {"a/cpu.max": "0 0", "a/memory.max": 5, "a/memory.current": "x"},
        {"a/cpu.max": "-1 100000"},
        {"a/cpu.cfs_quota_us": -1, "a/cpu.cfs_period_us": 100000},
    ],
)
def test_no_limit(tmp_path: Path, files: dict[str, object]) -> None:
    limits = v2(tmp_path, "/a", files)
    assert limits == Limits() and limits.cpus == math.inf and limits.allows(5)


@pytest.mark.parametrize("own", ["", "garbage\n", "0::/a\n", "0:\n:::\n"])
@pytest.mark.parametrize("mounts", ["", "garbage\n", "1 2 3\n", "1 2 3 / - cgroup2\n", "- cgroup"])
def test_files_of_another_form(tmp_path: Path, own: str, mounts: str) -> None:
    assert read_limits(*ALL, root=tree(tmp_path, own, mounts, {})) == Limits()
    assert read_limits(*ALL, root=tmp_path / "nothing") == Limits()


SHOW = "from pyggml.cgroup import read_limits; print(read_limits('cpu').cpus)"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has cgroups")
def test_a_real_group() -> None:
    """A nested group with half a CPU in its parent; needs root."""
    for mount, files in (
        ("/sys/fs/cgroup/cpu", {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}),
        ("/sys/fs/cgroup", {"cpu.max": "50000 100000"}),
    ):
        parent = Path(mount) / f"pyggml-test-{os.getpid()}"
        leaf = parent / "leaf"
        try:
            leaf.mkdir(parents=True)
            for name, value in files.items():
                if not (parent / name).exists():
                    raise OSError(name)
                (parent / name).write_text(value)
            join = f"open({str(leaf / 'cgroup.procs')!r}, 'w').write('0'); "
            command = [sys.executable, "-P", "-c", join + SHOW]
            run = subprocess.run(command, capture_output=True, text=True, timeout=60)
        except OSError:
            continue
        finally:
            for folder in (leaf, parent):
                if folder.is_dir():
                    folder.rmdir()
        assert run.stdout.strip() == "0.5", run.stderr
        return
    pytest.skip("control groups cannot be created here")
