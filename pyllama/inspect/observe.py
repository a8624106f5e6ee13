"""Look into a model while it computes: the values of any node, hidden states among them.

    states = observe(context, tokens, ["l_out-*"])
    states["l_out-3"]                              # float32 [n_tokens, n_embd]

    watch(context, tokens, look, wants=lambda name: name.startswith("attn"))

The tokens are decoded as usual, so they join the context's memory and its logits are the last
decode's; only the graph is made for just so many tokens, and the scheduler stops after each node
that is wanted. The bits are those of any other decode. Names are llama.cpp's.
Source: llama.cpp, ``cb_eval`` and ``llama-eval-callback``.
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

from ..core.batch import Batch
from ..core.context import Context
from ..errors import BatchError

Look = Callable[[Tensor, npt.NDArray[Any]], None]


def watch(
    context: Context,
    tokens: Sequence[int],
    look: Look,
    *,
    wants: Callable[[str], bool] = lambda name: True,
    logits: str = "last",
    stop_on_nan: bool = False,
) -> None:
    """Decode tokens and hand each wanted node to ``look``, in the order of execution.

    More tokens than ``n_ubatch`` are computed in parts, and a node is seen in each.

    Args:
        look: gets the node and its values, float32 (integers as they are) of four dimensions,
            ``ne`` reversed: a copy.
        wants: whether a node of that name is wanted.
        logits: ``"last"``, or ``"all"`` to have a row for each token in the last layer too.
        stop_on_nan: end at the first value that is not a number.

    Raises:
        ComputeError: such a value, after ``look`` has seen it; and as ``Context.decode``.
    """

    def callback(node: Tensor, ask: bool) -> bool:
        if ask:
            return wants(node.name) and node.nelements > 0
        values = to_numpy(node)
        look(node, values)
        bad = np.count_nonzero(np.isnan(values)) if stop_on_nan else 0
        if bad:
            raise ComputeError(
                f"'{node.name}' = {node.op.name if node.op else None} has {bad} NaN among its "
                f"{values.size} values"
            )
        return True

    with context.watched(callback):
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
        patterns: names as in a shell: ``l_out-*`` is what comes out of each layer.
        logits: ``"all"``, or ``"last"`` for only the last token's row from the last layer on.

    Returns:
        Arrays of two or more dimensions, ``ne`` reversed: [n_tokens, n_embd] for hidden states.
        The second node of a name is ``name#2``.

    Raises:
        BatchError: more tokens than ``n_ubatch``, or no node has such a name.
        ComputeError, ContextFull: as ``Context.decode``.
    """
    if len(tokens) > context.n_ubatch:
        raise BatchError(
            f"{len(tokens)} tokens to observe at once, but n_ubatch is {context.n_ubatch}: make "
            "the context with a larger one"
        )
    seen: dict[str, npt.NDArray[Any]] = {}
    counts: dict[str, int] = {}

    def look(node: Tensor, values: npt.NDArray[Any]) -> None:
        count = counts[node.name] = counts.get(node.name, 0) + 1
        name = node.name if count == 1 else f"{node.name}#{count}"
        seen[name] = values.reshape(node.ne[: max(2, node.n_dims)][::-1])

    names: dict[str, None] = {}

    def wants(name: str) -> bool:
        names[name] = None
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    watch(context, tokens, look, wants=wants, logits=logits)
    if not seen:
        raise BatchError(
            f"no node is called {' or '.join(patterns)}; there are {', '.join([*names][:12])}, ..."
        )
    return seen
