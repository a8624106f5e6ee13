"""Separates the reasoning of a reply (``<think>...</think>``) from its content.

    markers = find_markers(template_source)        # Markers("<think>", "</think>"), or None
    state = state_after(generation_prompt, markers)
    yield from read_reasoning(reader, markers, state, "auto")

A template may write the start marker into the prompt: the reply then begins inside the reasoning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import TemplateError
from .reader import Reader, Sink, Steps

ReasoningFormat = Literal["none", "auto", "deepseek", "deepseek-legacy"]
"""Where the reasoning is reported: in the content, as it is (none); in ``reasoning_content`` (auto
and deepseek); or in both."""

State = Literal["before", "inside", "after"]
"""Where a reply begins: reasoning may follow, has begun in the prompt, or has ended there."""


@dataclass(frozen=True)
class Markers:
    """The texts around the reasoning."""

    start: str
    end: str


_KNOWN = (
    Markers("<think>", "</think>"),
    Markers("[THINK]", "[/THINK]"),
    Markers("<|START_THINKING|>", "<|END_THINKING|>"),
    Markers("<seed:think>", "</seed:think>"),
    Markers("<|inner_prefix|>", "<|inner_suffix|>"),
)


def find_markers(source: str) -> Markers | None:
    """The markers that a template's source contains; None if it knows no reasoning."""
    return next((m for m in _KNOWN if m.end in source), None)


def check_format(name: str) -> ReasoningFormat:
    """The format of this name. Raises: TemplateError."""
    names: tuple[ReasoningFormat, ...] = get_args(ReasoningFormat)
    for format_name in names:
        if name == format_name:
            return format_name
    raise TemplateError(f"reasoning_format {name!r} is not known; want one of {', '.join(names)}")


def state_after(prompt: str, markers: Markers) -> State:
    """Where the reply begins after this prompt, of which earlier turns are left out."""
    start, end = prompt.rfind(markers.start), prompt.rfind(markers.end)
    if start > end:
        return "inside"
    return "after" if end >= 0 else "before"


def read_reasoning(
    reader: Reader, markers: Markers, state: State, format: ReasoningFormat
) -> Steps[None]:
    """Read the reasoning at the beginning of a reply, if there is any, and the space after it."""
    if state == "after":
        return
    report = _Report(reader, format)
    if state == "before":
        space = yield from reader.skip_space()
        if not (yield from reader.accept(markers.start)):
            reader.plain(space)
            return
        report.marker(space + markers.start)
    end = yield from reader.until((markers.end,), report.text)
    if end is not None:
        report.marker(reader.take(len(end)))
    if format in ("auto", "deepseek"):
        yield from reader.skip_space()


class _Report:
    """Gives reasoning to the fields of the message that a format names."""

    def __init__(self, reader: Reader, format: ReasoningFormat) -> None:
        self._reasoning: Sink | None = reader.reasoning if format != "none" else None
        self._content: Sink | None = reader.plain if format in ("none", "deepseek-legacy") else None
        self._begun, self._spaces = False, ""

    def marker(self, text: str) -> None:
        """A marker, with the white space before it."""
        if self._content is not None:
            self._content(text)

    def text(self, text: str) -> None:
        """A piece of reasoning; white space around all of it is dropped."""
        if self._content is not None:
            self._content(text)
        if self._reasoning is None:
            return
        text = self._spaces + text if self._begun else text.lstrip()
        body = text.rstrip()
        self._spaces = text[len(body) :]
        if body:
            self._begun = True
            self._reasoning(body)
