"""Kernels, named after the CPU's files; importing this package registers their lowerings."""

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
