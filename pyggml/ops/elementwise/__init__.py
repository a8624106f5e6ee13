"""Ops that compute each element by itself."""
