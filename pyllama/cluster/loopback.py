"""Keeps a port of Ray Serve's replicas on this machine.

    keep_on_loopback()                             # in a replica's ``__init__``

Each replica of Ray Serve 2.60 opens a port for calls of other replicas at all addresses of the
machine, also if Ray runs on 127.0.0.1, and unpickles what arrives there. Where Ray's node has the
address 127.0.0.1, the port is opened there. The function that opens it is not public; without it,
nothing is changed, and a warning is logged.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

_MODULE, _FUNCTION = "ray.serve._private.replica", "add_port_to_grpc_server"
_EVERYWHERE, LOOPBACK = "[::]:", "127.0.0.1"
_log = logging.getLogger("pyllama.cluster")


def keep_on_loopback() -> None:
    """Open the port of this process's replica at 127.0.0.1, if that is the node's address."""
    import ray

    if ray.util.get_node_ip_address() != LOOPBACK:
        return
    module = importlib.import_module(_MODULE)
    opened = getattr(module, _FUNCTION, None)
    if opened is None:
        _log.warning("this version of Ray may listen at all addresses: check its ports")
    elif not hasattr(opened, "is_local"):

        def open_port(server: Any, address: str) -> Any:
            return opened(server, address.replace(_EVERYWHERE, f"{LOOPBACK}:"))

        open_port.is_local = True  # type: ignore[attr-defined]
        setattr(module, _FUNCTION, open_port)
