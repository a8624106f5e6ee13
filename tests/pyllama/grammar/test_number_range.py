"""Integers and numbers between two bounds, against comparisons."""

from __future__ import annotations

import itertools
import json
import re
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllama.grammar.schema.number_range import Bound, integer_range, number_range

BOUNDS = [None, -123, -100, -99, -12, -10, -9, -5, -1, 0, 1, 5, 9, 10, 11, 42, 99, 100, 123]
DECIMALS = [
    "-12.5",
    "-2",
    "-1.25",
    "-0.5",
    "-0.05",
    "0",
    "0.05",
    "0.25",
    "1",
    "1.05",
    "9.99",
    "12.5",
]


def expression(text: str) -> re.Pattern[str]:
    """The GBNF text of a number as a regular expression."""
    text = text.replace("decimal-part", "[0-9]{1,16}").replace('"."', r"\.")
    return re.compile(text.replace('"', "").replace(" ", ""))


def is_inside(value: Decimal, low: Bound | None, high: Bound | None) -> bool:
    above = low is None or value > low[0] or (value == low[0] and not low[1])
    return above and (high is None or value < high[0] or (value == high[0] and not high[1]))


@pytest.mark.parametrize("low", BOUNDS)
def test_integers(low: int | None) -> None:
    for high in BOUNDS:
        if (low is None and high is None) or (None not in (low, high) and low > high):  # type: ignore[operator]
            continue
        pattern = expression(integer_range(low, high))
        for value in range(-1300, 1301):
            inside = (low is None or value >= low) and (high is None or value <= high)
            assert bool(pattern.fullmatch(str(value))) == inside, (high, value)
        assert not any(map(pattern.fullmatch, ["-05", "05", "00", "-", "", "1.0", "+1"]))


@settings(max_examples=300, deadline=None)
@given(
    st.integers(-(10**20), 10**20), st.integers(-(10**20), 10**20), st.integers(-(10**20), 10**20)
)
def test_large_integers(a: int, b: int, value: int) -> None:
    low, high = sorted((a, b))
    for probe in (value, low, high, low - 1, high + 1):
        assert bool(expression(integer_range(low, high)).fullmatch(str(probe))) == (
            low <= probe <= high
        )
    for probe in (low, low + 1, low - 1, value):
        found = expression(integer_range(low, None)).fullmatch(str(probe))
        assert bool(found) == (probe >= low) or len(str(abs(probe))) > 16


@pytest.mark.parametrize("low", [None, *DECIMALS])
def test_decimals(low: str | None) -> None:
    wholes = ["0", "1", "2", "9", "10", "12", "13"]
    fractions = ["", ".0", ".00", ".04", ".05", ".050", ".06", ".25", ".250", ".26", ".5", ".49"]
    fractions += [".50", ".51", ".99", ".990", ".991", ".999"]
    texts = ["".join(parts) for parts in itertools.product(["", "-"], wholes, fractions)]
    for high, low_open, high_open in itertools.product([None, *DECIMALS], [0, 1], [0, 1]):
        if low is None and high is None:
            continue
        bounds = (
            None if low is None else (Decimal(low), bool(low_open)),
            None if high is None else (Decimal(high), bool(high_open)),
        )
        text = number_range(*bounds)
        for probe in texts:
            found = bool(text and expression(text).fullmatch(probe))
            inside = is_inside(Decimal(probe), *bounds)
            is_minus_zero = probe[0] == "-" and Decimal(probe) == 0
            assert found == inside or is_minus_zero, (probe, bounds)
            assert inside or not found, (probe, bounds)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(-1e9, 1e9),
    st.floats(0, 1e3),
    st.booleans(),
    st.booleans(),
    st.randoms(note_method_calls=False),
)
def test_numbers_are_inside_as_doubles(
    low: float, width: float, low_open: bool, high_open: bool, rng: object
) -> None:
    from .gbnf_texts import Gbnf

    bounds = (Decimal(repr(low)), low_open), (Decimal(repr(low + width)), high_open)
    text = number_range(*bounds)
    if text is None:
        assert width < 1e-3 or width == 0 or low_open or high_open
        return
    grammar = Gbnf(f"root ::= {text}\ndecimal-part ::= [0-9]{{1,16}}")
    for _ in range(20):
        value = json.loads(grammar.sample(rng))  # type: ignore[arg-type]
        assert value > low if low_open else value >= low
        assert value < low + width if high_open else value <= low + width
