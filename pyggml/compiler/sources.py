"""Digests of the sources that a compiled function depends on.

    sources = Sources()
    sources.closure("pyggml.backend.cpu.kernels.rows.norm")  # changes with it and its imports
    sources.tree("pyggml.ops")                               # changes with any module of a package

A function is compiled from its module and from those that it imports, directly or not, in functions
and for type checkers too. Editing any of them changes the digest. A package that is only on the way
to a module does not count: code that looks up what a package registers imports it from the package.

Files are read once in a process: those of modules that are imported already when ``Sources`` is
made, so that a later edit is not taken for the code that runs. Not thread-safe by itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
_PACKAGE = ROOT.name
_IMPORT = re.compile(r"\n *(?:from ([.\w]+) |)import (\([^)]*\)|.+)")  # as ruff formats them
_COMMENT = re.compile(r"#.*")


def digest(*texts: str | bytes) -> str:
    """A short digest of some texts."""
    sha256 = hashlib.sha256()
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        sha256.update(len(data).to_bytes(8, "little") + data)
    return sha256.hexdigest()[:32]


class _Source:
    """One file.

    Attributes:
        digest: that of the module's name and text.
    """

    def __init__(self, module: str, file: str) -> None:
        data = Path(file).read_bytes()
        self.digest = digest(module, data)
        self._text = data.decode()
        is_package = os.path.basename(file) == "__init__.py"
        self._package = module if is_package else module.rpartition(".")[0]

    @cached_property
    def imported(self) -> set[str]:
        """The names that it imports, absolute: modules, and names in modules."""
        return set(self._names())

    def _names(self) -> Iterator[str]:
        for base, names in _IMPORT.findall(self._text):
            above = len(base) - len(base.lstrip("."))
            if above:
                parents = self._package.split(".")
                base = ".".join([*parents[: len(parents) - above + 1], base[above:]]).rstrip(".")
            prefix = f"{base}." if base else ""
            for name in _COMMENT.sub("", names).strip("()\n ").split(","):
                if name.strip():
                    yield prefix + name.split()[0]


class Sources:
    """The modules of this package, as compiled code depends on them.

    Args:
        root: the package's folder.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._files = dict(_files(str(root), _PACKAGE))
        self._sources: dict[str, _Source] = {}
        self._digests: dict[str, str] = {}
        for module in self._files.keys() & sys.modules.keys():
            self._source(module)

    def module(self, file: Path) -> str | None:
        """The name of the package's module in a file; None if the file lies elsewhere."""
        if self._root not in file.parents:
            return None
        parts = file.relative_to(self._root.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def closure(self, module: str) -> str:
        """The digest of a module and of all that it imports."""
        if module not in self._digests:
            modules, left = set(), {module}
            while left:
                modules.add(one := left.pop())
                left |= self.imports(one) - modules
            self._digests[module] = digest(*(self._source(one).digest for one in sorted(modules)))
        return self._digests[module]

    def imports(self, module: str) -> set[str]:
        """The modules of this package that a module imports."""
        names = self._source(module).imported
        modules = {name if name in self._files else name.rpartition(".")[0] for name in names}
        return modules & self._files.keys()

    def tree(self, *packages: str) -> str:
        """The digest of all modules of some packages."""
        inside = tuple(f"{package}." for package in packages)
        modules = sorted(m for m in self._files if f"{m}.".startswith(inside))
        return digest(*(self._source(m).digest for m in modules))

    def _source(self, module: str) -> _Source:
        if module not in self._sources:
            self._sources[module] = _Source(module, self._files[module])
        return self._sources[module]


def _files(folder: str, package: str) -> Iterator[tuple[str, str]]:
    """Names and files of a package's modules."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name, suffix = os.path.splitext(entry.name)
            if suffix == ".py":
                yield package if name == "__init__" else f"{package}.{name}", entry.path
            elif not suffix and name != "__pycache__" and entry.is_dir():
                yield from _files(entry.path, f"{package}.{name}")
