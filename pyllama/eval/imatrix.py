"""Collects importance matrices: squared inputs of a model's matrices over a text.

    collector = Collector(chunk_size=512)
    for result in collect_importance(context, tokens, collector):
        print(result.ppl)
    write_importance("imatrix.gguf", collector.importance)

Sums the squared inputs of MUL_MAT and MUL_MAT_ID by column and expert. The graph is interrupted
after each of these nodes, as by any eval callback.
Source: llama.cpp, ``imatrix.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pyggml.errors import ComputeError
from pyggml.sched import to_numpy
from pyggml.tensor import Tensor

from ..engine import Engine, Lease
from ..errors import PerplexityError
from ..quantize.importance import Importance, ImportanceEntry
from .perplexity import Perplexity, check_finite, token_losses

if TYPE_CHECKING:
    from ..runtime.context import Context

Floats = npt.NDArray[np.float32]
_OUTPUT = ("output.weight", "token_embd.weight")


class Collector:
    """Sums over all evaluated tokens.

    Args:
        chunk_size: tokens per chunk.
        process_output: also collect for the output matrix.

    Attributes:
        importance: the sums; may be filled from files first.
    """

    def __init__(self, chunk_size: int, *, process_output: bool = False) -> None:
        self.importance = Importance(chunk_size=chunk_size)
        self.process_output = process_output

    def callback(self, node: Tensor, ask: bool) -> bool:
        """Add the inputs of a node (an eval callback). Raises: ComputeError: NaN or infinity."""
        name = node.op.name if node.op else ""
        if name not in ("MUL_MAT", "MUL_MAT_ID"):
            return False
        matrix, inputs, ids = (*node.src, None)[:3]
        assert matrix is not None and inputs is not None
        collects = matrix.name.startswith("blk.") or (
            self.process_output and matrix.name in _OUTPUT
        )
        if ask or not collects:
            return collects
        x = to_numpy(inputs)  # [ne3, ne2, ne1, n]
        if name == "MUL_MAT_ID":
            assert ids is not None
            slots = node.src[3]  # of a cache of experts
            n_expert = matrix.ne[2] if slots is None else slots.ne[0]
            self._add_experts(matrix, n_expert, x[0], to_numpy(ids)[0, 0])
        else:
            self._add(matrix, x)
        return True

    def _add(self, matrix: Tensor, x: Floats) -> None:
        """Add the inputs of one matrix, or of several that are broadcast over the inputs."""
        n3, n2, n1, n = x.shape
        _, _, m2, m3 = matrix.ne
        x6 = x.reshape(n3 // m3, m3, n2 // m2, m2, n1, n)
        sums = np.einsum("abcden,abcden->bdn", x6, x6, dtype=np.float32)  # [m3, m2, n]
        entry = self._entry(matrix, m3 * m2, n, n_counts=1)
        entry.sums += sums.reshape(entry.sums.shape)
        entry.counts += x.size // n // (m3 * m2)
        self._check(matrix, entry)

    def _add_experts(
        self, matrix: Tensor, n_expert: int, x: Floats, ids: npt.NDArray[np.int32]
    ) -> None:
        """Add inputs x [T, n_used or 1, n] to the experts ids [T, n_used] of each token."""
        n_tokens, n_used = ids.shape
        n = x.shape[-1]
        entry = self._entry(matrix, n_expert, n, n_counts=n_expert)
        squares = np.broadcast_to(x * x, (n_tokens, n_used, n)) if x.shape[1] == 1 else x * x
        for expert in np.unique(ids):
            rows = squares[ids == expert]  # [n_rows, n]
            entry.sums[expert] += rows.sum(axis=0)
            entry.counts[expert] += len(rows)
        self._check(matrix, entry)

    def _entry(self, matrix: Tensor, n_mat: int, n: int, n_counts: int) -> ImportanceEntry:
        entries = self.importance.entries
        entry = entries.get(matrix.name)
        if entry is None:
            shape = (n_counts, n_mat * n // n_counts)
            entry = entries[matrix.name] = ImportanceEntry(
                np.zeros(shape, np.float32), np.zeros(n_counts)
            )
        if entry.sums.size != n_mat * n:
            raise ComputeError(
                f"'{matrix.name}' has {n_mat * n} columns, the given importance matrix "
                f"{entry.sums.size}: it belongs to another model"
            )
        if len(entry.counts) not in (1, n_counts):
            raise ComputeError(
                f"'{matrix.name}' has {n_counts} experts, the given importance matrix "
                f"{len(entry.counts)}: it belongs to another model"
            )
        if len(entry.counts) < n_counts:  # read from a file with one count for all experts
            entry.sums = entry.sums.reshape(n_counts, -1)
            entry.counts = np.repeat(entry.counts, n_counts)
        return entry

    def _check(self, matrix: Tensor, entry: ImportanceEntry) -> None:
        if not np.isfinite(entry.sums).all():
            raise ComputeError(
                f"the inputs of '{matrix.name}' have NaN or infinity, or are too large to square"
            )


def collect_importance(
    context: Context,
    tokens: Sequence[int],
    collector: Collector,
    first_chunk: int = 0,
    n_chunks: int | None = None,
) -> Iterator[Perplexity]:
    """Evaluate a text in chunks of the context's size, each from an empty cache.

    Args:
        tokens: the text, with BOS if the tokenizer adds it.
        first_chunk: number of chunks to skip.
        n_chunks: maximum number of chunks; None for all.

    Yields:
        The perplexity after each chunk, as ``perplexity`` does.

    Raises:
        PerplexityError: no complete chunk is left.
        ComputeError: inputs are not finite, or the collector has another model's sums.
    """
    n_ctx = context.n_ctx_seq
    total = len(tokens) // n_ctx
    stop = total if n_chunks is None else min(total, first_chunk + n_chunks)
    if stop <= first_chunk:
        raise PerplexityError(
            f"the text has {len(tokens)} tokens, {total} chunks of {n_ctx}: there is no chunk "
            f"{first_chunk}; use a longer text or a smaller `n_ctx`"
        )
    chunks = np.array(tokens[: total * n_ctx], np.int32).reshape(total, n_ctx)
    return _run(context, chunks[first_chunk:stop], collector)


def _run(
    context: Context, chunks: npt.NDArray[np.int32], collector: Collector
) -> Iterator[Perplexity]:
    estimate = Perplexity(0, 0, 0.0, 0.0)
    for i, chunk in enumerate(chunks):
        with context.watched(collector.callback):
            losses = _losses(context, chunk)
        check_finite(losses, i)
        collector.importance.count_chunks()
        estimate = estimate.after(losses)
        yield estimate


def _losses(context: Context, chunk: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Return the losses of a chunk; all tokens have logits, so that the last layer sees them."""
    tokenizer, first = context.model.tokenizer, len(chunk) // 2
    tokens = chunk.tolist()
    if tokenizer.add_bos and tokenizer.bos is not None:
        tokens[0] = tokenizer.bos
    context.kv.clear()
    parts = []
    for start, logits in Lease(Engine(context, sequences=[0])).chunks(tokens, "all"):
        scored = slice(max(first, start), min(start + len(logits), len(tokens) - 1))
        if scored.start < scored.stop:
            rows = logits[scored.start - start : scored.stop - start]
            parts.append(token_losses(rows, chunk[scored.start + 1 : scored.stop + 1]))
    return np.concatenate(parts)
