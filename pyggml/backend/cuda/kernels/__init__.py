"""Kernels, named after the CPU's files; importing this package registers their lowerings."""

from . import cpy as cpy
from . import matmul as matmul
from . import quantize as quantize
from . import repack as repack
from . import rows as rows
from . import sort as sort
