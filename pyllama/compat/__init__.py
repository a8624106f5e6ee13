"""Lets programs written for llama-cpp-python import pyllama under its name, unchanged.

    import pyllama.compat

    pyllama.compat.install()
    from llama_cpp import Llama                    # pyllama's

On the command line: ``python -m pyllama.compat script.py``, or ``python -m pyllama.compat -m
module``. The modules are those of version 0.3.36 (`pyllama.compat.llama_cpp`). llama.cpp's C API is
not there: its constants are, its functions raise `NotSupported`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType

__all__ = ["install"]

_NAME = "llama_cpp"
_MODULES = (
    "_internals",
    "llama",
    "llama_cache",
    "llama_chat_format",
    "llama_cpp",
    "llama_grammar",
    "llama_speculative",
    "llama_tokenizer",
    "llama_types",
)


def install(sources: str | os.PathLike[str] | None = None) -> ModuleType:
    """Make ``llama_cpp`` and its modules names of pyllama's; calling it twice is harmless.

    Args:
        sources: folder of llama-cpp-python's unpacked sources, of which the subpackage
            ``llama_cpp.server`` becomes importable.

    Returns:
        The module ``llama_cpp``.

    Raises:
        ImportError: llama-cpp-python itself was imported before.
    """
    package = import_module(f".{_NAME}", __name__)
    if sys.modules.get(_NAME, package) is not package:
        raise ImportError(
            "llama_cpp was imported before pyllama.compat.install(); call install() first"
        )
    sys.modules[_NAME] = package
    for name in _MODULES:
        sys.modules[f"{_NAME}.{name}"] = import_module(f".{_NAME}.{name}", __name__)
    if sources is not None:
        folder = os.path.join(os.path.abspath(sources), _NAME)
        if not os.path.isfile(os.path.join(folder, "server", "__init__.py")):
            raise ImportError(f"{folder} has no subpackage server: pip download llama-cpp-python")
        if folder not in package.__path__:
            package.__path__.append(folder)
    return package
