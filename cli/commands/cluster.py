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

from ..help_pages import stack
from ..options.options import ContextOptions, Group, context_options, keys_of, model_options
from ..options.parameters import INT32_MAX, Number
from ..options.prompt import escape_option
from ..options.sampling import sampling_options, sampling_params
from ..output import note, write
from ..replicas import MISSING, address_option, n_threads, parallel_option, replica_options
from ..tool import Program, version_option

if TYPE_CHECKING:
    from pyllama.cluster.options import ClusterOptions
    from pyllama.server.request.options import ServerOptions


@dataclass(frozen=True)
class ReplicasOptions(Group):
    """How many replicas, and who gets a request."""

    replicas: int
    max_replicas: int | None
    target_requests: float | None
    max_requests: int | None
    max_queued: int
    route: str
    prefix_chars: int
    also: tuple[str, ...]
    models_per_replica: int
    ingress: int
    drain_timeout: int


@dataclass(frozen=True)
class ApiOptions(Group):
    """Where the server listens, whom it serves, and with what defaults."""

    host: str
    port: int
    api_key: tuple[str, ...]
    allowed_hosts: str | None
    alias: str
    predict: int

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in ("127.0.0.1", "localhost", "::1")

    def server(self, options: dict[str, Any]) -> ServerOptions:
        """Return the options of the server in each replica."""
        from pyllama.server.request.options import ServerOptions

        names: tuple[str, ...] | None = () if self.is_local else None
        if self.allowed_hosts is not None:
            given = tuple(filter(None, (n.strip() for n in self.allowed_hosts.split(","))))
            names = None if "*" in given else given
        return ServerOptions(
            sampling=sampling_params(options),
            n_predict=self.predict,
            api_keys=tuple(key for text in self.api_key for key in keys_of("--api-key", text)),
            allowed_hosts=names,
        )


cluster_options = stack(
    click.option("--replicas", type=Number(1, 10_000), default=1, help="Number of replicas; with "
                 "--max-replicas the least."),
    click.option("--max-replicas", type=Number(1, 10_000), help="Most replicas: Ray adds and "
                 "removes them by the length of their queues.  [default: a fixed number]"),
    click.option("--target-requests", type=Number(0.1, 1e6, kind=float), help="Open requests per "
                 "replica that Ray aims at.  [default: the number of slots]"),
    click.option("--max-requests", type=Number(1, INT32_MAX), help="Open requests of a replica, "
                 "running and waiting, before others are tried.  [default: twice its slots]"),
    click.option("--max-queued", type=Number(-1, INT32_MAX), default=512, help="Requests that may "
                 "wait for a replica; more are refused with 503. -1: no limit."),
    click.option("--route", type=click.Choice(["prefix", "load"]), default="prefix",
                 help="prefix: prompts that begin alike go to the same replica. load: the less "
                 "busy one of two."),
    click.option("--prefix-chars", type=Number(1, INT32_MAX), default=512,
                 help="Characters of a prompt that choose the replica."),
    click.option("--also", multiple=True, metavar="NAME=FILE", help="A further model, which "
                 "requests name in model. Repeatable."),
    click.option("--models-per-replica", type=Number(1, 1000), default=1,
                 help="Models that a replica holds at the same time."),
    click.option("--ingress", type=Number(1, 1000), default=1, help="Number of processes that "
                 "read requests and forward them."),
    click.option("--drain-timeout", type=Number(1, 1 << 20), default=60,
                 help="Seconds that running requests get after SIGTERM or Ctrl-C."),
    address_option,
    click.option("--host", default="127.0.0.1", help="Address to listen at, on each machine."),
    click.option("--port", type=Number(1, 65535), default=8080, help="Port to listen at."),
    click.option("--api-key", multiple=True, help="Key that requests must have. Repeatable."),
    click.option("--allowed-hosts", metavar="NAME,...", help="Names that the Host header may have "
                 "besides addresses; '*' for any.  [default: none on loopback, else any]"),
    click.option("-a", "--alias", default="", help="Name of the model.  [default: its file name]"),
    click.option("-n", "--predict", "--n-predict", type=Number(-1, INT32_MAX), default=-1,
                 help="Default of the maximum tokens of a text. -1: until the context is full."),
)  # fmt: skip

