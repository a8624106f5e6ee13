"""Grammars: which texts a model may generate."""
