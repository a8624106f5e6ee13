"""A plan for a model file: what a GPU of so much memory would hold, from statistics of its neurons.

    model = Model.load("x.gguf", vocab_only=True)
    data = read_activity(model, stats="stats.json")
    planned = make_plan(model, Budget(8 << 30, n_ctx=4096), data.activity)
    planned.placed.split, planned.path             # also written to x.gguf.generated.gpuidx

The ``.gpuidx`` file beside the model is PowerInfer's. It says from what it was made, and is used
again while model, statistics, budget and choices are the same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile

from ..core.model import Model
from ..errors import ModelError
from .activation_files import read_activations
from .fingerprint import content_key, model_fingerprint
from .gpuidx import cached_split, check_split, read_gpuidx
from .inventory import Inventory, NeuronRows, inventory
from .placement import (
    BLOCK,
    Activity,
    Neurons,
    NeuronSplit,
    Placement,
    balance,
    chosen,
    greedy,
    place,
)
from .simulate import shares
from .stats import load_stats, source_name
from .weights import read_as_ours


@dataclass(frozen=True)
class Budget:
    """Bytes of a GPU, and what is set aside first.

    Attributes:
        n_ctx: cells of the KV cache; type_k, type_v: of its keys and values.
        compute_bytes: for intermediate results.
    """

    nbytes: int
    n_ctx: int
    type_k: GGMLType = GGMLType.F16
    type_v: GGMLType = GGMLType.F16
    compute_bytes: int = 0


@dataclass(frozen=True)
class Choice:
    """How neurons are chosen.

    Attributes:
        solver: ``greedy`` or ``balance``; up, down: ratios of speeds for the latter.
        block: neurons that are chosen together.
    """

    solver: str = "greedy"
    up: float = 0.0
    down: float = 0.0
    block: int = BLOCK


@dataclass(frozen=True)
class IndexFile:
    """The ``.gpuidx`` file of a plan.

    Attributes:
        given: says which neurons, and is only read.
        path: is written, and read again while nothing changed; None: beside the model.
        reset: write it anew.
    """

    given: Path | None = None
    path: Path | None = None
    reset: bool = False


@dataclass(frozen=True, eq=False)
class Observed:
    """Shares of tokens for which neurons are active, and for which they are computed."""

    activity: Activity
    computed: Activity


@dataclass(frozen=True, eq=False)
class Plan:
    """A placement, what it was made of, and its file.

    Attributes:
        path: of the ``.gpuidx`` file; None where no neuron is on the GPU.
        found: whether the file was there.
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
    """Statistics of a model from a JSON file or from a folder of PowerInfer's files.

    Args:
        model: its hyperparameters are enough.
        folder: None is ``activation`` beside the model.

    Raises:
        ModelError: there are none, they are damaged, or of another model.
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
                f"{stats}: statistics of another model ({found.model}), not of {model.path}; make "
                "them with pyllama-powerinfer stats"
            )
    wanted = model.hparams.n_layer, model.hparams.n_ff
    if found.counts.shape != wanted:
        raise ModelError(
            f"{stats}: statistics of {found.counts.shape} layers and neurons, the model has "
            f"{wanted}; the file is damaged: make it with pyllama-powerinfer stats"
        )
    same = found.source == source_name(model.hparams)
    return Observed(found.activity, found.computed if same else found.activity)


def read_needs(model: Model, budget: Budget) -> Inventory:
    """What a model would need of a GPU; its weights are not read. Raises: as ``make_plan``."""
    with GGUFFile(model.path) as file:
        read_as_ours(file)
        return inventory(file, model.hparams, budget.n_ctx, budget.type_k, budget.type_v)


def make_plan(
    model: Model,
    budget: Budget,
    activity: Activity | None,
    choice: Choice | None = None,
    index: IndexFile | None = None,
) -> Plan:
    """Place what fits; neurons as the index file says, if it was made of the same.

    Args:
        model: its hyperparameters are enough.
        activity: None places no neurons, unless a file is given.

    Raises:
        ModelError: the statistics or a given file are of another model, or damaged; the file to
            write is the model.
        GGUFError: a file cannot be read or written.
    """
    choice, index, needs = choice or Choice(), index or IndexFile(), read_needs(model, budget)
    digest = b"" if activity is None else sha256(activity.tobytes()).digest()
    with GGUFFile(model.path) as file:
        key = content_key(file, model.hparams.sparse, digest, budget, choice)
    beside = model.path.with_name(f"{model.path.name}.generated.gpuidx")
    path, found = index.given or index.path or beside, index.given is not None
    if not found and path.exists() and path.samefile(model.path):
        raise ModelError(f"{path}: is the model; give another name to write to (-o)")

    def neurons(rows: NeuronRows, left: int) -> NeuronSplit:
        nonlocal found
        if index.given is not None:
            split = check_split(read_gpuidx(path), len(rows.down), rows.n_ff)
            return _fitting(split, path, rows, left)
        assert activity is not None
        solve = partial(_solver(activity, choice), rows, left)
        split, found = cached_split(path, key, budget.nbytes, solve, reset=index.reset)
        return split

    wanted = neurons if activity is not None or index.given is not None else None
    placed = place(needs, budget.nbytes, wanted, compute_bytes=budget.compute_bytes)
    any_there = any(map(len, placed.split.up + placed.split.down))
    return Plan(needs, placed, path if any_there else None, found)


def _solver(activity: Activity, choice: Choice) -> Neurons:
    solver = greedy
    if choice.solver == "balance":
        solver = partial(balance, up=choice.up, down=choice.down)
    return partial(chosen, activity, solver=solver, block=choice.block)


def _fitting(split: NeuronSplit, path: Path, rows: NeuronRows, left: int) -> NeuronSplit:
    pairs = enumerate(zip(split.up, split.down, strict=True))
    need = sum(rows.nbytes(i, len(up), len(down)) for i, (up, down) in pairs)
    if need > left:
        raise ModelError(
            f"{path}: its neurons take {need / 2**20:.1f} MiB, and {left / 2**20:.1f} MiB of the "
            "budget are left for them; give more, or have others chosen (without `given`)"
        )
    return split
