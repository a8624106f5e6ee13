"""Compares our ops and test cases with ggml's test-backend-ops and lists missing ones.

    python -m benchmarks.backend_ops               # one line an op, and the reasons
    python -m benchmarks.backend_ops MUL_MAT CPY   # every shape of these that we refuse

``backend_ops.json`` holds the grids. Nodes are built without memory and nothing is computed, so
"taken" means that shapes, types and a CPU kernel are there; "tested" that a case has these shapes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pyggml.backend.interface import Backend
from pyggml.backend.registry import init_backend
from pyggml.dtype import GGMLType
from pyggml.errors import PyggmlError
from pyggml.ops.op import OPS, Arg, Case, Op, case
from tests.pyggml.ops.op_table import case_node

GRIDS = Path(__file__).with_suffix(".json")
SOURCE = re.compile(r"(\w+)\[([\w,]*)\](?::(\d{4}))?")


class Shape(NamedTuple):
    """One point of a grid: its text, and a case unless one of its types is none of ours."""

    text: str
    case: Case | None
    why: str = ""


def source(text: str, values: dict[str, Any]) -> Arg:
    """``T[n,5]:1023`` with the variables' values. Raises: KeyError, of a type that is not known."""
    match = SOURCE.fullmatch(text)
    assert match, text
    kind, sizes, axes = match.groups()
    ne = tuple(int(values.get(s, s)) for s in sizes.split(","))
    permute = (int(axes[0]), int(axes[1]), int(axes[2]), int(axes[3])) if axes else None
    return Arg(ne, GGMLType[values.get(kind, kind)], permute=permute)


def parameter(value: Any) -> Any:
    """A parameter from JSON: lists are tuples, names of types are types."""
    if isinstance(value, list):
        return tuple(value)
    return GGMLType[value] if value in GGMLType.__members__ else value


def shapes(entry: dict[str, Any]) -> Iterator[Shape]:
    """The points of one grid."""
    names = [k for k in entry if k not in ("src", "params")]
    params = {k: parameter(v) for k, v in entry.get("params", {}).items()}
    for point in itertools.product(*(entry[k] for k in names)):
        values = dict(zip(names, point, strict=True))
        try:
            made = case(*(source(s, values) for s in entry["src"]), **params)
        except KeyError as e:
            yield Shape(f"{entry['src']} {values}", None, f"no type {e}")
        else:
            yield Shape(made.id, made)


def refusal(op: Op, shape: Shape, backend: Backend) -> str:
    """Why the point cannot run on the backend; empty if it can."""
    if shape.case is None:
        return shape.why
    try:
        node = case_node(op, shape.case)
    except (PyggmlError, TypeError, ValueError) as e:
        return str(e)
    kinds = " x ".join(f"{s.type.name}" for s in node.src if s is not None)
    return "" if backend.supports_op(node) else f"no CPU kernel for {kinds} or these strides"


def signature(c: Case) -> tuple[Any, ...]:
    """Types and sizes of a case's sources."""
    return tuple((a.type, (*a.ne, 1, 1, 1)[:4], a.permute) for a in c.args if a is not None)


def shorter(why: str) -> str:
    """A reason without the tensors' sizes, so that reasons can be counted."""
    return re.sub(r"'' |\b\d+ |\(\d[\d, ]*\) ?| \(strides[^)]*\)\)", "", why).strip()


def report(op: Op, grid: list[dict[str, Any]], backend: Backend, verbose: bool) -> None:
    """Print what of a grid the op takes, and why it refuses the rest."""
    points = [shape for entry in grid for shape in shapes(entry)]
    reasons = [refusal(op, shape, backend) for shape in points]
    ours = {signature(c) for c in op.cases}
    tested = sum(p.case is not None and signature(p.case) in ours for p in points)
    taken = sum(not why for why in reasons)
    print(f"{op.name:20} {len(points):5} shapes {taken:5} taken {tested:4} tested as they are")
    if verbose:
        for shape, why in zip(points, reasons, strict=True):
            if why:
                print(f"    {shape.text}: {why}")
        return
    for why, n in Counter(shorter(why) for why in reasons if why).most_common():
        print(f"    {n:4} x {why}")


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("ops", nargs="*", metavar="OP")
    chosen = parser.parse_args().ops
    grids = json.loads(GRIDS.read_text(encoding="utf-8"))
    del grids["about"]
    backend = init_backend("cpu", n_threads=1)
    for name in sorted(set(grids) & set(OPS)):
        if not chosen or name in chosen:
            report(OPS[name], grids[name], backend, bool(chosen))
    backend.close()
    if not chosen:
        print("\nops of ggml's tests that we lack:", *sorted(set(grids) - set(OPS)))
        print("our ops without a grid:", *sorted(set(OPS) - set(grids)))


if __name__ == "__main__":
    main()
