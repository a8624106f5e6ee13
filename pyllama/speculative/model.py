"""Drafts of a model with a context of its own: chains or trees, for several texts at once.

    drafter = draft_model(target.model.tokenizer, Context(small, n_ctx=4096, n_seq_max=4))
    drafter = self_draft(target, threshold=0.6, n_layer=24)     # fewer weights of the same model
    drafter = ModelDrafter(context, SamplingParams(temp=0.8, seed=1))   # with distributions

Each text has a sequence of the context, which keeps what the text still has in common with its
last tokens and drafts. All texts are evaluated together, first what each lacks, then one depth of
the drafts after the other. A text gets no draft where it does not fit. Not thread-safe.

At each depth the ``width`` continuations with the largest probability, as far as the draft's
distributions tell, get a node each. How many children a node gets is thus known before they are
drawn, as `verify` requires.

Under a grammar only tokens that it allows are drafted. The target's own matcher tells which: it is
advanced with the nodes, and rolled back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyggml.errors import Aborted, PyggmlError

from ..errors import ContextFull, DraftError, ModelError
from ..kv.table import MAX_BRANCHES
from ..runtime.batch import Batch
from ..runtime.context import Context
from ..runtime.overrides import Overrides
from ..runtime.params import last_position
from ..sampling import Chain, Distribution, SamplingParams
from ..sampling.constrained import constrain
from ..sampling.top import Floats
from ..tokenizer import Tokenizer
from .draft import Costs, Draft, Drafter, DraftView
from .translate import Translated, mismatch

if TYPE_CHECKING:
    from ..grammar import Matcher

log = logging.getLogger(__name__)

LIKELIEST = SamplingParams(temp=0.0, top_k=10, samplers=("top_k", "temperature"))
"""llama.cpp's sampling of drafts: the likeliest token, its probability among the first ten."""

_READ_SIZES = (2, 3, 4, 6, 9, 13, 32)  # batches of tokens to read whose graphs are built at once
_LONG = 256  # tokens: as many are read in large batches, whose graphs are built then
ACCEPT_RATE = 0.7  # of small models of one family, see Leviathan 2023, table 3
_NOTHING = Distribution(np.empty(0, np.int32), np.empty(0))
_SMALLEST = 5e-324  # a random number of 0 would draw a leading token of probability 0


@dataclass(slots=True)
class _Tree:
    """Nodes in the cache that are not in the sequence yet, in the order of ``kv.commit_tree``."""

    nodes: list[int]  # their numbers in the draft
    tokens: list[int]
    parents: list[int]  # indices in these lists

    def path(self, tokens: Sequence[int]) -> list[int]:
        """The nodes that have these tokens, from a root on, as far as there are such nodes."""
        found: list[int] = []
        at, children = -1, list(zip(self.parents, self.tokens, strict=True))
        for token in tokens:
            if (at, token) not in children:
                break
            at = children.index((at, token))
            found.append(at)
        return found


@dataclass(slots=True)
class DraftText:
    """A text in one sequence of the context.

    Attributes:
        seq: id of the sequence.
        chain: samplers that have accepted the text's first ``n_heard`` tokens.
        start: state of the chain before any token.
        random: draws the tokens of drafts with distributions.
        held: the tokens in the cache; the sequence has exactly these between two decodes.
        tree: nodes of the last draft that follow them.
    """

    seq: int
    chain: Chain
    start: Any
    random: np.random.Generator
    n_heard: int = 0
    held: list[int] = field(default_factory=list)
    tree: _Tree | None = None


