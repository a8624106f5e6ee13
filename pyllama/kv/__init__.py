"""The KV cache: keys and values by layer, and the lists of cells of each sequence."""
