"""Kernels of the CPU backend: one file a family, with the stem of its file in ``pyggml/ops``.

Importing this package registers every lowering; nothing compiles before a program needs it.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
