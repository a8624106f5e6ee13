"""The ops, i.e. the nodes that a graph can have, and the functions that build them.

    y = pyggml.mul_mat(ctx, w, x)
    pyggml.OPS["MUL_MAT"].doc

There is a file for each family of ops; ``op.py`` says what an op is. ``pyggml`` has all builders,
with ggml's names without the prefix.
"""
