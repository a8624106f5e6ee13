"""Text of unknown origin, escaped for terminals."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyggml.errors import GGUFError
from pyggml.visible import visible

TRICKS = [
    ("a\x1b[2J", "a\\x1b[2J"),
    ("\x9b31m", "\\x9b31m"),  # CSI as one character
    ("\u202egnp.exe", "\\u202egnp.exe"),
    ("a\rb\nc\td", "a\\rb\\nc\\td"),
    ("\x7f\u200b\ufeff\u2028\u00a0\U000e0041", "\\x7f\\u200b\\ufeff\\u2028\\xa0\\U000e0041"),
    ("\udc9b", "\\udc9b"),
    ("Ġ été 字 😀 שלום", "Ġ été 字 😀 שלום"),
]


@pytest.mark.parametrize(("text", "shown"), TRICKS)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert str(GGUFError(text)) == shown.replace("\\n", "\n").replace("\\t", "\t")


@given(st.text(st.characters(), max_size=60), st.integers(8, 40))
def test_any_text_becomes_printable_and_short(text: str, limit: int) -> None:
    assert visible(text).isprintable() and visible(visible(text)) == visible(text)
    assert visible(text, limit=limit).isprintable() and len(visible(text, limit=limit)) <= limit
    kept = visible(text, keep="\n\t")
    assert re.sub("[\n\t]", "", kept).isprintable() and kept.count("\n") == text.count("\n")


def test_both_ends_of_a_long_text_are_shown() -> None:
    shown = visible("begin" + 10**6 * "\x1b" + "end", limit=60)
    assert shown.startswith("begin\\x1b") and shown.endswith("\\x1bend") and len(shown) == 60
