"""Returns the likeliest of several texts of a request.

    best = BestOf(2, 8, sink=events.append, abort=lambda: engine.abort(number))
    best.take(event)                               # of any of the eight texts

Holds all texts until the last one has ended, since any of them may be the likeliest.
"""

from __future__ import annotations

from collections.abc import Callable

from .request import Event


class BestOf:
    """Receives the events of ``n_texts`` texts, and passes on those of the ``n`` likeliest.

    The order is that of the sums of log-probabilities of all generated tokens, largest first; the
    texts are numbered in this order. The progress and the log-probabilities of the prompt are
    passed on at once, as the first text reports them. An error of one text ends all of them.

    Args:
        n: number of texts to return.
        n_texts: number of texts.
        sink: called with the events.
        abort: ends the other texts after an error.

    Source: vLLM, ``SamplingParams.best_of``.
    """

    def __init__(
        self, n: int, n_texts: int, sink: Callable[[Event], None], abort: Callable[[], None]
    ) -> None:
        self._n, self._sink, self._abort = n, sink, abort
        self._texts: list[list[Event]] = [[] for _ in range(n_texts)]
        self._n_open = n_texts

    def take(self, event: Event) -> None:
        """Receive an event of any text."""
        if not self._n_open:
            return  # another text has had an error
        if event.kind in ("progress", "prompt"):
            if event.choice == 0:
                self._sink(event)
        elif event.kind == "error":
            self._n_open = 0
            for choice in range(self._n):
                self._sink(event._replace(choice=choice))
            self._abort()
        else:
            self._texts[event.choice].append(event)
            self._n_open -= event.kind == "end"
            if not self._n_open:
                self._emit_best()

    def _emit_best(self) -> None:
        best_first = sorted(self._texts, key=_rank)
        for choice, events in enumerate(best_first[: self._n]):
            for event in events:
                self._sink(event._replace(choice=choice))


def _rank(events: list[Event]) -> float:
    """The negative sum of log-probabilities of a text; that of NaN logits is the largest."""
    value = events[-1].cumulative_logprob
    return -value if value is not None and value == value else float("inf")
