"""Look into a model while it computes: the values of any node, hidden states among them.

    states = observe(context, tokens, ["l_out-*"])
    states["l_out-3"]                              # float32 [n_tokens, n_embd]

    watch(context, tokens, look, wants=lambda name: name.startswith("attn"))

The tokens are decoded as usual, so they join the context's memory and its logits are the last
decode's; only the graph is made for just so many tokens and run by a scheduler, which stops behind
each node that is wanted. The bits are those of any other decode. Names are llama.cpp's.
Source: llama.cpp, ``cb_eval`` and ``llama-eval-callback``.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.interface import Backend
from pyggml.backend.reference.backend import ReferenceBackend
from pyggml.cgraph import CGraph
from pyggml.errors import ComputeError
from pyggml.sched import EvalCallback, Sched, to_numpy
from pyggml.tensor import Tensor

from .batch import Batch
from .context import Context
from .errors import BatchError

Look = Callable[[Tensor, npt.NDArray[Any]], None]


class Runner:
    """Runs a context's graphs with a scheduler on any backends; for ``Context.running_on``.

    Args:
        backends: as for ``Sched``; the last one's memory holds inputs and must be the host's.
        callback: as for ``Sched.set_eval_callback``.
        wish: called with the scheduler and each graph before it is allocated, to set backends.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        callback: EvalCallback | None = None,
        wish: Callable[[Sched, CGraph], None] | None = None,
    ) -> None:
        self.backends = backends
        self.callback, self.wish = callback, wish
        self._scheds: dict[CGraph, Sched] = {}  # one a graph: it keeps its memory

    def alloc_graph(self, graph: CGraph) -> None:
        """Schedule a graph. Raises: AllocError, UnsupportedOp."""
        sched = Sched(self.backends)
        sched.set_eval_callback(self.callback)
        if self.wish is not None:
            self.wish(sched, graph)
        sched.alloc_graph(graph)
        self._scheds[graph] = sched

    def compile(self, graph: CGraph, n_threads: int) -> Any:
        """What ``run`` takes; the backends use their own number of threads."""
        return self._scheds[graph], graph

    def run(self, program: Any) -> None:
        """Compute. Raises: as ``Sched.graph_compute``."""
        sched, graph = program
        sched.graph_compute(graph)

    def abort(self) -> None:
        """Stop what runs, where a backend can."""
        for backend in self.backends:
            if isinstance(backend, CpuBackend):
                backend.abort()


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

    backends: list[Backend] = [CpuBackend(context.n_threads_batch), ReferenceBackend()]
    with context.running_on(Runner(backends, callback=callback)):
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
