"""Look into a model: nodes while they are computed, graphs as pictures, times."""
