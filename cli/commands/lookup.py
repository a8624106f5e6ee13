"""``pyllama-lookup``, ``-lookup-create``, ``-lookup-merge``, ``-lookup-stats``: lookup decoding.

    pyllama-lookup-create -m x.gguf -f corpus.txt -lcs corpus.bin
    pyllama-lookup-merge a.bin b.bin both.bin
    pyllama-lookup-stats -m x.gguf -f text.txt -lcs both.bin -c 512
    pyllama-lookup -m x.gguf -f prompt.txt -lcs both.bin -lcd mine.bin -n 64

Like llama.cpp's tools, and with its files. Drafts are n-grams of the text, of earlier texts (the
dynamic cache) and of a corpus (the static one). Only the first tool evaluates the model.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import Flags, row

from ..drafting import Drafting, load_lookup_caches
from ..loading import load_vocab
from ..options.kv_overrides import override_kv_option
from ..options.options import model_option
from ..options.prompt import PromptOptions, escape_option, prompt_options
from ..options.speculative import SpeculativeOptions, length_options, lookup_cache_options
from ..output import note
from ..parameters import from_options, parameter_options
from ..paths import refuse_source, writable
from ..tool import Program, version_option
from .speculative import Speeds, complete, text_options

if TYPE_CHECKING:
    from pyllama.runtime.model import Model

_PATH = click.Path(path_type=Path)
_TYPE = ("ngram-cache",)


@dataclass(frozen=True, eq=False, repr=False)
class _Output:
    output: Path | None = row(None, "Lookup cache to write.",
        Flags("-lcs", "--lookup-cache-static", required=True, callback=writable))  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class _ChunkSize:
    n_ctx: int = row(0, "Tokens of a chunk of the text. 0: the model's training context.",
        Flags("-c", "--ctx-size"))  # fmt: skip


@click.command("lookup", cls=Program)
@text_options
@lookup_cache_options
@length_options
@version_option()
def command(**options: Any) -> None:
    """Complete a prompt with drafts of lookup caches.

    The cache of -lcd is updated with the prompt and the text.
    """
    drafts = SpeculativeOptions.from_click({**options, "spec_type": _TYPE})
    complete(options, drafts, _write_stats)


def _write_stats(drafting: Drafting, speeds: Speeds) -> None:
    stats = drafting.stats  # None with --draft-max 0
    counts = (0, 0, 0.0) if stats is None else (stats.n_drafted, stats.n_accept, stats.draft_s)
    for line in _lines(drafting.max_draft, speeds.n_predict, counts, drafting.cache_s):
        note(line)


def _lines(
    n_draft: int, n_predict: int, counts: tuple[int, int, float], cache_s: float
) -> list[str]:
    """The lines that llama-lookup and llama-lookup-stats print.

    Args:
        n_draft: maximum length of a draft.
        n_predict: number of generated tokens.
        counts: drafted tokens, accepted ones, seconds of drafting.
        cache_s: seconds of reading caches.
    """
    n_drafted, n_accept, draft_s = counts
    return [
        "",
        f"n_draft      = {n_draft}",
        f"n_predict    = {n_predict}",
        f"n_drafted    = {n_drafted}",
        f"t_draft_flat = {1e3 * cache_s:.2f} ms",
        f"t_draft      = {1e3 * draft_s:.2f} ms, {1e6 * draft_s / max(n_drafted, 1):.2f} us per "
        f"token, {n_drafted / max(draft_s, 1e-9):.2f} tokens per second",
        f"n_accept     = {n_accept}",
        f"accept       = {100 * n_accept / max(n_drafted, 1):.3f}%",
    ]


def _encoded(options: dict[str, Any]) -> tuple[Model, list[int]]:
    """Return the model without its weights, and the tokens of -p or -f."""
    text = from_options(PromptOptions, options).text()
    if not text:
        raise click.UsageError("there is no text: give it with -p or -f")
    model = load_vocab(options["model"], options["kv_overrides"])
    return model, model.tokenizer.encode(text, add_special=True, parse_special=True)


@click.command("lookup-create", cls=Program)
@model_option
@prompt_options
@parameter_options(_Output)
@escape_option()
@override_kv_option
@version_option()
def create(output: Path, **options: Any) -> None:
    """Write the lookup cache of a text, for -lcs."""
    refuse_source(output, options["model"], options["file"])
    _, tokens = _encoded(options)
    from pyllama.speculative.lookup_cache import STATIC_N, NgramCache

    cache, only = NgramCache(), range(STATIC_N, STATIC_N + 1)
    for end in range(STATIC_N + 1, len(tokens) + 1):
        cache.append(tokens[end - STATIC_N - 1 : end], only)
    cache.save(output)
    note(f"{output}: {len(cache.counts)} n-grams of {len(tokens)} tokens")


@click.command("lookup-merge", cls=Program)
@click.argument("files", nargs=-1, type=_PATH, required=True, metavar="PART... MERGED")
@version_option()
def merge(files: tuple[Path, ...]) -> None:
    """Merge lookup caches into one: PART... are read, MERGED is written."""
    *parts, output = files
    if not parts:
        raise click.UsageError("give at least two files: those to merge, and the one to write")
    if not output.parent.is_dir():
        raise click.UsageError(f"{output.parent}: no such directory to write to")
    from pyllama.speculative.lookup_cache import NgramCache

    merged = NgramCache()
    for path in parts:
        merged.merge(NgramCache.load(path))
    merged.save(output)
    note(f"{output}: {len(merged.counts)} n-grams of {len(parts)} files")


@dataclass
class _Text:
    """A text as the drafter sees it."""

    id: int
    tokens: list[int]
    matcher: None = None
    sequence_id: int | None = None


@click.command("lookup-stats", cls=Program)
@model_option
@prompt_options
@parameter_options(_ChunkSize)
@lookup_cache_options
@length_options
@escape_option()
@override_kv_option
@version_option()
def stats(n_ctx: int, **options: Any) -> None:
    """Count how many tokens of a text lookup caches would draft rightly.

    Each whole chunk of the text is drafted as if it were generated; the dynamic cache then learns
    it, in memory only. The model is not evaluated.
    """
    drafts = SpeculativeOptions.from_click({**options, "spec_type": _TYPE})
    model, tokens = _encoded(options)
    n_ctx = n_ctx or model.hparams.n_ctx_train
    n_draft = drafts.max_draft
    from pyllama.speculative.names import drafter_by_name

    caches, cache_s = load_lookup_caches(drafts, model.tokenizer.n_vocab)
    drafter = drafter_by_name(_TYPE, {"ngram-cache": {**caches, "n_draft": n_draft}})
    assert drafter is not None
    n_drafted, n_accept, draft_s = 0, 0, 0.0
    for first in range(0, len(tokens) - n_ctx, n_ctx):
        chunk = tokens[first : first + n_ctx]
        view = _Text(first, chunk[:1])
        while len(view.tokens) < n_ctx:
            start = time.perf_counter()
            (draft,) = drafter.propose([view], [n_draft])
            draft_s += time.perf_counter() - start
            drafted = [] if draft is None else draft.tokens
            at = len(view.tokens)
            right = chunk[at : at + len(drafted)]
            n = sum(takewhile(bool, map(eq, drafted, right)))
            n_drafted, n_accept = n_drafted + len(drafted), n_accept + n
            view.tokens += chunk[at : at + n + 1]
        drafter.release(view)
    n_predict = len(tokens) - len(tokens) % n_ctx
    for line in _lines(n_draft, n_predict, (n_drafted, n_accept, draft_s), cache_s):
        note(line)
