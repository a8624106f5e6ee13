"""Configurations of tiny checkpoints: the variants of each architecture that the tests convert.

    VARIANTS["llama"]["mixtral"]                   # a config.json

A file per architecture, named as its file in ``pyllama/arch/``, with

- ``VARIANTS``: config.json by the variant's name, which begins with the architecture's;
- ``NAME``, only where the architecture's name has a dash;
- ``LLAMA_CPP``: the variants whose file llama.cpp continues with the same tokens;
- ``DIFFERENT``: keys and tensors by variant that we do not write as llama.cpp's converter does,
  with the reason as a comment;
- ``UNUSABLE``: variants of which llama.cpp cannot run the file of its own converter;
- ``SHAPES``, of an architecture that transformers lacks: the parameters' names and shapes by
  variant, with ``{i}`` for the layer and ``{e}`` for the expert. llama.cpp is the reference then.

``record.py`` records what the reference computes; docs/architectures.md lists them.
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
LLAMA_CPP = tuple(name for module in OF_ARCH.values() for name in getattr(module, "LLAMA_CPP", ()))
DIFFERENT: Mapping[str, tuple[str, ...]] = {
    name: keys
    for module in OF_ARCH.values()
    for name, keys in getattr(module, "DIFFERENT", {}).items()
}
UNUSABLE = {name for module in OF_ARCH.values() for name in getattr(module, "UNUSABLE", ())}
SHAPES: Mapping[str, Mapping[str, list[int]]] = {
    name: shapes
    for module in OF_ARCH.values()
    for name, shapes in getattr(module, "SHAPES", {}).items()
}
