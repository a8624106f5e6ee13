"""A context: the KV cache and the graphs that run a model on it.

    context = Context(model, n_ctx=2048)
    context.decode(Batch(tokens))
    context.logits[-1].argmax()

A graph is built and scheduled once for each bucket of token counts. Positions, cells and lengths
are its inputs, so a decode step only writes a few small arrays and runs it. Calls hold a lock; a
second thread waits.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from pyggml import env
from pyggml.backend.interface import Backend
from pyggml.cgraph import CGraph
from pyggml.dtype import GGMLType
from pyggml.errors import Aborted
from pyggml.host import default_threads
from pyggml.sched import EvalCallback, Sched
from pyggml.tensor import Tensor

from ..errors import BatchError, ContextFull, ModelError
from ..graph.adapters import AdapterBank
from ..graph.builder import HEAD, GraphBuilder
from ..kv.cache import KVCache, cell_runs
from ..kv.memory import HiddenReads, Memory, Placed, TargetCells
from ..kv.ranges import Ids, text_positions, text_rows, text_segments
from ..kv.reduction import Reduction
from ..kv.table import Ints, Seqs, seq_tuple
from .adapters import Adapter, scales_of
from .batch import Batch, Floats
from .decode_graph import DecodeGraph, GraphSize, Outputs, as_array, bucket, largest_graphs
from .devices import kv_buffer_types, start_devices, state_places
from .fork_lock import ForkLock
from .loader import header_graph
from .model import Model
from .params import ContextParams, last_position
from .reduction import VoteGraph, reduce_sequence

if TYPE_CHECKING:
    from .expert_cache import ExpertStats

log = logging.getLogger(__name__)
_MAX_GRAPHS = 64
_MAX_RUNS = 64  # runs of consecutive cells that one graph copies
_FEW = 16  # tokens of a batch that may use a larger graph
_MISSES = 32  # uses of a larger graph before one is built
_FEW_ROWS, _FEW_MISSES = 4, 4  # the same for sizes of `reserve`: rows of the graph, and such uses
_ONE = (GraphSize(1, 1), GraphSize(1, 1, 0, True))  # see decode_token


class Context:
    """The state of one or several sequences of a model, as ``llama_context``.

    Args:
        params: sizes, threads and types of the cache; None for the defaults.
        target: of a head without keys and values: the context whose keys and values it reads.
        target_layers: of such a head: for each layer the target's that has them.
        fields: fields of `ContextParams` that replace those of ``params``.

    Attributes:
        params: the sizes in one object, as they were resolved.
        n_ctx_seq: cells that one sequence may use.
        sched: runs the graphs on the model's devices.
        adapters: those that batches may use, in the order of their factors.
        applied: factors of those that change all tokens of batches that do not say otherwise.
        n_reused: decodes that reused a graph.
        build_s: seconds spent on building graphs.
        target_seqs: of a head without keys and values: by sequence, the target's that it follows.
        pinned_nodes: a function from a new graph to the nodes with a fixed backend (see
            ``Sched.compile``); for experiments.

    Raises:
        AllocError: the KV cache does not fit into memory.
        BatchError: a size or type is out of its range.
        ModelError: the model has no weights.
    """

    def __init__(
        self,
        model: Model,
        params: ContextParams | None = None,
        *,
        target: Context | None = None,
        target_layers: tuple[int, ...] = (),
        **fields: Any,
    ) -> None:
        if not model.weights:
            raise ModelError(f"{model.path}: loaded with vocab_only=True, or closed: load it again")
        asked = replace(params or ContextParams(), **fields)
        self.params = params = asked.resolve(model.hparams)
        # references to the weights and their files, for after model.close()
        self.model, self._weights, self._files = model, model.weights, model.files
        self._experts = model.experts
        self.n_ctx, self.n_ctx_seq = params.n_ctx, params.n_ctx_seq
        self._last_position = last_position(model.hparams)
        if self.n_ctx < asked.n_ctx:
            known, n = "has learned", model.hparams.n_positions
            if not model.hparams.learned_positions:
                known = "attends to chosen keys only, which is supported up to"
            log.warning("n_ctx %d: this model %s %d positions", asked.n_ctx, known, n)
        self.hparams = params.overrides.apply(model.hparams, self.n_ctx_seq)
        self.n_batch, self.n_ubatch = params.n_batch, params.n_ubatch
        n_threads, n_batch = params.n_threads, params.n_threads_batch
        self.n_threads = default_threads() if n_threads is None else max(1, n_threads)
        self.n_threads_batch = max(0, n_batch or 0) or self.n_threads
        self.sched = Sched(start_devices(model.devices, self.n_threads))
        self.pinned_nodes: Callable[[CGraph], Mapping[Tensor, Backend]] = _no_pins
        layer_buft = kv_buffer_types(
            self.sched.backends, self._weights, self.hparams, params, model.host_kv
        )
        states = state_places(
            self.sched.backends, self._weights, self.hparams, params, model.arch.build_graph
        )
        stored = self.hparams
        self._target, self.target_seqs = target, dict[int, int]()
        self._target_cells: TargetCells | None = None
        if target is not None:
            self._target_cells = TargetCells(target.kv, target_layers)
            stored = replace(stored, n_head_kv_arr=(0,) * stored.n_layer)  # only positions
        self.kv: Memory = params.memory(stored, layer_buft, states)
        self.n_reused, self._n_vocab = 0, model.hparams.n_vocab
        self._reuse = env.GRAPH_REUSE.enabled()
        self._graphs: OrderedDict[GraphSize, DecodeGraph] = OrderedDict()
        self._n_missed: Counter[GraphSize] = Counter()
        self._preferred: set[GraphSize] = set()  # see `reserve`
        self.build_s = 0.0
        self._token_graphs: list[DecodeGraph | None] = [None, None]  # with adapters is the second
        self.adapters: tuple[Adapter, ...] = ()
        self.applied: Mapping[Adapter, float] = {}
        self._applied: Floats | None = None  # as batches have them
        self._bank: AdapterBank | None = None
        self._watched = False
        self._separator = model.tokenizer.vocab.roles.get("sep", -1)
        self._no_outputs = Outputs(np.empty((0, model.hparams.n_vocab), np.float32))
        self._outputs = self._no_outputs
        self._lock = ForkLock("this context", advice="reset() empties it")
        self._stop = self._running = False
        self._reserve()
        if self.hparams.causal:
            self._graph(_ONE[0])

    def set_adapters(
        self, adapters: Sequence[Adapter], applied: Mapping[Adapter, float] | None = None
    ) -> None:
        """Replace the adapters that batches may use; the weights of the model stay as they are.

        Tokens in the cache keep what they were computed with. Memory for the largest graph with
        adapters is reserved.

        Args:
            adapters: one that is named twice is used once.
            applied: factors for batches that do not say which they use; None: none is used.

        Raises:
            BatchError: a factor of another adapter. ModelError: an absurd factor.
            AllocError: it does not fit into memory. In all cases nothing has changed.
        """
        with self._lock.mutex:
            adapters, factors = tuple(dict.fromkeys(adapters)), dict(applied or {})
            scales, bank = scales_of(adapters, factors), None
            if adapters:
                terms = [one.terms for one in adapters]
                bank = AdapterBank(terms, self._weights, self.sched.backends)
            before, self._bank = self._bank, bank
            try:
                if bank is not None:
                    self._reserve()
            except BaseException:
                self._bank = before
                raise
            self.adapters = adapters
            self.applied, self._applied = factors, scales if scales.any() else None
            for size in [size for size in self._graphs if size.adapted]:
                del self._graphs[size]
            self._token_graphs[1] = None

    def apply(self, factors: Mapping[Adapter, float]) -> None:
        """Replace the factors for batches that do not say which adapters they use.

        Raises:
            BatchError: the context does not have one of them. ModelError: an absurd factor.
        """
        scales = self.scales(factors)
        self.applied, self._applied = dict(factors), scales if scales.any() else None

    def scales(self, factors: Mapping[Adapter, float]) -> Floats:
        """The factors of some adapters, as batches have them; 0 for the others.

        Raises:
            BatchError: the context does not have one of them. ModelError: an absurd factor.
        """
        return scales_of(self.adapters, factors)

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        """Logits of the last decode, float32[n_outputs, n_vocab]; the next one overwrites them."""
        return self._outputs.logits

    def logits_ith(self, i: int) -> npt.NDArray[np.float32]:
        """Logits of output ``i``, counted from the end if negative. Raises: BatchError."""
        return self.output_ith(i)[0]

    def argmax_ith(self, i: int) -> int:
        """The token with the largest logit of output ``i``; the lowest id of equal ones.

        The graph computes it, which is cheaper than a pass over all logits. Raises: BatchError.
        """
        argmax = self.output_ith(i)[1]
        return int(self._outputs.rows[i].argmax()) if argmax is None else argmax

    def output_ith(self, i: int) -> tuple[npt.NDArray[np.float32], int | None]:
        """`logits_ith` and, if the graph has computed it, `argmax_ith`. Raises: BatchError."""
        outputs = self._outputs
        try:
            argmax = outputs.argmax
            return outputs.rows[i], None if argmax is None else argmax[i]
        except IndexError:
            n = len(outputs.rows)
            raise BatchError(f"logits_ith({i}): the last decode had {n} outputs") from None

    @property
    def embeddings(self) -> npt.NDArray[np.float32]:
        """Embeddings of the last decode's tokens, float32[n, n_embedding].

        They are what the output matrix multiplies, the result of the last norm, or what the model's
        dense layers make of it. The next decode overwrites them.
        """
        found = self._outputs.embeddings
        return np.empty((0, self.hparams.n_embedding), np.float32) if found is None else found

    @property
    def hidden(self) -> npt.NDArray[np.float32]:
        """A head's hidden states of the last decode's outputs, float32[n_outputs, n_embd]."""
        found = self._outputs.hidden
        return np.empty((0, self.hparams.n_embd), np.float32) if found is None else found

    def keep_hidden(self, reads: HiddenReads) -> None:
        """Store hidden states of all tokens from now on in their cells, for a head that drafts.

        They are read by ``kv.hidden``.

        Args:
            reads: which; its nodes have ``n_embd`` columns each.

        Raises:
            BatchError: others are kept already, or tokens attend to later ones.
            ModelError: the graphs of this architecture have no such nodes.
        """
        with self._lock.mutex:
            if self.kv.reads == reads:
                return
            self.check_drafts()
            if self.kv.reads is not None:
                raise BatchError("hidden states are kept for another head: only one can draft")
            if self.hparams.reads_texts:
                raise BatchError(
                    f"{self.model.path}: heads draft for decoders only, whose tokens attend to no "
                    "later ones; use another drafter"
                )
            nodes = header_graph(self.model.arch, self.hparams, self._weights).nodes
            missing = set(reads.nodes) - {node.name for node in nodes}
            if missing:
                raise ModelError(
                    f"{self.model.path}: graphs of {self.hparams.arch} models have no node "
                    f"{min(missing)!r}, which the head reads"
                )
            n_columns = len(reads.nodes) * self.hparams.n_embd
            self.kv.keep_hidden(reads, n_columns if reads.fc is None else reads.fc.ne[1])
            self._files = (*self._files, *reads.files)
            self._drop_graphs()
            self._reserve()
            self._graph(_ONE[0])

    def check_drafts(self) -> None:
        """Raise BatchError if tokens cannot be drafted: reductions would come at other times."""
        if self.kv.reduction is not None:
            raise BatchError("kv_keep: texts in a reduced cache cannot be drafted; use one of both")

    @property
    def scores(self) -> npt.NDArray[np.float32]:
        """What the classification head computes of ``embeddings``: float32[n, n_cls_out].

        Raises:
            ModelError: the model has no classification head.
        """
        self.check_classifier()
        found = self._outputs.scores
        return np.empty((0, self.hparams.n_cls_out), np.float32) if found is None else found

    def check_classifier(self) -> None:
        """Raise ModelError if the model has no classification head."""
        if HEAD not in self._weights:
            raise ModelError(
                f"{self.model.path}: the model has no classification head (tensor '{HEAD}'), so it "
                "cannot rank; use a reranker, or another pooling"
            )

    def decode(self, batch: Batch) -> None:
        """Evaluate a batch, and store its keys and values in the cache.

        Without causality nothing is stored: the tokens of a sequence follow each other in the
        batch, and are a whole text.

        Raises:
            BatchError: too many tokens, or illegal ids, positions, sequences or parents.
            ContextFull: not enough free cells; nothing has changed.
            GGUFError: the mapped file of the model was truncated; nothing has changed.
            Aborted, ComputeError: the decode stopped; tokens of finished ubatches stay in the
                cache, unless devices still computed them, and there are no logits.
            Forked: another thread was decoding when this process was forked; call ``reset()``.
        """
        with self._lock.mutex:
            for file in self._files:
                file.check()
            if not self.hparams.causal:
                texts = _texts_of(batch)
                a, b = (np.array(x, np.intp) for x in (batch.outputs(), batch.embedded()))
                scales = batch.scales(len(self.adapters), self._applied)
                return self._run_texts(*texts, a, b, scales)
            tokens, seqs, positions, parents = self._validate(batch)
            if self.hparams.has_encoder:
                self._check_encoded(seqs)
            output_ids, embedded_ids, n = batch.outputs(), batch.embedded(), len(tokens)
            factors = batch.scales(len(self.adapters), self._applied)
            parts, finished = [], 0
            for cache in self.kv.caches:
                if cache.pending.any:
                    self.apply_pending()
            reduction = self.kv.reduction
            if reduction is not None:
                if parents is not None:
                    self.check_drafts()
                self._reduce(reduction)
            for seq in {s for group in set(seqs) for s in seq_tuple(group)}:
                self.kv.drop_tree(seq)
            if parents is None and (n > self.n_ubatch or len(self.kv.caches) > 1):
                self.kv.check_room(seqs, positions)
            pipelined = self._can_pipeline() and batch.hidden is None
            self._stop, self._running = False, True
            kept = set(batch.checkpoints), set(batch.drafted)
            self.kv.mark(seqs, positions, kept[0])
            try:
                for start, stop in self._ubatches(seqs):
                    if self._stop:  # abort() between two ubatches, where no schedule runs
                        raise Aborted("the decode was aborted")
                    part = slice(start, stop)
                    outputs, embedded = (
                        [i - start for i in ids if start <= i < stop]
                        for ids in (output_ids, embedded_ids)
                    )
                    scales = None if factors is None else factors[part]
                    adapted = scales is not None and (stop - start == n or bool(scales.any()))
                    graph = self._graph_for(stop - start, len(outputs), len(embedded), adapted)
                    placed = self._place(seqs[part], positions[part], parents)
                    if self.kv.states is not None:
                        flagged = ([i - start for i in range(start, stop) if i in f] for f in kept)
                        states = self.kv.states.place(seqs[part], positions[part], *flagged)
                        placed = placed._replace(states=states)
                    if reduction is not None:
                        rows = reduction.place_queries(seqs[part], positions[part])
                        placed = placed._replace(queries=rows)
                    at = positions[part]
                    if self._target_cells is not None:
                        placed, at = self._placed_in_target(seqs[part])
                    ubatch = tokens[part], at, placed
                    if pipelined and not (outputs or embedded) and stop < n:
                        graph.enqueue(*ubatch, scales)
                        continue
                    hidden = None if batch.hidden is None else batch.hidden[part]
                    made = graph.run(*ubatch, outputs, embedded, scales, hidden)
                    parts.append(made if stop == n else made.copy())
                    finished = stop
            except ContextFull:
                raise
            except BaseException:
                self._outputs = self._no_outputs
                self._forget(seqs[finished:], positions[finished:])
                self.sched.drain()
                raise
            finally:
                self._running = False
            if reduction is not None:
                ended = {s for i in output_ids for s in seq_tuple(seqs[i])}
                reduction.note_outputs(ended, self.kv.caches[0])
            self._outputs = Outputs.concatenated(parts) if len(parts) > 1 else parts[0]

    def encode(
        self, texts: Sequence[Sequence[int]], embeddings: str = "all",
        seq_ids: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """Compute the embeddings of whole texts, without causality.

        Of a model with an encoder and a decoder, this is the encoder.

        Args:
            texts: the tokens of each; any number of texts.
            embeddings: the tokens whose embeddings are computed: ``"all"``, or the ``"first"`` or
                ``"last"`` of each text.
            seq_ids: an empty sequence for each text, in which keys and values for cross-attention
                are stored; `decode` continues it with the decoder's start token. None: no storing.

        Raises:
            BatchError: attention is causal, a text is empty or longer than a ubatch, a token id is
                illegal, or a sequence is not empty.
            ContextFull: not enough free cells; texts of earlier ubatches are stored.
            GGUFError, Aborted, ComputeError: as `decode`.
        """
        if not self.hparams.reads_texts:
            raise BatchError("encode: attention is causal; use decode")
        if seq_ids is not None:
            self._check_new(seq_ids, len(texts))
        lengths = np.fromiter(map(len, texts), np.intp, len(texts))
        with self._lock.mutex:
            for file in self._files:
                file.check()
            tokens = np.fromiter(chain.from_iterable(texts), np.int64, int(lengths.sum()))
            ends = np.cumsum(lengths)
            ids = {"all": np.arange(len(tokens)), "first": ends - lengths, "last": ends - 1}
            scales = self._applied
            if scales is not None:
                scales = np.broadcast_to(scales, (len(tokens), len(scales)))
            none = np.empty(0, np.intp)
            self._run_texts(tokens, lengths, none, ids[embeddings], scales, seq_ids)

    def _check_new(self, seq_ids: Sequence[int], n: int) -> None:
        """Raise BatchError unless these are sequences for ``n`` texts."""
        if not self.hparams.has_encoder:
            raise BatchError(f"{self.hparams.arch} models have no decoder: leave out seq_ids")
        if len(seq_ids) != n or len(set(seq_ids)) != n:
            raise BatchError(f"sequences {list(seq_ids)} for {n} texts: each needs one of its own")
        for seq in seq_ids:
            if self._end(seq) >= 0:
                raise BatchError(f"sequence {seq} is not empty: a text begins a sequence")

    def _check_encoded(self, seqs: Seqs) -> None:
        """Raise BatchError unless these sequences begin with encoded texts."""
        for seq in {s for group in set(seqs) for s in seq_tuple(group)}:
            if not self.kv.encoded(seq):
                raise BatchError(
                    f"sequence {seq} has no encoded text for the decoder to attend to: call "
                    "encode(texts, seq_ids=...) first"
                )

    def _run_texts(
        self, tokens: Ids, lengths: Ids, output_ids: Ids, embedded_ids: Ids,
        scales: Floats | None, seq_ids: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """Evaluate texts that follow each other, in ubatches of whole texts.

        Args:
            tokens, lengths: of all texts together, and of each.
            output_ids, embedded_ids: ascending indices of tokens with logits and with embeddings.
            scales: factors of the adapters of each token; None: no adapters.
            seq_ids: see `encode`.
        """
        self._check_texts(tokens, lengths)
        if self.hparams.encoder and len(output_ids):
            raise BatchError(
                f"{self.hparams.arch} is an encoder: it computes embeddings and no logits"
            )
        ends, parts = np.cumsum(lengths), list[Outputs]()
        self._stop, self._running = False, True
        try:
            first = start = 0  # text and token
            while start < len(tokens):
                if self._stop:
                    raise Aborted("the decode was aborted")
                last = int(np.searchsorted(ends, start + self.n_ubatch, "right"))
                stop, part = int(ends[last - 1]), lengths[first:last]
                outputs, embedded = (
                    ids[slice(*np.searchsorted(ids, (start, stop)))] - start
                    for ids in (output_ids, embedded_ids)
                )
                if len(outputs) or len(embedded):
                    factors = None if scales is None else scales[start:stop]
                    n = stop - start, len(outputs), len(embedded)
                    graph = self._graph_for(*n, factors is not None, self.hparams.has_encoder)
                    rows = [text_rows(part, w, self.hparams) for w in graph.builder.ranges]
                    types: Any = ()
                    if graph.builder.token_types is not None:
                        types = text_segments(tokens[start:stop], part, self._separator)
                    seqs = None if seq_ids is None else seq_ids[first:last]
                    positions = text_positions(part)
                    placed = Placed(self._place_texts(seqs, part, positions), None, rows, types)
                    made = graph.run(
                        tokens[start:stop], positions, placed, outputs, embedded, factors
                    )
                    for seq, length in zip(seqs or (), part.tolist(), strict=False):
                        self.kv.caches[0].encoded[seq] = length
                    parts.append(made if stop == len(tokens) else made.copy())
                first, start = last, stop
        except BaseException:
            self._outputs = self._no_outputs
            self.sched.drain()
            for seq in seq_ids or ():
                if not self.kv.encoded(seq):
                    self.kv.forget(seq, 0)
            raise
        finally:
            self._running = False
        self._outputs = Outputs.concatenated(parts) if len(parts) != 1 else parts[0]

    def _place_texts(
        self, seqs: Sequence[int] | None, lengths: Ids, positions: Ints
    ) -> list[tuple[list[int], Ints]]:
        """Cells for the keys and values that a decoder attends to: none without sequences."""
        if not self.kv.caches:
            return []
        (cache,), n = self.kv.caches, len(positions)
        cells = [-1] * n
        if seqs is not None:
            cells, _ = cache.place(np.repeat(seqs, lengths).tolist(), positions.tolist())
            if cache.mirrored:
                cache.update_tables()
        return [(cells, np.zeros((n, 6), np.int32))]

    def _check_texts(self, tokens: Ids, lengths: Ids) -> None:
        """Raise BatchError unless these texts can be evaluated."""
        n_vocab = self.hparams.n_vocab
        longest = min(self.n_ubatch, self._last_position + 1)
        for n in (int(lengths.min(initial=1)), int(lengths.max(initial=1))):
            if not 1 <= n <= longest:
                raise BatchError(
                    f"a text of {n} tokens, which attend to later ones: want 1 to n_ubatch = "
                    f"{longest}"
                )
        if not len(tokens):
            raise BatchError("a batch of 0 tokens: want at least 1")
        if int(tokens.min()) < 0 or int(tokens.max()) >= n_vocab:
            bad = next(t for t in tokens.tolist() if not 0 <= t < n_vocab)
            raise BatchError(f"token id {bad} is not in the vocabulary of 0 to {n_vocab - 1}")

    def decode_token(self, token: int, seq: int = 0, scales: Floats | None = None) -> None:
        """``decode(Batch([token], seq_id=seq, adapters=scales))``, with the least Python.

        Weights evict Python's code and data from the CPU's caches at every token, so each line
        here costs more than elsewhere.
        """
        with self._lock.mutex:
            for file in self._files:
                file.check()
            scales = self._applied if scales is None else scales
            c, cache = self._token_graphs[scales is not None], self.kv.caches[0]
            reduction, query_row = self.kv.reduction, -1
            legal = 0 <= token < self._n_vocab and 0 <= seq < cache.n_seq_max
            due = reduction is not None and reduction.any_due
            if c is None or cache.pending.any or due or not legal:
                return self.decode(Batch((token,), seq_id=seq, adapters=scales))
            placed = cache.append(seq, self._last_position)
            if placed is None:
                return self.decode(Batch((token,), seq_id=seq, adapters=scales))
            self._stop, self._running = False, True
            try:
                if cache.mirrored:
                    cache.update_tables()
                state = None if self.kv.states is None else self.kv.states.append(seq)
                if reduction is not None:
                    (query_row,) = reduction.place_queries([seq], [placed[2]])
                self._outputs = c.run_token(token, seq, placed, state, scales, query_row)
            except BaseException:
                self._outputs = self._no_outputs
                self.kv.forget(seq, placed[2])
                raise
            finally:
                self._running = False
            if reduction is not None:
                reduction.note_outputs((seq,), cache)
            self.n_reused += 1

    def _forget(self, seqs: Seqs, positions: list[int]) -> None:
        """Remove the tokens of a failed ubatch, and of the following ones, from the cache."""
        first: dict[int, int] = {}
        for group, position in zip(seqs, positions, strict=True):
            for seq in seq_tuple(group):
                first.setdefault(seq, position)
        for seq, position in first.items():
            self.kv.forget(seq, position)

    def apply_pending(self) -> None:
        """Apply pending copies of cells and shifts of keys (see ``Pending``).

        ``decode`` does it first. Call it before reading keys and values directly.
        """
        for i, cache in enumerate(self.kv.caches):
            pending = cache.pending
            if not pending.any:
                continue
            for source, target in pending.copies:
                self._copy_cells(cache, source, target)
            pending.copies = []
            if not any(self.hparams.rope(layer)["n_dims"] for layer in cache.layers):
                pending.shift[:] = 0  # keys do not depend on positions
            moved = np.flatnonzero(pending.shift)
            for start in range(0, len(moved), self.n_ubatch):
                cells = moved[start : start + self.n_ubatch]
                self._shift_keys(i, cells, pending.shift[cells])
                pending.shift[cells] = 0
            pending.any = False

    def _copy_cells(self, cache: KVCache, source: Ints, target: Ints) -> None:
        """Copy keys and values of ``source`` cells to ``target`` cells."""
        runs = cell_runs(source, target)
        on_devices = cache.copy_cells(runs)
        for start in range(0, len(runs) if on_devices else 0, _MAX_RUNS):
            b = self._builder()
            b.copy_cells(on_devices, runs[start : start + _MAX_RUNS])
            self.sched.compile(b.graph, n_threads=1, interruptible=False).run()

    def _builder(self) -> GraphBuilder:
        """A builder of graphs that read or change the cache and evaluate no tokens."""
        return GraphBuilder(self.hparams, self._weights, self.kv, 1, 1)

    def _shift_keys(self, i: int, cells: npt.NDArray[Any], shift: Ints) -> None:
        """Rotate the keys in cells of cache ``i`` by ``shift`` positions."""
        cache, n = self.kv.caches[i], len(cells)
        b = GraphBuilder(self.hparams, self._weights, self.kv, bucket(n), 1)
        ids = b.ctx.new_tensor_2d(GGMLType.I32, bucket(n), max(self.hparams.n_head_kv_arr))
        b.shift_keys(cache, ids.set_name("k_shift_cells").set_input())
        # not interruptible: a cache with some keys rotated and some not is useless
        schedule = self.sched.compile(b.graph, n_threads=self.n_threads_batch, interruptible=False)
        as_array(b.positions)[:] = np.pad(shift, (0, bucket(n) - n))
        ids.numpy(squeeze=False)[0, 0, :, :] = np.pad(cells, (0, bucket(n) - n))
        as_array(b.kv_index[i])[:] = np.pad(cells, (0, bucket(n) - n), constant_values=-1)
        schedule.run()

    def _reduce(self, reduction: Reduction) -> None:
        """Reduce the sequences that have grown too long, if there are cells."""
        for seq in reduction.take_due():
            targets = self.kv.caches[0].cells_to_keep(seq, reduction.n_keep)
            if targets is None:
                continue
            try:
                reduce_sequence(self._builder(), self.sched, seq, targets, self.n_threads_batch)
            except BaseException:  # some heads may have moved
                self.kv.forget(seq, 0)
                raise

    def abort(self) -> None:
        """Stop the running decode, which raises Aborted. Callable from any thread."""
        if self._running:
            self._stop = True
            self.sched.abort()

    def reset(self) -> None:
        """Remove all tokens and graphs; also makes the context usable after a fork."""
        self._lock.mark_consistent()
        with self._lock.mutex:
            self.kv.clear()
            self._drop_graphs()
            self._outputs = self._no_outputs
            self._stop = self._running = False
            self.sched = Sched(start_devices(self.model.devices, self.n_threads))
            self._reserve()

    def close(self) -> None:
        """Free the compiled graphs. The context stays usable and keeps its KV cache."""
        with self._lock.mutex:
            self._drop_graphs()

    def _drop_graphs(self) -> None:
        self._graphs, self._token_graphs = OrderedDict(), [None, None]

    @contextmanager
    def watched(self, callback: EvalCallback) -> Iterator[None]:
        """Within the block, ``callback`` observes the nodes (``Sched.set_eval_callback``).

        Graphs of such decodes are not padded and not kept.
        """
        with self._lock.mutex:
            kept, self._watched = (self._graphs, self._token_graphs), True
            self._drop_graphs()
            self.sched.set_eval_callback(callback)
            try:
                yield
            finally:
                self.sched.set_eval_callback(None)
                (self._graphs, self._token_graphs), self._watched = kept, False

    @property
    def last_graph(self) -> DecodeGraph:
        """The graph of the last decode."""
        return next(reversed(self._graphs.values()))

    def graph(self, n_tokens: int = 1, n_outputs: int = 1) -> GraphBuilder:
        """A new graph of ``n_tokens`` tokens, without memory (for export and tests)."""
        if self.hparams.encoder:
            return self._build(GraphSize(n_tokens, 0, n_outputs))
        return self._build(GraphSize(n_tokens, n_outputs))

    def _validate(self, batch: Batch) -> tuple[list[int], Seqs, list[int], list[int] | None]:
        n_vocab = self.hparams.n_vocab
        tokens, seqs = [int(t) for t in batch.tokens], batch.seqs()
        parents = None if batch.parent is None else [int(i) for i in batch.parent]
        name = "n_batch" if parents is None else "n_ubatch"  # a tree is in one graph
        max_tokens = getattr(self, name)
        if not 1 <= len(tokens) <= max_tokens:
            raise BatchError(f"a batch of {len(tokens)} tokens: want 1 to {name} = {max_tokens}")
        if min(tokens) < 0 or max(tokens) >= n_vocab:
            bad = next(t for t in tokens if not 0 <= t < n_vocab)
            raise BatchError(f"token id {bad} is not in the vocabulary of 0 to {n_vocab - 1}")
        ends = {s: self._end(s) for seq in set(seqs) for s in seq_tuple(seq)}
        if parents is not None:
            positions = _tree_positions(seqs, parents, ends)
            if self.kv.states is not None:
                raise BatchError("this model has recurrent layers: a batch cannot be a tree")
        elif len(ends) == 1 and batch.pos is None:
            start = next(iter(ends.values())) + 1
            positions = list(range(start, start + len(tokens)))
        else:
            positions = _positions(seqs, batch.pos, ends)
        if max(positions) > self._last_position:
            raise BatchError(f"position {max(positions)}: the largest is {self._last_position}")
        return tokens, seqs, positions, parents

    def _end(self, seq: int) -> int:
        if not 0 <= seq < self.kv.n_seq_max:
            raise BatchError(
                f"sequence {seq}: this context has 0 to {self.kv.n_seq_max - 1} (n_seq_max)"
            )
        return self.kv.seq_pos_max(seq)

    def _can_pipeline(self) -> bool:
        """Whether the next ubatch may be enqueued while devices compute earlier ones.

        Lists of cells on devices are then written while these read them, so they must only get
        longer: a sliding window removes entries.
        """
        if not self.sched.queues_work or self._watched or self.kv.states is not None:
            return False
        return not any(cache.window for cache in self.kv.caches)

    def _ubatches(self, seqs: Seqs) -> Iterator[tuple[int, int]]:
        """The ubatches of a batch: (first token, end).

        With recurrent layers, a sequence's tokens in a ubatch follow each other.
        """
        start, n = 0, len(seqs)
        while start < n:
            stop = min(n, start + self.n_ubatch)
            if self.kv.states is not None:
                stop = start + _n_in_runs(seqs[start:stop])
            yield start, stop
            start = stop

    def _graph_for(
        self, n_tokens: int, n_outputs: int, n_embeddings: int, adapted: bool,
        encodes: bool = False,
    ) -> DecodeGraph:  # fmt: skip
        """The graph for a ubatch, which may be larger."""
        if self._watched:
            if self._needs_outputs(n_embeddings):
                n_outputs = max(1, n_outputs)
            return self._graph(GraphSize(n_tokens, n_outputs, n_embeddings, adapted, encodes))
        return self._graph(self._size(n_tokens, n_outputs, n_embeddings, adapted, encodes))

    def _place(self, seqs: Seqs, positions: list[int], parents: list[int] | None) -> Placed:
        """Assign cells to the tokens of a ubatch."""
        if parents is None:
            placed = [self._placed(cache, seqs, positions) for cache in self.kv.caches]
        else:
            placed = self.kv.place_tree(cast("list[int]", seqs), positions, parents)
        for cache in self.kv.caches:
            if cache.mirrored:
                cache.update_tables()
        return Placed(placed, lists=self.kv.lists(placed))

    def _placed(self, cache: KVCache, seqs: Seqs, positions: list[int]) -> tuple[list[int], Ints]:
        cells, places = cache.place(seqs, positions)
        if self.hparams.block_size and not self.hparams.block_causal:
            ends = dict(zip(seqs, places, strict=True))
            places = [ends[seq] for seq in seqs]  # the tokens of a block attend to all of it
        return cells, cache.rows(seqs, positions, places)

    def _placed_in_target(self, seqs: Seqs) -> tuple[Placed, list[int]]:
        """See ``TargetCells.place``."""
        assert self._target is not None and self._target_cells is not None
        for cache in self._target_cells.caches:
            if cache.pending.any:
                self._target.apply_pending()
            if cache.mirrored:
                cache.update_tables()
        followed = self.target_seqs
        return self._target_cells.place([followed.get(seq_tuple(s)[0], -1) for s in seqs])

    @property
    def expert_stats(self) -> ExpertStats | None:
        """Of the model's cache of experts, which all of its contexts share; None without one."""
        return None if self._experts is None else self._experts.stats

    def _build(self, size: GraphSize) -> GraphBuilder:
        counts, bank = size[:3], self._bank if size.adapted else None
        hp, encodes = self.hparams, size.encodes
        fetchers = {} if self._experts is None else self._experts.fetchers
        kv = self._target_cells or self.kv
        b = GraphBuilder(hp, self._weights, kv, *counts, bank, encodes=encodes, fetchers=fetchers)
        b.finish(self.model.arch.build_graph(b))
        return b

    def _reserve(self) -> None:
        """Allocate and compile for the largest graph, so that no decode does."""
        adapted = self._bank is not None
        sizes = largest_graphs(self.hparams, self.n_ubatch)
        self.compile_for([size._replace(adapted=adapted) for size in sizes])
        if self.kv.reduction is not None:
            n_queries = self.kv.reduction.n_queries  # of a prompt, which is read whole before
            self.sched.prepare(VoteGraph(self._builder(), self.n_ctx_seq, n_queries).graph)

    def compile_for(self, sizes: Iterable[GraphSize]) -> None:
        """Compile the kernels of graphs of these sizes; the graphs are built again when needed."""
        for size in sizes:
            builder = self._build(size)
            self.sched.prepare(builder.graph, pins=self.pinned_nodes(builder.graph))

    def reserve(self, sizes: Iterable[int], logits: str = "all", *, build: bool = True) -> None:
        """Prefer graphs of so many tokens: other small batches use the next larger one at first.

        Args:
            sizes: numbers of tokens.
            logits: ``"all"``, ``"last"`` or, of a head that drafts blocks, ``"none"``.
            build: build the graphs, which takes milliseconds for each; False: at their first use.
        """
        for n in sizes:
            size = GraphSize(n, {"all": n, "last": 1, "none": 0}[logits])
            self._preferred.add(size)
            if build:
                self._graph(size)

    def _size(
        self, n_tokens: int, n_outputs: int, n_embeddings: int = 0, adapted: bool = False,
        encodes: bool = False,
    ) -> GraphSize:  # fmt: skip
        """The size of the graph for a batch.

        Building a graph takes as long as many small batches: their size is built after some uses of
        a graph that is somewhat larger.
        """
        if self._needs_outputs(n_embeddings):
            n_outputs = max(1, n_outputs)
        counts = bucket(n_tokens), bucket(n_outputs), bucket(n_embeddings)
        size = GraphSize(*counts, adapted, encodes)
        if size in self._graphs or not 1 < n_tokens <= _FEW:
            return size
        self._n_missed[size] += 1
        if size in self._preferred:  # a few rows more cost less than a graph for a probe of drafts
            rows = range(n_tokens + 1, _FEW_ROWS + 1)
            if self._n_missed[size] > _FEW_MISSES or not self._reuse or n_tokens != n_outputs:
                return size
            larger = [size._replace(n_tokens=n, n_outputs=n) for n in rows]
            return next((other for other in larger if other in self._graphs), size)
        if self._n_missed[size] > _MISSES or not self._reuse:
            return size
        larger = [
            other for other in (*self._graphs, *self._preferred)
            if all(n <= m <= n + n // 2 for n, m in zip(size, other, strict=True))
        ]  # fmt: skip
        return min(larger, default=size)

    def _needs_outputs(self, n_embeddings: int) -> bool:
        """Whether a graph without outputs would have no result."""
        return not n_embeddings and not self.hparams.block_size

    def _graph(self, size: GraphSize) -> DecodeGraph:
        start = time.perf_counter()
        found = self._graphs.get(size)
        if found is not None and self._reuse:
            self._graphs.move_to_end(size)
            self.n_reused += 1
            return found
        builder = self._build(size)
        threads = self.n_threads if size.n_tokens == 1 else self.n_threads_batch
        schedule = self.sched.compile(
            builder.graph, pins=self.pinned_nodes(builder.graph), n_threads=threads
        )
        made = DecodeGraph(builder, schedule)
        self.build_s += time.perf_counter() - start
        self._graphs[size] = made
        if len(self._graphs) > _MAX_GRAPHS:
            oldest = next(other for other in self._graphs if other not in _ONE)
            del self._graphs[oldest]
        is_plain = len(self.kv.caches) == 1 and made.target_hidden is None
        is_plain = is_plain and not self.hparams.has_encoder
        if size in _ONE and self._reuse and not self._watched and is_plain:
            self._token_graphs[size.adapted] = made
        return made


def _no_pins(graph: CGraph) -> Mapping[Tensor, Backend]:
    return {}


def _texts_of(batch: Batch) -> tuple[Ids, Ids]:
    """The tokens of a batch of whole texts, and the length of each text.

    Raises:
        BatchError: the tokens of a sequence do not follow each other, or it is a tree.
    """
    if batch.parent is not None:
        raise BatchError("this model attends to later tokens: a batch cannot be a tree")
    tokens, seqs = np.array(batch.tokens, np.int64), batch.seqs()
    starts = [i for i, seq in enumerate(seqs) if i == 0 or seq != seqs[i - 1]]
    if len({seqs[i] for i in starts}) < len(starts):
        raise BatchError(
            "this model attends to later tokens: those of a sequence must follow each other"
        )
    lengths = np.diff([*starts, len(tokens)])
    if batch.pos is not None and list(batch.pos) != text_positions(lengths).tolist():
        raise BatchError("this model attends to later tokens: positions of a text begin with 0")
    return tokens, lengths


def _n_in_runs(seqs: Seqs) -> int:
    """The number of leading tokens among which those of each sequence follow each other."""
    seen: set[int] = set()
    for i, group in enumerate(seqs):
        if i == 0 or group != seqs[i - 1]:
            if not seen.isdisjoint(seq_tuple(group)):
                return i
            seen.update(seq_tuple(group))
    return len(seqs)


def _tree_positions(seqs: Seqs, parents: list[int], ends: dict[int, int]) -> list[int]:
    """The position of each node: after its parent, or after the last one (``ends``).

    Raises:
        BatchError: a parent is no earlier token of the same sequence.
    """
    positions: list[int] = []
    for i, (seq, parent) in enumerate(zip(seqs, parents, strict=True)):
        if not isinstance(seq, int):
            raise BatchError(f"token {i} of the batch: sequences {list(seq)}, a tree has one")
        if not -1 <= parent < i or (parent >= 0 and seqs[parent] != seq):
            raise BatchError(
                f"token {i} of the batch: parent {parent}, want -1 or an earlier token of "
                f"sequence {seq}"
            )
        positions.append((ends[seq] if parent < 0 else positions[parent]) + 1)
    return positions


def _positions(seqs: Seqs, given: Sequence[int] | None, ends: dict[int, int]) -> list[int]:
    """The position of each token: after the last one of its sequences (``ends``).

    A given position may also start an empty sequence at any place. Raises: BatchError.
    """
    positions = []
    for i, seq in enumerate(seqs):
        if given is None and type(seq) is int:
            ends[seq] += 1
            positions.append(ends[seq])
            continue
        following = max(ends[s] for s in seq_tuple(seq)) + 1
        position = following if given is None else int(given[i])
        for s in seq_tuple(seq):
            if position != ends[s] + 1 and (position <= ends[s] or ends[s] >= 0):
                raise BatchError(
                    f"token {i} of the batch: position {position} in sequence {s}, want "
                    f"{ends[s] + 1}"
                )
            ends[s] = position
        positions.append(position)
    return positions
