"""Kernels of the CPU backend: one file a family, with the stem of its file in ``pyggml/ops``.

Importing this package registers every lowering; nothing compiles before a program needs it.
"""
