"""Benchmarks of models."""
