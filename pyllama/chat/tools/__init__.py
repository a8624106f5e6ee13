"""Tool calls: what a template's models write when they call a tool, by family of templates.

    family = find_family(template_source)          # HERMES, LLAMA3, ...; GENERIC for all others
    yield from family.read(reader, names)

A family is an object in a file of its own (see `call_format.Family`), and a line in ``FAMILIES``.
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
from .hermes import HERMES
from .llama3 import LLAMA3
from .mistral import MISTRAL_ARRAY, MISTRAL_NAMED
from .recipient import FUNCTIONS
from .section import SECTIONS

FAMILIES: tuple[ToolCallFormat, ...] = (
    FUNCTIONARY_32,
    FUNCTIONARY_31,
    FUNCTIONARY_2,
    FUNCTIONARY_1,
    FUNCTIONARY_0,
    FUNCTIONS,
    MISTRAL_NAMED,
    MISTRAL_ARRAY,
    *SECTIONS,
    HERMES,
    LLAMA3,
    GENERIC,
)
"""All families; the first that detects a template is used."""


def find_family(source: str) -> ToolCallFormat:
    """The family of a template, by its source."""
    return next(family for family in FAMILIES if family.detect(source))
