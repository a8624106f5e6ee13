"""What a cluster is started with; plain values, which Ray copies to every process.

    options = ClusterOptions.from_arguments({"model": "x.gguf", "replicas": "2"})
    options.engine_config()["max_ongoing_requests"]  # arguments of ``serve.deployment``

Nothing here imports Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ClusterError
from ..parameters import documented, rows
from ..parameters.clustering import ROUTES, ClusterParams
from ..server.request.options import ServerOptions

_HEAD = "node:__internal_head__"  # Ray's resource of the head's machine
_HEALTH_PERIOD_S, _HEALTH_TIMEOUT_S = 5.0, 60.0  # a long prompt's step may take many seconds
_MAX_INGRESS_REQUESTS = 10_000  # of one process that forwards; the engines' queue is the limit


@dataclass(frozen=True)
class ReplicaOptions:
    """How a process loads its model.

    Attributes:
        models: GGUF files by their names in the API; the first is the default.
        server: options of the HTTP server.
        context: arguments of `Context`.
        loading: arguments of ``Model.load``.
        cache_bytes: memory for prompts that no slot holds any more; 0 for none.
    """

    models: Mapping[str, str]
    server: ServerOptions = field(default_factory=ServerOptions)
    context: Mapping[str, Any] = field(default_factory=dict)
    loading: Mapping[str, Any] = field(default_factory=dict)
    cache_bytes: int = 0

    @property
    def default(self) -> str:
        """Name of the default model."""
        return next(iter(self.models))

    @property
    def n_slots(self) -> int:
        """Texts that a replica generates at the same time."""
        return int(self.context.get("n_seq_max", 1))


@documented
@dataclass(frozen=True)
class ClusterOptions(ClusterParams):
    """Number of replicas, and which of them gets a request.

    Attributes:
        replica: of every replica.
        n_cpus: CPUs that Ray reserves for a replica, its number of threads.

    """

    replica: ReplicaOptions
    n_cpus: float = 1.0

    def __post_init__(self) -> None:
        if self.route not in ROUTES:
            raise ClusterError(f"route is {self.route!r}; choose one of {', '.join(ROUTES)}")
        if not self.replica.models:
            raise ClusterError("there is no model: give model=FILE.gguf")
        if self.n_replicas < 1 or self.n_ingress < 1 or self.models_per_replica < 1:
            raise ClusterError("replicas, ingress processes and models per replica are at least 1")
        if self.max_replicas is not None and self.max_replicas < self.n_replicas:
            raise ClusterError(
                f"max_replicas is {self.max_replicas}, less than the {self.n_replicas} replicas"
            )

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> ClusterOptions:
        """Options from the arguments of ``serve run`` or of a YAML file of Ray Serve.

        Args:
            arguments: ``model`` (a file, or a mapping of names to files), and the names of
                `ARGUMENTS`; values may be texts.

        Raises:
            ClusterError: an unknown name, or a value of another type.
        """
        given = dict(arguments)
        model = given.pop("model", None)
        if not model:
            raise ClusterError("there is no model: give model=FILE.gguf")
        models = model if isinstance(model, Mapping) else {Path(str(model)).name: model}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in ARGUMENTS:
                argument_names = ", ".join(("model", *ARGUMENTS))
                raise ClusterError(f"unknown argument {name!r}; known are {argument_names}")
            kind = ARGUMENTS[name]
            try:
                values[name] = kind(value)
            except (TypeError, ValueError):
                raise ClusterError(f"{name} is {value!r}, not a {kind.__name__}") from None
        threads, n_slots = values.pop("threads", 1), values.pop("parallel", 4)
        context = {
            "n_ctx": values.pop("ctx_size", 0),
            "n_seq_max": n_slots,
            "n_threads": threads,
            "unified": True,
        }
        names: tuple[str, ...] | None = ()
        if "allowed_hosts" in values:
            text = values.pop("allowed_hosts")
            names = None if text == "*" else tuple(filter(None, text.split(",")))
        keys = tuple(values.pop("api_key").split(",")) if "api_key" in values else ()
        if not all(keys):
            raise ClusterError("api_key has an empty key; leave it out for a server without keys")
        server = ServerOptions(allowed_hosts=names, api_keys=keys)
        replica = ReplicaOptions({str(k): str(v) for k, v in models.items()}, server, context)
        fields = {_FIELDS[name]: value for name, value in values.items()}
        return cls(replica, n_cpus=float(threads), **fields)

    def engine_config(self) -> dict[str, Any]:
        """Arguments of ``serve.deployment`` for the replicas, but for the router."""
        n_slots = self.replica.n_slots
        config: dict[str, Any] = {
            "max_ongoing_requests": self.max_requests or 2 * n_slots,
            "max_queued_requests": self.max_queued,
            "health_check_period_s": _HEALTH_PERIOD_S,
            "health_check_timeout_s": _HEALTH_TIMEOUT_S,
            "graceful_shutdown_timeout_s": self.drain_s,
            "graceful_shutdown_wait_loop_s": 0.2,
            "ray_actor_options": {"num_cpus": self.n_cpus},
        }
        if self.max_replicas is None:
            return {**config, "num_replicas": self.n_replicas}
        scaling = {
            "min_replicas": self.n_replicas,
            "max_replicas": self.max_replicas,
            "target_ongoing_requests": self.target_requests or n_slots,
            "upscale_delay_s": self.upscale_s,
            "downscale_delay_s": self.downscale_s,
        }
        return {**config, "autoscaling_config": scaling}

    def ingress_config(self) -> dict[str, Any]:
        """Arguments of ``serve.deployment`` for the processes that forward requests.

        A single one is on the head's machine, without which the cluster ends anyway.
        """
        where = {"resources": {_HEAD: 0.001}} if self.n_ingress == 1 else {}
        return {
            "num_replicas": self.n_ingress,
            "max_ongoing_requests": _MAX_INGRESS_REQUESTS,
            "graceful_shutdown_timeout_s": self.drain_s + 5.0,
            "graceful_shutdown_wait_loop_s": 0.2,
            "ray_actor_options": {"num_cpus": 0, **where},
        }

    @property
    def router(self) -> str | None:
        """The class of Ray's request router; None for Ray's default, power of two choices.

        Several models need the default: it prefers replicas that hold the model, which a hash of
        the prompt does not know.
        """
        if self.route == "load" or len(self.replica.models) > 1:
            return None
        return PREFIX_ROUTER


PREFIX_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
"""Ray's router that hashes ``session_id``; when a replica is full, it tries the next."""

_FIELDS = {name.removeprefix("n_"): name for name in rows(ClusterParams)}
_KINDS = {"int": int, "float": float, "str": str}
ARGUMENTS: dict[str, type] = {
    **{name: _KINDS[rows(ClusterParams)[f].kind.partition(" ")[0]] for name, f in _FIELDS.items()},
    "threads": int, "parallel": int, "ctx_size": int, "allowed_hosts": str, "api_key": str,
}  # fmt: skip
"""Arguments of ``build``, with their types."""
