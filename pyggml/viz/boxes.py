"""The elements of a picture: boxes, edges, and groups of layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..tensor import Tensor
from .scope import Edge


@dataclass(frozen=True)
class Group:
    """Layers that are drawn together.

    Attributes:
        twin: the id of each box's counterpart in the first layer.
    """

    layers: tuple[int, ...]
    twin: dict[str, str] = field(compare=False)

    @property
    def title(self) -> str:
        """The title of the group's frame."""
        first, last, n = self.layers[0], self.layers[-1], len(self.layers)
        if n == 1:
            return f"layer {first}"
        return f"layers {first} to {last}: ×{n}, alike, drawn once; each reads the one before"


@dataclass(frozen=True)
class Box:
    """One box.

    Attributes:
        members: its tensors: one, all of a folded layer, or one of each identical layer.
        layer: the layer of its frame.
        stub: whether it is outside of the drawn layers.
        folded: the layer that this box represents, if any.
    """

    members: tuple[Tensor, ...]
    layer: int | None
    stub: bool
    folded: Group | None = None

    @property
    def tensor(self) -> Tensor:
        """The first tensor of the box."""
        return self.members[0]


class Arrow(NamedTuple):
    """An edge between boxes; ``edge`` has the index of the source."""

    source: str
    reader: str
    edge: Edge
