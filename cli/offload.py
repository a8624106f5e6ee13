"""Plans where a model goes before it is loaded, and prints the plan: ``--dry-run``.

    planned = planned_offload(path, options, params, {"sparse": "auto"})
    for line in planned.lines: write_line(line)    # if --dry-run is given
    Model.load(path, **planned.arguments)

A draft model is planned before its target, which gets what the draft leaves of the budget.
Of a sparse model of which not all fits, dense tensors and neurons are placed instead of layers. The
neurons are chosen by the statistics in the folder ``activation`` next to the model, as PowerInfer
does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options.options import ModelOptions, OffloadOptions
from .output import note, size_text

if TYPE_CHECKING:
    from pyggml.backend.interface import Backend
    from pyllama.runtime.devices import Offload, Reserved
    from pyllama.runtime.model import Model
    from pyllama.runtime.offload import DeviceUse, OffloadPlan, Planner
    from pyllama.runtime.params import ContextParams
    from pyllama.sparsity.placement import Activity
    from pyllama.sparsity.plan import PlacementPlan

_PARTS = (("weights", "\u2588"), ("KV cache", "\u2593"), ("compute", "\u2592"))
_FREE, _BAR = "\u00b7", 48  # characters
_STRIP = "\u2588\u2593\u2592\u2591"  # a layer, by the number of its device


@dataclass(frozen=True)
class PlannedOffload:
    """Where a model goes.

    Attributes:
        arguments: of ``Model.load``, for devices.
        uses: the memory of each GPU.
        lines: the plan as text; empty without --dry-run.
    """

    arguments: dict[str, Any]
    uses: tuple[DeviceUse, ...] = ()
    lines: tuple[str, ...] = ()

    def reserved(self, *, is_loaded: bool) -> tuple[Reserved, ...]:
        """What is not left to another model; ``is_loaded``: the weights are in memory now."""
        from pyllama.runtime.devices import Reserved

        return tuple(
            Reserved(use.name, use.used, use.used - (use.weights if is_loaded else 0))
            for use in self.uses
        )


def planned_offload(
    path: Path,
    options: ModelOptions,
    params: ContextParams | None,
    header: Mapping[str, Any],
    reserved: Sequence[Reserved] = (),
    *,
    is_draft: bool = False,
) -> PlannedOffload:
    """Return where a model goes.

    Args:
        params: sizes of the context; None for the defaults.
        header: arguments of ``Model.load`` that change metadata and hyperparameters.
        reserved: memory that another model needs.

    Raises:
        BackendError: a device does not exist, or an option for devices is illegal.
    """
    from pyllama.runtime.devices import CPU, check_overrides, gpus_of, start_devices, used_devices

    given = options.offload
    offload, devices = given.offload(), _devices(given, is_draft=is_draft)
    offload = replace(offload, reserved=tuple(reserved))
    where = _arguments(devices, params, offload)
    if [*devices] == [CPU] and not (given.dry_run or offload.override_tensor):
        return PlannedOffload(where)
    started = start_devices(devices, 1)
    backends = used_devices(started, offload)
    check_overrides(backends, offload)
    gpus = gpus_of(backends)
    if not gpus and not given.dry_run:
        return PlannedOffload(where)
    from pyggml.gguf import GGUFFile
    from pyllama.graph.sparse.weights import normalize_powerinfer_metadata
    from pyllama.runtime.model import Model
    from pyllama.runtime.offload import Planner
    from pyllama.runtime.params import ContextParams
    from pyllama.sparsity.division import Placements
    from pyllama.sparsity.plan import is_placeable

    model = Model.load(path, vocab_only=True, **header)
    with GGUFFile(path) as file:
        file.override(header["kv_overrides"])
        normalize_powerinfer_metadata(file)
        planner = Planner(
            file,
            model.arch,
            model.hparams,
            backends,
            params or ContextParams(),
            repack=options.repack,
        )
        plan, neurons = planner.plan(offload), None
        where = _arguments(devices, params, plan.offload)
        is_whole = plan.offload.n_gpu_layers == model.hparams.n_layer + 1
        if gpus and offload.fits and not is_whole and is_placeable(model.hparams):
            plan, neurons = _hybrid(planner, model, offload, given)
            placement = Placements(tuple(one.placed for one in neurons[0]))
            used = [d for d, b in zip(devices, started, strict=True) if b in backends]
            where = {"devices": used, "placement": placement}
    lines = [*plan_lines(model, plan), *_neuron_lines(neurons, path.name, plan)]
    return PlannedOffload(where, plan.devices[:-1], tuple(lines) if given.dry_run else ())


def _arguments(
    devices: Sequence[str | Backend], params: ContextParams | None, offload: Offload
) -> dict[str, Any]:
    fields = {name: value for name, value in vars(offload).items() if name != "reserved"}
    return {"devices": devices, "params": params, **fields}


def _devices(given: OffloadOptions, *, is_draft: bool) -> Sequence[str | Backend]:
    """The devices asked for, or all GPUs found; a note if there is none for the given flags."""
    from pyllama.runtime.devices import CPU, gpu_devices, parse_devices, start_devices, why_no_gpu

    if given.devices is not None:
        named = parse_devices(given.devices)
        return [x if x == CPU else start_devices((x,), None)[0] for x in named]
    found = gpu_devices() if given.n_gpu_layers != 0 else ()
    flags = given.asked_for
    if not found and flags:
        names = ", ".join("-ngld" if is_draft and flag == "-ngl" else flag for flag in flags)
        verb = "are" if len(flags) > 1 else "is"
        note(f"no GPU was found ({why_no_gpu()}): {names} {verb} ignored, all is on the CPU")
    return (*found, CPU)


def _hybrid(
    planner: Planner, model: Model, offload: Offload, given: OffloadOptions
) -> tuple[OffloadPlan, tuple[list[PlacementPlan], Activity | None]]:
    """The plan of a sparse model of which only a part fits, with its neurons and statistics."""
    from pyllama.sparsity.plan import IndexFile, plan_on_devices, read_activity

    activity, folder = None, model.path.parent / "activation"
    if not given.disable_gpu_index and given.gpu_index is None:
        if folder.is_dir():
            activity = read_activity(model).activity
        else:
            note(
                f"{folder}: no statistics of neurons, so only dense tensors are placed; "
                "pyllama-powerinfer stats --activation writes them"
            )
    listed = None if given.disable_gpu_index else given.gpu_index
    index = IndexFile(given=listed, reset=given.reset_gpu_index)
    write = not given.dry_run
    plan, neurons = plan_on_devices(planner, model, offload, activity, index=index, write=write)
    return plan, (neurons, activity)


def plan_lines(model: Model, plan: OffloadPlan) -> Iterator[str]:
    """Yield a plan as text: a table and a bar for each device, and the devices of each layer."""
    params, uses = plan.params, plan.devices
    seqs = f"{params.n_seq_max} sequence" + "s" * (params.n_seq_max > 1)
    yield (
        f"{model.desc}, {model.path.name}: {params.n_ctx} tokens of context, {seqs}, KV cache "
        f"{params.type_k.name}/{params.type_v.name}, {params.n_ubatch} tokens per graph"
    )
    width = max(len("device"), *(len(use.name) for use in uses))
    yield ""
    columns = ("weights", "KV cache", "compute", "total", "limit", "free")
    yield _row("device", width, columns)
    yield f"| {'-' * (width - 1)}: | " + " | ".join("-" * 9 + ":" for _ in columns) + " |"
    for use in uses:
        known = (use.weights, use.kv, use.compute, use.used, use.limit, use.free)
        yield _row(use.name, width, ["" if n is None else size_text(n) for n in known])
    yield ""
    for use in uses:
        yield f"{use.name:>{width}} {_bar(use)}"
    marks = "  ".join(f"{mark} {part}" for part, mark in (*_PARTS, ("free", _FREE)))
    yield f"{'':{width}}  {marks}"
    yield ""
    yield from _layer_lines(plan, width)
    for use in uses[:-1]:
        if not use.fits:
            over = use.used - (use.limit or 0)
            yield f"{use.name} has {size_text(over)} too little: offload fewer layers (-ngl auto)"


def _row(name: str, width: int, cells: Sequence[str]) -> str:
    return f"| {name:>{width}} | " + " | ".join(f"{cell:>10}" for cell in cells) + " |"


def _bar(use: DeviceUse) -> str:
    """A device's memory as a bar; of all devices it has the same length."""
    whole = max(use.used, use.free or 0, 1)
    end, bar = 0, ""
    for n_bytes, (_, mark) in zip((use.weights, use.kv, use.compute), _PARTS, strict=True):
        end += n_bytes
        n = round(_BAR * end / whole) - len(bar)
        bar += mark * max(n, min(n_bytes, 1))  # something is never shown as nothing
    share = f"{100 * use.used / use.free:.0f} % of what is free" if use.free else ""
    return f"[{bar[:_BAR]:{_FREE}<{_BAR}}] {share}".rstrip()


