"""Drafters by name: llama.cpp's ``--spec-type``, and names for drafters that it does not have.

    drafter = drafter_by_name("ngram-map-k,prompt-lookup", {"ngram-map-k": {"n": 8}})
    drafter = drafter_by_name("draft-simple", model=lambda: draft_model(tokenizer, context))

Several names make one drafter that asks them in the order of `DRAFTERS`, as in llama.cpp, whatever
the order in which they are given; a draft model is asked last.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import DraftError
from .draft import Drafter
from .first_of import FirstOf
from .lookup import NgramSimple, PromptLookup
from .lookup_cache import LookupCache, NgramCache
from .ngram_map import NgramMapK, NgramMapK4V
from .ngram_mod import NgramMod
from .suffix import SuffixDecoding

Path = str | os.PathLike[str]


def ngram_cache(
    n_draft: int = 8,
    dynamic: Path | NgramCache | None = None,
    static: Path | NgramCache | None = None,
    n_vocab: int | None = None,
) -> LookupCache:
    """A `LookupCache` with caches from files.

    Args:
        n_draft: maximum number of drafted tokens.
        dynamic: cache of earlier texts (``-lcd``), or its file.
        static: cache of a corpus (``-lcs``), or its file.
        n_vocab: refuse files with larger token ids.

    Raises:
        DraftError: a file is damaged, too large, or of another vocabulary.
        OSError: a file cannot be read.
    """

    def load(cache: Path | NgramCache | None) -> NgramCache:
        if cache is None or isinstance(cache, NgramCache):
            return cache or NgramCache()
        return NgramCache.load(cache, n_vocab)

    return LookupCache(n_draft, load(dynamic), load(static))


DRAFTERS: Mapping[str, Callable[..., Drafter]] = {
    "ngram-simple": NgramSimple,
    "ngram-map-k": NgramMapK,
    "ngram-map-k4v": NgramMapK4V,
    "ngram-mod": NgramMod,
    "ngram-cache": ngram_cache,
    "prompt-lookup": PromptLookup,
    "suffix": SuffixDecoding,
}
"""Constructors of the drafters without a model, the most preferred one first."""

DRAFT_MODEL = "draft-simple"
"""llama.cpp's name of a draft model."""

NONE = "none"
"""llama.cpp's name for no drafts."""

UNSUPPORTED = ("draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")
"""Drafters of llama.cpp that need a model trained on the target's hidden states."""


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
    wanted = names.split(",") if isinstance(names, str) else list(names)
    wanted = [name.strip() for name in wanted]
    for name in wanted:
        if name in UNSUPPORTED:
            raise DraftError(
                f"{name} is not supported: no model with a draft head is; use a draft model "
                f"({DRAFT_MODEL}) or {', '.join(DRAFTERS)}"
            )
        if name not in (*DRAFTERS, DRAFT_MODEL, NONE):
            known = ", ".join((NONE, *DRAFTERS, DRAFT_MODEL))
            raise DraftError(f"unknown drafter {name!r}: the names are {known}")
    if NONE in wanted:
        return None
    made = [_make(name, (options or {}).get(name, {})) for name in DRAFTERS if name in wanted]
    if DRAFT_MODEL in wanted:
        if model is None:
            raise DraftError(f"{DRAFT_MODEL} needs a draft model")
        made.append(model())
    return made[0] if len(made) == 1 else FirstOf(made)


def _make(name: str, options: Mapping[str, Any]) -> Drafter:
    known = inspect.signature(DRAFTERS[name]).parameters
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        raise DraftError(f"{name} has no option {unknown[0]!r}: it has {', '.join(known)}")
    return DRAFTERS[name](**options)
