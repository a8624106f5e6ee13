"""Limits of this process's control groups: CPUs, CPU sets and memory.

    limits = read_limits("cpu", "memory")
    limits.cpus, limits.memory_bytes               # 0.5, 2147483648

A limit may be set on any level between the process's group and the root of the hierarchy (systemd
slices, Slurm jobs, pods), so all of them are read. Both versions of cgroups are read, also mixed.
Each call reads a few small files, some 10 us each, only for the named controllers. A system without
cgroups has no limits.
Source: Linux, ``Documentation/admin-guide/cgroup-v1`` and ``cgroup-v2.rst``; ``proc(5)``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

_ESCAPE = re.compile(r"\\([0-7]{3})")  # of a space and others in mountinfo
# By version: files with the CPU set; files with the memory's limit and usage, and the line of
# memory.stat with the file pages that can be reclaimed.
_CPU_SET_NAMES = {
    1: ("cpuset.effective_cpus", "cpuset.cpus"),
    2: ("cpuset.cpus.effective", "cpuset.cpus"),
}
_MEMORY_NAMES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Limits:
    """The tightest limit of all levels.

    Attributes:
        cpus: CPU quota in CPUs; infinity without one.
        cpu_sets: the CPUs that each level allows, as ranges (first, last).
        memory_bytes: limit of memory; None without one.
        available_bytes: memory that can be allocated before a limit is reached; None without one.
    """

    cpus: float = math.inf
    cpu_sets: tuple[Ranges, ...] = ()
    memory_bytes: int | None = None
    available_bytes: int | None = None

    def allows(self, cpu: int) -> bool:
        """Whether the CPU sets of all levels have this CPU."""
        return all(any(a <= cpu <= b for a, b in ranges) for ranges in self.cpu_sets)


def read_limits(*controllers: str, root: Path = Path("/")) -> Limits:
    """Return the limits of this process.

    Args:
        controllers: of ``cpu``, ``cpuset`` and ``memory``; limits by other controllers stay unset.
        root: where ``proc`` and ``sys`` are.
    """
    own, mounts = (_text(root / f"proc/self/{name}") for name in ("cgroup", "mountinfo"))
    hierarchies = _hierarchies(root, own, mounts)
    levels = {name: [*_levels(hierarchies, name)] for name in controllers}
    sets = [_cpu_set(*level) for level in levels.get("cpuset", ())]
    memory = [found for level in levels.get("memory", ()) if (found := _memory(*level))]
    return Limits(
        min((_quota(*level) for level in levels.get("cpu", ())), default=math.inf),
        tuple(ranges for ranges in sets if ranges),
        min((limit for limit, _ in memory), default=None),
        min((max(0, limit - used) for limit, used in memory), default=None),
    )


@dataclass(frozen=True)
class _Hierarchy:
    """A mounted hierarchy: its controllers (none for version 2), mount point and own group."""

    controllers: frozenset[str]
    mount: Path
    group: PurePosixPath  # relative to the mount point


@lru_cache(maxsize=1)
def _hierarchies(root: Path, own: str, mounts: str) -> tuple[_Hierarchy, ...]:
    """Return the mounted hierarchies, with the group of this process in each.

    Args:
        own, mounts: the texts of ``proc/self/cgroup`` and ``proc/self/mountinfo``.
    """
    groups: dict[str, str] = {}  # path by controller; "" for version 2
    for line in own.splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        groups |= dict.fromkeys(names.split(","), path)
    found = []
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        mount, filesystem = left.split(" "), right.split(" ")
        if filesystem[0] not in ("cgroup", "cgroup2") or len(mount) < 5 or len(filesystem) < 3:
            continue
        options = filesystem[2].split(",") if filesystem[0] == "cgroup" else [""]
        hierarchy_name = next((name for name in options if name in groups), None)
        if hierarchy_name is not None:
            top, point = (_ESCAPE.sub(lambda m: chr(int(m[1], 8)), x) for x in mount[3:5])
            group = _below(groups[hierarchy_name], top)
            mounted = root / point.lstrip("/")
            found.append(_Hierarchy(frozenset(options) - {""}, mounted, group))
    return tuple(found)


def _below(group: str, top: str) -> PurePosixPath:
    """Return a group's path below the group that is mounted.

    It is empty if the paths belong to different namespaces: then only the mounted group is known.
    """
    path = PurePosixPath(group)
    if ".." in path.parts or not path.is_relative_to(top):
        return PurePosixPath()
    return path.relative_to(top)


def _levels(hierarchies: tuple[_Hierarchy, ...], controller: str) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of a controller's groups, from the process's to the mount point."""
    for one in hierarchies:
        if not one.controllers or controller in one.controllers:
            for group in (one.group, *one.group.parents):
                yield 1 if one.controllers else 2, one.mount / group


def _quota(version: int, level: Path) -> float:
    """Return the CPU quota of a group in CPUs, infinity without one."""
    if version == 2:
        words = _text(level / "cpu.max").split()
    else:
        words = [_text(level / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    try:
        quota, period = map(int, words)
    except ValueError:
        return math.inf
    return quota / period if quota > 0 and period > 0 else math.inf


def _cpu_set(version: int, level: Path) -> Ranges:
    """Return the CPUs of a group; empty if all are allowed, or nothing is known."""
    texts = (_text(level / name).strip() for name in _CPU_SET_NAMES[version])
    text = next(filter(None, texts), "")
    try:
        ends = [tuple(map(int, part.split("-"))) for part in text.split(",") if text]
    except ValueError:
        return ()
    return tuple((part[0], part[-1]) for part in ends)


def _memory(version: int, level: Path) -> tuple[int, int] | None:
    """Return a group's memory limit and its usage, without file pages that can be reclaimed."""
    limit, used, cached = _MEMORY_NAMES[version]
    try:
        n_limit, n_used = (int(_text(level / name)) for name in (limit, used))
    except ValueError:  # "max", or no such file
        return None
    found = re.search(rf"^{cached} (\d+)$", _text(level / "memory.stat"), re.MULTILINE)
    return n_limit, max(0, n_used - (int(found[1]) if found else 0))


def _text(path: Path) -> str:
    """Return the text of a small file, empty if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # a quarter of the time of `read_text`
            return file.read().decode(errors="replace")
    except OSError:
        return ""
