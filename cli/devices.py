"""The devices of this machine, as ``--list-devices`` and ``pyllama info`` list them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyggml.backend.interface import Backend


def device_list() -> str:
    """Return the list of usable devices, one per line, with the names that ``--device`` takes."""
    from pyggml.backend.registry import missing

    lines = ["Available devices:\n"]
    for name, backend in backends():
        if isinstance(backend, str):
            lines.append(f"  {name}: not usable here: {backend}\n")
            continue
        sizes, device, memory = backend.memory(), backend.device, ""
        if sizes is not None:
            memory = f", {sizes[1] / 2**20:.0f} MiB, {sizes[0] / 2**20:.0f} MiB free"
        lines.append(f"  {name}: {device.description} ({device.kind}{memory})\n")
    lines += [f"  no {family} device: {why}\n" for family, why in missing().items()]
    return "".join(lines)


def backends() -> Iterator[tuple[str, Backend | str]]:
    """Yield the name and backend of each device; an error message if it cannot be started."""
    from pyggml.backend.registry import available, init_backend
    from pyggml.errors import PyggmlError

    for name in available():
        try:
            backend = init_backend(name)
        except PyggmlError as error:
            yield name, str(error)
            continue
        yield name, backend
        backend.close()
