"""Counters of drafts and their printed lines."""

from __future__ import annotations

import pytest

from pyllama.speculative.stats import Stats


def test_counters_and_lines() -> None:
    stats = Stats("suffix")
    for n_drafted, n_accepted in [(4, 4), (4, 1), (0, 0), (5, 0)]:
        stats.count_calls(1, 0.001)
        if n_drafted:
            stats.count_draft(n_drafted)
            stats.count_accepted(n_accepted)
            stats.count_step(0.008, 0.001, 0.005 * (n_accepted + 1))
    assert stats.n_calls == 4 and stats.n_tokens == 8
    assert stats.rates == pytest.approx([2 / 3, 1 / 3, 1 / 3, 1 / 3])
    assert stats.mean_length == pytest.approx(1 + 5 / 3)
    assert stats.speed_up == pytest.approx(0.04 / 0.031)
    assert stats.lines(16, 8) == [
        "n_draft   = 16",
        "n_predict = 8",
        "n_drafted = 13",
        "n_accept  = 5",
        "accept    = 38.462%",
        "",
        "statistics           suffix: #calls(g,a) =      4      3, #gen drafts =      3, "
        "#acc drafts =     2, #gen tokens =     13, #acc tokens =     5, #mean acc len = 2.67, "
        "#acc rate/pos = (0.667, 0.333, 0.333, 0.333)",
        "time      = draft 4.00 ms, step 24.00 ms, verify 3.00 ms",
        "speed-up  = 1.29 in steps with drafts (estimated)",
    ]


def test_nothing_was_drafted() -> None:
    stats = Stats()
    assert stats.rates == [] and stats.mean_length == 1 and stats.speed_up is None
    assert stats.lines()[:3] == ["n_drafted = 0", "n_accept  = 0", "accept    = 0.000%"]
