"""Kernels of ops that carry a state from token to token, in the form with runs and slots."""
