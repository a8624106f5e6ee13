"""Sparse inference of ReLU models: the selection of active FFN neurons and their placement."""
