"""Drafters by name: llama.cpp's ``--spec-type``, and names for drafters that it does not have.

    drafter = drafter_by_name("ngram-map-k,prompt-lookup", {"ngram-map-k": {"n": 8}})
    models = {"draft-simple": lambda: draft_model(tokenizer, context)}
    drafter = drafter_by_name("suffix,draft-simple", models=models)

Several names make one drafter that asks them in the order of ``parameters.drafting.DRAFTERS``, as
in llama.cpp, whatever the order in which they are given; draft models are asked last.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from ..errors import DraftError
from ..parameters import drafting
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

MODELS = tuple(name for name, row in drafting.DRAFTERS.items() if not row.home)
"""Names of the drafters with a model."""

NONE = "none"
"""llama.cpp's name for no drafts."""


def drafter_by_name(
    names: str | Iterable[str],
    options: Mapping[str, Mapping[str, Any]] | None = None,
    models: Mapping[str, Callable[[], Drafter]] = MappingProxyType({}),
) -> Drafter | None:
    """The drafter with this name, several of them in one, or None for ``none``.

    Args:
        names: names of `DRAFTERS` or `MODELS`; a string may have several, with commas.
        options: by name, arguments of the constructor.
        models: by name, functions that make the drafters with a model.

    Raises:
        DraftError: an unknown name, an unknown or illegal option, or no function for a name.
        OSError: a file of an option cannot be read.
    """
    chosen = names.split(",") if isinstance(names, str) else list(names)
    chosen = [name.strip() for name in chosen]
    for name in chosen:
        if name not in (*DRAFTERS, *MODELS, NONE):
            names_of_drafters = ", ".join((NONE, *DRAFTERS, *MODELS))
            raise DraftError(f"unknown drafter {name!r}: the names are {names_of_drafters}")
    if NONE in chosen:
        return None
    drafters = [_make(name, (options or {}).get(name, {})) for name in DRAFTERS if name in chosen]
    for name in MODELS:
        if name in chosen:
            if name not in models:
                raise DraftError(f"{name} needs a draft model")
            drafters.append(models[name]())
    return drafters[0] if len(drafters) == 1 else FirstOf(drafters)


def _make(name: str, options: Mapping[str, Any]) -> Drafter:
    parameters = inspect.signature(DRAFTERS[name]).parameters
    unknown = sorted(options.keys() - parameters.keys())
    if unknown:
        raise DraftError(f"{name} has no option {unknown[0]!r}: it has {', '.join(parameters)}")
    return DRAFTERS[name](**options)
