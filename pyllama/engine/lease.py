"""A sequence of an engine that is driven by hand.

lease = Lease(engine)
lease.evaluate(tokens)
for event in lease.run(Request(more, max_tokens=8), append=True): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq

from ..errors import ContextFull
from .engine import Engine
from .request import Floats, Ids, Request, Run
from .sequence import Row, batches


class Lease:
    """A sequence that is driven by hand; texts run in it only by `run`.

    It is taken until `release`, or until the object is gone. Not thread-safe; only for the thread
    that steps the engine.

    Args:
        engine: the engine that has the sequence.
        keep: leave the tokens that the sequence holds, else it is empty.

    Attributes:
        context: of the engine.
        ids: int32[n_ctx_seq], of which the first ``n_tokens`` count.

    Raises:
        BatchError: requests or leases have all sequences.
    """

    def __init__(self, engine: Engine, *, keep: bool = False) -> None:
        self._engine, self._sequence = engine, engine.take_sequence(keep=keep)
        self.context, self.ids = engine.context, self._sequence.ids

    @property
    def engine(self) -> Engine:
        """The engine that it belongs to."""
        return self._engine

    @property
    def tokens(self) -> list[int]:
        """The tokens that it holds."""
        tokens: list[int] = self._sequence.tokens().tolist()
        return tokens

    @property
    def n_tokens(self) -> int:
        """How many; lower it to forget the last ones."""
        return self._sequence.n_tokens

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        self._sequence.owner, self._sequence.n_tokens = None, min(n, self._sequence.n_tokens)

    @property
    def n_forgotten(self) -> int:
        """Tokens that context shifts took out of the middle."""
        return self._sequence.n_forgotten

    @property
    def last_logits(self) -> tuple[int, Floats] | None:
        """The token that was evaluated last, by its index, and the logits after it.

        None once the context has evaluated something else.
        """
        engine = self._engine
        if engine._logits_of is not self._sequence:
            return None
        return engine._logits_at - 1, self.context.logits_ith(-1)

    def on_logits(self, callback: Callable[[int, Floats], None] | None) -> None:
        """Call something with the index of the first of some tokens and the logits of all."""
        self._sequence.on_logits = callback

    def evaluate(self, tokens: Seq[int], outputs: str | Seq[bool] = "last") -> None:
        """Evaluate tokens after those that it holds.

        Args:
            outputs: ``"last"``, ``"all"``, ``"none"``, or a flag for each token: whose logits the
                context has afterwards, as far as they were in the last batch.

        Raises:
            ContextFull: they do not fit; nothing has changed then.
            BatchError: an unknown token.
            Aborted: it was stopped; whole batches that were finished count.
        """
        for _ in self.chunks(tokens, outputs):
            pass

    def chunks(
        self, tokens: Seq[int], outputs: str | Seq[bool] = "last"
    ) -> Iterator[tuple[int, Floats]]:
        """`evaluate`, a batch at a time.

        Yields:
            The index of a batch's first token in ``tokens``, and its outputs' logits
            (float32[n_outputs, n_vocab]), which the next decode overwrites.
        """
        sequence, n_ctx = self._sequence, self.context.n_ctx_seq
        n_wanted = sequence.n_tokens + len(tokens)
        if n_wanted > n_ctx:
            raise ContextFull(
                f"{len(tokens)} tokens behind {sequence.n_tokens} do not fit into a context of "
                f"{n_ctx}; use `n_ctx={n_wanted}` or more, or reset()"
            )
        sequence.owner = None
        sequence.truncate()
        start = 0
        row = Row(sequence, list(tokens), "all" if sequence.on_logits is not None else outputs)
        for part in batches([row], self.context.n_batch):
            self._engine.decode(part)
            yield start, self.context.logits
            start += len(part[0].tokens)

    def row(self, tokens: Seq[int], outputs: str | Seq[bool] = "last") -> Row:
        """Tokens to evaluate after those that it holds, for `Engine.decode`."""
        return Row(self._sequence, list(tokens), outputs)

    def catch_up(self, tokens: Seq[int]) -> int:
        """Hold these tokens: evaluate those that are not there, at least the last one.

        Returns:
            How many were there.
        """
        n = self.keep(tokens)
        self.evaluate(tokens[n:])
        return n

    def keep(self, tokens: Seq[int]) -> int:
        """Forget what is not the beginning of ``tokens``, or is all of it; how many tokens stay."""
        self._sequence.owner = None
        return self._sequence.keep(tokens)

    def make_room(self, tokens: list[int], n_keep: int, n_last: int = 0) -> None:
        """Take some of ``tokens`` out of the middle until they fit (see `Sequence.make_room`)."""
        self._sequence.owner = self._engine._logits_of = None
        while len(tokens) > self.context.n_ctx_seq:
            self._sequence.make_room(tokens, n_keep, n_last)

    def adopt(self, tokens: Seq[int] | Ids) -> None:
        """Take note that the context holds these tokens, such as those of a loaded state."""
        self._sequence.owner = self._engine._logits_of = None
        self._sequence.adopt(tokens)

    def truncate(self, n: int | None = None) -> None:
        """Forget all but the first ``n`` tokens, in the context's memory too."""
        self._sequence.owner = None
        self._sequence.truncate(n)

    def fork(self, source: Lease, n: int | None = None) -> None:
        """Hold the first ``n`` tokens of another one (None: all), and nothing else."""
        self._sequence.owner = None
        self._sequence.fork(source._sequence, source.n_tokens if n is None else n)

    def run(self, request: Request, *, append: bool = False) -> Run:
        """The events of a request that runs in this sequence; see `Engine.run`.

        What the sequence holds of the tokens is not evaluated again. Several may be mixed with each
        other and with operations by hand: each evaluates again what it then lacks.

        Args:
            append: the tokens follow those that the sequence holds.
        """
        held = self.tokens if append else []
        tokens = [*held, *map(int, request.tokens)]
        return self._engine._run(self._engine._make_jobs(request, tokens, self._sequence), self)

    def release(self) -> None:
        """Give the sequence back at the next step; what it holds stays as an idle prefix."""
        self._engine._inbox.put(self._sequence)

    def __del__(self) -> None:
        if hasattr(self, "_sequence"):  # else there was none to take
            self.release()
