"""The sources that compiled code depends on: the import closure."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pyggml.backend.cpu.kernels.elementwise.binary  # noqa: F401 (it must exist)
from pyggml.compiler.sources import ROOT, Sources

SCALE, BINARY = (f"pyggml.backend.cpu.kernels.elementwise.{name}" for name in ("unary", "binary"))
Edit = Callable[..., None]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package, to be edited."""
    root = tmp_path / "copy" / "pyggml"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture
def edit(copy: Path) -> Edit:
    """Replaces text in a file of the copy, or appends to it."""

    def replace(file: str, old: str, new: str) -> None:
        path = copy / file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        assert old in text
        path.write_text(text.replace(old, new, 1) if old else text + new, encoding="utf-8")

    return replace


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        (
            "backend/cpu/kernels/elementwise/unary.py",
            ", a, b, c, d))",
            ", b, a, c, d))",
            (True, False),
        ),
        ("backend/cpu/kernels/elementwise/binary.py", "", "\nx = 1\n", (False, True)),
        ("backend/cpu/kernels/span.py", "", "\nx = 1\n", (True, True)),  # inlined by both
        ("backend/cpu/simd/x86.py", "", "\nx = 1\n", (True, True)),
        ("compiler/jit.py", '"reassoc"', '"arcp"', (True, True)),
        ("viz/dot.py", "", "\nx = 1\n", (False, False)),
        ("quants/block.py", "def half(", "def whole(", (True, True)),
        ("dtype.py", "Q4_1 = (3, 32, 20)", "Q4_1 = (3, 32, 21)", (True, True)),
    ],
)
def test_a_closure_changes_with_its_imports(
    file: str, old: str, new: str, changed: tuple[bool, bool], copy: Path, edit: Edit
) -> None:
    before = Sources(copy)
    was = before.closure(SCALE), before.closure(BINARY)
    edit(file, old, new)
    after = Sources(copy)
    assert (after.closure(SCALE) != was[0], after.closure(BINARY) != was[1]) == changed


def test_kernels_change_with_formats_but_not_with_encoders(copy: Path, edit: Edit) -> None:
    """They look formats up while they are compiled, and call encoders by address."""
    names = (
        *(f"kernels.{name}" for name in ("movement.rows", "movement.cpy", "matrix.matmul")),
        "codec.encoders",
    )

    def closures() -> list[str]:
        sources = Sources(copy)
        return [sources.closure(f"pyggml.backend.cpu.{name}") for name in names]

    before = closures()
    edit("backend/cpu/codec/encoders.py", "", "\nx = 1\n")
    after = closures()
    assert before[:-1] == after[:-1] and before[-1] != after[-1]
    edit("quants/iq4.py", "VALUES = (-127, ", "VALUES = (-126, ")
    assert not set(after) & set(closures())


def test_formats_are_looked_up_in_the_package_that_registers_them() -> None:
    """``quants.block`` alone would be a closure without the formats' declarations."""
    sources = Sources()
    files = sorted((ROOT / "backend").rglob("*.py"))
    assert files
    for file in files:
        assert "quants.block.BLOCK_TYPES" not in str(
            sources._source(sources.module(file) or "").imported
        ), file


def test_all_imports_are_found() -> None:
    """As Python's parser finds them; an example in a docstring may add one."""
    sources = Sources()
    for module, file in sources._files.items():
        package = module if file.endswith("__init__.py") else module.rpartition(".")[0]
        want = set()
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                want |= {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                parents = package.split(".")
                base = parents[: len(parents) - node.level + 1] if node.level else []
                base += [node.module] if node.module else []
                want |= {".".join([*base, alias.name]) for alias in node.names}
        found = sources._source(module).imported
        assert want <= found, module
        extra = {name for name in found - want if name.startswith("pyggml")}
        assert len(extra) <= 4, (module, extra)


COMPILE = f"""
from pyggml.compiler import jit
from {SCALE} import element_kernel
from {BINARY} import binary_kernel
scale_f32 = element_kernel("scale", 0)
compiled = []
jit.on_compile = compiled.append
assert all(kernel.address for kernel in (scale_f32, binary_kernel("add", 0, 0, 0)))
print(len(compiled), *compiled)
"""


def run(copy: Path, code: str) -> str:
    """Output of a process that imports the copy."""
    folder = copy.parent
    env = {**os.environ, "PYTHONPATH": str(folder), "PYGGML_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_functions_compiled_after_an_edit(copy: Path, edit: Edit) -> None:
    def compiled() -> list[str]:
        return run(copy, COMPILE).split()[1:]

    assert len(compiled()) == 2 and compiled() == []
    original = (copy / "backend/cpu/kernels/elementwise/unary.py").read_bytes()
    edit("backend/cpu/kernels/elementwise/unary.py", ", a, b, c, d))", ", b, a, c, d))")
    assert compiled() == ["scale_f32"]
    (copy / "backend/cpu/kernels/elementwise/unary.py").write_bytes(original)
    assert compiled() == []  # still in the cache


def test_an_edit_after_the_import_changes_the_closure(copy: Path, edit: Edit) -> None:
    """Code imported before an edit and compiled after it must not be found by other processes."""
    sources = Sources(copy)
    edit("backend/cpu/kernels/elementwise/unary.py", "", "\nx = 2\n")
    assert sources.closure(SCALE) != Sources(copy).closure(SCALE)
