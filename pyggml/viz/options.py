"""The options of all pictures: the part of the graph to draw, and how.

graph_dump_dot(graph, layers=(0, 2), color="buffer", fold="repeats")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict

from ..tensor import Tensor
from .times import Times

Color = Literal["family", "backend", "split", "buffer", "time"]
Fold = Literal["none", "layers", "repeats"]
COLORS: tuple[Color, ...] = ("family", "backend", "split", "buffer", "time")
FOLDS: tuple[Fold, ...] = ("none", "layers", "repeats")


class Options(TypedDict, total=False):
    """Keyword arguments of pictures, all optional.

    Attributes:
        title: the picture's heading.
        color: meaning of the colours: op family (the default), backend, split, buffer, or time
            (the default if ``times`` is given). Boxes have it as text too.
        layers: ``(a, b)`` keeps layers a to b - 1; tensors outside that are joined to them by an
            edge become stubs.
        fold: ``layers`` draws each layer as one box; ``repeats`` draws identical layers once.
        show_weights: draw weights as boxes (the default), or as a line in the box that reads them.
        cluster_layers: frame each layer (the default), and draw a leaf with readers in several
            layers once in each.
        backend_of: the name of the backend that runs a node (or holds a leaf).
        split_of: the number of a node's split.
        times: of nodes in a run; see ``node_times``.
    """

    title: str
    color: Color
    layers: tuple[int, int] | None
    fold: Fold
    show_weights: bool
    cluster_layers: bool
    backend_of: Callable[[Tensor], str] | None
    split_of: Callable[[Tensor], int] | None
    times: Times | None
