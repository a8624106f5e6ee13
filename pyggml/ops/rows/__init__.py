"""Ops that combine the elements of a row: norms, softmax, sums, sorting."""
