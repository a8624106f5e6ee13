"""Limits of this process's control groups: CPUs, CPU sets and memory.

    limits = read_limits()
    limits.cpus, limits.memory_bytes               # 0.5, 2147483648

A limit may be set on any level between the process's group and the root of the hierarchy (systemd
slices, Slurm jobs, pods), so all of them are read. Both versions of cgroups are read, also mixed.
Reads a few small files at each call; a system without cgroups has no limits.
Source: Linux, ``Documentation/admin-guide/cgroup-v1`` and ``cgroup-v2.rst``; ``proc(5)``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_ESCAPE = re.compile(r"\\([0-7]{3})")  # of a space and others in mountinfo
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


def read_limits(root: Path = Path("/")) -> Limits:
    """Return the limits of this process.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    hierarchies = tuple(_hierarchies(root))
    cpus = [_quota(level) for level in _levels(hierarchies, "cpu")]
    sets = [_cpu_set(level) for level in _levels(hierarchies, "cpuset")]
    memory = [found for level in _levels(hierarchies, "memory") if (found := _memory(level))]
    return Limits(
        min(cpus, default=math.inf),
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


def _hierarchies(root: Path) -> Iterator[_Hierarchy]:
    """Yield the mounted hierarchies, with the group of this process in each."""
    groups: dict[str, str] = {}  # path by controller; "" for version 2
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        groups |= dict.fromkeys(names.split(","), path)
    for line in _text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        mount, filesystem = left.split(" "), right.split(" ")
        if filesystem[0] not in ("cgroup", "cgroup2") or len(mount) < 5 or len(filesystem) < 3:
            continue
        options = filesystem[2].split(",") if filesystem[0] == "cgroup" else [""]
        hierarchy_name = next((name for name in options if name in groups), None)
        if hierarchy_name is not None:
            top, point = (_ESCAPE.sub(lambda m: chr(int(m[1], 8)), x) for x in mount[3:5])
            group = _below(groups[hierarchy_name], top)
            yield _Hierarchy(frozenset(options) - {""}, root / point.lstrip("/"), group)


def _below(group: str, top: str) -> PurePosixPath:
    """Return a group's path below the group that is mounted.

    It is empty if the paths belong to different namespaces: then only the mounted group is known.
    """
    path = PurePosixPath(group)
    if ".." in path.parts or not path.is_relative_to(top):
        return PurePosixPath()
    return path.relative_to(top)


def _levels(hierarchies: tuple[_Hierarchy, ...], controller: str) -> Iterator[Path]:
    """Yield the folders of a controller, from the process's group up to the mount point."""
    for one in hierarchies:
        if not one.controllers or controller in one.controllers:
            for group in (one.group, *one.group.parents):
                yield one.mount / group


def _quota(level: Path) -> float:
    """Return the CPU quota of a group in CPUs, infinity without one."""
    words = _text(level / "cpu.max").split()
    if not words:  # version 1
        words = [_text(level / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    try:
        quota, period = map(int, words)
    except ValueError:
        return math.inf
    return quota / period if quota > 0 and period > 0 else math.inf


def _cpu_set(level: Path) -> Ranges:
    """Return the CPUs of a group; empty if all are allowed, or nothing is known."""
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
    text = next(filter(None, (_text(level / name).strip() for name in names)), "")
    try:
        ends = [tuple(map(int, part.split("-"))) for part in text.split(",") if text]
    except ValueError:
        return ()
    return tuple((part[0], part[-1]) for part in ends)


def _memory(level: Path) -> tuple[int, int] | None:
    """Return a group's memory limit and its usage, without file pages that can be reclaimed."""
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            n_limit, n_used = (int(_text(level / name)) for name in (limit, used))
        except ValueError:  # "max", or no such file
            continue
        found = re.search(rf"^{cached} (\d+)$", _text(level / "memory.stat"), re.MULTILINE)
        return n_limit, max(0, n_used - (int(found[1]) if found else 0))
    return None


def _text(path: Path) -> str:
    """Return the text of a small file, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
