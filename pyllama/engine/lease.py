"""Direct control of one sequence of an engine.

lease = Lease(engine)
lease.evaluate(tokens)
for event in lease.run(Request(more, max_tokens=8), append=True): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..errors import BatchError, ContextFull
from .engine import Engine
from .request import Floats, Ids, Request, Run
from .rows import Row, batches


class Lease:
    """A sequence reserved for its holder; requests run in it only by `run`.

    Held until `release` or until the object is deleted. Not thread-safe; for the thread that steps
    the engine.

    Args:
        engine: the engine; also an attribute.
        keep: keep the tokens that the sequence holds; else it is cleared.

    Attributes:
        context: of the engine.
        ids: int32[n_ctx_seq], of which the first ``n_tokens`` are valid.

    Raises:
        BatchError: requests or leases use all sequences.
    """

    def __init__(self, engine: Engine, *, keep: bool = False) -> None:
        self.engine, self._sequence = engine, engine.take_sequence(keep=keep)
        self.context, self.ids = engine.context, self._sequence.ids

    @property
    def tokens(self) -> list[int]:
        """The tokens in the cache."""
        tokens: list[int] = self._sequence.tokens().tolist()
        return tokens

    @property
    def n_tokens(self) -> int:
        """Number of tokens in the cache; assign a lower one to remove the last tokens."""
        return self._sequence.n_tokens

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        self._sequence.owner, self._sequence.n_tokens = None, min(n, self._sequence.n_tokens)

    @property
    def n_forgotten(self) -> int:
        """Number of tokens removed by context shifts."""
        return self._sequence.n_forgotten

    @property
    def last_logits(self) -> tuple[int, Floats] | None:
        """Index of the last evaluated token, and its logits.

        None after the context evaluated another sequence.
        """
        at, outputs = self._sequence.n_at_outputs, self._sequence.last_outputs
        if outputs is None:
            return None
        n_removed = max(at - self.n_tokens, 0)  # of the tokens that have logits
        i = n_removed if n_removed < len(outputs) else 0
        return at - i - 1, self.context.logits_ith(outputs[-1 - i])

    def on_logits(self, callback: Callable[[int, Floats], None] | None) -> None:
        """Call ``callback(first, logits)`` with the logits of each evaluated chunk of tokens."""
        self._sequence.on_logits = callback

    def evaluate(self, tokens: Sequence[int], outputs: str | Sequence[bool] = "last") -> None:
        """Evaluate tokens after those in the cache.

        Args:
            outputs: tokens to compute logits for: ``"last"``, ``"all"``, ``"none"``, or a flag for
                each. The context keeps those of the last batch.

        Raises:
            ContextFull: the tokens do not fit; nothing has changed.
            BatchError: an unknown token.
            Aborted: the decode was stopped; finished batches stay in the cache.
        """
        for _ in self.chunks(tokens, outputs):
            pass

    def chunks(
        self, tokens: Sequence[int], outputs: str | Sequence[bool] = "last"
    ) -> Iterator[tuple[int, Floats]]:
        """`evaluate`, one batch at a time.

        Yields:
            The index in ``tokens`` of the batch's first token, and the logits of its outputs
            (float32[n_outputs, n_vocab]), which the next decode overwrites.
        """
        sequence, n_ctx = self._sequence, self.context.n_ctx_seq
        n_total = sequence.n_tokens + len(tokens)
        if n_total > n_ctx:
            raise ContextFull(
                f"{len(tokens)} tokens after {sequence.n_tokens} do not fit into a context of "
                f"{n_ctx}; use `n_ctx={n_total}` or more, or reset()"
            )
        sequence.owner = None
        sequence.truncate()
        start = 0
        row = Row(sequence, list(tokens), "all" if sequence.on_logits is not None else outputs)
        for part in batches([row], self.context.n_batch):
            self.engine.decode(part)
            yield start, self.context.logits
            start += len(part[0].tokens)

    def row(self, tokens: Sequence[int], outputs: str | Sequence[bool] = "last") -> Row:
        """Tokens to evaluate after those in the cache, for `Engine.decode`."""
        return Row(self._sequence, list(tokens), outputs)

    def catch_up(self, tokens: Sequence[int]) -> int:
        """Make the cache hold exactly ``tokens``; evaluates all but the common prefix.

        The last token is always evaluated, for its logits.

        Returns:
            The length of the common prefix.
        """
        n = self.keep(tokens)
        self.evaluate(tokens[n:])
        return n

    def keep(self, tokens: Sequence[int]) -> int:
        """Remove all but the common prefix, see `CacheSequence.keep`; its length."""
        self._sequence.owner = None
        return self._sequence.keep(tokens)

    def make_room(self, tokens: list[int], n_keep: int, n_last: int = 0) -> None:
        """Remove some tokens from the middle until they fit, see `CacheSequence.make_room`."""
        self._sequence.owner = None
        while len(tokens) > self.context.n_ctx_seq:
            self._sequence.make_room(tokens, n_keep, n_last)

    def adopt(self, tokens: Sequence[int] | Ids) -> None:
        """Declare that the cache holds these tokens, such as those of a loaded state."""
        self._sequence.owner = None
        self._sequence.adopt(tokens)

    def truncate(self, n: int | None = None) -> None:
        """Remove all but the first ``n`` tokens from the cache."""
        self._sequence.owner = None
        self._sequence.truncate(n)

    def fork(self, source: Lease, n: int | None = None) -> None:
        """Replace the tokens by the first ``n`` (None: all) of another lease."""
        self._sequence.owner = None
        self._sequence.fork(source._sequence, source.n_tokens if n is None else n)

    def run(self, request: Request, *, append: bool = False) -> Run:
        """The events of a request that runs in this sequence; see `Engine.run`.

        The common prefix with the sequence's tokens is reused. Runs may be interleaved with each
        other and with other methods; each evaluates the tokens that it then misses.

        Args:
            append: prepend the tokens of the sequence to those of the request.

        Raises:
            BatchError: as `Engine.submit`; with ``append``, an encoder has read its text.
        """
        if append and self._sequence.n_text:
            raise BatchError("an encoded text cannot be continued by another one; reset() first")
        held = self.tokens if append else []
        tokens = [*held, *map(int, request.tokens)]
        return self.engine.run_in(self._sequence, request, tokens, holder=self)

    def release(self) -> None:
        """Return the sequence at the next step; its tokens stay as an idle prefix."""
        self.engine.release(self._sequence)

    def __del__(self) -> None:
        if hasattr(self, "_sequence"):  # False if the constructor raised
            self.release()
