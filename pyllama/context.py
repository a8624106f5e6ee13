"""A context: the KV cache and the programs that run a model on it.

    context = Context(model, n_ctx=2048)
    context.decode(Batch(tokens))
    context.logits[-1].argmax()

One program is lowered for each bucket of token counts and kept; positions, cells and lengths are
inputs, so a decode step rewrites a few small arrays and runs. One lock: a second thread waits.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pyggml import env
from pyggml.alloc import GraphAllocator
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.buffer import HOST
from pyggml.dtype import GGMLType
from pyggml.errors import Aborted
from pyggml.tensor import Tensor

from .batch import Batch
from .errors import BatchError, ContextFull
from .graph.builder import GraphBuilder
from .kv_cache import KVCache
from .model import Model

if TYPE_CHECKING:
    from pyggml.backend.cpu.program import Program

_MAX_PROGRAMS = 64
_MAX_SEQ = 256
_MAX_POSITION = (1 << 31) - 1


class _Compiled:
    """A lowered graph with its inputs and result as arrays."""

    def __init__(self, builder: GraphBuilder, logits: Tensor, program: Program) -> None:
        self.builder, self.program = builder, program
        self.tokens, self.positions, self.kv_index, self.out_ids = (
            t.numpy(squeeze=False).reshape(-1)
            for t in (builder.tokens, builder.positions, builder.kv_index, builder.out_ids)
        )
        self.rows = builder.rows.numpy(squeeze=False)[0, 0]  # [T, 4]
        self.logits: npt.NDArray[np.float32] = logits.numpy(squeeze=False)[0, 0]

    def fill(
        self,
        tokens: list[int],
        seqs: list[int],
        positions: list[int],
        cells: list[int],
        places: list[int],
        outputs: list[int],
    ) -> None:
        """Write the inputs of a ubatch; padding writes no cell and attends to nothing."""
        n, n_outputs, rows = len(tokens), len(outputs), self.rows
        self.tokens[:n], self.tokens[n:] = tokens, 0
        self.positions[:n], self.positions[n:] = positions, 0
        self.kv_index[:n], self.kv_index[n:] = cells, -1
        self.out_ids[:n_outputs], self.out_ids[n_outputs:] = outputs, 0
        rows[:n, 0], rows[:n, 1], rows[:n, 3] = seqs, 0, positions
        rows[:n, 2] = [place + 1 for place in places]
        rows[n:] = 0

    def fill_one(self, token: int, seq: int, position: int, cell: int, place: int) -> None:
        """The same for one token, the common case."""
        self.tokens[0], self.positions[0], self.kv_index[0] = token, position, cell
        self.out_ids[:] = 0
        row = self.rows[0]
        row[0], row[1], row[2], row[3] = seq, 0, place + 1, position


class Context:
    """State of one or several sequences that a model continues.

    Args:
        n_ctx: cells of the KV cache; 0 for what the model was trained with.
        n_batch: most tokens of a ``decode``; n_ubatch: most tokens computed at once.
        n_seq_max: sequences that share the cache, at most 256.
        kv_type: of the cache, F16, or F32 for results as exact as float32 is.
        n_threads, n_threads_batch: threads for one token and for several; None chooses.

    Raises:
        AllocError: the KV cache does not fit into memory.
        BatchError: a size out of its range.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int = 0,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_seq_max: int = 1,
        kv_type: GGMLType = GGMLType.F16,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
    ) -> None:
        for name, value in (("n_batch", n_batch), ("n_ubatch", n_ubatch), ("n_seq_max", n_seq_max)):
            if value < 1:
                raise BatchError(f"{name} is {value}, want at least 1")
        if n_seq_max > _MAX_SEQ:
            raise BatchError(f"n_seq_max is {n_seq_max}, want at most {_MAX_SEQ}")
        if n_ctx < 0:
            raise BatchError(f"n_ctx is {n_ctx}, want 0 (as trained) or more")
        if kv_type not in (GGMLType.F16, GGMLType.F32):
            raise BatchError(f"kv_type is {GGMLType(kv_type).name}, want F16 or F32")
        self.model = model
        self.n_ctx = n_ctx or model.hparams.n_ctx_train
        self.n_batch = min(n_batch, self.n_ctx)
        self.n_ubatch = min(n_ubatch, self.n_batch)
        self._backend = CpuBackend(n_threads)
        self.n_threads = self._backend.n_threads
        self.n_threads_batch = max(0, n_threads_batch or 0) or self.n_threads
        self.kv = KVCache(model.hparams, self.n_ctx, n_seq_max, kv_type)
        self.n_reused = 0
        self._reuse = env.GRAPH_REUSE.enabled()
        self._allocator = GraphAllocator(HOST)
        self._programs: OrderedDict[tuple[int, int], _Compiled] = OrderedDict()
        self._logits: npt.NDArray[np.float32] = np.empty((0, model.hparams.n_vocab), np.float32)
        self._lock = threading.RLock()
        self._stop = self._running = False
        self._reserve()
        for n in (1, min(2, self.n_ubatch)):  # kernels load or compile here, not in a timed decode
            self._compiled(n, 1)

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        """float32[n_outputs, n_vocab] of the last decode; the next one overwrites it."""
        return self._logits

    def logits_ith(self, i: int) -> npt.NDArray[np.float32]:
        """Logits of output ``i``, counted from the end if negative. Raises: BatchError."""
        n = len(self._logits)
        if not -n <= i < n:
            raise BatchError(f"logits_ith({i}): the last decode had {n} outputs")
        row: npt.NDArray[np.float32] = self._logits[i]
        return row

    def decode(self, batch: Batch) -> None:
        """Run a batch; its keys and values join the cache.

        Raises:
            BatchError: too many tokens, ids, positions or sequences that do not fit.
            ContextFull: not enough free cells. Nothing has changed then.
            Aborted, ComputeError: it stopped; tokens of finished ubatches stay in the cache, and
                there are no logits.
        """
        with self._lock:
            tokens, seqs, positions = self._validate(batch)
            wanted, n = batch.outputs(), len(tokens)
            parts, done = [], 0
            self._stop, self._running = False, True
            try:
                cells, places = self.kv.place(seqs, positions)
                for start in range(0, n, self.n_ubatch):
                    if self._stop:  # it came between two ubatches, where nothing runs
                        raise Aborted("the decode was aborted")
                    stop = min(n, start + self.n_ubatch)
                    part = slice(start, stop)
                    outputs = [i - start for i in wanted if start <= i < stop]
                    logits = self._run(
                        tokens[part], seqs[part], positions[part], cells[part], places[part],
                        outputs,
                    )  # fmt: skip
                    parts.append(logits if stop == n else logits.copy())
                    done = stop
            except ContextFull:
                raise
            except BaseException:
                self._logits = self._logits[:0]
                for seq in set(seqs[done:]):
                    self.kv.seq_rm(seq, positions[seqs.index(seq, done)])
                raise
            finally:
                self._running = False
            self._logits = parts[0] if len(parts) == 1 else np.concatenate(parts)

    def abort(self) -> None:
        """Stop the running decode, from any thread; it raises Aborted."""
        if self._running:
            self._stop = True
            self._backend.abort()

    def close(self) -> None:
        """Let go of programs and memory."""
        with self._lock:
            self._programs.clear()

    def graph(self, n_tokens: int = 1, n_outputs: int = 1) -> GraphBuilder:
        """A fresh graph of so many tokens, without memory (for pictures and tests)."""
        return self._build(n_tokens, n_outputs)[0]

    def _validate(self, batch: Batch) -> tuple[list[int], list[int], list[int]]:
        n_vocab, seq = self.model.hparams.n_vocab, batch.seq_id
        if len(batch.tokens) == 1 and batch.pos is None and type(seq) is int:
            token = int(batch.tokens[0])
            if 0 <= token < n_vocab and 0 <= seq < self.kv.n_seq_max:
                last = self.kv.seq_pos_max(seq)
                if last < _MAX_POSITION:
                    return [token], [seq], [last + 1]
        tokens, seqs = [int(t) for t in batch.tokens], batch.seqs()
        if not 1 <= len(tokens) <= self.n_batch:
            raise BatchError(f"a batch of {len(tokens)} tokens: want 1 to n_batch = {self.n_batch}")
        if min(tokens) < 0 or max(tokens) >= n_vocab:
            bad = next(t for t in tokens if not 0 <= t < n_vocab)
            raise BatchError(f"token id {bad} is not in the vocabulary of 0 to {n_vocab - 1}")
        if min(seqs) < 0 or max(seqs) >= self.kv.n_seq_max:
            raise BatchError(
                f"sequence {next(s for s in seqs if not 0 <= s < self.kv.n_seq_max)}: this context "
                f"has 0 to {self.kv.n_seq_max - 1} (n_seq_max)"
            )
        ends = {seq: self.kv.seq_pos_max(seq) for seq in set(seqs)}
        if len(ends) == 1 and batch.pos is None:
            start = ends[seqs[0]] + 1
            positions = list(range(start, start + len(tokens)))
        else:
            positions = _positions(seqs, batch.pos, ends)
        if max(positions) > _MAX_POSITION:
            raise BatchError(f"position {max(positions)}: the last one is {_MAX_POSITION}")
        return tokens, seqs, positions

    def _run(
        self,
        tokens: list[int],
        seqs: list[int],
        positions: list[int],
        cells: list[int],
        places: list[int],
        outputs: list[int],
    ) -> npt.NDArray[np.float32]:
        """One ubatch; the logits of the wanted tokens, overwritten by the next."""
        n, n_outputs = len(tokens), len(outputs)
        c = self._compiled(bucket(n), max(1, bucket(n_outputs)))  # a graph needs a result
        if n == 1:
            c.fill_one(tokens[0], seqs[0], positions[0], cells[0], places[0])
        else:
            c.fill(tokens, seqs, positions, cells, places, outputs)
        self._backend.run(c.program)
        return c.logits[:n_outputs]

    def _build(self, n_tokens: int, n_outputs: int) -> tuple[GraphBuilder, Tensor]:
        model = self.model
        b = GraphBuilder(model.hparams, model.weights, self.kv, n_tokens, n_outputs)
        return b, b.finish(model.arch.build_graph(b))

    def _reserve(self) -> None:
        """Memory for the largest graph, so that no decode allocates."""
        builder, _ = self._build(bucket(self.n_ubatch), bucket(self.n_ubatch))
        self._allocator.reserve(builder.graph)

    def _compiled(self, n_tokens: int, n_outputs: int) -> _Compiled:
        key = n_tokens, n_outputs
        found = self._programs.get(key)
        if found is not None and self._reuse:
            self._programs.move_to_end(key)
            self.n_reused += 1
            return found
        builder, logits = self._build(n_tokens, n_outputs)
        self._allocator.alloc_graph(builder.graph)
        threads = self.n_threads if n_tokens == 1 else self.n_threads_batch
        made = _Compiled(builder, logits, self._backend.compile(builder.graph, threads))
        self._programs[key] = made
        if len(self._programs) > _MAX_PROGRAMS:
            self._programs.popitem(last=False)
        return made


def bucket(n: int) -> int:
    """The token count that a program is made for: eight steps from one power of two to the next."""
    if n <= 16:
        return n
    step = 1 << ((n - 1).bit_length() - 4)
    return -(-n // step) * step


def _positions(seqs: list[int], given: Sequence[int] | None, ends: dict[int, int]) -> list[int]:
    """Checked positions: each follows its sequence's last (``ends``) or starts an empty one."""
    positions = []
    for i, seq in enumerate(seqs):
        wanted = ends[seq] + 1
        position = wanted if given is None else int(given[i])
        if position != wanted and (position < wanted or ends[seq] >= 0):
            raise BatchError(
                f"token {i} of the batch: position {position} in sequence {seq}, want {wanted}"
            )
        ends[seq] = position
        positions.append(position)
    return positions
