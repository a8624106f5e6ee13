"""``pyllama info``: show versions, instruction set, threads, caches and devices.

pyllama info
pyllama info --list-devices
pyllama info --clear-cache
"""

from __future__ import annotations

import platform

import click

from ...machine import backends, device_list
from ...output import write
from ...tool import Program, version_option, version_text


@click.command("info", cls=Program)
@click.option("--list-devices", is_flag=True, help="Only list the available devices.")
@click.option("--clear-cache", is_flag=True, help="Delete compiled kernels and the demo model.")
@version_option()
def command(list_devices: bool, clear_cache: bool) -> None:
    """Show versions, instruction set, tuning, threads, caches and devices."""
    if clear_cache:
        _clear()
    elif list_devices:
        write(device_list())
    else:
        parts = (_cpu(), _reports(), _threads(), _caches(), device_list())
        write("\n".join([f"{version_text()}\n", *parts]))


def _cpu() -> str:
    from pyggml import env
    from pyggml.compiler import jit
    from pyggml.host import cache_sizes, cpu_identity
    from pyllama.bench.bench import cpu_info

    names, chosen = jit.host_isas(), jit.isa()
    why = "the best of this CPU"
    if env.ISA.get():
        why = f"set by {env.ISA.name}; this CPU has {', '.join(names)}"
    lacks = [name for name in jit.ISAS if name not in names]
    sizes = ", ".join(f"{name} {size // 1024} KiB" for name, size in cache_sizes().items())
    return (
        f"CPU              {cpu_info()} ({cpu_identity()}; {platform.machine()})\n"
        f"CPU caches       {sizes or 'not known'}\n"
        f"instruction set  {chosen}: {why}"
        + (f"; it lacks {', '.join(lacks)}" if lacks else "")
        + "\n"
    )


def _reports() -> str:
    """Return the backends' reports of their choices for this machine."""
    return "".join(backend.report() for _, backend in backends() if not isinstance(backend, str))


def _threads() -> str:
    from pyggml import env, host

    quota = host.cgroup_cpus()
    given = env.NUM_THREADS.get()
    free = host.available_memory()
    memory = "not known" if free is None else f"{free / 2**30:.1f} GiB"
    return (
        f"threads          {host.default_threads()} by default: the least of "
        f"{len(host.usable_cpus())} usable CPUs, {host.physical_cores()} physical cores, "
        f"{'no' if quota == float('inf') else f'{quota:g} CPUs as'} cgroup quota"
        + (f"; set by {env.NUM_THREADS.name}={given}" if given else "")
        + f"\nfree memory      {memory}\n"
    )


def _caches() -> str:
    from pyggml import env
    from pyllama.hub.demo import downloaded_path

    model, lines = downloaded_path(), []
    places = {"compiled kernels": (env.code_dir(), "*"), "models": (model.parent, model.name)}
    for what, (folder, pattern) in places.items():
        files = [f for f in folder.rglob(pattern) if f.is_file()] if folder.is_dir() else []
        size = sum(f.stat().st_size for f in files)
        lines.append(f"{what:16s} {size / 2**20:.1f} MiB in {len(files)} files, {folder}\n")
    return "".join(lines)


def _clear() -> None:
    """Delete what was written there, and no other files, even in these folders."""
    from pyggml import env
    from pyggml.compiler.code_cache import clear
    from pyllama.hub.demo import downloaded_path

    code, model = env.code_dir(), downloaded_path()
    if code.is_dir():
        clear(code)
        write(f"deleted the compiled kernels in {code}\n")
    else:
        write(f"no compiled kernels in {code}\n")
    if model.exists():
        model.unlink()
        write(f"deleted the demo model {model}\n")
    else:
        write(f"no demo model in {model.parent}\n")
