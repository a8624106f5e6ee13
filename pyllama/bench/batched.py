"""Speed of batched decoding: prompts, then one token of each sequence per decode.

    for row in batched_bench(context, n_prompt=[128], n_gen=[128], n_parallel=[1, 8]): print(row)

Source: llama.cpp, ``batched-bench.cpp`` (the method and the names of the fields).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

from ..engine import Engine, Lease
from ..engine.rows import batches
from ..errors import BatchError
from ..runtime.context import Context
from .bench import bench_tokens


def batched_bench(
    context: Context,
    n_prompt: Sequence[int],
    n_gen: Sequence[int],
    n_parallel: Sequence[int],
    *,
    shared: bool = False,
) -> Iterator[dict[str, int | float]]:
    """Measure every combination that fits into the context.

    A row has llama-batched-bench's fields in their order, in seconds and tokens per second: ``pl``
    sequences of ``pp`` prompt and ``tg`` generated tokens each, which need ``n_kv`` cells.

    Args:
        context: a context for at least ``max(n_parallel)`` sequences.
        shared: share one prompt, evaluated once, among all sequences.

    Raises:
        BatchError: there are more sequences than the context or a batch allows.
    """
    if max(n_parallel) > context.kv.n_seq_max:
        raise BatchError(
            f"{max(n_parallel)} parallel sequences: this context has {context.kv.n_seq_max}"
        )
    if max(n_gen) and max(n_parallel) > context.n_batch:
        raise BatchError(
            f"{max(n_parallel)} parallel sequences need as many tokens per decode, but n_batch is "
            f"{context.n_batch}; use a larger `n_batch`"
        )
    run = _DecodeRun(context, max(n_parallel))
    if context.n_ctx_seq > 1:  # warm-up
        run.fill(1, min(16, context.n_ctx_seq - 1))
        run.step(1, 0)
    for pp, tg, pl in itertools.product(n_prompt, n_gen, n_parallel):
        n_cells = required_cells(pp, tg, pl, shared and context.kv.unified)
        if n_cells <= context.n_ctx and pp + tg <= context.n_ctx_seq:
            yield _measure(run, pp, tg, pl, shared)


def required_cells(pp: int, tg: int, pl: int, shared: bool) -> int:
    """Return the number of cells that a combination needs."""
    return pp + pl * tg if shared else pl * (pp + tg)


def _measure(run: _DecodeRun, pp: int, tg: int, pl: int, shared: bool) -> dict[str, int | float]:
    clock, context = time.perf_counter, run.context
    run.fill(1 if shared else pl, pp, graphs_only=True)  # compile graphs before timing
    if tg:
        run.step(pl, 0)
    start = clock()
    run.fill(1 if shared else pl, pp)
    if shared:
        run.share(pl)
    t_pp, start = clock() - start, clock()
    for i in range(tg):
        run.step(pl, i)
    t_tg = clock() - start
    prompt = pp if shared else pl * pp
    return {
        "n_kv_max": context.n_ctx,
        "n_batch": context.n_batch,
        "n_ubatch": context.n_ubatch,
        "flash_attn": 1,
        "is_pp_shared": int(shared),
        "n_gpu_layers": context.model.n_gpu_layers,
        "n_threads": context.n_threads,
        "n_threads_batch": context.n_threads_batch,
        "pp": pp,
        "tg": tg,
        "pl": pl,
        "n_kv": required_cells(pp, tg, pl, shared and context.kv.unified),
        "t_pp": t_pp,
        "speed_pp": prompt / t_pp,
        "t_tg": t_tg,
        "speed_tg": pl * tg / t_tg if tg else 0.0,
        "t": t_pp + t_tg,
        "speed": (prompt + pl * tg) / (t_pp + t_tg),
    }


class _DecodeRun:
    """Sequences of a context, decoded without the engine's scheduling."""

    def __init__(self, context: Context, n_seq: int) -> None:
        self.context, self._engine = context, Engine(context)
        self._leases = [Lease(self._engine) for _ in range(n_seq)]

    def fill(self, n_seq: int, n: int, graphs_only: bool = False) -> None:
        """Clear all sequences and evaluate a prompt of ``n`` tokens in the first ``n_seq``.

        Args:
            graphs_only: skip batches whose graphs were built by earlier batches.
        """
        context = self.context
        for lease in self._leases:
            lease.truncate(0)
        tokens = bench_tokens(context.model, n, 0)
        keys: set[tuple[int, int]] = set()
        for part in batches([lease.row(tokens) for lease in self._leases[:n_seq]], context.n_batch):
            outputs, n_ubatch = (
                [flag for row in part for flag in row.flags(row.outputs)],
                context.n_ubatch,
            )
            ubatches = [outputs[j : j + n_ubatch] for j in range(0, len(outputs), n_ubatch)]
            graphs = {(len(ubatch), sum(ubatch)) for ubatch in ubatches}
            if graphs_only and graphs <= keys:
                continue
            keys |= graphs
            self._engine.decode(part)

    def share(self, n_seq: int) -> None:
        """Copy the prompt of the first sequence to the first ``n_seq``."""
        for lease in self._leases[1:n_seq]:
            lease.fork(self._leases[0])

    def step(self, n_seq: int, i: int) -> None:
        """Decode one more token in each of the first ``n_seq`` sequences."""
        tokens = bench_tokens(self.context.model, n_seq, i + 3)
        pairs = zip(self._leases, tokens, strict=False)
        self._engine.decode([lease.row((token,)) for lease, token in pairs])
