"""Kernels of the CPU backend and their lowerings, by families of ops.

Importing this package registers every lowering, and the encoders that copies call; a kernel is
compiled when a program needs it.
"""

from importlib import import_module
from pkgutil import walk_packages

from ..codec import encoders  # noqa: F401 (they register themselves)

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
