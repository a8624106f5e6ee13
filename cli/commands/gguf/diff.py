"""``pyllama-gguf diff``: print the differences of two GGUF files.

pyllama-gguf diff x.gguf y.gguf
pyllama-gguf diff --json --no-values x-f16.gguf x-q8_0.gguf
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...output import FAILED, progress_bar, write, write_line
from ...tool import Program, version_option
from .files import gguf_argument

if TYPE_CHECKING:
    from pyggml.gguf import TensorInfo
    from pyllama.gguf_tools.diff import Diff, ValueChange


@click.command("diff", cls=Program)
@gguf_argument("a")
@gguf_argument("b")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--no-values", is_flag=True, help="Compare metadata, types and shapes only.")
@version_option()
def command(a: Path, b: Path, as_json: bool, no_values: bool) -> None:
    """Compare the GGUF files A and B. The exit code is 1 if they differ."""
    from pyggml.gguf import GGUFFile
    from pyllama.gguf_tools.diff import diff

    with GGUFFile(a) as first, GGUFFile(b) as second, progress_bar("comparing") as progress:
        found = diff(first, second, values=not no_values, progress=progress)
    if as_json:
        write(json.dumps(_plain(found), indent=1) + "\n")
    else:
        for line in _text(found, counted=not no_values):
            write_line(line)
    if not found.same:
        raise click.exceptions.Exit(FAILED)


def _text(found: Diff, counted: bool) -> Iterator[str]:
    if found.magic:
        yield "~ magic: {} -> {}".format(*found.magic)
    for key, value in found.metadata_removed.items():
        yield f"- {key} = {value!r:.80}"
    for key, value in found.metadata_added.items():
        yield f"+ {key} = {value!r:.80}"
    for key, (old, new) in found.metadata_changed.items():
        before, after = (f"{t} " if t else "" for t in found.metadata_types.get(key, ("", "")))
        yield f"~ {key}: {before}{old!r:.80} -> {after}{new!r:.80}"
    for info in found.tensors_removed:
        yield f"- tensor {info.name}: {_kind(info)}"
    for info in found.tensors_added:
        yield f"+ tensor {info.name}: {_kind(info)}"
    for name in dict.fromkeys([*found.tensors_changed, *found.values]):
        types = found.tensors_changed.get(name)
        change = f": {_kind(types[0])} -> {_kind(types[1])}" if types else ""
        yield f"~ tensor {name}{change}{_values(found.values.get(name))}"
    if found.same:
        yield "no difference"
    elif counted:
        yield f"{found.n_equal} tensors are equal"


def _kind(info: TensorInfo) -> str:
    return f"{info.type.name} {list(info.ne[: info.n_dims])}"


def _values(change: ValueChange | None) -> str:
    if change is None:
        return ""
    if change.n_changed < 0:
        return ": values differ (the type cannot be dequantized here)"
    return (
        f": {change.n_changed} values differ, by up to {change.max_abs:.6g}, NMSE {change.nmse:.6g}"
    )


def _plain(found: Diff) -> dict[str, Any]:
    """Return the differences as plain dictionaries and lists, for JSON."""

    def tensor(info: TensorInfo) -> dict[str, Any]:
        return {"name": info.name, "type": info.type.name, "shape": list(info.ne[: info.n_dims])}

    return {
        "same": found.same,
        "magic": found.magic,
        "metadata": {
            "added": {k: _value(v) for k, v in found.metadata_added.items()},
            "removed": {k: _value(v) for k, v in found.metadata_removed.items()},
            "changed": {k: [_value(v) for v in vs] for k, vs in found.metadata_changed.items()},
            "types": found.metadata_types,
        },
        "tensors": {
            "added": [tensor(info) for info in found.tensors_added],
            "removed": [tensor(info) for info in found.tensors_removed],
            "changed": [[tensor(i) for i in infos] for infos in found.tensors_changed.values()],
            "equal": found.n_equal,
        },
        "values": {
            name: {"n_changed": v.n_changed, "max_abs": _finite(v.max_abs), "nmse": _finite(v.nmse)}
            for name, v in found.values.items()
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no NaN


def _value(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
