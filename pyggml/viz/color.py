"""Colours of boxes by op family, backend, split, buffer or time, with labels.

colors = coloring(graph, written, {"color": "buffer"})
colors.painter(node).name, colors.tag(node)    # "compute, 0.2 MiB (Host)", "compute"
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from ..cgraph import CGraph
from ..errors import PyggmlError
from ..tensor import Tensor
from .options import COLORS, Options
from .style import BUFFERS, UNALLOCATED, Look, Paint, Painter, by_family
from .times import NodeTime, Times, duration, fused_into

HEAT = (  # (minimum share of the run's time, colour)
    (0.10, "10 % and more", Paint("#e8590c", "#ff6b2b")),
    (0.03, "3 to 10 %", Paint("#fd8d3c", "#d97b3a")),
    (0.01, "1 to 3 %", Paint("#fdae6b", "#b07a4a")),
    (0.003, "0.3 to 1 %", Paint("#fdd0a2", "#97754f")),
    (0.0, "under 0.3 %", Paint("#fff5eb", "#7d756d")),
)
_UNTIMED = Paint("#f8f9fa", "#6c757d")


class Coloring(NamedTuple):
    """A look for each tensor, and a label (none for families, which the op shows)."""

    painter: Painter
    tag: Callable[[Tensor], str]
    heat: Callable[[NodeTime], Look] | None = None  # for boxes of several nodes
    scale: tuple[Look, ...] = ()  # looks always shown in the legend


def coloring(graph: CGraph, written: Collection[Tensor], options: Options) -> Coloring:
    """Return the colours for the options. Raises: PyggmlError: required data is missing."""
    times, backend_of, split_of = (
        options.get("times"), options.get("backend_of"), options.get("split_of"),
    )  # fmt: skip
    color = options.get("color") or ("family" if times is None else "time")
    tensors = (*graph.leafs, *graph.nodes)
    if color == "family":
        return Coloring(by_family(written, graph.backward), lambda tensor: "")
    if color == "buffer":
        return _tagged(by_buffer(tensors, written))
    if color == "backend" and backend_of is not None:
        return _tagged(_numbered(tensors, backend_of))
    if color == "split" and split_of is not None:
        number = split_of
        nodes = set(graph.nodes)  # leafs belong to no split
        return _tagged(
            _numbered(graph.nodes, lambda t: f"split {number(t)}" if t in nodes else "no split")
        )
    if color == "time" and times is not None:
        return by_time(times)
    if color in COLORS:
        needs = {"backend": "backend_of", "split": "split_of", "time": "times"}[color]
        raise PyggmlError(f"color={color!r} needs {needs}=...")
    raise PyggmlError(f"color is {color!r}, want one of {', '.join(COLORS)}")


def _tagged(painter: Painter) -> Coloring:
    return Coloring(painter, lambda tensor: painter(tensor).name.split(",")[0])


def _numbered(tensors: Iterable[Tensor], name_of: Callable[[Tensor], str]) -> Painter:
    """Return a colour for each name, in the order of ``tensors``."""
    looks: dict[str, Look] = {}

    def look(name: str) -> Look:
        if name not in looks:
            looks[name] = Look(len(looks), name, BUFFERS[len(looks) % len(BUFFERS)])
        return looks[name]

    for tensor in tensors:
        look(name_of(tensor))
    return lambda tensor: look(name_of(tensor))


def by_buffer(tensors: Iterable[Tensor], written: Collection[Tensor] = ()) -> Painter:
    """Return colours by the buffer of the data, named after its content."""
    roles: dict[int, str] = {}
    buffers = {}
    for tensor in tensors:
        root = tensor.view_src or tensor
        if root.buffer is None:
            continue
        key = id(root.buffer)
        buffers[key] = root.buffer
        role = "compute" if root.op else "kv cache" if root in written else "weights"
        old = roles.get(key, role)
        roles[key] = min(old, role)  # compute before kv cache before weights: as the words sort
    looks: dict[int, Look] = {}
    names: dict[str, int] = {}
    for key, buffer in buffers.items():
        role = roles[key]
        names[role] = n = names.get(role, 0) + 1
        size = f"{buffer.size / 2**20:.1f} MiB ({buffer.buft.name})"
        name = f"{role}{f' {n}' if n > 1 else ''}, {size}"
        looks[key] = Look(len(looks), name, BUFFERS[len(looks) % len(BUFFERS)])
    nowhere = Look(len(looks), "not allocated", UNALLOCATED)
    return lambda tensor: looks.get(id((tensor.view_src or tensor).buffer), nowhere)


def by_time(times: Times) -> Coloring:
    """Return a heat map: darker is slower. Nodes fused into another have a label."""
    holders = fused_into(times)
    looks = [Look(i, name, paint) for i, (_, name, paint) in enumerate(HEAT)]
    fused = Look(len(looks), "fused into another node", _UNTIMED)
    none = Look(len(looks) + 1, "no time: leaf or view", _UNTIMED)

    def heat(time: NodeTime) -> Look:
        return next(looks[i] for i, (least, _, _) in enumerate(HEAT) if time.share >= least)

    def look(tensor: Tensor) -> Look:
        if tensor in times:
            return heat(times[tensor])
        return fused if tensor in holders else none

    def tag(tensor: Tensor) -> str:
        if tensor in times:
            return time_tag(times[tensor])
        return f"in {holders[tensor].name}" if tensor in holders else ""

    return Coloring(look, tag, heat, tuple(looks))


def time_tag(time: NodeTime) -> str:
    """Return a label such as ``12.3 us, 4.5 %``."""
    share = "<0.1" if time.share < 0.0005 else f"{100 * time.share:.1f}"
    return f"{duration(time.ns)}, {share} %"
