"""Stop strings: the output is the text up to the first stop, for any division into pieces."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllama.engine.text import Indentation, LineEnds, StopStrings
from pyllama.errors import SamplingError

PROPERTY = settings(deadline=None, max_examples=200)

TEXT = st.text("ab→", max_size=40)
STOPS = st.lists(st.text("ab→", min_size=1, max_size=5), max_size=5)


def reference(text: str, stops: list[str]) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - max(map(len, ended))], True
    return text, False


def starts_a_stop(text: str, stops: list[str]) -> bool:
    return any(stop.startswith(text) for stop in stops)


@PROPERTY
@given(STOPS, st.lists(TEXT, max_size=8))
def test_chunking_does_not_matter(stops: list[str], chunks: list[str]) -> None:
    stream = StopStrings(stops)
    emitted, stopped = "", False
    for i, chunk in enumerate(chunks):
        piece, stopped = stream.push(chunk)
        emitted += piece
        seen = "".join(chunks[: i + 1])
        if not stopped:  # holds back the longest end that may become a stop, and no more
            held = seen.removeprefix(emitted)
            assert emitted + held == seen
            assert starts_a_stop(held, stops) or not held
            ends = [seen[j:] for j in range(len(seen)) if starts_a_stop(seen[j:], stops)]
            assert len(held) == max(map(len, ends), default=0)
    emitted += stream.flush()
    assert (emitted, stopped) == reference("".join(chunks), stops)
    assert (stream.matched is not None) == stopped


@pytest.mark.parametrize(
    ("stops", "chunks", "emitted", "matched"),
    [
        (["</s>", "User:"], ["Hello Us", "er: no"], "Hello ", "User:"),
        ("\n\n", ["a\n", "b\n", "\nc"], "a\nb", "\n\n"),
        (["abc", "bc"], ["xab", "c"], "x", "abc"),
        (["abcd", "bc"], ["a", "b", "c", "d"], "a", "bc"),
        (["aab"], ["aaa", "ab"], "aa", "aab"),
        (["é", "→x"], ["→", "→x"], "→", "→x"),
        ([], ["a", "b"], "ab", None),
        (["a", "a"], ["a"], "", "a"),
    ],
)
def test_examples(
    stops: str | list[str], chunks: list[str], emitted: str, matched: str | None
) -> None:
    stream = StopStrings(stops)
    assert "".join(stream.push(chunk)[0] for chunk in chunks) + stream.flush() == emitted
    assert stream.matched == matched


def test_nothing_follows_a_stop() -> None:
    stream = StopStrings(["x"])
    assert stream.push("axb") == ("a", True)
    assert stream.push("more") == ("", True)
    assert stream.flush() == ""


def test_flush_returns_held_text_once() -> None:
    stream = StopStrings(["stop"])
    assert stream.push("a st") == ("a ", False)
    assert stream.flush() == "st"
    assert stream.flush() == ""
    assert stream.push("op") == ("op", False)


def test_the_work_is_linear_in_the_text() -> None:
    """The worst case of a naive search: 200,000 characters against a long, almost equal stop."""
    stream = StopStrings(["a" * 5000 + "b", "a" * 5001 + "c"])
    shown = sum(len(stream.push("a" * 100)[0]) for _ in range(2000))
    assert shown == 200_000 - 5001


@pytest.mark.parametrize("stops", ["", ["a", ""]])
def test_an_empty_stop_is_refused(stops: str | list[str]) -> None:
    with pytest.raises(SamplingError, match="is empty and would match at once"):
        StopStrings(stops)


def test_texts_with_equal_stop_strings_share_their_automaton() -> None:
    one, other = (StopStrings(["ab", "b→"]) for _ in range(2))
    assert one._automaton is other._automaton is copy.deepcopy(one)._automaton
    assert one.push("xa") == ("x", False) and other.push("b→") == ("", True)
    assert one.push("b") == ("", True)


@pytest.mark.parametrize(
    ("tokens", "whole"),
    [
        (["a", "\n", "  ", "b", "\n", "  c"], None),
        (["a", "\n", "  ", "b", "\n", " ", "c"], "a\n  b\n "),
        (["a\n", "\tb", "c"], "a\n\t"),  # one tab is not two
        (["a\n", "\t", "b", "c"], "a\n\t"),
        (["a", "b"], None),
        (["a\n", "b", "\n", "c"], "a\n"),
    ],
)
def test_indentation(tokens: list[str], whole: str | None) -> None:
    one = Indentation(2)
    lengths = [n for n in map(one.add, tokens) if n is not None]
    assert ("".join(tokens)[: lengths[0]] if lengths else None) == whole


def test_ends_at_lines() -> None:
    lines = LineEnds(2, None)
    assert [lines.push(text) for text in ("a\n", "\t", "b c")] == [None, None, "indent"]
    assert lines.n_cut == len("b c")
    lines = LineEnds(0, 0.0)
    assert [lines.push(text) for text in ("a\n", "b", "c\n")] == [None, None, "time"]
    assert [LineEnds(0, 1e9).push(text) for text in ("a\n", "\n")] == [None, None]
