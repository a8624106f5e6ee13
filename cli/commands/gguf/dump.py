"""``pyllama-gguf dump``: print metadata and tensors as text, Markdown or JSON.

pyllama-gguf dump x.gguf
pyllama-gguf dump --json --no-tensors x.gguf
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from ...output import visible, write, write_line
from ...tool import Program, version_option
from .files import gguf_argument

_FEW, _SHORT = 6, 60  # displayed elements of an array, displayed characters of a string
_LONG = 200  # displayed characters of a key


@click.command("dump", cls=Program)
@gguf_argument()
@click.option("--no-tensors", is_flag=True, help="Do not list the tensors.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--json-array", "--arrays", "arrays", is_flag=True, help="Print arrays in full.")
@click.option("--data-offset", is_flag=True, help="Print only the offset of the tensor data.")
@click.option("--data-alignment", is_flag=True, help="Print only the alignment of the data.")
@version_option()
def command(
    model: Path,
    no_tensors: bool,
    as_json: bool,
    markdown: bool,
    arrays: bool,
    data_offset: bool,
    data_alignment: bool,
) -> None:
    """Print metadata and tensors of a GGUF file, or of a split model given its first file."""
    from pyggml.gguf import GGUFFile
    from pyllama.gguf_tools.describe import describe

    if as_json and markdown:
        raise click.UsageError("choose --json or --markdown, not both")
    with GGUFFile(model) as file:
        found = describe(file, arrays=arrays or not as_json, tensors=not no_tensors)
        if data_offset or data_alignment:
            write_line(f"{file.data_offset if data_offset else file.alignment}")
        elif as_json:
            write(json.dumps(found, indent=1) + "\n")
        else:
            lines = _markdown if markdown else _text
            for line in lines(found, arrays):
                write_line(line)


def _text(found: dict[str, Any], arrays: bool) -> Iterator[str]:
    yield _headline(found)
    if "sparse" in found:
        yield f"* {_sparse(found['sparse'])}"
    if "adapter" in found:
        yield f"* {_adapter(found['adapter'])}"
    yield f"* {len(found['metadata'])} metadata entries"
    for key, entry in found["metadata"].items():
        kind, n, value = _shown(entry, arrays)
        shown = visible(key, limit=_LONG)
        yield f"  {entry['index'] + 1:5}: {kind:9} | {n:8} | {shown} = {value}"
    if "tensors" in found:
        yield f"* {len(found['tensors'])} tensors: type | ne | offset | bytes | name"
        for name, t in found["tensors"].items():
            ne = ", ".join(f"{n:6}" for n in t["shape"])
            part = f" | part {t['part'] + 1}" if "part" in t else ""
            yield (
                f"  {t['index'] + 1:5}: {t['type']:7} | {ne:22} | {t['offset']:12} | "
                f"{t['bytes']:11} | {name}{part}"
            )
    yield "* totals by type: tensors | parameters | bytes"
    for name, total in _totals(found).items():
        yield (
            f"  {name:8} {total['tensors']:6} | {total['parameters']:14} | {total['bytes']:14} "
            f"({total['bytes'] / 2**20:.2f} MiB)"
        )


def _markdown(found: dict[str, Any], arrays: bool) -> Iterator[str]:
    yield from (f"# {Path(found['filename']).name}", "", _headline(found)[2:], "")
    if "sparse" in found:
        yield from (_sparse(found["sparse"]), "")
    if "adapter" in found:
        yield from (_adapter(found["adapter"]), "")
    yield from ("## Metadata", "")
    rows = []
    for key, entry in found["metadata"].items():
        kind, n, value = _shown(entry, arrays)
        shown = visible(key, limit=_LONG)
        rows.append((str(entry["index"] + 1), kind, str(n), f"`{shown}`", value))
    yield from _table(("", "type", "count", "key", "value"), rows)
    if "tensors" in found:
        yield from ("", "## Tensors", "")
        heads = ("", "name", "type", "ne", "offset", "bytes", "part")
        tensors = []
        for name, t in found["tensors"].items():
            where = t["offset"], t["bytes"], t.get("part", 0) + 1
            row = t["index"] + 1, f"`{name}`", t["type"], " × ".join(map(str, t["shape"])), *where
            tensors.append(tuple(map(str, row)))
        yield from _table(heads, tensors)
    yield from ("", "## Totals", "")
    totals = [(name, *map(str, total.values())) for name, total in _totals(found).items()]
    yield from _table(("type", "tensors", "parameters", "bytes"), totals)


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _headline(found: dict[str, Any]) -> str:
    parts = f" in {len(found['parts'])} parts" if len(found["parts"]) > 1 else ""
    return (
        f"* {found['filename']}: {found['magic']} version {found['version']}, little endian"
        f"{parts}, alignment {found['alignment']}, data from byte {found['data_offset']}"
    )


def _sparse(found: dict[str, Any]) -> str:
    layers: dict[int, list[int]] = {}  # by rank
    for layer, rank in found["predictor_ranks"].items():
        layers.setdefault(rank, []).append(layer)
    predictors = (f"{rank} (layers {_spans(layers[rank])})" for rank in sorted(layers))
    threshold = found["threshold"]
    return (
        f"sparse: threshold {'none' if threshold is None else f'{threshold:g}'}; "
        f"ffn_down_t in layers {_spans(found['down_transposed']) or 'none'}; "
        f"predictor ranks {', '.join(predictors) or 'none'}"
    )


def _adapter(found: dict[str, Any]) -> str:
    what = f"{found['kind']} of {visible(str(found['architecture']), limit=_LONG)} models"
    if "layers" in found:
        return f"{what}: directions of layers {_spans(found['layers']) or 'none'}"
    of_rank: dict[int, list[str]] = {}
    for name, rank in found["ranks"].items():
        of_rank.setdefault(rank, []).append(name)
    ranks = (
        f"rank {rank} ({', '.join(names) if len(names) <= _FEW else f'{len(names)} matrices'})"
        for rank, names in sorted(of_rank.items())
    )
    alpha, tokens = found["alpha"], found["invocation_tokens"]
    invoked = f"; aLoRA, invoked by the tokens {', '.join(map(str, tokens))}" if tokens else ""
    shown = "none" if alpha is None else f"{alpha:g}"
    return f"{what}: alpha {shown}; {visible(', '.join(ranks) or 'no matrices')}{invoked}"


def _spans(layers: Sequence[int]) -> str:
    """Return increasing numbers in the form "0-3, 7"."""
    spans: list[list[int]] = []
    for layer in layers:
        if spans and layer == spans[-1][1] + 1:
            spans[-1][1] = layer
        else:
            spans.append([layer, layer])
    return ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in spans)


def _totals(found: dict[str, Any]) -> dict[str, dict[str, int]]:
    types: dict[str, dict[str, int]] = found["types"]
    names = ("tensors", "parameters", "bytes")
    return {**types, "all": {n: sum(total[n] for total in types.values()) for n in names}}


def _shown(entry: dict[str, Any], arrays: bool) -> tuple[str, int, str]:
    """Return type, number of values, and the value on one line, shortened unless ``arrays``."""
    value = entry["value"]
    if "array_types" in entry:
        few = value if arrays else value[:_FEW]
        text = ", ".join(_one(item, arrays) for item in few)
        return (
            f"[{entry['array_types'][0]}]",
            entry["length"],
            (f"[{text}]" if len(few) == entry["length"] else f"[{text}, ...]"),
        )
    return entry["type"], 1, _one(value, arrays)


def _one(value: Any, whole: bool) -> str:
    if isinstance(value, str) and len(value) > _SHORT and not whole:
        value = value[: _SHORT - 3] + "..."
    return repr(value)
