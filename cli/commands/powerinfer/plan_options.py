"""The options of ``pyllama-powerinfer plan``.

@plan_options
@simulate_options
def command(**options: Any) -> None:
    chosen, machine = PlanOptions.from_click(options), SimulateOptions.from_click(options)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from ...help_pages import stack
from ...options.options import Group
from ...options.parameters import INT32_MAX, Number

_PATH = click.Path(path_type=Path)
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


@dataclass(frozen=True)
class PlanOptions(Group):
    """Memory budget, solver, statistics and the .gpuidx file."""

    vram_budget: float
    solver: str
    speed_ratio: tuple[float, float] | None
    block: int
    activation: Path | None
    stats: Path | None
    gpu_index: Path | None
    output: Path | None
    reset_gpu_index: bool
    disable_gpu_index: bool


@dataclass(frozen=True)
class SimulateOptions(Group):
    """The machine to simulate; bandwidths in GB/s."""

    simulate: bool
    cpu_bandwidth: float | None
    gpu_bandwidth: float | None
    pcie_bandwidth: float
    depth: int


plan_options = stack(
    click.option(
        "--vram-budget",
        type=Number(0, 1 << 20, kind=float),
        required=True,
        metavar="GIB",
        help="GPU memory that may be used, in GiB.",
    ),
    click.option(
        "--solver",
        type=click.Choice(["greedy", "balance"]),
        default="greedy",
        help="greedy: choose the neurons with the most activity per byte, like PowerInfer. "
        "balance: in each layer, balance the times of GPU and CPU, like Q-Infer.",
    ),
    click.option(
        "--speed-ratio",
        callback=_ratios,
        metavar="R[,R]",
        help="Speed of the GPU relative to the CPU, for --solver balance; with two numbers, of "
        "ffn_up and ffn_gate, and of ffn_down.  [default: the ratio of bandwidths]",
    ),
    click.option(
        "--block",
        type=Number(1, INT32_MAX),
        default=256,
        help="Number of neurons placed together.",
    ),
    click.option("--stats", type=_PATH, help="Statistics written by the stats command (JSON)."),
    click.option(
        "--activation",
        type=_PATH,
        help="Folder of PowerInfer's activation_0.pt, ...  [default: activation in the model's "
        "folder, without --stats]",
    ),
    click.option("--gpu-index", type=_PATH, help="Place the neurons listed in this .gpuidx file."),
    click.option(
        "-o",
        "--output",
        type=_PATH,
        help="The .gpuidx file to write.  [default: MODEL.generated.gpuidx]",
    ),
    click.option(
        "--reset-gpu-index",
        is_flag=True,
        help="Recreate the .gpuidx file even if it is up to date.",
    ),
    click.option("--disable-gpu-index", is_flag=True, help="Place only dense tensors, no neurons."),
)

simulate_options = stack(
    click.option("--simulate", is_flag=True, help="Predict tokens per second from bandwidths."),
    click.option(
        "--cpu-bandwidth",
        type=_POSITIVE,
        metavar="GB/S",
        help="Memory bandwidth of the CPU.  [default: measured with this model's FFN sizes]",
    ),
    click.option(
        "--gpu-bandwidth", type=_POSITIVE, metavar="GB/S", help="Memory bandwidth of the GPU."
    ),
    click.option(
        "--pcie-bandwidth",
        type=_POSITIVE,
        metavar="GB/S",
        default=25.0,
        help="Bandwidth between CPU and GPU.",
    ),
    click.option(
        "--depth",
        type=Number(0, INT32_MAX),
        default=512,
        help="Tokens in the KV cache before the simulated token.",
    ),
)
