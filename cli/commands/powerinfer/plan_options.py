"""The options of ``pyllama-powerinfer plan``: what is placed, by what, and on which machine.

@plan_options
@simulate_options
def command(**options: Any) -> None:
    wanted, machine = PlanOptions.take(options), SimulateOptions.take(options)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from ...options import INT32_MAX, Group, Number, stack

_PATH = click.Path(path_type=Path)
_POSITIVE = Number(1e-6, kind=float)


def _ratios(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[float, float] | None:
    """``R`` or ``UP,DOWN``."""
    if value is None:
        return None
    parts = [_POSITIVE.convert(part, param, ctx) for part in value.split(",")]
    if len(parts) > 2:
        raise click.BadParameter(f"{value!r} is not R or R_UP,R_DOWN, such as 8 or 10,6.")
    return float(parts[0]), float(parts[-1])


@dataclass(frozen=True)
class PlanOptions(Group):
    """What is placed, by which statistics, and how."""

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
    """A machine to be simulated; bandwidths in GB/s."""

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
        help="Memory of the GPU that may be used, in GiB.",
    ),
    click.option(
        "--solver",
        type=click.Choice(["greedy", "balance"]),
        default="greedy",
        show_default=True,
        help="greedy: the neurons that are active most often for their bytes, as PowerInfer. "
        "balance: in each layer until GPU and CPU finish together, as Q-Infer.",
    ),
    click.option(
        "--speed-ratio",
        callback=_ratios,
        metavar="R[,R]",
        help="For balance: how many times as fast the GPU computes neurons; of up and gate, and "
        "of down.  [default: the ratio of bandwidths]",
    ),
    click.option(
        "--block",
        type=Number(1, INT32_MAX),
        default=256,
        show_default=True,
        help="Neurons that are chosen together.",
    ),
    click.option("--stats", type=_PATH, help="Statistics that the command stats wrote (JSON)."),
    click.option(
        "--activation",
        type=_PATH,
        help="A folder of PowerInfer's activation_0.pt, ...  [default: activation beside the "
        "model, where no --stats is given]",
    ),
    click.option("--gpu-index", type=_PATH, help="Place the neurons that this .gpuidx file names."),
    click.option(
        "-o",
        "--output",
        type=_PATH,
        help="The .gpuidx file to write.  [default: MODEL.generated.gpuidx, beside the model]",
    ),
    click.option(
        "--reset-gpu-index", is_flag=True, help="Write that file anew, whatever it was made of."
    ),
    click.option("--disable-gpu-index", is_flag=True, help="Place no neurons; only dense tensors."),
)

simulate_options = stack(
    click.option("--simulate", is_flag=True, help="Predict tokens a second from bandwidths."),
    click.option(
        "--cpu-bandwidth",
        type=_POSITIVE,
        metavar="GB/S",
        help="Of the CPU's memory.  [default: measured, on neurons of this model's sizes]",
    ),
    click.option("--gpu-bandwidth", type=_POSITIVE, metavar="GB/S", help="Of the GPU's memory."),
    click.option(
        "--pcie-bandwidth",
        type=_POSITIVE,
        metavar="GB/S",
        default=25.0,
        show_default=True,
        help="Between the two.",
    ),
    click.option(
        "--depth",
        type=Number(0, INT32_MAX),
        default=512,
        show_default=True,
        help="Tokens in the cache before the one that is simulated.",
    ),
)
