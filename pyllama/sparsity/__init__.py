"""Sparse inference: which neurons of a feed-forward part are computed, and where they are."""
