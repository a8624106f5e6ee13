"""Devices, and CPUs, priority and polling of threads: ``--list-devices``, ``-C``, ``--prio``.

    @machine_options                               # declares the flags
    apply(ctx)                                     # ``Program`` does it before the command runs

A priority that the system refuses (real-time without permission) gives a note, not an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from pyllama.parameters import Flags, row

from .help_pages import stack
from .output import note
from .parameters import kept_values, parameter_options

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


def _mask(value: str) -> set[int]:
    """Parse a hexadecimal mask; the lowest bit is CPU 0."""
    if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,128}", value) or not int(value, 16):
        raise click.BadParameter(f"{value!r} is not a nonzero hexadecimal mask, such as 0xf.")
    bits = int(value, 16)
    return {i for i in range(bits.bit_length()) if bits >> i & 1}


def _range(value: str) -> set[int]:
    """Parse ``first-last``, inclusive; one end may be omitted."""
    match = re.fullmatch(r"(\d{0,4})-(\d{0,4})", value)
    first, last = (match[1] or "0", match[2] or "511") if match else ("1", "0")
    if int(first) > int(last):
        raise click.BadParameter(f"{value!r} is not a range of CPUs, such as 0-3.")
    cpus = set(range(int(first), int(last) + 1))
    if match and not match[2]:
        from pyggml.host import usable_cpus

        cpus &= set(usable_cpus())
    return cpus


def _list(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(device_list(), nl=False)
        ctx.exit()


@dataclass(frozen=True, eq=False, repr=False)
class MachineOptions:
    """CPUs, priority and polling of the threads."""

    # fmt: off
    cpu_mask: Set[int] | None = row(None,
        "CPU affinity mask.  [default: all CPUs that this process may use]",
        Flags("-C", "--cpu-mask", metavar="HEX", type=_mask))
    cpu_range: Set[int] | None = row(None, "Range of CPUs for affinity, added to --cpu-mask.",
        Flags("-Cr", "--cpu-range", metavar="LO-HI", type=_range))
    cpu_strict: int = row(0, "1: bind each thread to one of these CPUs.",
        Flags("--cpu-strict", default=None, high=1))
    prio: int = row(0, "Process priority: -1 low, 0 normal, 1 medium, 2 high, 3 realtime.",
        Flags("--prio", default=None, low=-1, high=3))
    poll: int = row(50, "Polling level of idle threads, up to 100; 0: no polling.  [default: 50]",
        Flags("--poll", default=None, high=100))
    # fmt: on


machine_options = stack(
    click.option(
        "--list-devices", is_flag=True, is_eager=True, expose_value=False, callback=_list,
        help="List the available devices and exit.",
    ),
    parameter_options(MachineOptions, keep=True),
    section="CPU",
)  # fmt: skip
"""Declares the flags; ``apply`` gets their values, not the command."""


def apply(ctx: click.Context) -> None:
    """Apply the given flags to this process; threads started later inherit them."""
    given = kept_values(MachineOptions, ctx)
    if not given:
        return
    from pyggml import host

    options = MachineOptions(**given)
    if options.cpu_mask or options.cpu_range:
        problem = host.set_cpus({*(options.cpu_mask or ()), *(options.cpu_range or ())})
        if problem:
            raise click.UsageError(f"-C, -Cr: {problem}")
    if options.prio:
        problem = host.set_priority(options.prio)
        if problem:
            note(f"--prio {options.prio} is ignored: {problem}")
    pinned = tuple(host.usable_cpus()) if options.cpu_strict else ()
    host.set_thread_options(host.ThreadOptions(options.poll, pinned))
