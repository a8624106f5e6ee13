"""``pyllama-powerinfer plan``: what of a sparse model a GPU of so much memory would hold.

    pyllama-powerinfer plan -m x.gguf --stats stats.json --vram-budget 8 --svg plan.svg
    pyllama-powerinfer plan -m x.gguf --vram-budget 8 --simulate --gpu-bandwidth 900

Prints tables, and writes PowerInfer's ``x.gguf.generated.gpuidx`` beside the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...loading import announce_compiles, model_path
from ...options import ContextOptions, context_options, model_option
from ...output import note, write
from ...sparse_options import sparse_options
from ...tool import Tool, version_option
from .files import svg_option
from .plan_options import PlanOptions, SimulateOptions, plan_options, simulate_options
from .tables import plan_table, simulation_table

if TYPE_CHECKING:
    from pyllama.core.model import Model
    from pyllama.sparsity.plan import Budget, Choice
    from pyllama.sparsity.simulate import Machine, Work
    from pyllama.sparsity.speeds import Speeds


@click.command("plan", cls=Tool)
@model_option
@sparse_options
@plan_options
@simulate_options
@svg_option("--svg")
@context_options()
@version_option()
def command(
    model: Path | None, sparse: str, sparse_threshold: float | None, svg: Path | None,
    **options: Any,
) -> None:  # fmt: skip
    """Plan what of a sparse model a GPU holds: dense tensors first, then the hottest neurons."""
    wanted, machine = PlanOptions.take(options), SimulateOptions.take(options)
    _check(wanted, machine)
    path, sizes = model_path(model), ContextOptions.take(options)
    from pyllama.core.model import Model
    from pyllama.sparsity.plan import IndexFile, make_plan, read_activity

    loaded = Model.load(path, vocab_only=True, sparse=sparse, sparse_threshold=sparse_threshold)
    observed = read_activity(loaded, wanted.stats, wanted.activation) if _reads(wanted) else None
    activity = None if observed is None else observed.activity
    budget = _budget(loaded, wanted, sizes, sparse)
    speeds = _speeds(loaded, budget, machine, sizes) if _measures(wanted, machine) else None
    planned = make_plan(
        loaded,
        budget,
        activity,
        _choice(wanted, machine, speeds),
        IndexFile(wanted.gpu_index, wanted.output, wanted.reset_gpu_index),
    )
    for line in plan_table(planned, activity, path.name):
        write(line + "\n")
    if planned.path is not None and wanted.gpu_index is None:
        note(f"{planned.path}: {'up to date' if planned.found else 'written'}")
    if svg is not None:
        from pyllama.sparsity.pictures import placement_svg

        placement_svg(planned.placed, planned.needs.rows, activity, svg, title=path.name)
    if machine.simulate and observed is not None and speeds is not None:
        work = _work(loaded, budget, machine)
        for line in simulation_table(planned, observed, _machine(machine, speeds), work):
            write(line + "\n")


def _check(wanted: PlanOptions, machine: SimulateOptions) -> None:
    if wanted.stats is not None and wanted.activation is not None:
        raise click.UsageError("give the statistics with --stats or with --activation, not both")
    if wanted.disable_gpu_index and (machine.simulate or wanted.gpu_index is not None):
        other = "--simulate" if machine.simulate else "--gpu-index"
        raise click.UsageError(f"{other} is about neurons: not with --disable-gpu-index")
    if machine.simulate and wanted.gpu_index is not None and not _reads(wanted):
        raise click.UsageError("--simulate needs statistics: add --stats or --activation")
    if _measures(wanted, machine) and machine.gpu_bandwidth is None:
        what = "--simulate" if machine.simulate else "--solver balance"
        other = "" if machine.simulate else " or --speed-ratio"
        raise click.UsageError(f"{what} needs the speed of the GPU: give --gpu-bandwidth{other}")


def _reads(wanted: PlanOptions) -> bool:
    """Whether statistics are read: a given file of neurons needs none."""
    given = wanted.stats is not None or wanted.activation is not None
    return not wanted.disable_gpu_index and (given or wanted.gpu_index is None)


def _measures(wanted: PlanOptions, machine: SimulateOptions) -> bool:
    """Whether speeds are needed."""
    return machine.simulate or (wanted.solver == "balance" and wanted.speed_ratio is None)


def _budget(model: Model, wanted: PlanOptions, sizes: ContextOptions, sparse: str) -> Budget:
    from pyggml.dtype import GGMLType
    from pyllama.inspect.graph_export import drawn_graph
    from pyllama.sparsity.plan import Budget

    n_ctx = sizes.ctx_size or model.hparams.n_ctx_train
    return Budget(
        int(wanted.vram_budget * 2**30),
        n_ctx,
        GGMLType[sizes.cache_type_k.upper()],
        GGMLType[sizes.cache_type_v.upper()],
        compute_bytes=drawn_graph(model.path, min(sizes.ubatch_size, n_ctx), sparse).plan.size,
    )


def _speeds(
    model: Model, budget: Budget, machine: SimulateOptions, sizes: ContextOptions
) -> Speeds:
    """The CPU's, given or measured."""
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
    note(f"measured: the CPU reads active rows of up at {found.up / 1e9:.1f} GB/s, of down at "
         f"{found.down / 1e9:.1f} GB/s")  # fmt: skip
    return found


def _choice(wanted: PlanOptions, machine: SimulateOptions, speeds: Speeds | None) -> Choice:
    from pyllama.sparsity.plan import Choice

    if wanted.solver == "greedy":
        return Choice(block=wanted.block)
    ratios = wanted.speed_ratio
    if ratios is None:
        assert speeds is not None and machine.gpu_bandwidth is not None
        ratios = machine.gpu_bandwidth * 1e9 / speeds.up, machine.gpu_bandwidth * 1e9 / speeds.down
    return Choice("balance", *ratios, wanted.block)


def _machine(machine: SimulateOptions, speeds: Speeds) -> Machine:
    from pyllama.sparsity.simulate import Machine

    assert machine.gpu_bandwidth is not None
    return Machine(speeds.mean, machine.gpu_bandwidth * 1e9, machine.pcie_bandwidth * 1e9)


def _work(model: Model, budget: Budget, machine: SimulateOptions) -> Work:
    from pyllama.sparsity.simulate import Work

    depth = min(machine.depth, budget.n_ctx - 1)
    return Work(depth, budget.n_ctx, model.hparams.n_embd, model.hparams.n_vocab)
