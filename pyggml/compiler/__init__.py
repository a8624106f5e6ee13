"""Compiling functions for this host: Numba's kernels, their cache on disk, progress."""
