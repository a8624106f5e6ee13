"""Row-sparse products by scores: MUL_MAT_SPARSE, AXPY, MUL_MAT_SIGNS."""

from . import axpy as axpy
from . import mul_mat as mul_mat
from . import signs as signs
