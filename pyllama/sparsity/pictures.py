"""Draws statistics and placements as SVG.

stats_svg(stats, "stats.svg")
placement_svg(placed, needs.rows, activity, "plan.svg", title="x.gguf")
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from pyggml.files import written
from pyggml.viz.chart import Chart, charts_svg
from pyggml.viz.style import FAMILIES, Paint
from pyggml.viz.svg import escape

from .inventory import ATTENTION, FFN, FFN_IO, KV, OUTPUT, SCORES, NeuronRows
from .placement import Activity, Placement
from .stats import Statistics

_SHARES = [0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
_PAINTS = {
    ATTENTION: FAMILIES["attention"],
    SCORES: FAMILIES["rope"],
    FFN_IO: FAMILIES["norm"],
    OUTPUT: FAMILIES["weight"],
    KV: FAMILIES["cache"],
    FFN: FAMILIES["matmul"],
    "intermediate": FAMILIES["copy, gather"],
}
_CPU = Paint("#f1f3f5", "#ced4da")
_W, _LEFT, _ROW = 640.0, 70.0, 17.0
_CSS = """\
svg{background:#fff;font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}
text{font-size:11px;fill:#212529}.heading{font-size:16px;font-weight:600}.quiet{fill:#6c757d}
"""


def stats_svg(stats: Statistics, path: str | os.PathLike[str] | None = None) -> str:
    """Draw density by layer, union by batch, coverage by hot neurons, recall and precision.

    Raises:
        OSError: the file cannot be written.
    """
    layers = list(range(len(stats.counts)))
    density = Chart("Active neurons of a token", "layer", "share of neurons", percent=True)
    density.bars(layers, stats.density.tolist(), "active")
    union = Chart(
        "Active for at least one of several consecutive tokens", "tokens", "share of neurons",
        log2=True, percent=True, y_range=(0.0, 1.0),
    )  # fmt: skip
    _spread(union, list(map(float, stats.batch_sizes)), stats.union)
    covered = np.stack([stats.coverage(share) for share in _SHARES], axis=1)
    hot = Chart(
        "Covered by the hottest neurons", "% of neurons, the hottest first",
        "share of all activations", percent=True, y_range=(0.0, 1.0),
    )  # fmt: skip
    _spread(hot, [100 * share for share in _SHARES], covered)
    charts = [density, union, hot]
    if np.isfinite(stats.recall).any():
        density.line(layers, stats.predicted.tolist(), "predicted")
        quality = Chart(
            f"Scores of {stats.source} at threshold {stats.threshold:g}", "layer", "",
            percent=True, y_range=(0.0, 1.0),
        )  # fmt: skip
        quality.line(layers, stats.recall.tolist(), "recall")
        charts.append(quality.line(layers, stats.precision.tolist(), "precision"))
    return charts_svg(charts, path, title=f"{stats.model}: {stats.n_tokens} tokens")


def _spread(chart: Chart, xs: list[float], rows: Activity) -> None:
    """Draw the mean and the range of layers; rows are [n_layer, n_x]."""
    chart.band(xs, rows.min(axis=0).tolist(), rows.max(axis=0).tolist(), "all layers")
    chart.line(xs, rows.mean(axis=0).tolist(), "mean")


def placement_svg(
    placed: Placement,
    rows: NeuronRows,
    activity: Activity | None,
    path: str | os.PathLike[str] | None = None,
    *,
    title: str = "",
) -> str:
    """Draw the use of the memory budget, and the placement of each layer.

    Raises:
        OSError: the file cannot be written.
    """
    n_layer = len(placed.ffn_bytes)
    title += f": {_gib(placed.used_bytes)} of {_gib(placed.budget_bytes)} on the GPU"
    height = 150 + _ROW * n_layer
    text = "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="1080" height="{height:.0f}" '
            f'viewBox="0 0 1080 {height:.0f}"><style>{_CSS}</style>',
            f'<text class="heading" x="20" y="30">{escape(title)}</text>',
            *_budget(placed),
            *_layers(placed, rows, activity),
            "</svg>",
            "",
        )
    )
    return written(text, path)


def by_level(placed: Placement) -> dict[str, int]:
    """Return the bytes on the GPU by level, without empty levels."""
    sizes = {"intermediate": placed.compute_bytes} if placed.on_gpu else {}
    for item in placed.on_gpu:
        sizes[item.level] = sizes.get(item.level, 0) + item.nbytes
    sizes[FFN] = sum(placed.ffn_bytes)
    return {level: size for level, size in sizes.items() if size}


def _budget(placed: Placement) -> Iterator[str]:
    """Draw the budget as one bar, with a legend."""
    x, at = 20.0, 20.0
    scale = 1040.0 / max(placed.budget_bytes, placed.used_bytes, 1)
    yield _bar(x, 52, 1040, 20, _CPU)
    for level, size in by_level(placed).items():
        paint, label = _PAINTS[level], f"{level} {_gib(size)}"
        yield _bar(x, 52, size * scale, 20, paint)
        yield _bar(at, 84, 11, 11, paint)
        yield f'<text x="{at + 16:.0f}" y="94">{escape(label)}</text>'
        x += size * scale
        at += 40 + 6.7 * len(label)


def _layers(placed: Placement, rows: NeuronRows, activity: Activity | None) -> Iterator[str]:
    n_layer = len(placed.ffn_bytes)
    items = [(item, True) for item in placed.on_gpu] + [(item, False) for item in placed.on_cpu]
    whole = [rows.nbytes(i, rows.n_ff, rows.n_ff) for i in range(n_layer)]
    totals = [
        whole[i] + sum(item.nbytes for item, _ in items if item.layer == i) for i in range(n_layer)
    ]
    scale = _W / max(totals)
    shares = placed.split.share(activity) if activity is not None else []
    yield (
        f'<text class="quiet" x="{_LEFT}" y="122">bytes of each layer: coloured on the GPU, grey '
        "on the CPU</text>"
    )
    for i in range(n_layer):
        x, y = _LEFT, 132 + _ROW * i
        yield f'<text class="quiet" x="{_LEFT - 8}" y="{y + 11:.0f}" text-anchor="end">{i}</text>'
        for item, here in items:
            if item.layer == i:
                yield _bar(x, y, item.nbytes * scale, 14, _PAINTS[item.level] if here else _CPU)
                x += item.nbytes * scale
        yield _bar(x, y, placed.ffn_bytes[i] * scale, 14, _PAINTS[FFN])
        x += placed.ffn_bytes[i] * scale
        yield _bar(x, y, max(0, whole[i] - placed.ffn_bytes[i]) * scale, 14, _CPU)
        label = f"{len(placed.split.up[i])} of {rows.n_ff} neurons"
        if shares:
            label += f", {100 * shares[i]:.1f} % of activity"
        yield f'<text x="{_LEFT + _W + 12}" y="{y + 11:.0f}">{label}</text>'


def _bar(x: float, y: float, width: float, height: float, paint: Paint) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.0f}" width="{max(width, 0):.1f}" height="{height:.0f}" '
        f'fill="{paint.fill}" stroke="{paint.line}"/>'
    )


def _gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 / 10 else f"{nbytes / 2**20:.1f} MiB"
