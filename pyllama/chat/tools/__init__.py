"""Tool calls: the formats in which models write them, by chat template.

    call_format = find_tool_call_format(source)    # GENERIC if no other is found
    yield from call_format.read(reader, names)

A format is an object in a file of its own (see `call_format.ToolCallFormat`), and a line in
``TOOL_CALL_FORMATS``.
"""

from __future__ import annotations

from .call_format import ToolCallFormat
from .functionary import (
    FUNCTIONARY_0,
    FUNCTIONARY_1,
    FUNCTIONARY_2,
    FUNCTIONARY_31,
    FUNCTIONARY_32,
)
from .generic import GENERIC
from .recipient import FUNCTIONS
from .section import SECTIONS

TOOL_CALL_FORMATS: tuple[ToolCallFormat, ...] = (
    FUNCTIONARY_32,
    FUNCTIONARY_31,
    FUNCTIONARY_2,
    FUNCTIONARY_1,
    FUNCTIONARY_0,
    FUNCTIONS,
    *SECTIONS,
    GENERIC,
)
"""All formats; the first that detects a template is used."""


def find_tool_call_format(source: str) -> ToolCallFormat:
    """The format of a template, by its source."""
    return next(call_format for call_format in TOOL_CALL_FORMATS if call_format.detect(source))
