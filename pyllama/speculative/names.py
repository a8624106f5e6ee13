"""Drafters by name: llama.cpp's ``--spec-type``, and names for drafters that it does not have.

    drafter = drafter_by_name("ngram-map-k,prompt-lookup", {"ngram-map-k": {"n": 8}})
    drafter = drafter_by_name("draft-simple", model=lambda: draft_model(tokenizer, context))

Several names make one drafter that asks them in the order of `DRAFTERS`, as in llama.cpp, whatever
the order in which they are given; a draft model is asked last.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from ..errors import DraftError
from ..parameters import drafting
from ..parameters.drafting import DRAFT_HEADS, DRAFT_MODEL
from .draft import Drafter
from .first_of import FirstOf


def _constructor(home: str) -> Callable[..., Drafter]:
    module, _, name = home.partition(":")
    found: Callable[..., Drafter] = getattr(import_module(f"pyllama.speculative.{module}"), name)
    return found


DRAFTERS: Mapping[str, Callable[..., Drafter]] = {
    name: _constructor(row.home) for name, row in drafting.DRAFTERS.items() if row.home
}
"""Constructors of the drafters without a model, the most preferred one first."""

NONE = "none"
"""llama.cpp's name for no drafts."""


def drafter_by_name(
    names: str | Iterable[str],
    options: Mapping[str, Mapping[str, Any]] | None = None,
    model: Callable[[], Drafter] | None = None,
) -> Drafter | None:
    """The drafter with this name, several of them in one, or None for ``none``.

    Args:
        names: names of `DRAFTERS` or `DRAFT_MODEL`; a string may have several, with commas.
        options: by name, arguments of the constructor.
        model: makes the drafter of a draft model.

    Raises:
        DraftError: an unknown name, an unknown or illegal option, or no draft model.
        OSError: a file of an option cannot be read.
    """
    chosen = names.split(",") if isinstance(names, str) else list(names)
    chosen = [name.strip() for name in chosen]
    for name in chosen:
        if name in DRAFT_HEADS:
            raise DraftError(
                f"{name} is not supported: no model with a draft head is; use a draft model "
                f"({DRAFT_MODEL}) or {', '.join(DRAFTERS)}"
            )
        if name not in (*DRAFTERS, DRAFT_MODEL, NONE):
            names_of_drafters = ", ".join((NONE, *DRAFTERS, DRAFT_MODEL))
            raise DraftError(f"unknown drafter {name!r}: the names are {names_of_drafters}")
    if NONE in chosen:
        return None
    drafters = [_make(name, (options or {}).get(name, {})) for name in DRAFTERS if name in chosen]
    if DRAFT_MODEL in chosen:
        if model is None:
            raise DraftError(f"{DRAFT_MODEL} needs a draft model")
        drafters.append(model())
    return drafters[0] if len(drafters) == 1 else FirstOf(drafters)


def _make(name: str, options: Mapping[str, Any]) -> Drafter:
    parameters = inspect.signature(DRAFTERS[name]).parameters
    unknown = sorted(options.keys() - parameters.keys())
    if unknown:
        raise DraftError(f"{name} has no option {unknown[0]!r}: it has {', '.join(parameters)}")
    return DRAFTERS[name](**options)