@dataclass(slots=True)
class Growing:
    """A draft in the making.

    Attributes:
        rest: tokens of the text that are not in the cache.
        rest_states: of a head, the target's hidden states before each of them; else empty.
        states: of a head, its hidden states before each node; else empty.
        matcher: state of the text's grammar.
        mark: states of chain and matcher after the text, set before the first node.
        draft: without its distributions ``q`` until it is complete.
        share: probability of the path to each node.
        frontier: nodes that get children next; -1 is the text's last token.
        n_stem: nodes of the draft that the cache has in the sequence.
        heard: the path that the chain has accepted since ``mark``.
    """

    text: DraftText
    max_nodes: int
    rest: list[int]
    rest_states: Sequence[Floats] | Floats = ()
    matcher: Matcher | None = None
    mark: tuple[Any, Any] = (None, None)
    draft: Draft = field(default_factory=lambda: Draft([], []))
    q: list[Distribution] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    states: list[Floats] = field(default_factory=list)
    frontier: list[int] = field(default_factory=lambda: [-1])
    n_stem: int = 0
    heard: list[int] = field(default_factory=list)

    def add(self, parent: int, token: int, share: float) -> None:
        """Add a node."""
        self.draft.tokens.append(token)
        self.draft.parent.append(parent)
        self.share.append(share)

    def begin(self) -> None:
        """Note the states after the text."""
        self.mark = self.text.chain.mark(), self.matcher and self.matcher.mark()

    def rewind(self) -> None:
        """Restore the states after the text."""
        chain, matcher = self.mark
        self.text.chain.rollback(chain)
        if self.matcher is not None:
            self.matcher.rollback(matcher)

    def hear(self, node: int) -> None:
        """Add a node's token to chain and matcher."""
        token = self.draft.tokens[node]
        self.text.chain.accept(token)
        if self.matcher is not None:
            self.matcher.accept(token)

    def listen(self, node: int) -> None:
        """Bring chain and matcher into their states after a node."""
        path, n = self.draft.path(node), len(self.heard)
        if path[:n] != self.heard:
            self.rewind()
            n = 0
        for i in path[n:]:
            self.hear(i)
        self.heard = path


class ReadPart(NamedTuple):
    """Tokens of a text to evaluate together.

    Attributes:
        states: of a head, the hidden states before each; else empty.
        last: whether the last of them gets children.
    """

    growing: Growing
    tokens: list[int]
    states: Sequence[Floats] | Floats
    last: bool


