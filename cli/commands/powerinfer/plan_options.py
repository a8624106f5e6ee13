"""The options of ``pyllama-powerinfer plan``.

@parameter_options(PlanOptions)
def command(**options: Any) -> None: chosen = from_options(PlanOptions, options)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from pyllama.parameters import Flags, row

from ...parameters import Number
from ...paths import svg_path

_POSITIVE = Number(1e-6, kind=float)


def _ratios(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[float, float] | None:
    """Parse ``R`` or ``UP,DOWN``."""
    if value is None:
        return None
    parts = [_POSITIVE.convert(part, param, ctx) for part in value.split(",")]
    if len(parts) > 2:
        raise click.BadParameter(f"{value!r} is not R or R_UP,R_DOWN, such as 8 or 10,6.")
    return float(parts[0]), float(parts[-1])


@dataclass(frozen=True, eq=False, repr=False)
class PlanOptions:
    """Memory budget, solver, statistics and the .gpuidx file."""

    # fmt: off
    vram_budget: float = row(0.0, "GPU memory that may be used, in GiB.",
        Flags("--vram-budget", low=0, high=1 << 20, metavar="GIB", required=True))
    solver: str = row("greedy",
        "greedy: choose the neurons with the most activity per byte, like PowerInfer. balance: in "
        "each layer, balance the times of GPU and CPU, like Q-Infer.",
        Flags("--solver", choices=("greedy", "balance")))
    speed_ratio: tuple[float, float] | None = row(None,
        "Speed of the GPU relative to the CPU, for --solver balance; with two numbers, of ffn_up "
        "and ffn_gate, and of ffn_down.  [default: the ratio of bandwidths]",
        Flags("--speed-ratio", metavar="R[,R]", callback=_ratios))
    block: int = row(256, "Number of neurons placed together.", Flags("--block", low=1))
    stats: Path | None = row(None, "Statistics written by the stats command (JSON).",
        Flags("--stats"))
    activation: Path | None = row(None,
        "Folder of PowerInfer's activation_0.pt, ...  [default: activation in the model's folder, "
        "without --stats]", Flags("--activation"))
    gpu_index: Path | None = row(None, "Place the neurons listed in this .gpuidx file.",
        Flags("--gpu-index"))
    output: Path | None = row(None,
        "The .gpuidx file to write.  [default: MODEL.generated.gpuidx]", Flags("-o", "--output"))
    reset_gpu_index: bool = row(False, "Recreate the .gpuidx file even if it is up to date.",
        Flags("--reset-gpu-index"))
    disable_gpu_index: bool = row(False, "Place only dense tensors, no neurons.",
        Flags("--disable-gpu-index"))
    svg: Path | None = row(None, "Write a picture (SVG).", Flags("--svg", callback=svg_path))
    # fmt: on


@dataclass(frozen=True, eq=False, repr=False)
class SimulateOptions:
    """The machine to simulate; bandwidths in GB/s."""

    # fmt: off
    simulate: bool = row(False, "Predict tokens per second from bandwidths.", Flags("--simulate"))
    cpu_bandwidth: float | None = row(None,
        "Memory bandwidth of the CPU.  [default: measured with this model's FFN sizes]",
        Flags("--cpu-bandwidth", low=1e-6, metavar="GB/S"))
    gpu_bandwidth: float | None = row(None, "Memory bandwidth of the GPU.",
        Flags("--gpu-bandwidth", low=1e-6, metavar="GB/S"))
    pcie_bandwidth: float = row(25.0, "Bandwidth between CPU and GPU.",
        Flags("--pcie-bandwidth", low=1e-6, metavar="GB/S"))
    depth: int = row(512, "Tokens in the KV cache before the simulated token.", Flags("--depth"))
    # fmt: on
