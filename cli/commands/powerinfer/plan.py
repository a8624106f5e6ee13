"""``pyllama-powerinfer plan``: plan the placement of a sparse model on a GPU and the CPU.

    pyllama-powerinfer plan -m x.gguf --stats stats.json --vram-budget 8
    pyllama-powerinfer plan -m x.gguf --vram-budget 8 --svg plan.svg --simulate

Prints tables, and writes PowerInfer's ``x.gguf.generated.gpuidx`` next to the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...loading import announce_compiles, model_path
from ...options.options import ContextOptions, context_options, model_option
from ...options.sparse import sparse_options
from ...output import note, write
from ...parameters import from_options, parameter_options
from ...tables.placement import plan_table, simulation_table
from ...tool import Program, version_option
from .plan_options import PlanOptions, SimulateOptions

if TYPE_CHECKING:
    from pyllama.runtime.model import Model
    from pyllama.sparsity.plan import MemoryBudget, PlacementParams
    from pyllama.sparsity.speeds import Speeds


@click.command("plan", cls=Program)
@model_option
@sparse_options
@parameter_options(PlanOptions)
@parameter_options(SimulateOptions)
@context_options(adapters=False)
@version_option()
def command(
    model: Path | None, sparse: str, sparse_threshold: float | None, **options: Any
) -> None:
    """Plan the placement of a sparse model: dense tensors first, then the hottest neurons."""
    chosen, machine = from_options(PlanOptions, options), from_options(SimulateOptions, options)
    _check(chosen, machine)
    path, sizes = model_path(model), ContextOptions.from_click(options)
    from pyllama.runtime.model import Model
    from pyllama.sparsity.plan import IndexFile, make_plan, read_activity

    loaded = Model.load(path, vocab_only=True, sparse=sparse, sparse_threshold=sparse_threshold)
    observed = read_activity(loaded, chosen.stats, chosen.activation) if _reads(chosen) else None
    activity = None if observed is None else observed.activity
    budget = _budget(loaded, chosen, sizes, sparse)
    speeds = _speeds(loaded, budget, machine, sizes) if _measures(chosen, machine) else None
    planned = make_plan(
        loaded,
        budget,
        activity,
        _choice(chosen, machine, speeds),
        IndexFile(chosen.gpu_index, chosen.output, chosen.reset_gpu_index),
    )
    for line in plan_table(planned, activity, path.name):
        write(line + "\n")
    if planned.path is not None and chosen.gpu_index is None:
        note(f"{planned.path}: {'up to date' if planned.found else 'written'}")
    if chosen.svg is not None:
        from pyllama.sparsity.pictures import placement_svg

        placement_svg(planned.placed, planned.needs.rows, activity, chosen.svg, title=path.name)
    if machine.simulate and observed is not None and speeds is not None:
        from pyllama.sparsity.simulate import Machine, Work

        hp, n_ctx = loaded.hparams, budget.n_ctx
        rates = machine.gpu_bandwidth or 0.0, machine.pcie_bandwidth
        work = Work(min(machine.depth, n_ctx - 1), n_ctx, hp.n_embd, hp.n_vocab)
        simulated = Machine(speeds.mean, *(1e9 * rate for rate in rates))
        for line in simulation_table(planned, observed, simulated, work):
            write(line + "\n")


def _check(chosen: PlanOptions, machine: SimulateOptions) -> None:
    if chosen.stats is not None and chosen.activation is not None:
        raise click.UsageError("choose --stats or --activation, not both")
    if chosen.disable_gpu_index and (machine.simulate or chosen.gpu_index is not None):
        other = "--simulate" if machine.simulate else "--gpu-index"
        raise click.UsageError(
            f"{other} places neurons: it cannot be used with --disable-gpu-index"
        )
    if machine.simulate and chosen.gpu_index is not None and not _reads(chosen):
        raise click.UsageError("--simulate needs statistics: add --stats or --activation")
    if _measures(chosen, machine) and machine.gpu_bandwidth is None:
        flag = "--simulate" if machine.simulate else "--solver balance"
        other = "" if machine.simulate else " or --speed-ratio"
        raise click.UsageError(f"{flag} needs the speed of the GPU: give --gpu-bandwidth{other}")


def _reads(chosen: PlanOptions) -> bool:
    """Return whether statistics are needed: not with a given --gpu-index alone."""
    given = chosen.stats is not None or chosen.activation is not None
    return not chosen.disable_gpu_index and (given or chosen.gpu_index is None)


def _measures(chosen: PlanOptions, machine: SimulateOptions) -> bool:
    """Return whether the speeds of the CPU and GPU are needed."""
    return machine.simulate or (chosen.solver == "balance" and chosen.speed_ratio is None)


def _budget(model: Model, chosen: PlanOptions, sizes: ContextOptions, sparse: str) -> MemoryBudget:
    from pyggml.dtype import GGMLType
    from pyllama.inspect.graph_export import drawn_graph
    from pyllama.sparsity.plan import MemoryBudget

    n_ctx = sizes.n_ctx or model.hparams.n_ctx_train
    return MemoryBudget(
        int(chosen.vram_budget * 2**30),
        n_ctx,
        GGMLType[sizes.type_k.upper()],
        GGMLType[sizes.type_v.upper()],
        compute_bytes=drawn_graph(model.path, min(sizes.n_ubatch, n_ctx), sparse).plan.size,
    )


def _speeds(
    model: Model, budget: MemoryBudget, machine: SimulateOptions, sizes: ContextOptions
) -> Speeds:
    """Return the speeds of the CPU, given or measured."""
    from pyllama.sparsity.speeds import Speeds, measure_speeds

    if machine.cpu_bandwidth is not None:
        return Speeds(machine.cpu_bandwidth * 1e9, machine.cpu_bandwidth * 1e9)
    from pyggml.backend.registry import init_backend
    from pyllama.sparsity.plan import read_needs

    announce_compiles()
    hp, (up, down) = model.hparams, read_needs(model, budget).rows.types
    found = measure_speeds(
        init_backend("cpu", n_threads=sizes.n_threads), hp.n_embd, hp.n_ff, up, down
    )
    note(f"measured: the CPU reads active rows of ffn_up at {found.up / 1e9:.1f} GB/s, of ffn_down "
         f"at {found.down / 1e9:.1f} GB/s")  # fmt: skip
    return found


def _choice(
    chosen: PlanOptions, machine: SimulateOptions, speeds: Speeds | None
) -> PlacementParams:
    from pyllama.sparsity.plan import PlacementParams

    if chosen.solver == "greedy":
        return PlacementParams(block=chosen.block)
    ratios = chosen.speed_ratio
    if ratios is None:
        assert speeds is not None and machine.gpu_bandwidth is not None
        ratios = machine.gpu_bandwidth * 1e9 / speeds.up, machine.gpu_bandwidth * 1e9 / speeds.down
    return PlacementParams("balance", *ratios, chosen.block)
