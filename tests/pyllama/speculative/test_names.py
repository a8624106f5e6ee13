"""Drafters by llama.cpp's names, alone or together, with their options."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from pyllama.errors import DraftError
from pyllama.speculative.first_of import FirstOf
from pyllama.speculative.lookup import NgramSimple, PromptLookup
from pyllama.speculative.lookup_cache import LookupCache
from pyllama.speculative.names import DRAFTERS, drafter_by_name
from pyllama.speculative.ngram_map import NgramMapK, NgramMapK4V
from pyllama.speculative.ngram_mod import NgramMod
from pyllama.speculative.suffix import SuffixDecoding

# with llama.cpp's defaults
MADE = {
    "ngram-simple": NgramSimple(n=12, m=48),
    "ngram-map-k": NgramMapK(n=12, m=48),
    "ngram-map-k4v": NgramMapK4V(n=12, m=48, min_hits=1),
    "ngram-mod": NgramMod(n_match=24, n_max=64, n_min=48),
    "ngram-cache": LookupCache(n_draft=8),
    "prompt-lookup": PromptLookup(max_ngram_size=2, num_pred_tokens=10),
    "suffix": SuffixDecoding(),
}


def options_of(drafter: object) -> tuple[type, dict[str, Any]]:
    """The class of a drafter, and its arguments that can be compared."""
    values = {name: getattr(drafter, name) for name in inspect.signature(type(drafter)).parameters}
    return type(drafter), {name: v for name, v in values.items() if isinstance(v, int | float)}


@pytest.mark.parametrize("name", MADE)
def test_defaults(name: str) -> None:
    assert options_of(drafter_by_name(name)) == options_of(MADE[name])


def test_all_names_are_tested() -> None:
    assert MADE.keys() == DRAFTERS.keys()


def test_several_names() -> None:
    models = {"draft-mtp": lambda: PromptLookup(2), "draft-simple": lambda: PromptLookup(3)}
    names = "draft-mtp,draft-simple, suffix,ngram-map-k"
    drafter = drafter_by_name(names, {"ngram-map-k": {"n": 5}}, models)
    assert isinstance(drafter, FirstOf)
    wanted = NgramMapK(n=5), SuffixDecoding(), PromptLookup(3), PromptLookup(2)
    assert [options_of(d) for d in drafter.drafters] == [options_of(d) for d in wanted]
    assert isinstance(drafter_by_name(["suffix", "suffix"]), SuffixDecoding)
    assert drafter_by_name("none") is None and drafter_by_name("suffix,none") is None


def test_lookup_caches_from_files(tmp_path: Path) -> None:
    saved = LookupCache()
    saved.static.counts[1, 2] = {3: 4}
    saved.static.save(tmp_path / "x.bin")
    options = {"static": tmp_path / "x.bin", "n_vocab": 4}
    drafter = drafter_by_name("ngram-cache", {"ngram-cache": options})
    assert isinstance(drafter, LookupCache)
    assert drafter.static.counts == {(1, 2): {3: 4}} and not drafter.dynamic.counts
    with pytest.raises(DraftError, match="another vocabulary"):
        drafter_by_name("ngram-cache", {"ngram-cache": {**options, "n_vocab": 3}})


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "unknown drafter 'ngram': the names are none, ngram-simple, .*draft-simple": ("ngram", {}),
    "unknown drafter '': the names are": ("suffix,", {}),
    "draft-eagle3 needs a draft model": ("draft-eagle3", {}),
    "draft-mtp needs a draft model": ("draft-mtp", {}),
    "draft-simple needs a draft model": ("draft-simple", {}),
    "ngram-mod has no option 'n': it has n_match, n_max, n_min": ("ngram-mod", {"n": 3}),
    "n_match must be at least 1": ("ngram-mod", {"n_match": 0}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str) -> None:
    name, options = REFUSED[message]
    with pytest.raises(DraftError, match=message) as caught:
        drafter_by_name(name, {name: options})
    assert "\n" not in str(caught.value)
