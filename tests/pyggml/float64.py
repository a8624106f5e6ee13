"""Evaluates graphs of F32 and I32 tensors in float64, with the ops' references.

    values = evaluate(graph, {w: array, x: array})     # by tensor: four dimensions, ne reversed
    loss = float(values[loss].item())

Memory is as in a real run: views see what other nodes write. Independent of backends and of the
rounding of tensors, so it serves central differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.cgraph import CGraph
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor

Array = npt.NDArray[Any]


def evaluate(graph: CGraph, given: Mapping[Tensor, Array]) -> dict[Tensor, Array]:
    """The values of all tensors of a graph, computed from those of its roots without an op."""
    memory: dict[Tensor, Array] = {}
    values: dict[Tensor, Array] = {}

    def view(tensor: Tensor) -> Array:
        root = tensor.root
        flat = memory.setdefault(root, np.zeros(root.nelements, _dtype(root)))
        size = root.type.type_size
        start = flat[tensor.view_offs // size :]
        strides = [n // size * flat.itemsize for n in tensor.nb[::-1]]
        return np.lib.stride_tricks.as_strided(start, tensor.ne[::-1], strides)

    for tensor in (*graph.leafs, *graph.nodes):
        values[tensor] = view(tensor)
        if tensor in given:
            values[tensor][...] = given[tensor]
    for node in graph.nodes:
        if node.op is None or node.op.reference is None:
            continue
        sources = [None if s is None else np.array(view(s)) for s in node.src]
        result = node.op.reference(*sources, **node.op_params)
        for tensor, content in zip(node.op.updated(node), result[1:], strict=False):
            view(tensor)[...] = content
        values[node][...] = result[0] if node.op.updated(node) else result
    return values


def _dtype(tensor: Tensor) -> type:
    if tensor.type in (GGMLType.I32, GGMLType.I64):
        return np.int64
    assert tensor.type is GGMLType.F32, tensor
    return np.float64
