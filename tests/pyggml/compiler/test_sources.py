"""The sources that compiled code depends on: the import closure, and existing formats."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pyggml.backend.cpu.kernels.elementwise.binary  # noqa: F401 (it must exist)
from pyggml.compiler.code_cache import CodeCache
from pyggml.compiler.sources import ROOT, Outline, Sources, outline_of

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


Digests = tuple[str, str, dict[str, str]]
Made = Callable[[], Digests]


@pytest.fixture(scope="module")
def outlines(tmp_path_factory: pytest.TempPathFactory) -> CodeCache:
    return CodeCache(tmp_path_factory.mktemp("outlines"))


@pytest.fixture
def digests(copy: Path, outlines: CodeCache) -> Made:
    """Digests of the copy as it is now: two kernels' closures, and the formats."""

    def made() -> Digests:
        sources = Sources(outlines, copy)
        return sources.closure(SCALE), sources.closure(BINARY), sources.formats()

    return made


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("backend/cpu/kernels/elementwise/unary.py", "* s + b", "* s - b", (True, False)),
        ("backend/cpu/kernels/elementwise/binary.py", "", "\nx = 1\n", (False, True)),
        ("backend/cpu/kernels/span.py", "", "\nx = 1\n", (True, True)),  # inlined by both
        ("backend/cpu/simd/x86.py", "", "\nx = 1\n", (True, True)),  # imported in a function
        ("compiler/jit.py", '"reassoc"', '"arcp"', (True, True)),
        ("viz/dot.py", "", "\nx = 1\n", (False, False)),
        ("quants/block.py", "def half(", "def whole(", (True, True)),
        ("dtype.py", "def row_size(", "def bytes_of_row(", (True, True)),
    ],
)
def test_a_closure_changes_with_its_imports(
    file: str, old: str, new: str, changed: tuple[bool, bool], digests: Made, edit: Edit
) -> None:
    before = digests()
    edit(file, old, new)
    after = digests()
    assert (after[0] != before[0], after[1] != before[1]) == changed


def test_kernels_do_not_change_with_encoders(copy: Path, outlines: CodeCache, edit: Edit) -> None:
    """They call those by address; the code of encoders does change."""
    names = (
        *(f"kernels.{name}" for name in ("movement.rows", "movement.cpy", "matrix.matmul")),
        "codec.encoders",
    )

    def made() -> list[str]:
        sources = Sources(outlines, copy)
        return [sources.closure(f"pyggml.backend.cpu.{name}") for name in names]

    before = made()
    edit("backend/cpu/codec/encoders.py", "", "\nx = 1\n")
    after = made()
    assert before[:-1] == after[:-1] and before[-1] != after[-1]


FORMAT = """
from ..dtype import GGMLType
from .block import Bits, BlockType, bit_row, half, register
from .blocks_32 import encode_centred

# Made up.
Q3_0 = register(BlockType(GGMLType.Q3_0, (Bits(2, 16, (4, 8), (2, 8)), bit_row(10, shift=2)),
                          half(0), zero=4, encode=encode_centred))
"""
IMPORTS = "from . import blocks_32, iq, iq4, k_quants, mxfp4, ternary"
TYPE = "    NVFP4 = (40, 64, 36)\n"


def add_format(edit: Edit) -> None:
    """Add a format in a new file, as docs/add-a-format.md says."""
    edit("dtype.py", TYPE, f"{TYPE}    # made up\n    Q3_0 = (41, 32, 14)\n")
    edit("quants/made_up.py", "", FORMAT)
    edit("quants/__init__.py", IMPORTS, f"{IMPORTS}, made_up")


def test_a_new_format_changes_no_existing_digest(digests: Made, edit: Edit) -> None:
    before = digests()
    add_format(edit)
    edit(
        "quants/ternary.py",
        "",
        "\nTQ3_0 = register(BlockType(GGMLType.Q3_0, Digits(), half(52)))\n",
    )
    after = digests()
    assert after[:2] == before[:2]
    assert before[2].items() < after[2].items()
    added = {
        f"pyggml.{name}" for name in ("dtype.Q3_0", "quants.ternary.TQ3_0", "quants.made_up.Q3_0")
    }
    assert added | {"pyggml.quants.made_up"} == {*after[2]} - {*before[2]}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("quants/blocks_32.py", "Q4_0 = register(", "Q4_0 = register(  # edited"),
        ("quants/iq4.py", "VALUES = (-127, ", "VALUES = (-126, "),
        ("quants/ternary.py", "bits = 2", "bits = 3"),  # a class used by declarations
        ("dtype.py", "Q4_1 = (3, 32, 20)", "Q4_1 = (3, 32, 21)"),
        ("dtype.py", TYPE, ""),
    ],
)
def test_a_changed_format_changes_its_digest(
    file: str, old: str, new: str, digests: Made, edit: Edit
) -> None:
    before = digests()[2]
    edit(file, old, new)
    assert not before.items() <= digests()[2].items()


