"""Describes the machine of a result: CPU, caches, cores, versions, time.

    head(threads=2)                                # the first fields of every line of results
    cpu().label                                    # "AMD EPYC (Zen 5, family 26 model 2)"
    label(line)                                    # of a line that was written earlier

A marketing name such as "AMD EPYC" fits five generations of cores, so a label also has the
microarchitecture, family and model. Nothing is measured; facts that a system does not report are
left out.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pyggml.host import cache_sizes, physical_cores

ROOT = Path(__file__).parent
RESULTS = ROOT / "results"
Line = dict[str, Any]
_VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel", "HygonGenuine": "Hygon"}
# (vendor, family): (first model, last model, name). Source: LLVM, TargetParser/Host.cpp; Linux,
# arch/x86/include/asm/intel-family.h.
_X86: dict[tuple[str, int], list[tuple[int, int, str]]] = {
    ("AMD", 0x17): [(0x00, 0x07, "Zen"), (0x08, 0x08, "Zen+"), (0x10, 0x17, "Zen"),
                    (0x18, 0x1F, "Zen+"), (0x20, 0x2F, "Zen"), (0x30, 0xAF, "Zen 2")],
    ("AMD", 0x19): [(0x00, 0x0F, "Zen 3"), (0x10, 0x1F, "Zen 4"), (0x20, 0x5F, "Zen 3"),
                    (0x60, 0x7F, "Zen 4"), (0xA0, 0xAF, "Zen 4")],
    ("AMD", 0x1A): [(0x00, 0x2F, "Zen 5"), (0x40, 0x4F, "Zen 5"), (0x60, 0x77, "Zen 5"),
                    (0xD0, 0xD7, "Zen 5")],
    ("Intel", 6): [
        (model, model, name) for name, models in {
            "Sandy Bridge": (0x2A, 0x2D), "Ivy Bridge": (0x3A, 0x3E),
            "Haswell": (0x3C, 0x3F, 0x45, 0x46), "Broadwell": (0x3D, 0x47, 0x4F, 0x56),
            "Skylake": (0x4E, 0x5E), "Kaby Lake": (0x8E, 0x9E), "Comet Lake": (0xA5, 0xA6),
            "Ice Lake": (0x6A, 0x6C, 0x7D, 0x7E), "Tiger Lake": (0x8C, 0x8D),
            "Rocket Lake": (0xA7,), "Alder Lake": (0x97, 0x9A, 0xBE),
            "Raptor Lake": (0xB7, 0xBA, 0xBF), "Meteor Lake": (0xAA, 0xAC),
            "Arrow Lake": (0xB5, 0xC5, 0xC6), "Lunar Lake": (0xBD,),
            "Sapphire Rapids": (0x8F,), "Emerald Rapids": (0xCF,),
            "Granite Rapids": (0xAD, 0xAE), "Sierra Forest": (0xAF,),
        }.items() for model in models
    ],
}  # fmt: skip
# Skylake, Cascade Lake and Cooper Lake servers share a model: the first stepping of each
_SERVER_55 = [(10, "Cooper Lake"), (5, "Cascade Lake"), (0, "Skylake")]
# (implementer, part). Source: Linux, arch/arm64/include/asm/cputype.h
_ARM_MAKERS = {0x41: "ARM", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x51: "Qualcomm",
               0x61: "Apple", 0xC0: "Ampere"}  # fmt: skip
_ARM = {
    (0x41, 0xD03): "Cortex-A53", (0x41, 0xD05): "Cortex-A55", (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72", (0x41, 0xD0B): "Cortex-A76", (0x41, 0xD0C): "Neoverse N1",
    (0x41, 0xD40): "Neoverse V1", (0x41, 0xD49): "Neoverse N2", (0x41, 0xD4F): "Neoverse V2",
    (0x41, 0xD84): "Neoverse V3", (0x41, 0xD8E): "Neoverse N3", (0x46, 0x001): "A64FX",
    (0xC0, 0xAC3): "Ampere-1", (0xC0, 0xAC4): "Ampere-1A",
}  # fmt: skip
_FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8",
          "sse4_2", "asimddp", "i8mm", "sve", "sve2", "hypervisor")  # fmt: skip


@dataclass(frozen=True)
class Cpu:
    """What a system says of its processor.

    Attributes:
        vendor: "AMD", "Intel", "ARM", ...; empty where unknown.
        name: the marketing name without marks, clock and number of cores.
        family, model, stepping: x86; of ARM ``model`` is the part and ``stepping`` the revision.
        microarchitecture: empty where the tables above have none.
        flags: the relevant instruction sets that it has.
    """

    vendor: str
    name: str
    family: int | None = None
    model: int | None = None
    stepping: int | None = None
    microarchitecture: str = ""
    flags: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """``AMD EPYC (Zen 5, family 26 model 2)``: what one page's section is headed."""
        number = "" if self.model is None else f"part {self.model:#x}"
        if self.family is not None:
            number = f"family {self.family} model {self.model}"
        inside = ", ".join(part for part in (self.microarchitecture, number) if part)
        return f"{self.name} ({inside})" if inside else self.name


