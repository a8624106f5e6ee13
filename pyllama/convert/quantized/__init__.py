"""Quantized checkpoints: stored codes and scales become float tensors."""
