"""Kernels of the CPU backend and their lowerings, by families of ops.

Importing this package registers every lowering, and the encoders that copies call; a kernel is
compiled when a program needs it.
"""

from importlib import import_module
from pkgutil import iter_modules

from ..codec import encoders  # noqa: F401 (they register themselves)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