plan_options = stack(
    click.option("--plan", type=click.Path(path_type=Path), metavar="FILE", help="Print how many "
                 "replicas a load needs, from the output of pyllama-batched-bench "
                 "--output-format jsonl, and exit."),
    click.option("--rate", type=Number(0, 1e9, kind=float), default=1.0,
                 help="Requests per second."),
    click.option("--prompt-tokens", type=Number(1, INT32_MAX), default=512,
                 help="Tokens of a prompt that are not in a cache."),
    click.option("--answer-tokens", type=Number(1, INT32_MAX), default=256,
                 help="Tokens of an answer."),
    click.option("--utilisation", type=Number(0.01, 0.99, kind=float), default=0.7,
                 help="Share of the time that a replica may be busy."),
)  # fmt: skip


@click.command("cluster", cls=Program)
@parallel_option
@cluster_options
@plan_options
@model_options
@escape_option()
@context_options()
@sampling_options
@version_option()
def command(n_parallel: int, address: str | None, **options: Any) -> None:
    """Serve a model from several processes or machines, with Ray Serve."""
    if options["plan"] is not None:
        _plan(options)
        return
    api, many = ApiOptions.from_click(options), ReplicasOptions.from_click(options)
    try:
        from pyllama.cluster.session import RunningServer, ray_session
    except ModuleNotFoundError as error:
        raise click.UsageError(f"{MISSING} ({error.name} is missing)") from None

    chosen = _cluster_options(options, n_parallel, api, many)
    _check_models(chosen)
    n_most = many.max_replicas or many.replicas
    n_cpus = max(os.cpu_count() or 1, round(n_most * chosen.n_cpus))
    with ray_session(address, n_cpus):
        server = RunningServer(chosen, api.host, api.port)
        try:
            server.start()
            ended = _signals()
            note(f"{chosen.replica.default}, {many.replicas} replicas of {n_parallel} slots: "
                 f"http://{api.host}:{api.port}")  # fmt: skip
            ended.wait()
            note("ending: running requests may finish; another signal ends at once")
        finally:
            server.drain()


def _cluster_options(
    options: dict[str, Any], n_parallel: int, api: ApiOptions, many: ReplicasOptions
) -> ClusterOptions:
    from pyllama.cluster.options import ClusterOptions

    n_most = many.max_replicas or many.replicas
    threads = n_threads(ContextOptions.from_click(options), n_most)
    replica = replica_options(options, n_parallel, threads, api.server(options))
    models = {api.alias or name: path for name, path in replica.models.items()}
    for text in many.also:
        name, equals, path = text.partition("=")
        if not equals or not name or name in models:
            raise click.UsageError(f"--also: {text!r} is not NAME=FILE with a new name")
        models[name] = str(Path(path).resolve())
    return ClusterOptions(
        replace(replica, models=models),
        n_replicas=many.replicas,
        max_replicas=many.max_replicas,
        target_requests=many.target_requests,
        max_requests=many.max_requests,
        max_queued=many.max_queued,
        n_cpus=float(threads),
        route=many.route,
        prefix_chars=many.prefix_chars,
        models_per_replica=many.models_per_replica,
        n_ingress=many.ingress,
        drain_s=float(many.drain_timeout),
    )


def _check_models(chosen: ClusterOptions) -> None:
    """Read the files without their weights: an error here is one line, and not one per replica."""
    from pyllama.runtime.model import Model

    for path in chosen.replica.models.values():
        Model.load(path, vocab_only=True)


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


def _plan(options: dict[str, Any]) -> None:
    from pyllama.cluster.capacity import Load, plan_table, read_steps

    load = Load(options["rate"], options["prompt_tokens"], options["answer_tokens"])
    write(plan_table(read_steps(options["plan"]), load, options["utilisation"]))
