"""Row-sparse products: MUL_MAT_SPARSE, AXPY, MUL_MAT_SIGNS, and a feed-forward part of them.

Importing this package registers their lowerings.
"""

from . import axpy, ffn, mul_mat, signs  # noqa: F401
