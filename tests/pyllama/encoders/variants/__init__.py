"""Configurations of tiny checkpoints of encoders, in the form of ``tests/pyllama/arch/variants``.

    VARIANTS["bert"]["bert"]                       # a config.json

Here ``LLAMA_CPP`` are the variants whose file gives llama.cpp the same vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
OF_ARCH: Mapping[str, ModuleType] = {
    getattr(module, "NAME", module.__name__.rpartition(".")[2]): module for module in _MODULES
}
VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    arch: module.VARIANTS for arch, module in OF_ARCH.items()
}
ENCODERS: Mapping[str, Mapping[str, Any]] = {
    name: config for of_arch in VARIANTS.values() for name, config in of_arch.items()
}
LLAMA_CPP = tuple(name for module in OF_ARCH.values() for name in getattr(module, "LLAMA_CPP", ()))
DIFFERENT: Mapping[str, tuple[str, ...]] = {
    name: keys
    for module in OF_ARCH.values()
    for name, keys in getattr(module, "DIFFERENT", {}).items()
}
GENERATING = tuple(
    name for module in OF_ARCH.values() for name in getattr(module, "GENERATING", ())
)
"""Variants with a decoder too, with whose file llama.cpp generates the same tokens."""
SHAPES: Mapping[str, Mapping[str, list[int]]] = {
    name: shapes
    for module in OF_ARCH.values()
    for name, shapes in getattr(module, "SHAPES", {}).items()
}
"""Of variants that transformers lacks: the parameters' shapes by name, for ``own_models``."""
FILES: Mapping[str, Mapping[str, Any]] = {
    name: files
    for module in OF_ARCH.values()
    for name, files in getattr(module, "FILES", {}).items()
}
"""JSON files of the folder besides config.json, by their names: modules.json and what it names."""
