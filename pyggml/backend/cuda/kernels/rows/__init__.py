"""GPU kernels of the ops in ``pyggml/ops/rows``."""