def parse_cpuinfo(text: str) -> Cpu:
    """The first processor of Linux's ``/proc/cpuinfo``, of x86 or of ARM."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    words = set(fields.get("flags", fields.get("Features", "")).split())
    flags = tuple(flag for flag in _FLAGS if flag in words)
    if "CPU part" in fields:
        implementer, part = (int(fields[key], 0) for key in ("CPU implementer", "CPU part"))
        vendor = _ARM_MAKERS.get(implementer, f"ARM maker {implementer:#x}")
        revision = int(fields.get("CPU revision", "0"), 0)
        name = _short_name(fields.get("model name", vendor))
        core = _ARM.get((implementer, part), "")
        return Cpu(vendor, name, None, part, revision, core, flags)
    vendor = _VENDORS.get(fields.get("vendor_id", ""), fields.get("vendor_id", ""))
    name = _short_name(fields.get("model name", platform.machine()))
    keys = ("cpu family", "model", "stepping")
    numbers = [int(fields[key]) if fields.get(key, "").isdigit() else None for key in keys]
    return _x86(vendor, name, numbers, flags)


def parse_windows(text: str) -> Cpu:
    """``platform.processor()`` there: ``Intel64 Family 6 Model 143 Stepping 8, GenuineIntel``."""
    found = re.search(r"Family (\d+) Model (\d+) Stepping (\d+), (\w+)", text)
    if not found:
        return Cpu("", text or platform.machine())
    vendor = _VENDORS.get(found[4], found[4])
    return _x86(vendor, vendor, [int(n) for n in found.groups()[:3]], ())


def _x86(vendor: str, name: str, numbers: list[int | None], flags: tuple[str, ...]) -> Cpu:
    family, model, stepping = numbers
    core = ""
    if family is not None and model is not None:
        ranges = _X86.get((vendor, family), [])
        core = next((name for low, high, name in ranges if low <= model <= high), "")
        if (vendor, family, model) == ("Intel", 6, 0x55):
            core = next(name for first, name in _SERVER_55 if (stepping or 0) >= first)
    return Cpu(vendor, name, family, model, stepping, core, flags)


def _short_name(text: str) -> str:
    """``Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz`` -> ``Intel Xeon Platinum 8480+``."""
    text = re.sub(r"\((R|TM|r|tm)\)", "", text)
    text = re.sub(r"\bCPU\b|@.*|\b\d+-Core\b|\bProcessor\b", "", text)
    return " ".join(text.split())


@lru_cache(maxsize=1)
def cpu() -> Cpu:
    """This machine's."""
    try:
        return parse_cpuinfo(Path("/proc/cpuinfo").read_text("utf-8", errors="replace"))
    except OSError:
        pass
    if sys.platform == "darwin":
        name = _output("sysctl", "-n", "machdep.cpu.brand_string")
        return Cpu(name.partition(" ")[0], _short_name(name) or platform.machine())
    return parse_windows(platform.processor())


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if not done.returncode else ""


