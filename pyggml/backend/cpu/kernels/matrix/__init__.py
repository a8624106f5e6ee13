"""CPU kernels of the ops in ``pyggml/ops/matrix``."""
