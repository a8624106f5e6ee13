"""Benchmarks. Results are ratios within one run, kept in ``benchmarks/results`` as JSON lines."""
