"""Ray of several nodes on this machine, on loopback.

with local_ray(n_nodes=2, n_cpus=2) as cluster: ...  # then ray_session(cluster.address)
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

on_ray = [
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'pyggml[cluster]'"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.xdist_group("ray"),
]
"""Marks of tests on Ray; it is not imported before ``ENVIRONMENT`` is set."""

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # every process on 127.0.0.1
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "20000",
}
_BYTES = 80 << 20


def free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(n)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def node_arguments(n_cpus: int) -> dict[str, Any]:
    """Ray waits only 15 s for ports that its agents choose, so they are given."""
    ports = free_ports(4)
    return {
        "num_cpus": n_cpus,
        "object_store_memory": _BYTES,
        "node_ip_address": "127.0.0.1",
        "include_dashboard": False,
        "metrics_agent_port": ports[0],
        "metrics_export_port": ports[1],
        "runtime_env_agent_port": ports[2],
        "dashboard_agent_listen_port": ports[3],
    }


@contextmanager
def local_ray(n_nodes: int = 1, n_cpus: int = 4) -> Iterator[Any]:
    """Start Ray's nodes; yields ``ray.cluster_utils.Cluster``."""
    os.environ.update(ENVIRONMENT)
    import ray

    cluster = _started(n_cpus)
    try:
        for _ in range(n_nodes - 1):
            cluster.add_node(**node_arguments(n_cpus))
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def _started(n_cpus: int) -> Any:
    """A cluster of a head alone; on a busy machine its processes may take too long to start."""
    from ray.cluster_utils import Cluster

    for left in (2, 1, 0):
        cluster = Cluster()
        try:
            cluster.add_node(**node_arguments(n_cpus))
            return cluster
        except Exception:
            cluster.shutdown()
            if not left:
                raise
    raise AssertionError


def until(is_so: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)
