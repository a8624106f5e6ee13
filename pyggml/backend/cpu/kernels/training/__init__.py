"""CPU kernels of the ops in ``pyggml/ops/training``."""
