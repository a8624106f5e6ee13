"""How calls and generations take turns on one object that holds one sequence of tokens.

    lock = CallLock("this object")
    with lock: ...                                 # a second thread waits here
    for token in locked(lock, steps(state, ids, sampling)): ...

A generation holds the lock for one step at a time and keeps its own list of tokens. Where another
call has come between two steps, the next one first evaluates what has been lost, so generations may
be mixed, left or closed at will; mixing them costs time and changes no token.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from .errors import PyllamaError
from .evaluated import Evaluated, Floats, Ids
from .fork_lock import ForkLock
from .sampling import Chain, LogitsProcessor, apply_logits_processors
from .timings import Timings

T = TypeVar("T")
Steps = Generator[T, Sequence[int] | None, None]
StoppingCriteria = Callable[[Ids, Floats], bool]


class ReentrantCall(PyllamaError, RuntimeError):
    """A callback called the object that is calling it."""


class CallLock(ForkLock):
    """A mutex that raises where its own holder takes it again, and a plain lock would hang.

    Args:
        what: the object, for the message.
        recover: see ``ForkLock``.
    """

    def __init__(self, what: str, recover: Callable[[], None] | None = None) -> None:
        super().__init__(what, recover)
        self._holder: int | None = None  # thread

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._holder == me:
            raise ReentrantCall(
                f"{self._what} is busy with the call that this callback belongs to; "
                "use what the callback is given, or another object"
            )
        super().__enter__()
        self._holder = me

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._holder = None
        super().__exit__(kind, error, tb)


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, and what may end a generation.

    Args:
        chain: of this generation alone.
        processors: change the logits first; criteria: called after a token is chosen.
        timings: counts what is chosen.
    """

    chain: Chain
    timings: Timings
    processors: Sequence[LogitsProcessor] = ()
    criteria: Sequence[StoppingCriteria] = ()

    def choose(self, logits: Floats, state: Evaluated, best: int | None = None) -> int:
        """A token; the chain takes note of it only by ``accept``.

        Args:
            best: where the largest logit is, if that is known.
        """
        start_s = time.perf_counter()
        if self.processors:
            logits, best = apply_logits_processors(self.processors, state.ids(), logits), None
        token = self.chain.sample(logits, best)
        self.timings.count_sample(time.perf_counter() - start_s)
        return token


def steps(
    state: Evaluated, ids: list[int], sampling: Sampling, n_keep: int | None = None
) -> Steps[int]:
    """Continue ``ids`` until the context is full or a criterion says stop.

    Tokens that are made, or sent to the generator, are put behind ``ids``. With ``n_keep`` a full
    context makes room, see ``Evaluated.make_room``, in ``ids`` too.
    """
    chain, n_ctx = sampling.chain, state.context.n_ctx_seq
    for token in ids:
        chain.accept(token)
    me = object()
    while n_keep is not None or len(ids) <= n_ctx:
        if n_keep is not None and len(ids) > n_ctx:
            state.make_room(ids, n_keep)
        if state.holder is me and state.n_tokens < len(ids):
            state.evaluate(ids[state.n_tokens :])
        else:  # the first step, or another call came between
            state.catch_up(ids)
            state.holder = me
        logits = state.context.logits_ith(-1)
        token = sampling.choose(logits, state, state.context.best_ith(-1))
        chain.accept(token)
        if sampling.criteria:
            given = state.ids()
            if any(stop(given, logits) for stop in sampling.criteria):
                return
        ids.append(token)
        sent = yield token
        ids.extend(sent or ())


def locked(lock: CallLock, steps: Steps[T]) -> Steps[T]:
    """The same items; each step under the lock."""
    sent: Sequence[int] | None = None
    while True:
        with lock:
            try:
                item = steps.send(sent)
            except StopIteration:
                return
        sent = yield item