def _layer_lines(plan: OffloadPlan, width: int) -> Iterator[str]:
    """Yield a strip with a character for each layer, then runs of layers of the same devices."""
    names = [use.name for use in plan.devices]
    cpu = len(names) - 1

    def mark(weights: Mapping[str, int]) -> str:
        main = max(names, key=lambda name: weights.get(name, 0))
        return _FREE if main == names[cpu] else _STRIP[names.index(main) % len(_STRIP)]

    layers = plan.layers[1:-1]
    strip = "".join(mark(layer.weights) for layer in layers)
    marks = [f"{_STRIP[i % len(_STRIP)]} {name}" for i, name in enumerate(names[:-1])]
    yield f"{'layers':>{width}} [{strip}] " + "  ".join([*marks, f"{_FREE} {names[cpu]}"])
    runs: list[tuple[str, str, str]] = []
    numbers = ["input", *map(str, range(len(layers))), "output"]
    for number, layer in zip(numbers, plan.layers, strict=True):
        weights, kv = (
            ", ".join(name for name in names if part[name]) for part in (layer.weights, layer.kv)
        )
        if runs and runs[-1][1:] == (weights, kv) and number.isdigit() and runs[-1][0][0].isdigit():
            first = runs[-1][0].partition("-")[0]
            runs[-1] = f"{first}-{number}", weights, kv
        else:
            runs.append((number, weights, kv))
    for number, weights, kv in runs:
        if weights or kv:
            yield f"{number:>{width}} weights: {weights or 'none'}" + (f"; KV: {kv}" if kv else "")


def _neuron_lines(
    neurons: tuple[list[PlacementPlan], Activity | None] | None, name: str, whole: OffloadPlan
) -> Iterator[str]:
    """Yield a table for each GPU."""
    from .tables.placement import plan_table

    plans, activity = neurons or ([], None)
    for plan, use in zip(plans, whole.devices, strict=False):
        yield ""
        yield from plan_table(plan, activity, f"{name} on {use.name}" if plans[1:] else name)
