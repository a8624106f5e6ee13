"""Ray in this process: started on loopback for one machine, or the one of a cluster.

    with ray_session(n_cpus=4): ...                # Ray of this machine, ended afterwards
    with ray_session("10.0.0.1:6379"): ...         # joins a cluster, which goes on afterwards

Ray's reports of its use are switched off (docs/env.md), and so is its dashboard.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyggml import env

from ..errors import ClusterError

if TYPE_CHECKING:
    from .options import ClusterOptions

_OBJECT_STORE_BYTES = 128 << 20  # prompts and texts are small
_REFUSE_S = 30
_TRIES = 3  # of starting Ray
APP, ENGINES = "pyllama", "pyllama-engines"
"""Names of the applications: the one with the address, and that of the replicas."""
MISSING = "this needs Ray: pip install 'pyggml[cluster]'"


@contextmanager
def ray_session(address: str | None = None, n_cpus: int | None = None) -> Iterator[None]:
    """Connect to Ray (a context manager).

    Args:
        address: of a cluster's head, or ``auto`` for the one of this machine; None starts Ray on
            127.0.0.1, for this process alone.
        n_cpus: CPUs that Ray may reserve, if it is started; None for those of the machine.

    Raises:
        ClusterError: Ray is not installed, or there is no cluster at the address.
    """
    env.RAY_USAGE.make_default()
    if address is None:
        env.RAY_NETWORK.make_default()
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ClusterError(f"{MISSING} ({error.name} is missing)") from None
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        options |= {
            "address": "local",
            "num_cpus": n_cpus,
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "_node_ip_address": "127.0.0.1",
        }
    else:
        options["address"] = address
    _connect(options, tries=1 if address else _TRIES)
    try:
        yield
    finally:
        ray.shutdown()


def _connect(options: dict[str, Any], tries: int) -> None:
    """Call ``ray.init``; Ray gives its own processes 15 s to start, which a busy machine exceeds.

    Raises:
        ClusterError: it failed.
    """
    import ray

    for left in reversed(range(tries)):
        try:
            ray.init(**options)
            return
        except Exception as error:  # a bare Exception, if the processes do not start in time
            ray.shutdown()
            text = " ".join(str(error).split())[:300]
            if not left:
                raise ClusterError(
                    f"no connection to Ray at {options['address']}: {text}"
                ) from None


@dataclass
class RunningServer:
    """A server on Ray Serve that this process started.

    Args:
        options: of the cluster.
        host, port: where Ray's proxies listen.
    """

    options: ClusterOptions
    host: str = "127.0.0.1"
    port: int = 8080
    _ingress: Any = None
    _is_running: bool = False

    def start(self) -> None:
        """Start the replicas, wait until they have loaded the model, and open the port.

        Raises:
            ClusterError: they cannot be started.
        """
        from ray import serve
        from ray.serve.config import HTTPOptions, ProxyLocation

        from .app import engines, ingress

        logging.getLogger("ray.serve").setLevel(logging.WARNING)  # after its import sets it
        self._is_running = True
        is_local = self.host in ("127.0.0.1", "localhost", "::1")
        where = ProxyLocation.HeadOnly if is_local else ProxyLocation.EveryNode
        serve.start(proxy_location=where, http_options=HTTPOptions(host=self.host, port=self.port))
        try:
            replicas = serve.run(engines(self.options), name=ENGINES, route_prefix=None)
            self._ingress = serve.run(ingress(self.options, replicas), name=APP, route_prefix="/")
        except RuntimeError as error:
            text = " ".join(str(error).split())[:500]
            raise ClusterError(f"the replicas cannot be started: {text}") from None

    def drain(self) -> None:
        """Refuse new requests, wait for the others at most ``drain_s`` seconds, and end.

        The ingress ends before the replicas, so that requests which wait in it are still served.
        The second call does nothing.
        """
        if not self._is_running:
            return
        from ray import serve

        self._is_running = False
        if self._ingress is not None:
            self.refuse()
            serve.delete(APP)
        serve.delete(ENGINES)
        serve.shutdown()

    def refuse(self) -> None:
        """Refuse new requests from now on; those that run or wait go on."""
        self._ingress.broadcast("drain").results(timeout_s=_REFUSE_S)

    def statuses(self) -> list[dict[str, Any]]:
        """The `EngineReplica.status` of each replica."""
        from ray import serve

        handle = serve.get_deployment_handle("EngineReplica", ENGINES)
        found: list[dict[str, Any]] = handle.broadcast("status").results(timeout_s=30)
        return found