@lru_cache(maxsize=1)
def host() -> Line:
    """CPU, caches (bytes) and cores; the same in every line of a run."""
    found = cpu()
    sizes = cache_sizes()
    if sys.platform == "darwin":
        names = {"L2": "hw.l2cachesize", "L3": "hw.l3cachesize"}
        texts = {name: _output("sysctl", "-n", key) for name, key in names.items()}
        sizes = {name: int(text) for name, text in texts.items() if text.isdigit()}
    line = {
        "vendor": found.vendor,
        "name": found.name,
        "family": found.family,
        "model": found.model,
        "stepping": found.stepping,
        "microarchitecture": found.microarchitecture,
        "flags": list(found.flags),
        "caches": sizes,
        "cores": physical_cores(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    return {key: value for key, value in line.items() if value not in (None, "", [], {})}


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Of Python, of the compilers and of this code: a commit, with ``+`` where it was edited."""
    found = {"python": platform.python_version()}
    for package in ("pyggml", "numba", "llvmlite", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if commit := _output("git", "rev-parse", "--short", "HEAD"):
        code = ["--", "../pyggml", "../pyllama", "../cli"]
        found["commit"] = commit + "+" * bool(_output("git", "status", "--porcelain", *code))
    return found


def head(threads: int | None = None) -> Line:
    """The first fields of every line of results; ``threads`` where a test has a number of them."""
    line: Line = {"time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "cpu": cpu().label}
    if threads is not None:
        line["threads"] = threads
    return line | {"host": host(), "versions": versions()}


def save(line: Line, file: str, quiet: bool = False) -> None:
    """Append to a file of ``results/``, and print."""
    if not quiet:
        print(json.dumps(line), flush=True)
    with (RESULTS / file).open("a") as f:
        f.write(json.dumps(line) + "\n")


def resident_bytes() -> int | None:
    """Memory of this process that is resident; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def busy_share(seconds: float = 0.5) -> float:
    """The share of all CPUs' time that others take now; 0 where the system does not tell."""

    def ticks() -> tuple[int, int]:
        numbers = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]  # all; idle and waiting for disks

    try:
        all_before, idle_before = ticks()
        time.sleep(seconds)
        all_after, idle_after = ticks()
    except (OSError, ValueError, IndexError):
        return 0.0
    return 1 - (idle_after - idle_before) / max(1, all_after - all_before)


# Lines up to 2026-11-23 say "AMD EPYC" and no more. results/batched.jsonl names the machine of its
# lines: Zen 3 without AVX-512 on 2026-11-21, Zen 5 with it on 2026-11-22, as do commit e766140 and
# decision 0017. Lines of other files fit: the first with AVX-512 is of 05:37 on that day, and tiles
# reach 500 to 620 GMAC/s from then on, 150 before. Nothing says which machine that of the 23rd was.
_NAMELESS = "AMD EPYC"
_FIRST_ZEN5, _LAST_ZEN5 = "2026-11-22T05", "2026-11-23"
NOT_RECORDED = "AMD EPYC (model not recorded)"
ZEN3 = "AMD EPYC (Zen 3 by notes of that day, model not recorded)"
ZEN5 = "AMD EPYC (Zen 5 by notes of that day, model not recorded)"


def label(line: Line) -> str:
    """Which CPU a line of results is of, as far as the line allows to say."""
    name: str = line.get("cpu") or "CPU not recorded"
    if "host" in line or name != _NAMELESS or "time" not in line:
        return name
    if line["time"] < _FIRST_ZEN5:
        return ZEN3
    return ZEN5 if line["time"] < _LAST_ZEN5 else NOT_RECORDED


def replaces(newer: Line, older: Line) -> bool:
    """Whether a line that names its CPU may be of the same kind of CPU as one that does not."""
    found, name = newer.get("host", {}), label(older)
    if "host" in older or found.get("vendor") != "AMD":
        return False
    cores = {ZEN3: ("Zen 3",), ZEN5: ("Zen 5",), NOT_RECORDED: ("Zen 3", "Zen 5")}
    return found.get("microarchitecture") in cores.get(name, ())


def describe(line: Line) -> str:
    """``2 cores, L2 1 MB each, L3 32 MB, avx512_vnni``; empty where a line says nothing."""
    found: Line = line.get("host", {})
    parts = [f"{found['cores']} cores"] if "cores" in found else []
    for name, each in (("L2", " each"), ("L3", "")):
        if size := found.get("caches", {}).get(name):
            parts.append(f"{name} {size / 2**20:g} MB{each}")
    best = [flag for flag in ("amx_int8", "avx512_vnni", "avx512f", "avx_vnni", "avx2", "i8mm",
                              "asimddp") if flag in found.get("flags", ())]  # fmt: skip
    parts += best[:2] if best[:1] == ["amx_int8"] else best[:1]
    if "hypervisor" in found.get("flags", ()):
        parts.append("a virtual machine")
    return ", ".join(parts)
