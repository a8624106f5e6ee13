"""Computes order and coordinates in the ranks of a layered drawing.

    ordered(rows, sweeps=8)                        # few crossings
    best_places(rows, sweeps=8, gap=16)            # straight edges

Rows are lists of places linked ``above`` and ``below``; both functions change them.
Source: barycentres, and pool-adjacent-violators for the least squares under a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_STRAIGHT = 4.0  # weight of a passing edge relative to a box


@dataclass(eq=False)
class Place:
    """A box, or (width 0) a point of an edge that passes a rank; x and y are the centre."""

    source: str  # the box, or the source of the passing edge
    rank: int
    width: float
    height: float
    x: float = 0.0
    y: float = 0.0
    above: list[Place] = field(default_factory=list)
    below: list[Place] = field(default_factory=list)


def link(upper: Place, lower: Place) -> None:
    """Connect two places by an edge."""
    upper.below.append(lower)
    lower.above.append(upper)


def ordered(rows: list[list[Place]], sweeps: int) -> None:
    """Sort each row by the mean position of its neighbours, alternately downwards and upwards."""
    at = {place: float(i) for row in rows for i, place in enumerate(row)}
    for sweep in range(sweeps):
        down = sweep % 2 == 0
        for row in rows[1:] if down else rows[-2:0:-1]:
            wanted = {p: _mean([at[q] for q in (p.above if down else p.below)], at[p]) for p in row}
            row.sort(key=lambda p: wanted[p])
            at.update((p, float(i)) for i, p in enumerate(row))


def best_places(rows: list[list[Place]], sweeps: int, gap: float) -> None:
    """Set x of each place as close to its neighbours' mean as order and gaps allow.

    x of the first row, the start of the edges, is kept.
    """
    for row in rows[1:]:
        _spread(row, [(0.0, 1.0)] * len(row), gap)
    for sweep in range(sweeps + 1):
        for row in rows[1:] if sweep % 2 == 0 else rows[-2:0:-1]:
            _spread(row, [_pull(p, both=sweep >= sweeps - 2) for p in row], gap)


def straighten(rows: list[list[Place]], gap: float) -> None:
    """Straighten edges: give the points of a passing edge the same x where there is space."""
    passing = (p for row in rows for p in row if not p.width)
    chains = [p for p in passing if all(q.width for q in p.above)]

    def measure(place: Place) -> tuple[float, float]:
        row = rows[place.rank]
        i = row.index(place)
        left = row[i - 1] if i else None
        right = row[i + 1] if i + 1 < len(row) else None
        low = -1e9 if left is None else left.x + left.width / 2 + gap
        high = 1e9 if right is None else right.x - right.width / 2 - gap
        return low, high

    for first in chains:
        run: list[Place] = []
        low, high = -1e9, 1e9
        place: Place | None = first
        while place is not None:
            near, far = measure(place) if place.rank else (place.x, place.x)
            if max(low, near) > min(high, far):
                _align(run, low, high)
                run, low, high = [], -1e9, 1e9
            run.append(place)
            low, high = max(low, near), min(high, far)
            place = next((q for q in place.below if not q.width), None)
        _align(run, low, high)


def _align(run: list[Place], low: float, high: float) -> None:
    if low > high:
        return  # no space in the rank
    ends = sorted(p.x for p in run)
    x = min(max(ends[len(ends) // 2], low), high) if run else 0.0
    for place in run:
        place.x = x


def _pull(place: Place, both: bool) -> tuple[float, float]:
    """Return the preferred x of a place, and its weight."""
    near = [*place.above, *place.below]
    if not near:
        return place.x, 0.1
    weights = [_STRAIGHT if not (p.width and place.width) else 1.0 for p in near]
    mean = sum(p.x * w for p, w in zip(near, weights, strict=True)) / sum(weights)
    return mean, sum(weights) if both or not place.width else 1.0


def _spread(row: list[Place], wanted: list[tuple[float, float]], gap: float) -> None:
    """Minimize the weighted squared distances to the preferred x, keeping order and gaps."""
    offset, offsets = 0.0, []
    for i, place in enumerate(row):
        if i:
            offset += (row[i - 1].width + place.width) / 2 + gap
        offsets.append(offset)
    pools: list[tuple[float, float, int]] = []  # mean of x - offset, weight, places
    for (x, weight), off in zip(wanted, offsets, strict=True):
        mean, n = x - off, 1
        while pools and pools[-1][0] >= mean:
            other, other_weight, m = pools.pop()
            mean = (mean * weight + other * other_weight) / (weight + other_weight)
            weight, n = weight + other_weight, n + m
        pools.append((mean, weight, n))
    means = [mean for mean, _, n in pools for _ in range(n)]
    for place, mean, off in zip(row, means, offsets, strict=True):
        place.x = mean + off


def _mean(values: list[float], default: float) -> float:
    return sum(values) / len(values) if values else default
