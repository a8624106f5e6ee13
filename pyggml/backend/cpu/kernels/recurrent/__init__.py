"""Kernels of ops that carry a state from token to token."""
