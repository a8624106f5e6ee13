"""Vocabularies of checkpoints: their tokens, special tokens, and how they cut text."""
