"""Kernels, named after the CPU's files; importing this package registers their lowerings."""

from . import matmul as matmul
from . import quantize as quantize
from . import repack as repack
