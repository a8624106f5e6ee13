"""Imports go down the floors that docs/architecture.md lists, in no circle of files or folders."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from .statements import statements

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"pyggml": "pyggml", "pyllama": "pyllama", "cli": "pyllama_cli"}

PAGE = ROOT / "docs" / "architecture.md"
MAX_LINES = 450  # of a file of the engine or the server
MAX_FILES = 20  # of a folder
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


def floors(page: str) -> dict[str, int]:
    """Floor by module prefix, of the page's table: `pyllama/kv` is the module ``pyllama.kv``."""
    table = {}
    for number, paths in re.findall(r"^\| (\d+) \| ([^|]+) \|", page, re.MULTILINE):
        for path in re.findall(r"`([^`]+)`", paths):
            package, *rest = path.removesuffix("/").removesuffix(".py").split("/")
            table[".".join((PACKAGES[package], *rest))] = int(number)
    return table


FLOORS = floors(PAGE.read_text(encoding="utf-8"))


def floor(module: str) -> int:
    """The floor of the longest prefix. The root of a package is the public face, no fallback."""
    name = f"{module}.__init__" if module in ("pyggml", "pyllama") else module
    while name not in FLOORS:
        name = name.rpartition(".")[0]
        assert name, f"{module} has no floor in {PAGE.name}"
    return FLOORS[name]


class Import(NamedTuple):
    """An import: where it is, and the full name of what it imports."""

    line: int
    target: str


def imports(name: str, path: Path) -> list[Import]:
    """Each import of a module, also in functions and for types."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = []
    for node in statements(path.read_text(encoding="utf-8")):
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
        found += [Import(node.lineno, target) for target in targets]
    return found


@cache
def index() -> dict[str, list[Import]]:
    """The imports of all modules: each file is parsed once."""
    return {name: imports(name, path) for name, path in MODULES.items()}


def targets(name: str) -> list[str]:
    """What a module imports, also in functions and for types."""
    return [target for _, target in index()[name]]


def test_imports_go_to_lower_floors() -> None:
    up = [
        f"{name}:{line} (floor {floor(name)}) imports {target} (floor {floor(target)})"
        for name, found in index().items()
        for line, target in found
        if target.partition(".")[0] in PACKAGES.values() and floor(target) > floor(name)
    ]
    assert not up


def test_the_table_names_existing_modules() -> None:
    assert not [prefix for prefix in FLOORS if prefix.removesuffix(".__init__") not in MODULES]


def path_of(name: str) -> list[str]:
    """The folders and the file of a module; a package's own file is its ``__init__``."""
    is_package = MODULES[name].name == "__init__.py"
    return [*name.split("."), "__init__"] if is_package else name.split(".")


def children_imports() -> dict[str, dict[str, set[str]]]:
    """Which children, files and folders, of a folder import which others, by folder."""
    folders: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name in MODULES:
        for target in targets(name):
            if target == name or target not in MODULES:
                continue
            path, other = path_of(name), path_of(target)
            depth = next(i for i, (a, b) in enumerate(zip(path, other, strict=False)) if a != b)
            if depth:
                folders[".".join(path[:depth])][path[depth]].add(other[depth])
    return folders


def test_no_circle_of_files_or_folders() -> None:
    circles = []
    for folder, graph in children_imports().items():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circles.append(f"{folder}: {' -> '.join(error.args[1])}")
    assert not circles


def test_files_of_engine_and_server_are_short() -> None:
    lengths = {
        name: len(path.read_text(encoding="utf-8").splitlines())
        for name, path in MODULES.items()
        if name.startswith(("pyllama.engine.", "pyllama.server."))
    }
    assert not {name: n for name, n in lengths.items() if n > MAX_LINES}


def test_folders_are_small() -> None:
    """Except where files are independent entries, which their package finds by name."""
    sizes = Counter(path.parent for path in MODULES.values())
    large = {folder for folder, n in sizes.items() if n > MAX_FILES}
    assert not [f for f in large if "iter_modules" not in (f / "__init__.py").read_text("utf-8")]


@pytest.mark.parametrize("package", PACKAGES.values())
def test_a_class_name_exists_once_in_a_package(package: str) -> None:
    where = defaultdict(list)
    for name, path in MODULES.items():
        if name.partition(".")[0] == package:
            for node in statements(path.read_text(encoding="utf-8")):
                if isinstance(node, ast.ClassDef):
                    where[node.name].append(name)
    assert not {name: modules for name, modules in where.items() if len(modules) > 1}


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
        if "sys.executable" in (code := path.read_text(encoding="utf-8")) or "[python" in code
        for line in commands_in_danger(code)
    ]
    assert not found


@pytest.mark.parametrize("package", ["pyggml", "pyllama"])
def test_the_tree_of_errors_is_in_one_file(package: str) -> None:
    elsewhere = [
        f"{name}.{node.name}"
        for name, path in MODULES.items()
        if name.startswith(f"{package}.") and not name.endswith(".errors")
        if re.search(r"class \w+\([^)]*Py\w+Error\b", text := path.read_text("utf-8"))
        for node in statements(text)
        if isinstance(node, ast.ClassDef)
        and {"PyggmlError", "PyllamaError"} & {ast.unparse(base) for base in node.bases}
    ]
    assert not elsewhere
