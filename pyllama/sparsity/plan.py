"""Plans the placement of a model file on a GPU, from statistics of its neurons.

    model = Model.load("x.gguf", vocab_only=True)
    data = read_activity(model, stats="stats.json")
    planned = make_plan(model, Budget(8 << 30, n_ctx=4096), data.activity)
    planned.placed.split, planned.path             # also written to x.gguf.generated.gpuidx

The ``.gpuidx`` file next to the model is PowerInfer's format. It stores a digest of its inputs, and
is reused while model, statistics, budget and choices are unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile

from ..errors import ModelError
from ..graph.sparse.weights import normalize_powerinfer_metadata
from ..hparams import HParams
from ..runtime.devices import Offload, gpus_of, limit_bytes
from ..runtime.model import Model
from ..runtime.offload import OffloadPlan, Planner
from .activation_files import read_activations
from .division import Placements, Share, divide, merged
from .fingerprint import content_key, model_fingerprint
from .gpuidx import cached_split, check_split, read_gpuidx
from .inventory import Inventory, NeuronRows, inventory
from .placement import (
    BLOCK,
    Activity,
    NeuronChooser,
    NeuronSplit,
    Placement,
    balance,
    check_activity,
    choose_neurons,
    greedy,
)
from .simulate import shares
from .stats import load_stats, source_name


@dataclass(frozen=True)
class MemoryBudget:
    """The memory of a GPU and its reserved part.

    Attributes:
        nbytes: GPU memory that may be used.
        n_ctx: cells of the KV cache.
        type_k, type_v: types of the KV cache.
        compute_bytes: reserved for intermediate results.
    """

    nbytes: int
    n_ctx: int
    type_k: GGMLType = GGMLType.F16
    type_v: GGMLType = GGMLType.F16
    compute_bytes: int = 0


@dataclass(frozen=True)
class PlacementParams:
    """Parameters of the choice of neurons.

    Attributes:
        solver: ``greedy`` or ``balance``.
        up, down: speed ratios for ``balance``.
        block: neurons placed together.
    """

    solver: str = "greedy"
    up: float = 0.0
    down: float = 0.0
    block: int = BLOCK


@dataclass(frozen=True)
class IndexFile:
    """The ``.gpuidx`` file of a plan.

    Attributes:
        given: an existing file with the neurons to place; it is only read.
        path: file to write, and to reuse while nothing has changed; None: next to the model.
        reset: recreate the file.
    """

    given: Path | None = None
    path: Path | None = None
    reset: bool = False


@dataclass(frozen=True, eq=False)
class Observed:
    """Shares of tokens for which each neuron is active, and for which it is computed."""

    activity: Activity
    computed: Activity


@dataclass(frozen=True, eq=False)
class PlacementPlan:
    """A placement, the memory needs it is based on, and its file.

    Attributes:
        path: the ``.gpuidx`` file; None if no neuron is on the GPU.
        found: whether an existing file was used.
    """

    needs: Inventory
    placed: Placement
    path: Path | None
    found: bool


def read_activity(
    model: Model,
    stats: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Observed:
    """Return the statistics of a model from a JSON file or a folder of PowerInfer's files.

    Args:
        model: only its hyperparameters are used.
        stats: a JSON file; None: read ``folder``.
        folder: None: ``activation`` in the model's folder.

    Raises:
        ModelError: there are no statistics, they are damaged, or of another model.
        OSError: the JSON file cannot be read.
    """
    if stats is None:
        activity = shares(
            read_activations(model.path.parent / "activation" if folder is None else folder)
        )
        return Observed(activity, activity)
    found = load_stats(stats)
    with GGUFFile(model.path) as file:
        if found.fingerprint != model_fingerprint(file):
            raise ModelError(
                f"{stats}: statistics of another model ({found.model}), not of {model.path}; "
                "create them with pyllama-powerinfer stats"
            )
    shape = model.hparams.n_layer, model.hparams.n_ff
    if found.counts.shape != shape:
        raise ModelError(
            f"{stats}: statistics of {found.counts.shape} layers and neurons, the model has "
            f"{shape}; the file is damaged: recreate it with pyllama-powerinfer stats"
        )
    same = found.source == source_name(model.hparams)
    return Observed(found.activity, found.computed if same else found.activity)


def read_needs(model: Model, budget: MemoryBudget) -> Inventory:
    """Return the GPU memory that a model needs; reads only its header. Raises: as ``make_plan``."""
    with GGUFFile(model.path) as file:
        normalize_powerinfer_metadata(file)
        return inventory(file, model.hparams, budget.n_ctx, budget.type_k, budget.type_v)


def make_plan(
    model: Model,
    budget: MemoryBudget,
    activity: Activity | None,
    choice: PlacementParams | None = None,
    index: IndexFile | None = None,
) -> PlacementPlan:
    """Return the plan for a budget; reuses an index file made from the same inputs.

    Args:
        model: only its hyperparameters are used.
        activity: None places no neurons, unless ``index.given`` lists them.

    Raises:
        ModelError: the statistics or the given file are of another model, or damaged; the output
            file is the model.
        GGUFError: a file cannot be read or written.
    """
    share = Share(tuple(range(model.hparams.n_layer)), model.hparams.n_layer, True)
    return _make_plans(model, [(share, budget)], activity, choice, index)[0]


def _make_plans(
    model: Model,
    shares: Sequence[tuple[Share, MemoryBudget]],
    activity: Activity | None,
    choice: PlacementParams | None,
    index: IndexFile | None,
) -> list[PlacementPlan]:
    """The plan of each share for its budget; all are in one index file. Raises: as `make_plan`."""
    choice, index, hparams = choice or PlacementParams(), index or IndexFile(), model.hparams
    needs = read_needs(model, shares[0][1])
    digest = b"" if activity is None else sha256(activity.tobytes()).digest()
    budgets = shares[0][1] if len(shares) == 1 else shares
    with GGUFFile(model.path) as file:
        key = content_key(file, hparams.sparse, digest, budgets, choice)
    default = model.path.with_name(f"{model.path.name}.generated.gpuidx")
    path, found = index.given or index.path or default, index.given is not None
    if not found and path.exists() and path.samefile(model.path):
        raise ModelError(f"{path}: is the model; choose another output file (-o)")
    dense = _placed(needs, shares, None, choice, IndexFile())
    if activity is None or found or not any(p.takes_neurons for p in dense):
        placed = _placed(needs, shares, activity, choice, index)
    else:
        placed = []

        def solve() -> NeuronSplit:
            placed.extend(_placed(needs, shares, activity, choice, index))
            placements = zip(shares, placed, strict=True)
            parts = [(share, share.of_split(p.split)) for (share, _), p in placements]
            return merged(parts, hparams.n_layer, hparams.n_ff)

        nbytes = sum(budget.nbytes for _, budget in shares)
        split, found = cached_split(path, key, nbytes, solve, reset=index.reset)
        if found:
            placed = [
                share.place(needs, budget.nbytes, _fixed(share, split), budget.compute_bytes)
                for share, budget in shares
            ]
            found = _has_neurons(placed)
    shown = path if _has_neurons(placed) else None
    return [
        PlacementPlan(share.needs(needs) if len(shares) > 1 else needs, p, shown, found)
        for (share, _), p in zip(shares, placed, strict=True)
    ]


def _placed(
    needs: Inventory,
    shares: Sequence[tuple[Share, MemoryBudget]],
    activity: Activity | None,
    choice: PlacementParams,
    index: IndexFile,
) -> list[Placement]:
    """The placement of each share, with the neurons that are listed or chosen."""
    placed = []
    for share, budget in shares:
        neurons: NeuronChooser | None = None
        if index.given is not None:
            neurons = partial(_given, index.given, share)
        elif activity is not None:
            check_activity(activity, len(needs.rows.down), needs.rows.n_ff)
            neurons = _solver(activity[list(share.layers)], choice)
        placed.append(share.place(needs, budget.nbytes, neurons, budget.compute_bytes))
    return placed


def _fixed(share: Share, split: NeuronSplit) -> NeuronChooser:
    return lambda rows, left: share.of_split(split)


def _has_neurons(placed: Sequence[Placement]) -> bool:
    return any(map(len, (ids for p in placed for ids in p.split.up + p.split.down)))


def is_placeable(hparams: HParams) -> bool:
    """Whether neurons of a model can be placed: each layer computes only some of them."""
    sources = {hparams.source(i) for i in range(hparams.n_layer)}
    return not hparams.n_expert and not sources & {"off", "topk"}


def plan_on_devices(
    planner: Planner,
    model: Model,
    offload: Offload,
    activity: Activity | None,
    choice: PlacementParams | None = None,
    index: IndexFile | None = None,
    *,
    write: bool = True,
) -> tuple[OffloadPlan, list[PlacementPlan]]:
    """Return a plan for each GPU whose bytes, counted exactly, are within its limit.

    What graphs and lists of cells need is known only for a given placement: it is reserved, and
    another placement made with the rest of the budget.

    Args:
        planner: of the whole model; its GPUs have the layers that ``divide`` gives them.
        offload: its memory budgets, and the proportions of layers.
        activity: None places no neurons, unless ``index.given`` lists them.
        write: whether to read or write the index file.

    Raises:
        ModelError, GGUFError: as ``make_plan``. BackendError: as ``Planner.plan``.
    """
    params = planner.params.resolve(model.hparams)
    limits = [limit_bytes(gpu, i, offload) for i, gpu in enumerate(gpus_of(planner.backends))]
    budgets = [
        MemoryBudget(
            1 << 62 if limit is None else limit, params.n_ctx, params.type_k, params.type_v
        )
        for limit in limits
    ]
    shares = divide(planner.backends, model.hparams.n_layer, offload)
    needs = read_needs(model, budgets[0])
    chosen, listed = choice or PlacementParams(), index or IndexFile()
    while True:
        pairs = [*zip(shares, budgets, strict=True)]
        placed = _placed(needs, pairs, activity, chosen, listed)
        use = replace(planner, placement=Placements(tuple(placed))).plan(offload)
        uses = zip(use.devices[:-1], budgets, strict=True)
        excess = [max(0, device.used - budget.nbytes) for device, budget in uses]
        if not any(excess):
            break
        budgets = [
            replace(budget, compute_bytes=budget.compute_bytes + more)
            for budget, more in zip(budgets, excess, strict=True)
        ]
    if (activity is None and listed.given is None) or not write:
        return use, [
            PlacementPlan(share.needs(needs), p, None, False)
            for share, p in zip(shares, placed, strict=True)
        ]
    plans = _make_plans(model, pairs, activity, choice, index)
    placement = Placements(tuple(plan.placed for plan in plans))
    return replace(planner, placement=placement).plan(offload), plans


def _solver(activity: Activity, choice: PlacementParams) -> NeuronChooser:
    solver = greedy
    if choice.solver == "balance":
        solver = partial(balance, up=choice.up, down=choice.down)
    return partial(choose_neurons, activity, solver=solver, block=choice.block)


def _given(path: Path, share: Share, rows: NeuronRows, left: int) -> NeuronSplit:
    split = share.of_split(check_split(read_gpuidx(path), share.n_layer, rows.n_ff))
    pairs = enumerate(zip(split.up, split.down, strict=True))
    need = sum(rows.nbytes(i, len(up), len(down)) for i, (up, down) in pairs)
    if need > left:
        raise ModelError(
            f"{path}: its neurons need {need / 2**20:.1f} MiB, but {left / 2**20:.1f} MiB of the "
            "budget are left; increase the budget, or let neurons be chosen (without `given`)"
        )
    return split
