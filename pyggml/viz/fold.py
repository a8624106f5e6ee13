"""Groups layers for folding: each layer, or runs of identical layers.

    found = groups(boxes, arrows, once=True)
    found[3].layers, found[3].title                # (0, 1, ..., 28), "layers 0 to 28: ×29, ..."

Layers are identical if they have the same boxes (op, parameters, types, sizes, strides) and the
same edges; the sources of edges from other layers are ignored.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from .boxes import Arrow, Box, Group
from .label import plain


def groups(boxes: Mapping[str, Box], arrows: Sequence[Arrow], *, once: bool) -> dict[int, Group]:
    """The group of each layer.

    Args:
        once: group adjacent identical layers; otherwise each layer is a group.
    """
    ids: dict[int, list[str]] = {}
    for id, box in boxes.items():
        if box.layer is not None:
            ids.setdefault(box.layer, []).append(id)
    signatures = _signatures(ids, boxes, arrows) if once else {}
    found: dict[int, Group] = {}
    last: int | None = None
    for layer in sorted(ids):
        twin = {id: id for id in ids[layer]}
        group = Group((layer,), twin)
        if last is not None and once and last + 1 == layer:
            before = found[last]
            if signatures[last] == signatures[layer]:
                firsts = ids[before.layers[0]]
                twin = before.twin | dict(zip(ids[layer], firsts, strict=True))
                group = Group((*before.layers, layer), twin)
        for member in group.layers:
            found[member] = group
        last = layer
    return found


def _signatures(
    ids: Mapping[int, list[str]], boxes: Mapping[str, Box], arrows: Sequence[Arrow]
) -> dict[int, Hashable]:
    local = {id: (layer, i) for layer, of in ids.items() for i, id in enumerate(of)}
    edges: dict[int, set[tuple[int, int, int]]] = {layer: set() for layer in ids}
    for arrow in arrows:
        a, i = local.get(arrow.source, (None, -1))
        b, j = local.get(arrow.reader, (None, -1))
        if b is not None:
            edges[b].add((j, arrow.edge.k, i if a == b else -1))
        if a is not None and a != b:
            edges[a].add((-1, -1, i))
    return {
        layer: (tuple(_look(boxes[id]) for id in of), frozenset(edges[layer]))
        for layer, of in ids.items()
    }


def _look(box: Box) -> Hashable:
    t = box.tensor
    params = tuple((name, plain(v)) for name, v in t.op_params.items())
    return (t.op.name if t.op else None, params, t.type, t.ne, t.nb, t.flags, box.stub)
