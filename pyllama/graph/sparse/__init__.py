"""Sparse inference of ReLU models: sources of active neurons, weights, the FFN."""
