"""Sparse inference: where masks come from, what they find, and which neuron lives where."""
