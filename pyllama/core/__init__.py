"""A model and what runs it: file, hyperparameters, weights, devices, context."""