def test_an_outline() -> None:
    text = (
        "import numpy\nfrom ..a import b\nfrom . import c\nimport pyggml.x.y\n"
        "if TYPE_CHECKING:\n    from .d import e\n"
        "def f():\n    from ...g import h\n"
    )
    imports = [
        ("pyggml.q.a", ["b"]),
        ("pyggml.q.r", ["c"]),
        ("pyggml.x", ["y"]),
        ("pyggml.g", ["h"]),
    ]
    made = outline_of("pyggml.q.r.m", text.encode(), is_package=False)
    assert made == Outline(made.body, imports, {})
    made = outline_of("pyggml.q.r", text.replace("...g", "..g").encode(), is_package=True)
    assert [base for base, _ in made.imports] == [
        "pyggml.q.a",
        "pyggml.q.r",
        "pyggml.x",
        "pyggml.q.g",
    ]


def test_outlines_are_kept(digests: Made, edit: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digests()
    parsed = []
    monkeypatch.setattr(
        "pyggml.compiler.sources.outline_of",
        lambda name, *rest: parsed.append(name) or outline_of(name, *rest),
    )
    assert digests() == before and not parsed
    edit("backend/cpu/kernels/elementwise/unary.py", "", "\nx = 1\n")
    digests()
    assert parsed == [SCALE]


COMPILE = f"""
from pyggml.compiler import jit
from {SCALE} import scale_f32
from {BINARY} import ADD, binary_kernel
from pyggml.backend.cpu.codec.rows import row_decoder
from pyggml.dtype import GGMLType
compiled = []
jit.on_compile = compiled.append
formats = set(["Q4_0", "IQ4_XS", "Q3_0"]) & set(GGMLType.__members__)
kernels = [row_decoder(int(GGMLType[name])) for name in formats]
kernels += [scale_f32, binary_kernel(ADD, 0, 0, 0)]
assert all(kernel.address for kernel in kernels)
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

    assert len(compiled()) == 4 and compiled() == []
    original = (copy / "backend/cpu/kernels/elementwise/unary.py").read_bytes()
    edit("backend/cpu/kernels/elementwise/unary.py", "* s + b", "* s + b + b")
    assert compiled() == ["scale_f32"]
    (copy / "backend/cpu/kernels/elementwise/unary.py").write_bytes(original)
    assert compiled() == []  # still in the cache
    add_format(edit)
    assert compiled() == ["decode_q3_0"]
    edit("quants/blocks_32.py", "Q4_0 = register(", "Q4_0 = register(  # edited")
    assert len(compiled()) == 5


CONSTANTS = """
import json, re, sys
import pyggml.backend.cpu.backend
found = {}
for name, module in sys.modules.items():
    for key, value in vars(module).items() if name.startswith("pyggml.") else ():
        if isinstance(value, (tuple, list, dict, set, frozenset)):
            found[f"{name}.{key}"] = sorted(map(repr, value))
        elif isinstance(value, (int, float, str, bytes)) and not key.startswith("__"):
            found[f"{name}.{key}"] = [repr(value)]
print(re.sub(" at 0x[0-9a-f]+", "", json.dumps(found)))
"""


def test_no_constant_depends_on_all_formats(copy: Path, edit: Edit) -> None:
    """Otherwise code compiled before a format is added would be wrong after it."""
    before = json.loads(run(copy, CONSTANTS))
    add_format(edit)
    after = json.loads(run(copy, CONSTANTS))
    assert "Q3_0" in str(after) and {*before} < {*after}
    assert not [key for key in before if not {*before[key]} <= {*after[key]}]


def test_an_edit_after_the_import_changes_the_closure(
    copy: Path, outlines: CodeCache, edit: Edit
) -> None:
    """Code imported before an edit and compiled after it must not be found by other processes."""
    sources = Sources(outlines, copy)
    edit("backend/cpu/kernels/elementwise/unary.py", "", "\nx = 2\n")
    assert sources.closure(SCALE) != Sources(outlines, copy).closure(SCALE)
