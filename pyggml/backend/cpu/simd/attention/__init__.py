"""Vector IR of attention with few heads on one key: floats, and the codes of quantized caches."""
