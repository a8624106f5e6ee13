"""CPU affinity, priority and polling of threads: ``-C``, ``-Cr``, ``--cpu-strict``, ``--prio``.

    @machine_options                               # declares the flags
    apply(ctx)                                     # ``Program`` does it before the command runs

A priority that the system refuses (real-time without permission) gives a note, not an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from .help_pages import stack
from .output import note

_KEY = "pyllama_cli.machine"


def _mask(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Parse a hexadecimal mask; the lowest bit is CPU 0."""
    if value is None:
        return
    if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,128}", value) or not int(value, 16):
        raise click.BadParameter(f"{value!r} is not a nonzero hexadecimal mask, such as 0xf.")
    bits = int(value, 16)
    _set(ctx, "cpus", {i for i in range(bits.bit_length()) if bits >> i & 1})


def _range(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Parse ``first-last``, inclusive; one end may be omitted."""
    if value is None:
        return
    match = re.fullmatch(r"(\d{0,4})-(\d{0,4})", value)
    first, last = (match[1] or "0", match[2] or "511") if match else ("1", "0")
    if int(first) > int(last):
        raise click.BadParameter(f"{value!r} is not a range of CPUs, such as 0-3.")
    cpus = set(range(int(first), int(last) + 1))
    if match and not match[2]:
        from pyggml.host import usable_cpus

        cpus &= set(usable_cpus())
    _set(ctx, "cpus", cpus | ctx.meta.get(_KEY, {}).get("cpus", set()))


def _plain(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value is not None:
            _set(ctx, name, value)

    return callback


def _list(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from .devices import device_list

        click.echo(device_list(), nl=False)
        ctx.exit()


def _set(ctx: click.Context, name: str, value: Any) -> None:
    ctx.meta.setdefault(_KEY, {})[name] = value


machine_options = stack(
    click.option(
        "--list-devices", is_flag=True, is_eager=True, expose_value=False, callback=_list,
        help="List the available devices and exit.",
    ),
    click.option(
        "-C", "--cpu-mask", metavar="HEX", expose_value=False, callback=_mask,
        help="CPU affinity mask.  [default: all CPUs that this process may use]",
    ),
    click.option(
        "-Cr", "--cpu-range", metavar="LO-HI", expose_value=False, callback=_range,
        help="Range of CPUs for affinity, added to --cpu-mask.",
    ),
    click.option(
        "--cpu-strict", type=click.IntRange(0, 1), metavar="N", expose_value=False,
        callback=_plain("strict"), help="1: bind each thread to one of these CPUs.",
    ),
    click.option(
        "--prio", type=click.IntRange(-1, 3), metavar="N", expose_value=False,
        callback=_plain("prio"),
        help="Process priority: -1 low, 0 normal, 1 medium, 2 high, 3 realtime.",
    ),
    click.option(
        "--poll", type=click.IntRange(0, 100), metavar="N", expose_value=False,
        callback=_plain("poll"),
        help="Polling level of idle threads; 0: no polling.  [default: 50]",
    ),
    section="CPU",
)  # fmt: skip
"""Declares the flags; ``apply`` gets their values, not the command."""


def apply(ctx: click.Context) -> None:
    """Apply the given flags to this process; threads started later inherit them."""
    given: dict[str, Any] | None = ctx.meta.get(_KEY)
    if not given:
        return
    from pyggml import host

    if "cpus" in given:
        problem = host.set_cpus(given["cpus"])
        if problem:
            raise click.UsageError(f"-C, -Cr: {problem}")
    if given.get("prio"):
        problem = host.set_priority(given["prio"])
        if problem:
            note(f"--prio {given['prio']} is ignored: {problem}")
    pinned = tuple(host.usable_cpus()) if given.get("strict") else ()
    host.set_thread_options(host.ThreadOptions(given.get("poll", 50), pinned))
