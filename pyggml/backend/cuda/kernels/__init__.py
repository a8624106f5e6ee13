"""Kernels, named after the CPU's files; importing this package registers their lowerings."""

from . import attention as attention
from . import binary as binary
from . import cpy as cpy
from . import experts as experts
from . import fill as fill
from . import glu as glu
from . import matmul as matmul
from . import norm as norm
from . import quantize as quantize
from . import reduce as reduce
from . import repack as repack
from . import rope as rope
from . import rows as rows
from . import softmax as softmax
from . import sort as sort
from . import sparse as sparse
from . import unary as unary
