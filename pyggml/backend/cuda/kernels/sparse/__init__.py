"""Row-sparse products by scores: MUL_MAT_SPARSE, AXPY, MUL_MAT_SIGNS."""