class ModelDrafter:
    """Drafts of a model.

    Args:
        context: the draft's context, with a sequence for each text; nothing else may use it.
        sampling: the draft's own, with its token ids. If greedy (``temp=0``) or without a
            distribution (mirostat), drafts are point masses, otherwise they have distributions.
            They may differ from the target's settings; drafts are accepted more often the nearer
            they are.
        width: maximum number of nodes at one depth; 1 drafts chains, as recurrent models always do.
        p_min: a node gets children only if their probability, that of the likeliest token or of
            the ``width`` likeliest ones, is at least this; 0 is off.
        p_split: a node gets a second child, a third one and so on only for tokens of a larger
            probability. It and ``p_min`` are compared after the draft's samplers.
        n_vocab: number of tokens that may be drafted; None for all of the draft's.

    Attributes:
        context: the same.
        costs: measured times of reading and drafting.

    Raises:
        DraftError: a parameter is out of its range.
        ModelError: the model's tokens attend to later ones.
        SamplingError: see `Chain`.

    Source: llama.cpp, ``common_speculative_gen_draft`` (``p_min``) and its example `speculative`
    (``p_split``), which compare the probability of the drawn token.
    """

    def __init__(
        self,
        context: Context,
        sampling: SamplingParams = LIKELIEST,
        *,
        width: int = 1,
        p_min: float = 0.0,
        p_split: float = 0.1,
        n_vocab: int | None = None,
    ) -> None:
        if not 1 <= width <= MAX_BRANCHES:
            raise DraftError(f"width is {width}, want 1 to {MAX_BRANCHES}")
        for name, value in (("p_min", p_min), ("p_split", p_split)):
            if not 0 <= value <= 1:
                raise DraftError(f"{name} is {value}, want 0 to 1")
        if not context.hparams.causal:
            raise ModelError(
                f"{context.model.path}: tokens attend to later ones: this model cannot draft"
            )
        self.context = context
        self._n_vocab = min(n_vocab or context.hparams.n_vocab, context.hparams.n_vocab)
        self._is_cut = self._n_vocab < context.hparams.n_vocab
        self._p_min, self._p_split = p_min, p_split
        self._params, self._width, self._ranks, self._draws = sampling, width, False, True
        if not self._has_distribution():
            self._draws = False
            is_ranked = sampling.temp <= 0 and (width > 1 or p_min > 0)
            self._params = replace(sampling, temp=1.0, dynatemp_range=0.0)
            self._ranks = is_ranked and self._has_distribution()
        if not self._draws and not self._ranks:
            self._params, self._width = sampling, 1
        if context.kv.states is not None:
            self._width = 1  # recurrent states cannot branch
        self._is_head = context.hparams.n_embd_target > 0
        self._depth = 0  # of the first token that it drafts
        # rows of a head's one layer are cheap beside a decode: the next larger graph has room
        self._least_cut = _READ_SIZES[-2] if self._is_head else 0
        self._n_ctx = min(context.n_ctx_seq, last_position(context.hparams) + 1)
        self._restricted: Floats | None = None  # logits of tokens that a grammar allows
        self._texts: dict[int, DraftText] = {}
        # sequences without a text, those used last at the end, and the tokens that they still hold
        self._idle: list[tuple[int, list[int]]] = [(s, []) for s in range(context.kv.n_seq_max)]
        context.kv.clear()
        sizes = [n for n in _READ_SIZES if n <= context.n_ubatch]
        context.reserve(sizes, "none" if context.hparams.block_size else "last")
        self.costs = self._measure()

    def propose(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        """See `Drafter.propose`.

        Raises:
            Aborted: a decode was stopped; the drafter stays usable.
        """
        return [
            replace(g.draft, q=g.q if self._draws else None)
            if g is not None and len(g.draft)
            else None
            for g in self._grow(views, max_nodes)
        ]

    def _grow(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Growing | None]:
        """The drafts of `propose`; None for a text that gets none. Raises: Aborted."""
        admitted = self._admit_all(views, max_nodes)
        growing = [g for g in admitted if g is not None]
        try:
            self._catch_up(growing)
            while growing := [g for g in growing if g.frontier]:
                self._next_depth(growing)
        except BaseException as error:
            for g in admitted:
                if g is not None:  # remove what the failed decode may have added, or has lost
                    del g.text.held[self.context.kv.rewind(g.text.seq, len(g.text.held)) :]
                    g.text.tree = None
            if isinstance(error, Aborted) or not isinstance(error, PyggmlError):
                raise
            if not isinstance(error, ContextFull):
                log.warning("%s: no draft: %s", self.context.model.path, error)
        finally:
            for g in admitted:
                if g is not None:
                    g.rewind()
        return admitted

    def accepted(self, view: DraftView, path: Sequence[int]) -> None:
        """See `Drafter.accepted`; the text's tokens tell as much in the next call."""

    def release(self, view: DraftView) -> None:
        """See `Drafter.release`; the tokens stay for a text with the same prefix."""
        text = self._texts.pop(view.id, None)
        if text is not None:
            self.context.kv.drop_tree(text.seq)
            self._idle.append((text.seq, text.held))

    def _measure(self) -> Costs:
        """What reading and drafting costs; the first round touches the pages of a new context."""
        context, read_s, draft_s = self.context, inf, inf
        n = max(1, min(max(_READ_SIZES), context.n_batch, self._n_ctx - 1))
        try:
            for _ in range(3):
                context.kv.clear()
                start = perf_counter()
                context.decode(Batch([0] * n))
                read = perf_counter()
                if self._n_ctx > n:
                    context.decode_token(0)
                draft_s = min(draft_s, perf_counter() - read)
                read_s = min(read_s, (read - start) / n)
        finally:
            context.kv.clear()
        return Costs(read_s, draft_s, ACCEPT_RATE)

    # -- texts -----------------------------------------------------------------------------------

    def _tokens(self, view: DraftView) -> list[int]:
        """The tokens of a text that the context reads."""
        return list(view.tokens)

    def _states(self, view: DraftView, start: int) -> Sequence[Floats] | Floats:
        """Of a head, the target's hidden states before each of these tokens from ``start`` on."""
        return ()

    def _has_distribution(self) -> bool:
        """Whether the chain of the parameters has one."""
        return self._new_chain().distribution(np.zeros(self._n_vocab, np.float32)) is not None

    def _new_chain(self) -> Chain:
        params, n, tokenizer = self._params, self._n_vocab, self.context.model.tokenizer
        eog = [token for token in tokenizer.eog if token < n]
        return Chain(params, n, eog, stop_ids=params.stop_token_ids, tokenizer=tokenizer)

    def _admit_all(
        self, views: Sequence[DraftView], max_nodes: Sequence[int]
    ) -> list[Growing | None]:
        """A draft without nodes for each text that can be evaluated."""
        admitted: list[Growing | None] = [None] * len(views)
        for i in sorted(range(len(views)), key=lambda i: views[i].id not in self._texts):
            if max_nodes[i] > 0 and views[i].tokens:
                admitted[i] = self._admit(views[i], max_nodes[i])
        kv = self.context.kv
        n_cells = sum(len(g.rest) + g.max_nodes for g in admitted if g is not None)
        for seq, held in self._idle if kv.unified else ():
            if kv.n_cells - kv.n_used < n_cells:
                kv.seq_rm(seq)
                held.clear()
        n_free = kv.n_cells - kv.n_used
        for i, g in enumerate(admitted) if kv.unified else ():
            if g is not None and len(g.rest) > n_free:
                n_used = kv.n_used
                self._clear(g.text)  # others may need the cells
                n_free += n_used - kv.n_used
                admitted[i] = None
            elif g is not None:
                n_free -= len(g.rest)
        growing = [g for g in admitted if g is not None]
        for g in growing:
            if kv.unified:
                g.max_nodes = min(g.max_nodes, n_free + 1)
                n_free -= g.max_nodes - 1
            g.begin()
        return admitted

    def _admit(self, view: DraftView, max_nodes: int) -> Growing | None:
        """A draft without nodes; the text has a sequence, and its chain has accepted all tokens."""
        tokens, text = self._tokens(view), self._texts.get(view.id)
        if not tokens:
            return None
        if text is None:
            if not self._idle:
                return None
            text = self._new_text(view.id, tokens)
        if len(tokens) > self._n_ctx:
            self._clear(text)
            return None
        n_common = common_length(text.held, tokens)
        n_kept = self._keep(text, tokens, n_common)
        rest = tokens[n_kept:]
        if min(rest) < 0 or max(rest) >= self._n_vocab:
            return None
        if n_common < text.n_heard:  # other tokens, or some were removed
            text.chain.rollback(text.start)
            text.n_heard = 0
        if not text.n_heard:
            text.chain.accept_prompt(tokens)
        else:
            for token in tokens[text.n_heard :]:
                text.chain.accept(token)
        text.n_heard = len(tokens)
        # the last drafted token needs no cell
        max_nodes = min(max_nodes, self._n_ctx - len(tokens) + 1)
        return Growing(text, max_nodes, rest, self._states(view, n_kept), view.matcher)

    def _clear(self, text: DraftText) -> None:
        """Remove all tokens of a text from the cache."""
        self.context.kv.seq_rm(text.seq)
        text.held.clear()
        text.tree = None

    def _new_text(self, id: int, tokens: list[int]) -> DraftText:
        """A text in the idle sequence that has most of its tokens."""
        seq, held = max(self._idle, key=lambda idle: common_length(idle[1], tokens))
        self._idle.remove((seq, held))
        chain = self._new_chain()
        # a stream of its own: draws must not depend on the target's random numbers
        random = np.random.default_rng((chain.seed, id & 0xFFFFFFFF, self._depth))
        text = self._texts[id] = DraftText(seq, chain, chain.mark(), random, held=held)
        return text

    def _keep(self, text: DraftText, tokens: list[int], n: int) -> int:
        """Remove all but the common prefix from the cache; ``n`` of ``held`` are common.

        Returns:
            The number of tokens in the cache, not all: the last one gives logits.
        """
        kv, held, last = self.context.kv, text.held, len(tokens) - 1
        if text.tree is not None and n == len(held):
            path = text.tree.path(tokens[n:last])
            kv.commit_tree(text.seq, path)
            held += tokens[n : n + len(path)]
            n = len(held)
        text.tree = None
        if min(n, last) < len(held):
            n = kv.rewind(text.seq, min(n, last))
            del held[n:]
        return n

    # -- decodes ---------------------------------------------------------------------------------

    def _catch_up(self, growing: list[Growing]) -> None:
        """Evaluate the rest of each text, and give its last token children."""
        part: list[ReadPart] = []
        room = self.context.n_batch
        for g in growing:
            start = 0
            while start < len(g.rest):
                n = len(g.rest) - start
                if len(growing) == 1 and self._least_cut < n < _LONG:
                    n = max((size for size in _READ_SIZES if size <= n), default=1)
                    room = min(n, self.context.n_batch)
                tokens, states = g.rest[start : start + room], g.rest_states[start : start + room]
                start, room = start + len(tokens), room - len(tokens)
                part.append(ReadPart(g, tokens, states, start == len(g.rest)))
                if not room:
                    self._append(part)
                    part, room = [], self.context.n_batch
        if part:
            self._append(part)

    def _append(self, part: list[ReadPart]) -> None:
        """Evaluate tokens of texts; gives those that are ``last`` the children of the last one."""
        context = self.context
        hidden = stacked([state for piece in part for state in piece.states])
        if len(part) == 1:
            g, tokens, _, last = part[0]
            if len(tokens) == 1 and hidden is None:
                context.decode_token(tokens[0], g.text.seq)
            else:
                logits = "last" if last else "none"
                context.decode(Batch(tokens, seq_id=g.text.seq, logits=logits, hidden=hidden))
        else:
            all_tokens, seqs, flags = [], [], []
            for g, tokens, _, last in part:
                all_tokens += tokens
                seqs += [g.text.seq] * len(tokens)
                flags += [False] * (len(tokens) - 1) + [last]
            context.decode(Batch(all_tokens, seq_id=seqs, logits=flags, hidden=hidden))
        for g, tokens, _, _ in part:
            g.text.held += tokens
        row = 0
        for g, _, _, last in part:
            if last:
                self._expand(g, row)
                row += 1

    def _next_depth(self, growing: list[Growing]) -> None:
        """Evaluate the frontier of each draft, and give its nodes children."""
        part: list[tuple[Growing, list[int]]] = []
        n_tokens = n_branches = 0
        for g in growing:
            nodes = self._to_evaluate(g)
            if len(nodes) > self.context.n_ubatch:
                g.frontier = []
                continue
            n_tokens += len(nodes)
            n_branches += len(g.frontier) - 1
            if n_tokens > self.context.n_ubatch or n_branches > MAX_BRANCHES:
                self._evaluate(part)
                part, n_tokens, n_branches = [], len(nodes), len(g.frontier) - 1
            part.append((g, nodes))
        if part:
            self._evaluate(part)

    def _to_evaluate(self, g: Growing) -> list[int]:
        """The paths to the frontier after their common part, which becomes part of the sequence."""
        text = g.text
        if text.tree is None and len(g.frontier) == 1:
            return g.frontier
        paths = [g.draft.path(node) for node in g.frontier]  # of equal lengths
        first, start = paths[0], g.n_stem
        while g.n_stem < len(first) - 1 and len({path[g.n_stem] for path in paths}) == 1:
            g.n_stem += 1
        if text.tree is not None:
            stem = first[start : g.n_stem]
            path = [text.tree.nodes.index(node) for node in stem]
            text.tree = None
            self.context.kv.commit_tree(text.seq, path)
            text.held += [g.draft.tokens[node] for node in stem]
        return sorted({node for path in paths for node in path[g.n_stem :]})

    def _evaluate(self, part: list[tuple[Growing, list[int]]]) -> None:
        """Evaluate nodes of drafts after their stems, and give those of the frontiers children."""
        if all(len(nodes) == 1 for _, nodes in part):
            for g, _ in part:
                g.n_stem += 1
            self._append(
                [
                    ReadPart(g, [g.draft.tokens[node]], g.states[node : node + 1], True)
                    for g, (node,) in part
                ]
            )
            return
        tokens: list[int] = []
        seqs: list[int] = []
        parents: list[int] = []
        flags: list[bool] = []
        states: list[Floats] = []
        trees = []
        for g, nodes in part:
            index = {node: i for i, node in enumerate(nodes)}
            tree = _Tree(nodes, [], [])
            tree.tokens = [g.draft.tokens[node] for node in nodes]
            tree.parents = [index.get(g.draft.parent[node], -1) for node in nodes]
            trees.append(tree)
            parents += [i if i < 0 else i + len(tokens) for i in tree.parents]
            tokens += tree.tokens
            seqs += [g.text.seq] * len(nodes)
            flags += [node in g.frontier for node in nodes]
            states += [g.states[node] for node in nodes if g.states]
        hidden = stacked(states)
        self.context.decode(Batch(tokens, seq_id=seqs, parent=parents, logits=flags, hidden=hidden))
        row = 0
        for (g, nodes), tree in zip(part, trees, strict=True):
            if len(nodes) == 1:
                self.context.kv.commit_tree(g.text.seq, (0,))
                g.text.held += tree.tokens
                g.n_stem += 1
            else:
                g.text.tree = tree
        for g, _ in part:
            n_rows = len(g.frontier)
            self._expand(g, row)
            row += n_rows

    # -- nodes -----------------------------------------------------------------------------------

    def _expand(self, g: Growing, row: int) -> None:
        """Give the nodes of the frontier children; ``row`` has the logits of the first."""
        start = len(g.draft.tokens)
        if self._width == 1:
            self._lengthen(g, row)
        else:
            self._widen(g, row)
        if self._is_head:
            rows = {node: row + i for i, node in enumerate(g.frontier)}
            parents = g.draft.parent[start:]
            g.states += [self.context.hidden[rows[parent]].copy() for parent in parents]
        more = len(g.draft.tokens) < g.max_nodes
        g.frontier = list(range(start, len(g.draft.tokens))) if more else []

    def _lengthen(self, g: Growing, row: int) -> None:
        """Give the only node of the frontier a child."""
        node = g.frontier[0]
        if node >= 0:
            g.hear(node)
        logits, argmax = self._logits(g, row)
        if argmax is not None and argmax < 0:
            return
        if self._draws:
            q = g.text.chain.distribution(logits, argmax)
            assert q is not None
            if q.probs.max() >= self._p_min:
                g.add(node, drawn(q, 1, g.text.random)[0], 1.0)
                g.q.append(q)
        elif self._ranks:
            found = g.text.chain.likeliest(logits, argmax)
            assert found is not None
            if found[1] >= self._p_min:
                g.add(node, found[0], 1.0)
        else:
            g.add(node, g.text.chain.sample(logits, argmax), 1.0)

    def _widen(self, g: Growing, row: int) -> None:
        """Give the likeliest continuations of the frontier a node each."""
        found = []
        slots: list[tuple[float, int]] = []  # probability of a path to a child, and its parent
        for i, node in enumerate(g.frontier):
            g.listen(node)
            logits, argmax = self._logits(g, row + i)
            if argmax is not None and argmax < 0:
                found.append((_NOTHING, _NOTHING.ids))
                continue
            q = g.text.chain.distribution(logits, argmax)
            assert q is not None
            top = likeliest_positions(q, self._width)
            probs = q.probs[top].tolist()
            probs = [p for j, p in enumerate(probs) if not j or p > self._p_split]
            found.append((q, top))
            if sum(probs) >= self._p_min:
                share = g.share[node] if node >= 0 else 1.0
                slots += [(share * p, i) for p in probs]
        slots.sort(key=lambda slot: -slot[0])
        n_children = [0] * len(g.frontier)
        for _, i in slots[: min(self._width, g.max_nodes - len(g.draft.tokens))]:
            n_children[i] += 1
        for node, n, (q, top) in zip(g.frontier, n_children, found, strict=True):
            share = g.share[node] if node >= 0 else 1.0
            if not self._draws:
                for at in top[:n].tolist():
                    g.add(node, q.ids.item(at), share * q.probs.item(at))
                continue
            for token in drawn(q, n, g.text.random) if n else ():
                g.add(node, token, share * float(q.probs[q.ids == token][0]))
                g.q.append(q)

    def _logits(self, g: Growing, row: int) -> tuple[Floats, int | None]:
        """Logits of the tokens that may be drafted, and their argmax if it is known.

        The argmax is -1 if the grammar allows no token.
        """
        logits = self.context.logits_ith(row)
        if self._is_cut:
            logits = logits[: self._n_vocab]
        if g.matcher is not None and g.matcher.is_active:
            if self._restricted is None:
                self._restricted = np.empty(self._n_vocab, np.float32)
            return self._restricted, constrain(logits, g.matcher.mask(), self._restricted)
        return logits, None if self._is_cut else self.context.argmax_ith(row)


def stacked(states: list[Floats]) -> Floats | None:
    """Hidden states as one array; None without any."""
    return np.stack(states) if states else None


def draft_model(
    target: Tokenizer,
    context: Context,
    sampling: SamplingParams = LIKELIEST,
    *,
    width: int = 1,
    p_min: float = 0.0,
    p_split: float = 0.1,
) -> Drafter:
    """A drafter for texts in the target's vocabulary.

    Drafts of another vocabulary are translated by their text: they are chains of point masses.

    Args:
        target: the vocabulary of the texts.
        context, sampling, width, p_min, p_split: see `ModelDrafter`.

    Raises:
        DraftError, ModelError, SamplingError: see `ModelDrafter`.
    """
    own = context.model.tokenizer
    reason = mismatch(target, own)
    if reason is None:
        return ModelDrafter(
            context, sampling, width=width, p_min=p_min, p_split=p_split, n_vocab=target.n_vocab
        )
    log.info("%s: drafts are translated: %s", context.model.path, reason)
    return Translated(ModelDrafter(context, sampling, p_min=p_min), target, own)


def self_draft(
    target: Context,
    sampling: SamplingParams = LIKELIEST,
    *,
    threshold: float | None = None,
    n_layer: int | None = None,
    width: int = 1,
    p_min: float = 0.0,
    p_split: float = 0.1,
) -> ModelDrafter:
    """A drafter with the target's own weights, of which it reads fewer.

    Its context has the target's sizes and hyperparameters.

    Args:
        target: the context that verifies the drafts.
        threshold: minimum score of an active neuron, for models with predictors; None for the
            target's.
        n_layer: number of layers, the first ones; None for all.
        sampling, width, p_min, p_split: see `ModelDrafter`.

    Raises:
        AllocError: the KV cache does not fit into memory.
        BatchError: see `Overrides`: no predictors, or a number out of its range.
        DraftError, ModelError, SamplingError: see `ModelDrafter`.
    """
    overrides = Overrides(sparse_threshold=threshold, n_layer=n_layer)
    model = target.model.with_hparams(target.hparams)
    context = Context(model, replace(target.params, overrides=overrides))
    return ModelDrafter(context, sampling, width=width, p_min=p_min, p_split=p_split)


def common_length(a: list[int], b: list[int]) -> int:
    """Length of the common prefix of two lists."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # they differ before ``high``
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def likeliest_positions(q: Distribution, n: int) -> np.ndarray[Any, Any]:
    """Positions of the ``n`` largest probabilities above 0, in descending order."""
    probs = q.probs
    top = probs.argpartition(-n)[-n:] if n < probs.size else np.arange(probs.size)
    top = top[probs[top] > 0]
    order: np.ndarray[Any, Any] = top[(-probs[top]).argsort(kind="stable")]
    return order


def drawn(q: Distribution, n: int, random: np.random.Generator) -> list[int]:
    """``n`` tokens drawn without replacement; q must have as many of positive probability."""
    probs, found = q.probs.copy() if n > 1 else q.probs, []
    for i in range(n):
        running = probs.cumsum()
        at = int(running.searchsorted(max(random.random() * running.item(-1), _SMALLEST)))
        found.append(q.ids.item(at))
        if i < n - 1:
            probs[at] = 0.0
    return found
