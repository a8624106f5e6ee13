"""Prints a node and its values in llama-eval-callback's format, and saves them to files.

    print(node_text(node, values), end="")
    with NodeFiles(Path("nodes")) as files:
        files.write(node, values)                  # nodes/0000_l_out-3.npy; nodes/index.json

The text has the first and last three values of each dimension, and the sum of all.
Source: llama.cpp, ``common_debug_cb_eval``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.files import replacing, write_whole
from pyggml.tensor import Tensor

_EDGE = 3  # values printed at each end of a dimension
_INDENT = "    "

Values = npt.NDArray[Any]


def node_text(node: Tensor, values: Values) -> str:
    """Return the description of a node, and its values unless its type is quantized.

    Args:
        values: four dimensions, ``ne`` reversed.
    """
    src = [_source(s) for s in node.src[:2] if s is not None] + ["", ""]
    type = node.type.name.lower()
    head = (
        f"common_debug_cb_eval: {node.name:>24} = ({type}) {_op(node):>10}({src[0]}, {src[1]}}}) "
        f"= {{{_sizes(node)}}}\n"
    )
    return head if node.type.is_quantized else head + "".join(map(_volume, values))


def _volume(volume: Values) -> str:
    total = float(volume.sum(dtype=np.float64))
    planes = "".join(_some(volume, _plane, f"{_INDENT * 2}..., \n"))
    return f"{_INDENT}[\n{planes}{_INDENT}]\n{_INDENT}sum = {total:f}\n"


def _plane(plane: Values) -> str:
    rows = "".join(_some(plane, _row, f"{_INDENT * 3}..., \n"))
    return f"{_INDENT * 2}[\n{rows}{_INDENT * 2}],\n"


def _row(row: Values) -> str:
    numbers = _some(row, lambda v: f"{float(v):12.4f}", "   ...")
    return f"{_INDENT * 3}[{', '.join(numbers)}  ],\n"


def _some(items: Values, text: Callable[[Any], str], gap: str) -> list[str]:
    if len(items) <= 2 * _EDGE:
        return [text(item) for item in items]
    return [*map(text, items[:_EDGE]), gap, *map(text, items[-_EDGE:])]


def _source(tensor: Tensor) -> str:
    return f"{tensor.name}{{{_sizes(tensor)}}}"


def _sizes(tensor: Tensor) -> str:
    return ", ".join(map(str, tensor.ne))


def _op(node: Tensor) -> str:
    """Return ggml's name of the op: the function for UNARY and GLU."""
    assert node.op is not None
    return str(node.op_params.get("kind") or node.op.name).upper()


class NodeFiles:
    """Writes one .npy file per node: float32, ``ne`` reversed without trailing ones.

    ``index.json`` lists the files in order: file, name, op, type, ne. It is written when the
    context manager exits.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.index: list[dict[str, Any]] = []

    def write(self, node: Tensor, values: Values) -> Path:
        """Save one node and return its file; a number makes the name unique. Raises: OSError."""
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", node.name).strip("_")
        path = self.folder / f"{len(self.index):04d}_{name}.npy"
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.save(file, values.astype(np.float32).reshape(node.shape))
        self.index.append(
            {
                "file": path.name,
                "name": node.name,
                "op": _op(node),
                "type": node.type.name.lower(),
                "ne": list(node.ne),
            }
        )
        return path

    def __enter__(self) -> NodeFiles:
        return self

    def __exit__(self, *error: object) -> None:
        text = json.dumps(self.index, indent=1) + "\n"
        write_whole(self.folder / "index.json", text.encode())
