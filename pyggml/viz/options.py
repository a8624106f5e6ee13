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
        color: what colours tell: op family (the default), backend, split, buffer, or time (the
            default where ``times`` is given). Boxes say it in words too.
        layers: ``(a, b)`` keeps layers a up to, not with, b; a tensor outside that an edge leads
            to or from becomes a stub.
        fold: ``layers`` draws each layer as one box; ``repeats`` draws layers that are alike once.
        show_weights: draw weights as boxes (the default), or as a line in the box that reads them.
        cluster_layers: frame each layer (the default), and draw a leaf that many layers read once
            in each.
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
