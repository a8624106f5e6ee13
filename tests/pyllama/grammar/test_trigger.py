"""Triggers are found as by a search of the whole text after each token, in linear time."""

from __future__ import annotations

import random
import re
import time

import pytest

from pyllama.grammar import Trigger
from pyllama.grammar.trigger import Finder

from ...tiers import some

PATTERNS = [
    "(ab|ba)c", "a+(b)?c", r"\s*(<a>)", r"[^\s]é(b)", r"\Sb\S", r"\Wc", r"[^\w<]c", ".{3}c", "a.c",
    r"\bab\b", "c$", "^ab", r"(?<=a)b(?=c)", r"(?!a)(b)c", r"a\Z", r"\Ab", "(?i)ABC", r"(a)b\1",
    "(?:a|b){2,3}?c", "[é]c", "a{,2}c", "a{,}c", "[a-c<>]{4}", "(?P<x>b)+c", "<a>|<b>", "(?>a+)c",
    r"\x61\n", "a++b", "[^é]b", "b*",
]  # fmt: skip
FULL = [
    r"[\s\S]*?(<a>)[\s\S]*", r"\s*<a>[\s\S]*?<b>[\s\S]*?(c[\s\S]*)",
    r"(?!\s*<a>)[\s\S]*?(c[\s\S]*)", r"\s*(<a>(?:b|c)(?:,)?)", r"^a|b(c)$", ".*é", "(a|b)*c$",
]  # fmt: skip
TRIGGERS = [
    *(Trigger("pattern", p) for p in PATTERNS),
    *(Trigger("pattern_full", p) for p in FULL),
    Trigger("word", "<a>b"),
]


def naive(trigger: Trigger, text: bytes) -> int:
    """Where the text to match begins, by a search of the whole text."""
    value = str(trigger.value)
    pattern = {"word": re.escape(value), "pattern_full": rf"\A(?:{value})\Z"}.get(
        trigger.kind, value
    )
    match = re.search(pattern.encode(), text)
    if match is None:
        return -1
    groups = range(1, (match.re.groups or 0) + 1)
    return match.start(next((i for i in groups if match.end(i) > match.start(i)), 0))


@pytest.mark.parametrize(
    "trigger", some(TRIGGERS, 15), ids=[f"{t.kind}-{t.value}" for t in TRIGGERS]
)
def test_found_as_by_a_whole_search(trigger: Trigger) -> None:
    rng = random.Random(str(trigger.value))
    finder, n_found = Finder(trigger), 0
    for _ in range(300):
        text, state = bytearray(), finder.start()
        for _ in range(12):
            n_before = len(text)
            pieces = [rng.choice(["a", "b", "c", "<a>", "<b>", " ", "\n", "é", ",", "\x85"])]
            piece = "".join(pieces).encode()
            cut = rng.randrange(len(piece) + 1)  # tokens may end within a character, or be empty
            for part in (piece[:cut], piece[cut:]):
                text += part
                state, start = finder.find(state, text, n_before, token=7)
                assert start == naive(trigger, bytes(text))
                n_before = len(text)
                if start >= 0:
                    break
            if start >= 0:
                n_found += 1
                break
    assert n_found


@pytest.mark.parametrize(
    "trigger",
    [
        Trigger("word", "<tool_call>"),
        Trigger("pattern", r"(<tool_call>)\s*\{"),
        Trigger("pattern_full", r"[\s\S]*?</think>[\s\S]*?(<tool_call>[\s\S]*)"),
        Trigger("pattern_full", r"(?!\s*Hm)[\s\S]*?(<tool_call>[\s\S]*)"),
    ],
)
def test_linear_time(trigger: Trigger) -> None:
    finder, text = Finder(trigger), bytearray()
    state, start_s = finder.start(), time.process_time()
    for piece in [b"Hm", b"<tool_call>"[:-1], b"..."] * 70_000:
        n_before = len(text)
        text += piece
        state, start = finder.find(state, text, n_before, token=7)
        assert start < 0
    assert time.process_time() - start_s < 10  # below 1 s on a machine that is not busy
