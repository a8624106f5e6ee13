"""The ops as a page: what there is, with what types and where it runs, and what ggml has besides.

    python -m tests.pyggml.ops.op_table > docs/ops.md
    missing()                                      # ops of ggml's list that we lack

All of it follows from the declarations: the types are those of the cases, and a backend is named
if it takes them. Reading it builds nodes without memory and computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyggml.backend.interface import Backend
from pyggml.backend.registry import init_backend
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.ops.movement.view import PERMUTE
from pyggml.ops.op import OPS, Arg, Case, Op
from pyggml.tensor import Tensor

from .ggml_ops import GGML_OPS, REASONS

BACKENDS = ("reference", "cpu")


def missing() -> dict[str, str]:
    """The ops of ggml's list that we lack, with the reason."""
    return {name: REASONS[name] for name in GGML_OPS if name not in OPS}


def case_node(op: Op, case: Case) -> Tensor:
    """A node of a case, without memory."""
    ctx = Context(no_alloc=True)

    def source(a: Arg | None) -> Tensor | None:
        if a is None:
            return None
        tensor = ctx.new_tensor(a.type, a.ne)
        return tensor if a.permute is None else PERMUTE.build(ctx, tensor, axes=a.permute)

    return op.build(ctx, *(source(a) for a in case.args), **case.params)


def _value(value: Any) -> str:
    return value.name if isinstance(value, GGMLType) else str(value)


def _types(types: Iterable[GGMLType]) -> str:
    return " ".join(t.name for t in sorted(set(types)))


def _sources(op: Op, nodes: list[Tensor]) -> str:
    if op.name == "MAP_CUSTOM":
        return "up to 10: any type"
    parts = []
    for i, name in enumerate(op.src):
        types = _types(s.type for node in nodes if (s := node.src[i]) is not None)
        parts.append(f"`{name}`: {types}" if types else f"`{name}`")
    return "; ".join(parts)


def _tolerance(op: Op, nodes: list[Tensor]) -> str:
    values = sorted({op.tolerance(node) for node in nodes})
    return " to ".join("equal" if v == 0 else f"{v:g}" for v in values[:: max(1, len(values) - 1)])


def _support(op: Op, nodes: list[Tensor], backends: list[Backend]) -> str:
    if op.is_view:
        return "all: nothing runs"
    parts = []
    for backend in backends:
        n = sum(backend.supports_op(node) for node in nodes)
        if n:
            parts.append(backend.name + (f" ({n} of {len(nodes)} cases)" if n < len(nodes) else ""))
    return ", ".join(parts)


def _row(op: Op, backends: list[Backend]) -> str:
    nodes = [case_node(op, case) for case in op.cases if not case.perf]
    cells = [
        f"`{op.name}`",
        op.doc,
        _sources(op, nodes),
        ", ".join(f"`{k}={_value(v)}`" for k, v in op.params.items()),
        _types(node.type for node in nodes),
        _support(op, nodes, backends),
        "" if op.is_view else _tolerance(op, nodes),
        "yes" if op.inplace_ok else "",
        ", ".join(f"`{name}`" for name in op.gradients),
    ]
    return "| " + " | ".join(cells) + " |"


def markdown(backends: list[Backend]) -> str:
    """The tables of the page."""
    head = ["op", "meaning", "sources", "parameters", "result", "backends", "tolerance", "in place"]
    head.append("gradients")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines += [_row(OPS[name], backends) for name in sorted(OPS)]
    lines += ["", "## Ops of ggml that are missing", "", "| ops | why |", "|---|---|"]
    reasons = dict.fromkeys(missing().values())
    for why in reasons:
        names = " ".join(f"`{name}`" for name, reason in missing().items() if reason == why)
        lines.append(f"| {names} | {why} |")
    ours = [f"`{name}`" for name in sorted(OPS) if name not in GGML_OPS]
    lines += ["", f"Ours alone: {', '.join(ours)}."]
    return "\n".join(lines) + "\n"


_HEAD = """\
# Ops

{summary}

Made by `python -m tests.pyggml.ops.op_table > docs/ops.md`.
[Adding an op](add-an-op.md) is one declaration.

| column | meaning |
|---|---|
| sources | with `?`: optional; types: those that the cases of the generic test have |
| backends | "n of m cases": the backend takes those; the scheduler runs the rest on another |
| tolerance | largest sum of squared errors divided by the sum of squares, against the reference |
| in place | the allocator may give the result the memory of the first source |
| gradients | of which sources, for [training](training.md) |

## All ops
"""


def summary(backends: list[Backend]) -> str:
    """What there is, where it runs, and how much is missing."""
    ours = sum(name not in GGML_OPS for name in OPS)
    computed = [op for op in OPS.values() if not op.is_view]
    full = {
        backend.name: sum(
            all(backend.supports_op(case_node(op, c)) for c in op.cases if not c.perf)
            for op in computed
        )
        for backend in backends
    }
    views = len(OPS) - len(computed)
    return (
        f"There are {len(OPS)} ops: {len(OPS) - ours} of ggml's {len(GGML_OPS)} and {ours} of our "
        f"own. {views} are views, which compute nothing. Of the other {len(computed)}, "
        + " and ".join(f"{n} run on the {name} backend" for name, n in full.items())
        + f" with all types that are tested. The {len(missing())} ops of ggml that are missing are "
        "[at the end](#ops-of-ggml-that-are-missing), with the reasons."
    )


def page() -> str:
    """The whole page."""
    backends = [init_backend(name, n_threads=1) for name in BACKENDS]
    text = _HEAD.format(summary=summary(backends)) + "\n" + markdown(backends)
    for backend in backends:
        backend.close()
    return text


if __name__ == "__main__":
    print(page(), end="")
