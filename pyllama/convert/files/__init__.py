"""The files of a checkpoint: safetensors, PyTorch's, and small texts."""
