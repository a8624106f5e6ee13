"""Imports go to the same or lower floors of docs/architecture.md, never across backends."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"pyggml": "pyggml", "pyllama": "pyllama", "cli": "pyllama_cli"}

# The longest matching prefix of a name decides. A package's own __init__ is on its package's floor.
FLOORS = {
    **dict.fromkeys(
        [
            "pyggml.errors",
            "pyggml.env",
            "pyggml.dtype",
            "pyggml.compiler",
            "pyggml.files",
            "pyggml.visible",
            "pyggml.cgroup",
            "pyggml.host",
            "pyggml.rounding",
        ],
        0,
    ),
    **dict.fromkeys(["pyggml.buffer", "pyggml.tensor", "pyggml.context", "pyggml.cgraph"], 1),
    "pyggml.gguf": 1,
    **dict.fromkeys(["pyggml.ops", "pyggml.quants"], 2),
    "pyggml.alloc": 3,
    "pyggml.backend": 4,
    **dict.fromkeys(["pyggml.sched", "pyggml.viz"], 5),
    "pyggml": 5,  # the public face
    **dict.fromkeys(
        [
            "pyllama.errors",
            "pyllama.hub",
            "pyllama.inputs",
            "pyllama.file_types",
            "pyllama.activation",
        ],
        6,
    ),
    **dict.fromkeys(
        ["pyllama.grammar", "pyllama.hparams", "pyllama.sampling", "pyllama.tokenizer"], 7
    ),
    "pyllama.mapping": 7,
    "pyllama.kv": 8,
    "pyllama.graph": 9,
    "pyllama.arch": 10,
    "pyllama.runtime": 11,
    "pyllama.speculative": 12,
    "pyllama.engine": 13,
    **dict.fromkeys(
        [
            "pyllama.bench",
            "pyllama.chat",
            "pyllama.compat",
            "pyllama.convert",
            "pyllama.embeddings",
            "pyllama.eval",
            "pyllama.gguf_tools",
            "pyllama.inspect",
            "pyllama.quantize",
            "pyllama.sparsity",
        ],
        14,
    ),
    **dict.fromkeys(["pyllama", "pyllama.llama"], 14),  # the public face
    "pyllama.server": 15,
    "pyllama.cluster": 16,
    "pyllama_cli": 17,
}
BACKENDS = ("reference", "cpu", "cuda")


def modules() -> dict[str, Path]:
    """Every module of the packages by its import name."""
    found = {}
    for folder, package in PACKAGES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join((package, *parts)).removesuffix(".__init__")
            found[name] = path
    return found


MODULES = modules()


def floor(module: str) -> int:
    while module not in FLOORS:
        module = module.rpartition(".")[0]
    return FLOORS[module]


class Import(NamedTuple):
    """An import: where it is, and the full name of what it imports."""

    line: int
    target: str
    is_for_types: bool


def imports(name: str, path: Path) -> list[Import]:
    """Each import of a module, also in functions and for types."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = []
    for node in ast.walk(tree):
        targets = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            full = [f"{base}.{alias.name}" for alias in node.names]
            targets = [target if target in MODULES else base for target in full]
        found += [Import(node.lineno, target, id(node) in for_types) for target in targets]
    return found


@cache
def index() -> dict[str, list[Import]]:
    """The imports of all modules: each file is parsed once."""
    return {name: imports(name, path) for name, path in MODULES.items()}


def targets(name: str) -> list[str]:
    """What a module imports when it runs."""
    return [found.target for found in index()[name] if not found.is_for_types]


def test_imports_go_to_lower_floors() -> None:
    up = [
        f"{name}:{line} (floor {floor(name)}) imports {target} (floor {floor(target)})"
        for name, found in index().items()
        for line, target, is_for_types in found
        if not is_for_types
        and target.partition(".")[0] in PACKAGES.values()
        and floor(target) > floor(name)
    ]
    assert not up


