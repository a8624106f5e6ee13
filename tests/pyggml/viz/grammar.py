"""A small reader of DOT: strict about quoting, enough for pyggml's files."""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(
    r'\s+|(?P<quoted>"(?:[^"\\\n]|\\.)*")|(?P<html><(?=<)(?:<[^<>]*>|[^<>])*>)'
    r"|(?P<arrow>->)|(?P<word>\w+(?:\.\d+)?)|(?P<sign>[{}\[\]=,;])"
)


class Dot(NamedTuple):
    boxes: dict[str, dict[str, str]]  # attributes by id
    frames: dict[str, set[str]]  # ids of the boxes in each cluster
    edges: list[tuple[str, str, dict[str, str]]]
    attributes: dict[str, str]  # of the graph


def tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match, f"not DOT at {at}: {text[at : at + 60]!r}"
        if match.lastgroup:
            found.append(match[0])
        at = match.end()
    return found


def parse(text: str) -> Dot:
    """The parsed text; raises AssertionError for DOT that pyggml does not write."""
    rest = tokens(text)[::-1]
    dot = Dot({}, {}, [], {})

    def take(*want: str) -> str:
        token = rest.pop()
        assert not want or token in want, f"got {token!r}, want {want}"
        return token

    def attributes() -> dict[str, str]:
        found: dict[str, str] = {}
        if rest[-1] != "[":
            return found
        take("[")
        while True:
            name = take()
            assert name.isidentifier() and name not in found, name
            take("=")
            found[name] = take().strip('"')
            if take(",", "]") == "]":
                return found

    def statements(frame: str | None) -> None:
        while (token := take()) != "}":
            if token == "subgraph":
                name = take()
                assert name not in dot.frames
                dot.frames[name] = set()
                take("{")
                statements(name)
            elif token in ("graph", "node", "edge"):
                attributes()
            elif token == "label":
                take("=")
                dot.attributes["label"] = take()
            elif rest[-1] == "->":
                take("->")
                reader = take()
                assert token in dot.boxes and reader in dot.boxes, (token, reader)
                dot.edges.append((token, reader, attributes()))
            else:
                assert token.startswith('"') and token not in dot.boxes, token
                dot.boxes[token] = attributes()
                if frame:
                    dot.frames[frame].add(token)

    take("digraph")
    take("ggml")
    take("{")
    statements(None)
    assert not rest
    return dot
