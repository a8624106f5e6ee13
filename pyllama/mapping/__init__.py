"""How checkpoints of architectures map to GGUF: tensor names, keys, RoPE."""
