"""The samplers, one or a family of them a file."""
