"""Reads the values of graph nodes, such as hidden states, while a model computes.

    states = observe(context, tokens, ["l_out-*"])
    states["l_out-3"]                              # float32 [n_tokens, n_embd]

    watch(context, tokens, on_node, name_filter=lambda name: name.startswith("attn"))

The tokens are decoded as usual: they are added to the KV cache, and the context has their logits.
The graph is built for exactly this number of tokens, and the scheduler stops after each selected
node. The results have the same bits as any other decode. Node names are llama.cpp's.
Source: llama.cpp, ``cb_eval`` and ``llama-eval-on_node``.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.errors import ComputeError
from pyggml.sched import to_numpy
from pyggml.tensor import Tensor

from ..errors import BatchError
from ..runtime.batch import Batch
from ..runtime.context import Context

NodeCallback = Callable[[Tensor, npt.NDArray[Any]], None]


def watch(
    context: Context,
    tokens: Sequence[int],
    on_node: NodeCallback,
    *,
    name_filter: Callable[[str], bool] = lambda name: True,
    logits: str = "last",
    stop_on_nan: bool = False,
) -> None:
    """Decode tokens and call ``on_node`` for each selected node, in the order of execution.

    More tokens than ``n_ubatch`` are computed in several graphs; each calls ``on_node``.

    Args:
        on_node: called with the node and a copy of its values: float32 (integers unchanged), four
            dimensions, ``ne`` reversed.
        name_filter: returns whether to select a node by its name.
        logits: ``"last"``, or ``"all"`` to compute the end of the last layer for all tokens.
        stop_on_nan: raise at the first NaN.

    Raises:
        ComputeError: a node has a NaN (after the call of ``on_node``); and as ``Context.decode``.
    """

    def eval_callback(node: Tensor, ask: bool) -> bool:
        if ask:
            return name_filter(node.name) and node.nelements > 0
        values = to_numpy(node)
        on_node(node, values)
        bad = np.count_nonzero(np.isnan(values)) if stop_on_nan else 0
        if bad:
            raise ComputeError(
                f"'{node.name}' = {node.op.name if node.op else None} has {bad} NaN among its "
                f"{values.size} values"
            )
        return True

    with context.watched(eval_callback):
        context.decode(Batch(tokens, logits=logits))


def observe(
    context: Context,
    tokens: Sequence[int],
    patterns: Sequence[str] = ("*",),
    *,
    logits: str = "all",
) -> dict[str, npt.NDArray[Any]]:
    """Decode tokens and return the values of nodes by name.

    Args:
        patterns: shell patterns of names: ``l_out-*`` are the outputs of layers.
        logits: ``"all"``, or ``"last"`` to compute the end of the last layer for the last token
            only.

    Returns:
        Arrays of two or more dimensions, ``ne`` reversed: [n_tokens, n_embd] for hidden states.
        The second node of a name is ``name#2``.

    Raises:
        BatchError: there are more tokens than ``n_ubatch``, or no node matches.
        ComputeError, ContextFull: as ``Context.decode``.
    """
    if len(tokens) > context.n_ubatch:
        raise BatchError(
            f"{len(tokens)} tokens to observe at once, but n_ubatch is {context.n_ubatch}: use a "
            "context with a larger one"
        )
    seen: dict[str, npt.NDArray[Any]] = {}
    counts: dict[str, int] = {}

    def on_node(node: Tensor, values: npt.NDArray[Any]) -> None:
        count = counts[node.name] = counts.get(node.name, 0) + 1
        name = node.name if count == 1 else f"{node.name}#{count}"
        seen[name] = values.reshape(node.ne[: max(2, node.n_dims)][::-1])

    names: dict[str, None] = {}

    def name_filter(name: str) -> bool:
        names[name] = None
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    watch(context, tokens, on_node, name_filter=name_filter, logits=logits)
    if not seen:
        raise BatchError(
            f"no node matches {' or '.join(patterns)}; there are {', '.join([*names][:12])}, ..."
        )
    return seen
