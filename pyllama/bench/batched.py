"""Speed of several sequences at once: prompts, then one token of each in every decode.

    for row in batched_bench(context, n_prompt=[128], n_gen=[128], n_parallel=[1, 8]): print(row)

Source: llama.cpp, ``batched-bench.cpp`` (the method and the names of the fields).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..core.context import Context
from ..engine import Engine, Lease
from ..engine.sequence import batches
from ..errors import BatchError
from .bench import bench_tokens


@dataclass(frozen=True)
class BatchedRow:
    """One result, with llama-batched-bench's names in its order; seconds and tokens a second.

    ``pl`` sequences, each of ``pp`` prompt and ``tg`` generated tokens, take ``n_kv`` cells.
    """

    n_kv_max: int
    n_batch: int
    n_ubatch: int
    flash_attn: int
    is_pp_shared: int
    n_gpu_layers: int
    n_threads: int
    n_threads_batch: int
    pp: int
    tg: int
    pl: int
    n_kv: int
    t_pp: float
    speed_pp: float
    t_tg: float
    speed_tg: float
    t: float
    speed: float


def batched_bench(
    context: Context,
    n_prompt: Sequence[int],
    n_gen: Sequence[int],
    n_parallel: Sequence[int],
    *,
    shared: bool = False,
) -> Iterator[BatchedRow]:
    """Measure every combination that fits into the context.

    Args:
        context: with as many sequences as the largest of ``n_parallel``.
        shared: all sequences have one prompt, evaluated once.

    Raises:
        BatchError: more sequences than the context or a batch of it has.
    """
    if max(n_parallel) > context.kv.n_seq_max:
        raise BatchError(
            f"{max(n_parallel)} sequences at once: this context has {context.kv.n_seq_max}"
        )
    if max(n_gen) and max(n_parallel) > context.n_batch:
        raise BatchError(
            f"{max(n_parallel)} sequences at once: a decode takes a token of each, and at most "
            f"n_batch = {context.n_batch}; use a larger `n_batch`"
        )
    run = _Run(context, max(n_parallel))
    if context.n_ctx_seq > 1:  # the first run of a program is slower
        run.fill(1, min(16, context.n_ctx_seq - 1))
        run.step(1, 0)
    for pp, tg, pl in itertools.product(n_prompt, n_gen, n_parallel):
        n_cells = cells(pp, tg, pl, shared and context.kv.unified)
        if n_cells <= context.n_ctx and pp + tg <= context.n_ctx_seq:
            yield _measure(run, pp, tg, pl, shared)


def cells(pp: int, tg: int, pl: int, shared: bool) -> int:
    """Cells that a combination takes."""
    return pp + pl * tg if shared else pl * (pp + tg)


def _measure(run: _Run, pp: int, tg: int, pl: int, shared: bool) -> BatchedRow:
    clock, context = time.perf_counter, run.context
    run.fill(1 if shared else pl, pp, graphs_only=True)  # before the clock runs
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
    return BatchedRow(
        n_kv_max=context.n_ctx,
        n_batch=context.n_batch,
        n_ubatch=context.n_ubatch,
        flash_attn=1,
        is_pp_shared=int(shared),
        n_gpu_layers=0,
        n_threads=context.n_threads,
        n_threads_batch=context.n_threads_batch,
        pp=pp,
        tg=tg,
        pl=pl,
        n_kv=cells(pp, tg, pl, shared and context.kv.unified),
        t_pp=t_pp,
        speed_pp=prompt / t_pp,
        t_tg=t_tg,
        speed_tg=pl * tg / t_tg if tg else 0.0,
        t=t_pp + t_tg,
        speed=(prompt + pl * tg) / (t_pp + t_tg),
    )


class _Run:
    """Sequences of a context, driven by hand."""

    def __init__(self, context: Context, n_seq: int) -> None:
        self.context, self._engine = context, Engine(context)
        self._leases = [Lease(self._engine) for _ in range(n_seq)]

    def fill(self, n_seq: int, n: int, graphs_only: bool = False) -> None:
        """Evaluate a prompt of ``n`` tokens in each of the first sequences, all else forgotten.

        ``graphs_only`` leaves out batches whose graphs were made by others before them.
        """
        context = self.context
        for lease in self._leases:
            lease.truncate(0)
        tokens = bench_tokens(context.model, n, 0)
        made: set[tuple[int, int]] = set()
        for part in batches([lease.row(tokens) for lease in self._leases[:n_seq]], context.n_batch):
            outputs, n_ubatch = [flag for row in part for flag in row.flags()], context.n_ubatch
            ubatches = [outputs[j : j + n_ubatch] for j in range(0, len(outputs), n_ubatch)]
            graphs = {(len(ubatch), sum(ubatch)) for ubatch in ubatches}
            if graphs_only and graphs <= made:
                continue
            made |= graphs
            self._engine.decode(part)

    def share(self, n_seq: int) -> None:
        """Let the first sequences have the prompt of the first one."""
        for lease in self._leases[1:n_seq]:
            lease.fork(self._leases[0])

    def step(self, n_seq: int, i: int) -> None:
        """One more token in each of the first sequences."""
        tokens = bench_tokens(self.context.model, n_seq, i + 3)
        pairs = zip(self._leases, tokens, strict=False)
        self._engine.decode([lease.row((token,)) for lease, token in pairs])
