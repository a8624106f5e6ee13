"""How replicas and workers of batches load the model that the options describe.

    replica = replica_options(options, n_slots=4, server=ServerOptions())

Only the CPU computes in them: options for GPUs are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import Flags, row, rows
from pyllama.parameters.loading import FileParams

from .loading import model_path
from .options.options import ContextOptions, ModelOptions

if TYPE_CHECKING:
    from pyllama.cluster.options import ReplicaOptions
    from pyllama.server.request.options import ServerOptions


@dataclass(frozen=True, eq=False, repr=False)
class ProcessOptions:
    """What each process generates at the same time, and where the processes are."""

    # fmt: off
    n_parallel: int = row(4,
        "Number of slots of each process: texts that it generates at the same time.",
        Flags("-np", "--parallel", low=1, high=256))
    address: str | None = row(None,
        "Address of a Ray cluster's head, or auto for the one that runs on this machine.  "
        "[default: Ray is started on this machine, and ended afterwards]",
        Flags("--address", metavar="HOST:PORT"))
    # fmt: on


MISSING = "this command needs more packages: pip install 'pyggml[cluster]'"


def n_threads(sizes: ContextOptions, n_processes: int) -> int:
    """Return the threads of each process: those of -t, or an equal part of the machine's."""
    from pyggml.host import default_threads

    return sizes.n_threads or max(1, default_threads() // n_processes)


def replica_options(
    options: Mapping[str, Any], n_slots: int, threads: int, server: ServerOptions
) -> ReplicaOptions:
    """Return how a process loads its model.

    Raises:
        click.UsageError: an option for GPUs was given.
    """
    from pyllama.cluster.options import ReplicaOptions

    of_model, sizes = ModelOptions.from_click(options), ContextOptions.from_click(options)
    offload = of_model.offload
    given = [*offload.asked_for, *(["-dev"] if offload.devices not in (None, "none") else [])]
    if given:
        raise click.UsageError(f"{given[0]}: replicas compute on the CPU alone")
    path = model_path(of_model.model).resolve()
    context = {**vars(sizes.params(n_slots, unified=True)), "n_threads": threads}
    loading = {name: getattr(of_model, name) for name in rows(FileParams)}
    return ReplicaOptions({path.name: str(path)}, server, context, loading)
