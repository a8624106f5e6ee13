"""Sparse inference of ReLU models: the selection of active FFN neurons and their placement.

Importing this package registers it with the loader and the graph builder (``graph.variants``).
"""

from ..graph.sparse.ffn import SparseFFN
from ..graph.variants import register

register(SparseFFN())
