"""The thread that steps the engine, and the event loop beside it."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .conftest import Serve


def test_one_wake_up_of_the_event_loop_a_step(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All events of a step, of all its streams, reach the event loop by one call."""
    client = serve(n_slots=4, n_ctx=1024)
    runner = client.served.runner  # type: ignore[attr-defined]
    step, in_loop = runner.engine.step, runner._in_loop
    counts: Counter[str] = Counter()

    def counted_step() -> Any:
        counts["steps"] += 1
        return step()

    def counted_wake_up(function: Any, *args: Any) -> None:
        counts["wake-ups"] += 1
        counts["events"] += len(args[0])
        in_loop(function, *args)

    monkeypatch.setattr(runner.engine, "step", counted_step)
    monkeypatch.setattr(runner, "_in_loop", counted_wake_up)
    body = {"prompt": "a b c", "n_predict": 50, "ignore_eos": True, "stream": True}
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(client.post, "/completion", json=body) for _ in range(4)]
        assert all(one.result().is_success for one in asked)
    assert counts["events"] >= 4 * 50
    assert counts["wake-ups"] <= counts["steps"] < counts["events"]