def test_backends_do_not_import_each_other() -> None:
    wrong = []
    for own in BACKENDS:
        others = tuple(f"pyggml.backend.{b}" for b in BACKENDS if b != own)
        modules = [name for name in MODULES if name.split(".")[:3] == ["pyggml", "backend", own]]
        assert modules
        wrong += [(name, t) for name in modules for t in targets(name) if t.startswith(others)]
    assert not wrong


def test_the_runtime_names_no_backend() -> None:
    """pyllama and the commands talk to backends through interface, registry and trace."""
    concrete = tuple(f"pyggml.backend.{b}" for b in BACKENDS)
    texts = {  # imports for types count too
        name: path.read_text(encoding="utf-8")
        for name, path in MODULES.items()
        if not name.startswith("pyggml")
    }
    assert not [(name, b) for name, text in texts.items() for b in concrete if b in text]


def test_pyllama_has_no_import_cycles() -> None:
    """Imports inside functions and imports for types count too."""
    graph = {
        name: {target for _, target, _ in found if target != name}
        for name, found in index().items()
        if name.startswith("pyllama.")
    }
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_graphs_and_the_loader_use_the_variant_registry() -> None:
    for name in MODULES:
        if name.endswith(".loader") or name.startswith(("pyllama.graph.", "pyllama.arch.")):
            assert not [t for t in targets(name) if t.startswith("pyllama.sparsity")]


def test_heavy_and_foreign_imports_stay_in_their_place() -> None:
    wrong = []
    for name in MODULES:
        foreign = [r"gguf_parser\b", r"torch\b", r"transformers\b"]
        if not name.startswith("pyggml.backend.cuda"):
            foreign.append(r"numba\.cuda")
        if name != "pyggml.compiler.numba_internals":
            foreign.append(r"numba\.core")
        if not name.startswith("pyllama_cli"):
            foreign.append(r"click\b")
        wrong += [(name, t) for t in targets(name) if re.match("|".join(foreign), t)]
    assert not wrong


def test_floors_cover_exactly_the_packages() -> None:
    packages = set(PACKAGES.values())
    assert {prefix.partition(".")[0] for prefix in FLOORS} == packages


def test_an_import_of_a_higher_floor_is_found(tmp_path: Path) -> None:
    bad = tmp_path / "tensor.py"
    bad.write_text("def f():\n    from ..pyllama import x\n    from .ops import op\n")
    assert imports("pyggml.tensor", bad)[-1].target == "pyggml.ops.op"
    assert floor("pyggml.ops.op") > floor("pyggml.tensor")


def commands_in_danger(code: str) -> Iterator[int]:
    """Lines where an interpreter is named without -P or -I right after it."""
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call | ast.List | ast.Tuple):
            continue
        items = node.args if isinstance(node, ast.Call) else node.elts
        for i, item in enumerate(items):
            text = ast.unparse(item)
            named = text == "sys.executable" and len(items) > 1
            named |= text == "python" and isinstance(node, ast.List) and i == 0
            after = [x.value for x in items[i + 1 : i + 2] if isinstance(x, ast.Constant)]
            if named and after not in (["-P"], ["-I"]):
                yield item.lineno


def test_no_interpreter_imports_from_the_current_folder() -> None:
    """``python -m pip`` runs a pip.py of the current folder, possibly a folder of downloads."""
    assert [*commands_in_danger("run([sys.executable, '-m', 'pip'])")] == [1]
    assert [*commands_in_danger("run([python, '-m', 'x']); f(sys.executable, '--y')")] == [1, 1]
    assert not [*commands_in_danger("run([sys.executable, '-P', '-c', x]); bool(sys.executable)")]
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in (*PACKAGES, "benchmarks", "tests", "docs")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in commands_in_danger(path.read_text(encoding="utf-8"))
    ]
    assert not found


@pytest.mark.parametrize("package", ["pyggml", "pyllama"])
def test_the_tree_of_errors_is_in_one_file(package: str) -> None:
    elsewhere = [
        f"{name}.{node.name}"
        for name, path in MODULES.items()
        if name.startswith(f"{package}.") and not name.endswith(".errors")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and {"PyggmlError", "PyllamaError"} & {ast.unparse(base) for base in node.bases}
    ]
    assert not elsewhere
