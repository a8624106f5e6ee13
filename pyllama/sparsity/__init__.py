"""Sparse inference: which neurons of a feed-forward part are computed, and where they are.

Importing this package registers it with the loader and the graph builder (``graph.variants``).
"""

from ..graph.variants import register
from .ffn import SparseFFN

register(SparseFFN())
