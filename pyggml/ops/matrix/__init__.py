"""Products of matrices: dense, of experts, sparse."""
