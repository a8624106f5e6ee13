"""The table of backends by name: built-in ones, registered ones and those of other packages.

    init_backend("cpu", n_threads=2)
    register_backend("mine", MyBackend)
    available()                                    # ("reference", "cpu", "mine")
    missing()                                      # {"cuda": "no NVIDIA driver is installed"}

A family is a built-in package ``pyggml.backend.<family>`` for devices that are found at run time,
such as ``cuda0`` and ``cuda1``. Its module ``discovery`` is cheap to import and has ``devices()``,
``factory(name)`` and, if there are none, ``why_none()``. Another package adds a backend with an
entry point in the group ``pyggml.backends`` whose object is a ``BackendFactory``. Families and
entry points are looked up when a name is not known yet or ``available()`` asks; an entry point that
fails to load is a warning in the log and nothing else. Importing this module imports no backend.
"""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from ..errors import BackendError
from ..quants.arrays import ArrayCodec, plug_array_codec
from .interface import Backend, BackendFactory

GROUP = "pyggml.backends"
HOST_BACKENDS = ("reference", "cpu")
_FAMILIES = ("cuda",)
_log = logging.getLogger("pyggml")


def _builtin(name: str, attribute: str) -> BackendFactory:
    """A factory that imports its backend on first use."""

    def start(*, n_threads: int | None = None) -> Backend:
        module = import_module(f"pyggml.backend.{name}.backend")
        backend: Backend = getattr(module, attribute)(n_threads=n_threads)
        return backend

    return start


_factories: dict[str, BackendFactory] = {
    "reference": _builtin("reference", "ReferenceBackend"),
    "cpu": _builtin("cpu", "CpuBackend"),
}
_missing: dict[str, str] = {}
_discovered = False


def register_backend(name: str, factory: BackendFactory) -> None:
    """Add a backend.

    Raises:
        BackendError: the name is taken.
    """
    if name in _factories:
        raise BackendError(f"a backend named '{name}' is registered already: {_factories[name]}")
    _factories[name] = factory


def available() -> tuple[str, ...]:
    """The names that ``init_backend`` takes."""
    _discover()
    return tuple(_factories)


def missing() -> dict[str, str]:
    """The families that have no device here, and why."""
    _discover()
    return dict(_missing)


def init_backend(name: str, *, n_threads: int | None = None) -> Backend:
    """Start a backend.

    Args:
        n_threads: None is the backend's own choice.

    Raises:
        BackendError: there is no backend of that name.
    """
    if name not in _factories:
        _discover()
    if name not in _factories:
        raise BackendError(f"no backend named '{name}'; there are {', '.join(_factories)}")
    return _factories[name](n_threads=n_threads)


def _discover() -> None:
    """Register the devices of families and the entry points of other packages, once."""
    global _discovered
    if _discovered:
        return
    _discovered = True
    for family in _FAMILIES:
        try:
            found: Any = import_module(f"pyggml.backend.{family}.discovery")
            names = found.devices()
            for name in names:
                register_backend(name, found.factory(name))
            if not names:
                _missing[family] = found.why_none()
        except Exception as e:  # a driver may fail in any way
            _missing[family] = str(e) or type(e).__name__
    for entry in entry_points(group=GROUP):
        try:
            register_backend(entry.name, entry.load())
        except Exception as e:  # a plugin may fail in any way, and must not take us with it
            _log.warning("backend '%s' (%s) is left out: %s", entry.name, entry.value, e)


def _cpu_arrays() -> ArrayCodec:
    codec: ArrayCodec = import_module("pyggml.backend.cpu.codec.arrays").CpuArrays
    return codec


plug_array_codec(_cpu_arrays)
