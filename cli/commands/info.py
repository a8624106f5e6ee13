"""``pyllama info``: what runs here and why: versions, instruction set, threads, caches, devices.

pyllama info
pyllama info --list-devices
pyllama info --clear-cache
"""

from __future__ import annotations

import platform
from pathlib import Path

import click

from ..output import write
from ..tool import Tool, version_option, version_text


@click.command("info", cls=Tool)
@click.option("--list-devices", is_flag=True, help="Only list the devices that can compute.")
@click.option("--clear-cache", is_flag=True, help="Delete compiled kernels and the demo model.")
@version_option()
def command(list_devices: bool, clear_cache: bool) -> None:
    """Show versions, instruction set, threads, caches and devices of this machine."""
    if clear_cache:
        _clear()
    elif list_devices:
        write(devices())
    else:
        write(f"{version_text()}\n\n{_cpu()}\n{_threads()}\n{_caches()}\n{devices()}")


def _cpu() -> str:
    from pyggml import env, jit
    from pyggml.backend.cpu.osapi import cache_sizes
    from pyllama.bench import cpu_info

    names, chosen = jit.host_isas(), jit.isa()
    why = "the best that this CPU has"
    if env.ISA.get():
        why = f"{env.ISA.name} asks for it; this CPU has {', '.join(names)}"
    lacks = [name for name in jit.ISAS if name not in names]
    sizes = ", ".join(f"{name} {size // 1024} KiB" for name, size in cache_sizes().items())
    return (
        f"CPU              {cpu_info()} ({platform.machine()})\n"
        f"CPU caches       {sizes or 'not known'}\n"
        f"instruction set  {chosen}: {why}"
        + (f"; it lacks {', '.join(lacks)}" if lacks else "")
        + "\n"
    )


def _threads() -> str:
    from pyggml import env
    from pyggml.backend.cpu import osapi

    quota = osapi.cgroup_cpus()
    given = env.NUM_THREADS.get()
    free = osapi.available_memory()
    memory = "not known" if free is None else f"{free / 2**30:.1f} GiB"
    return (
        f"threads          {osapi.default_threads()} by default: the least of "
        f"{len(osapi.usable_cpus())} usable CPUs, {osapi.physical_cores()} physical cores, "
        f"{'no' if quota == float('inf') else f'{quota:g} CPUs as'} cgroup quota"
        + (f"; {env.NUM_THREADS.name}={given} wins" if given else "")
        + f"\nfree memory      {memory}\n"
    )


def _folders() -> dict[str, Path]:
    from pyggml import env

    return {"compiled kernels": env.code_dir(), "models": env.user_cache_dir("pyllama")}


def _caches() -> str:
    lines = []
    for what, folder in _folders().items():
        files = [f for f in folder.rglob("*") if f.is_file()] if folder.is_dir() else []
        size = sum(f.stat().st_size for f in files)
        lines.append(f"{what:16s} {size / 2**20:.1f} MiB in {len(files)} files, {folder}\n")
    return "".join(lines)


def devices() -> str:
    """The backends that can be used here, a line for each."""
    from pyggml.backend.registry import available, init_backend
    from pyggml.errors import PyggmlError

    lines = ["Available devices:\n"]
    for name in available():
        try:
            backend = init_backend(name)
        except PyggmlError as e:
            lines.append(f"  {name}: not usable here: {e}\n")
            continue
        device = backend.device
        memory = f", {device.memory / 2**20:.0f} MiB" if device.memory else ""
        lines.append(f"  {name}: {device.description} ({device.kind}{memory})\n")
        backend.close()
    return "".join(lines)


def _clear() -> None:
    import shutil

    for what, folder in _folders().items():
        if folder.is_dir():
            shutil.rmtree(folder)
            write(f"deleted the {what} in {folder}\n")
        else:
            write(f"no {what} in {folder}\n")
