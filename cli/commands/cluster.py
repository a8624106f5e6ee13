"""``pyllama cluster``: the server in several processes, on one machine or many, with Ray Serve.

    pyllama cluster -m x.gguf --replicas 2         # on this machine
    pyllama cluster -m x.gguf --replicas 8 --address auto --host 0.0.0.0
    pyllama cluster --plan bench.jsonl --rate 2    # replicas for a load

Needs ``pip install pyggml[cluster]``. docs/scaling.md says when to use it.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import Flags, row, rows
from pyllama.parameters.clustering import ClusterParams
from pyllama.parameters.serving import ServingParams

from ..options.options import ContextOptions, context_options, host_names, keys_of, model_options
from ..options.prompt import escape_option
from ..options.sampling import sampling_options, sampling_params
from ..output import note, write
from ..parameters import from_options, parameter_options
from ..replicas import MISSING, ProcessOptions, n_threads, replica_options
from ..tool import Program, version_option

if TYPE_CHECKING:
    from pyllama.cluster.options import ClusterOptions


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReplicasOptions(ClusterParams, ProcessOptions):
    """How many replicas, of which models, and where the server listens."""

    # fmt: off
    also: tuple[str, ...] = row((), "A further model, which requests name in model. Repeatable.",
        Flags("--also", metavar="NAME=FILE", repeated=True))
    host: str = row("127.0.0.1", "Address to listen at, on each machine.", Flags("--host"))
    port: int = row(8080, "Port to listen at.", Flags("--port", low=1, high=65535))
    alias: str = row("", "Name of the model.  [default: its file name]", Flags("-a", "--alias"))
    # fmt: on


@dataclass(frozen=True, eq=False, repr=False)
class PlannedLoad:
    """The load that a plan is for."""

    # fmt: off
    plan: Path | None = row(None,
        "Print how many replicas a load needs, from the output of pyllama-batched-bench "
        "--output-format jsonl, and exit.", Flags("--plan", metavar="FILE"))
    rate: float = row(1.0, "Requests per second.", Flags("--rate", low=0, high=1e9))
    prompt_tokens: int = row(512, "Tokens of a prompt that are not in a cache.",
        Flags("--prompt-tokens", low=1))
    answer_tokens: int = row(256, "Tokens of an answer.", Flags("--answer-tokens", low=1))
    utilisation: float = row(0.7, "Share of the time that a replica may be busy.",
        Flags("--utilisation", low=0.01, high=0.99))
    # fmt: on


_SERVING_ROWS = ("api_keys", "allowed_hosts", "n_predict")


@click.command("cluster", cls=Program)
@parameter_options(ReplicasOptions)
@parameter_options(ServingParams, only=_SERVING_ROWS)
@parameter_options(PlannedLoad)
@model_options
@escape_option()
@context_options(adapters=False)
@sampling_options
@version_option()
def command(**options: Any) -> None:
    """Serve a model from several processes or machines, with Ray Serve."""
    load = from_options(PlannedLoad, options)
    if load.plan is not None:
        _plan(load.plan, load)
        return
    try:
        from pyllama.cluster.session import RunningServer, ray_session
    except ModuleNotFoundError as error:
        raise click.UsageError(f"{MISSING} ({error.name} is missing)") from None

    own = from_options(ReplicasOptions, options)
    chosen = _cluster_options(options, own)
    from pyllama.runtime.model import Model

    for path in chosen.replica.models.values():  # an error here is one line, not one per replica
        Model.load(path, vocab_only=True)
    n_cpus = max(os.cpu_count() or 1, round((own.max_replicas or own.n_replicas) * chosen.n_cpus))
    with ray_session(own.address, n_cpus):
        server = RunningServer(chosen, own.host, own.port)
        try:
            server.start()
            ended = _signals()
            note(f"{chosen.replica.default}, {own.n_replicas} replicas of {own.n_parallel} slots: "
                 f"http://{own.host}:{own.port}")  # fmt: skip
            ended.wait()
            note("ending: running requests may finish; another signal ends at once")
        finally:
            server.drain()


def _cluster_options(options: dict[str, Any], own: ReplicasOptions) -> ClusterOptions:
    from pyllama.cluster.options import ClusterOptions
    from pyllama.server.request.options import ServerOptions

    server = ServerOptions(
        sampling=sampling_params(options),
        n_predict=options["n_predict"],
        api_keys=tuple(k for text in options["api_keys"] for k in keys_of("--api-key", text)),
        allowed_hosts=host_names(options["allowed_hosts"], (own.host,)),
    )
    threads = n_threads(ContextOptions.from_click(options), own.max_replicas or own.n_replicas)
    replica = replica_options(options, own.n_parallel, threads, server)
    models = {own.alias or name: path for name, path in replica.models.items()}
    for text in own.also:
        name, equals, path = text.partition("=")
        if not equals or not name or name in models:
            raise click.UsageError(f"--also: {text!r} is not NAME=FILE with a new name")
        models[name] = str(Path(path).resolve())
    fields = {name: getattr(own, name) for name in rows(ClusterParams)}
    return ClusterOptions(replace(replica, models=models), n_cpus=float(threads), **fields)


def _signals() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set; the second signal ends the process."""
    ended = threading.Event()

    def handler(number: int, frame: object) -> None:
        if ended.is_set():
            raise SystemExit(128 + number)
        ended.set()

    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, handler)
    return ended


def _plan(path: Path, own: PlannedLoad) -> None:
    from pyllama.cluster.capacity import Load, plan_table, read_steps

    load = Load(own.rate, own.prompt_tokens, own.answer_tokens)
    write(plan_table(read_steps(path), load, own.utilisation))
