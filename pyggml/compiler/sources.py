"""Digests of the sources that a compiled function depends on.

    sources = Sources(cache)
    sources.closure("pyggml.backend.cpu.kernels.rows.norm")  # changes with it and its imports
    sources.formats()                                      # what is declared of each format

A function is compiled from its module and from those that it imports, directly or not; imports
inside of functions count, those for type checkers do not. Editing any of them changes the digest.

Tensor types and block formats are looked up by number while a function is compiled, so code that
exists does not depend on a format that is added. Their declarations are therefore left out of the
closure: ``GGMLType``'s members, and in ``quants`` the assignments to upper-case names. They are
parts of ``formats`` instead, of which each must be what it was when code was compiled. So editing
a declaration outdates all code, and adding one outdates none.

Files are read once in a process: those of modules that are imported already when ``Sources`` is
made, so that a later edit is not taken for the code that runs. How a file is taken apart is kept in
the cache by the digest of its text, so that a start needs no parser. Not thread-safe by itself.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .code_cache import CodeCache

ROOT = Path(__file__).parent.parent
_PACKAGE = ROOT.name
_FORMATS = f"{_PACKAGE}.quants"  # its modules declare formats, and its __init__ names them
_TYPES = "GGMLType"
_TABLE = "sources.json"
_MAX_OUTLINES = 2000


class Outline(NamedTuple):
    """A source file taken apart.

    Attributes:
        body: digest of the text without declarations.
        imports: module (absolute) and the names imported from it, which may be modules too.
        declared: digest of each declaration's text.
    """

    body: str
    imports: list[tuple[str, list[str]]]
    declared: dict[str, str]


def digest(*texts: str | bytes) -> str:
    """A short digest of some texts."""
    made = hashlib.sha256()
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        made.update(len(data).to_bytes(8, "little") + data)
    return made.hexdigest()[:32]


class Sources:
    """The modules of this package, as compiled code depends on them.

    Args:
        cache: keeps outlines.
        root: the package's folder.
    """

    def __init__(self, cache: CodeCache, root: Path = ROOT) -> None:
        self._cache, self._root = cache, root
        self._files = dict(_files(str(root), _PACKAGE))
        self._keys: dict[str, str] = {}
        self._outlines: dict[str, Outline] = {}
        self._imported: dict[str, set[str]] = {}
        self._digests: dict[str, str] = {}
        self._formats: dict[str, str] | None = None
        self._kept = self._read_table()
        self._parsed = False
        for module in self._files.keys() & sys.modules.keys():
            self._key(module)

    def module(self, file: Path) -> str | None:
        """The name of the package's module in a file; None if the file lies elsewhere."""
        if self._root not in file.parents:
            return None
        parts = file.relative_to(self._root.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def closure(self, module: str) -> str:
        """The digest of a module and of all that it imports, without declarations."""
        if module not in self._digests:
            modules = sorted(self._reached([module]))
            bodies = [part for m in modules for part in (m, self._outline(m).body)]
            self._digests[module] = digest(*bodies)
            self._keep_table()
        return self._digests[module]

    def formats(self) -> dict[str, str]:
        """Digests of all declarations, and of the modules that these need."""
        if self._formats is None:
            parts = {}
            inside = (m for m in self._files if m.startswith(f"{_FORMATS}."))
            for module in self._reached(inside):
                outline = self._outline(module)
                parts[module] = outline.body
                parts |= {f"{module}.{name}": text for name, text in outline.declared.items()}
            self._formats = dict(sorted(parts.items()))
            self._keep_table()
        return self._formats

    def tree(self, *packages: str) -> str:
        """The digest of all modules of some packages."""
        inside = tuple(f"{package}." for package in packages)
        modules = sorted(m for m in self._files if f"{m}.".startswith(inside))
        return digest(*map(self._key, modules))

    def _reached(self, start: Iterable[str]) -> set[str]:
        """Modules, and those that they import, directly or not."""
        found: set[str] = set()
        left = set(start)
        while left:
            module = left.pop()
            found.add(module)
            if module not in self._imported:
                self._imported[module] = set(self._resolved(module))
            left |= self._imported[module] - found
        return found

    def _resolved(self, module: str) -> Iterator[str]:
        for base, names in self._outline(module).imports:
            for name in names:
                inner = f"{base}.{name}" if base else name
                yield inner if inner in self._files else base

    def _key(self, module: str) -> str:
        """The digest of a module's name and text."""
        if module not in self._keys:
            self._keys[module] = digest(module, Path(self._files[module]).read_bytes())
        return self._keys[module]

    def _outline(self, module: str) -> Outline:
        if module not in self._outlines:
            key, file = self._key(module), Path(self._files[module])
            if key not in self._kept:
                text = file.read_bytes()
                outline = outline_of(module, text, file.name == "__init__.py")
                if digest(module, text) != key:  # edited after it was read: no code is found for it
                    outline = outline._replace(body=key)
                self._kept[key] = outline
                self._parsed = True
            self._outlines[module] = Outline(*self._kept[key])
        return self._outlines[module]

    def _read_table(self) -> dict[str, Any]:
        data = self._cache.read(_TABLE)
        return {} if data is None else dict(json.loads(data))

    def _keep_table(self) -> None:
        if self._parsed:
            if len(self._kept) > _MAX_OUTLINES:
                self._kept = {self._key(m): outline for m, outline in self._outlines.items()}
            self._cache.write(_TABLE, json.dumps(self._kept).encode())
            self._parsed = False


def _files(folder: str, package: str) -> Iterator[tuple[str, str]]:
    """Names and files of a package's modules."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name, suffix = os.path.splitext(entry.name)
            if suffix == ".py":
                yield package if name == "__init__" else f"{package}.{name}", entry.path
            elif not suffix and name != "__pycache__" and entry.is_dir():
                yield from _files(entry.path, f"{package}.{name}")


def outline_of(module: str, text: bytes, is_package: bool) -> Outline:
    """The outline of a module's text."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    declared: dict[str, str] = {}
    dropped: set[int] = set()
    for name, statement in _declarations(module, tree):
        first, last = statement.lineno - 1, statement.end_lineno
        while first and lines[first - 1].lstrip()[:1] in (b"#", b""):
            first -= 1  # comments on it, and blank lines
        declared[name] = digest(declared.get(name, ""), *filter(bytes.strip, lines[first:last]))
        dropped.update(range(first, last))
    imports = [found for node in _executed(tree) for found in _imports(module, node, is_package)]
    if module == _FORMATS:  # its own modules are imported for their declarations
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module is None:
                dropped.update(range(node.lineno - 1, node.end_lineno or node.lineno))
                imports.remove((_FORMATS, [alias.name for alias in node.names]))
    body = digest(*(line for i, line in enumerate(lines) if i not in dropped))
    ours = [(base, names) for base, names in imports if (base or names[0]).startswith(_PACKAGE)]
    return Outline(body, ours, declared)


def _declarations(module: str, tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Names and statements of the declarations of types and formats."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    bodies = [node.body for node in classes if node.name == _TYPES]
    if module.startswith(_FORMATS + "."):
        bodies.append(tree.body)
    for statement in (s for body in bodies for s in body):
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Name) and target.id[0].isupper() and target.id.isupper():
                yield target.id, statement


def _executed(tree: ast.AST) -> Iterator[Any]:
    """All nodes but those of ``if TYPE_CHECKING:``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        yield node
        yield from _executed(node)


def _imports(module: str, node: Any, is_package: bool) -> Iterator[tuple[str, list[str]]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            base, _, name = alias.name.rpartition(".")
            yield base, [name]
    if isinstance(node, ast.ImportFrom):
        parts = module.split(".")
        up = node.level - is_package
        package = parts[: len(parts) - up] if node.level else []
        base = ".".join([*package, *([node.module] if node.module else [])])
        yield base, [alias.name for alias in node.names]
