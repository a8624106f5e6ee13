"""Inspection of models: values of nodes, drawings of graphs, times of nodes."""
