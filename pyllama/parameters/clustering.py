"""Number of replicas of a server, and the choice of one for a request.

ClusterOptions(ReplicaOptions({"x": "x.gguf"}), n_replicas=2)

`pyllama.cluster.options.ClusterOptions` derives from this table, and the arguments of ``serve run``
have its rows' names without ``n_``.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import Flags, row

ROUTES = ("prefix", "load")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClusterParams:
    """Number of replicas, and which of them gets a request."""

    # fmt: off
    n_replicas: int = row(1, "Number of replicas; with --max-replicas the least.",
        Flags("--replicas", low=1, high=10_000))
    max_replicas: int | None = row(None,
        "Most replicas: Ray adds and removes them by the length of their queues.  [default: a "
        "fixed number]", Flags("--max-replicas", low=1, high=10_000))
    target_requests: float | None = row(None,
        "Open requests per replica that Ray aims at.  [default: the number of slots]",
        Flags("--target-requests", low=0.1, high=1e6))
    max_requests: int | None = row(None,
        "Open requests of a replica, running and waiting, before others are tried.  [default: "
        "twice its slots]", Flags("--max-requests", low=1))
    max_queued: int = row(512,
        "Requests that may wait for a replica; more are refused with 503. -1: no limit.",
        Flags("--max-queued", low=-1))
    route: str = row("prefix",
        "prefix: prompts that begin alike go to the same replica. load: the less busy one of two.",
        Flags("--route", choices=ROUTES))
    prefix_chars: int = row(512, "Characters of a prompt that choose the replica.",
        Flags("--prefix-chars", low=1))
    models_per_replica: int = row(1, "Models that a replica holds at the same time.",
        Flags("--models-per-replica", low=1, high=1000))
    n_ingress: int = row(1, "Number of processes that read requests and forward them.",
        Flags("--ingress", low=1, high=1000))
    upscale_s: float = row(10.0, "Seconds of too much load before Ray adds a replica.")
    downscale_s: float = row(300.0, "Seconds of too little load before Ray removes one.")
    drain_s: float = row(60, "Seconds that running requests get after SIGTERM or Ctrl-C.",
        Flags("--drain-timeout", low=1, high=1 << 20))
    # fmt: on
