"""The tables that ``plan`` prints: the placement and the predicted speed.

for line in plan_table(planned, activity, "x.gguf"):
    print(line)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ..output import size_text

if TYPE_CHECKING:
    from pyllama.sparsity.placement import Activity, Placement
    from pyllama.sparsity.plan import Observed, PlacementPlan
    from pyllama.sparsity.simulate import Machine, Prediction, Work


def plan_table(planned: PlacementPlan, activity: Activity | None, name: str) -> Iterator[str]:
    """Yield the lines of the placement table: memory used, then one line per layer of a GPU."""
    from pyllama.sparsity.inventory import ATTENTION, KV, SCORES
    from pyllama.sparsity.pictures import by_level

    placed, n_ff = planned.placed, planned.needs.rows.n_ff
    yield (
        f"{name}: {size_text(placed.used_bytes)} of {size_text(placed.budget_bytes)} used: "
        + ", ".join(f"{level} {size_text(size)}" for level, size in by_level(placed).items())
    )
    yield from _row("layer", ATTENTION, SCORES, KV, "FFN rows", "up", "down", "of activity")
    yield from _row(*["-" * 11 + ":"] * 8)
    here = {(item.level, item.layer) for item in placed.on_gpu}
    known = {(item.level, item.layer) for item in planned.needs.items}
    shares = (
        [f"{100 * x:.1f} %" for x in placed.split.share(activity)] if activity is not None else []
    )
    layers = {layer for _, layer in known}
    for i, size in enumerate(placed.ffn_bytes):
        if i not in layers:  # another GPU's
            continue
        where = [
            ("GPU" if (level, i) in here else "CPU") if (level, i) in known else ""
            for level in (ATTENTION, SCORES, KV)
        ]
        numbers = (f"{len(ids[i])}/{n_ff}" for ids in (placed.split.up, placed.split.down))
        yield from _row(str(i), *where, size_text(size), *numbers, shares[i] if shares else "")


def simulation_table(
    planned: PlacementPlan, observed: Observed, machine: Machine, work: Work
) -> Iterator[str]:
    """Yield predicted times of a token for the plan, the CPU alone, and everything on the GPU."""
    from pyllama.sparsity.placement import choose_neurons, place
    from pyllama.sparsity.simulate import predict

    needs = planned.needs
    everything = partial(choose_neurons, observed.activity)
    cases: dict[str, Placement] = {
        "this plan": planned.placed,
        "CPU only": place(needs, 0),
        "all on GPU": place(needs, 1 << 62, everything),
    }
    found: dict[str, Prediction] = {
        name: predict(needs, placed, observed.computed, machine, work)
        for name, placed in cases.items()
    }
    yield ""
    yield (
        f"one token at depth {work.depth}, {machine.cpu_bandwidth / 1e9:.4g} GB/s CPU, "
        f"{machine.gpu_bandwidth / 1e9:.4g} GB/s GPU, {machine.pcie_bandwidth / 1e9:.4g} GB/s PCIe:"
    )
    parts = ("attention", "scores", "ffn", "output", "pcie")
    yield from _row("", *(f"{part} ms" for part in parts), "sum ms", "tokens/s")
    yield from _row(*["-" * 11 + ":"] * 8)
    for name, p in found.items():
        times = [1e3 * getattr(p, part) for part in parts] + [1e3 * p.seconds]
        yield from _row(name, *(f"{x:.3f}" for x in times), f"{p.tokens_per_second:.2f}")


def _row(*cells: str) -> Iterator[str]:
    yield "| " + " | ".join(f"{cell:>12}" for cell in cells) + " |"
