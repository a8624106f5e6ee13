"""``pyllama-parallel``: complete many prompts at once, with continuous batching.

    pyllama-parallel -m x.gguf -f prompts.txt -np 8 -n 64  # one per line
    pyllama-parallel -m x.gguf -p "Once upon a time" -np 8 -ns 32

Each text is printed to stdout when it is complete; timings go to stderr.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import Flags, row

from ..drafting import Drafting, drafted_text
from ..loading import load_model, make_context
from ..options.grammar import GrammarOptions, grammar_options
from ..options.options import (
    ContextOptions,
    ModelOptions,
    context_options,
    kv_unified_option,
    model_options,
)
from ..options.prompt import PromptOptions, escape_option, prompt_options
from ..options.run import color_option
from ..options.sampling import sampling_options, sampling_params
from ..options.speculative import SpeculativeOptions, speculative_options
from ..output import note, wants_color, write_raw
from ..parameters import from_options, parameter_options
from ..tool import Program, ignored_option, version_option

if TYPE_CHECKING:
    from pyllama.engine import Event

_MAX_TEXTS = 100_000


@dataclass(frozen=True, eq=False, repr=False)
class ParallelOptions:
    """How many texts there are, how long they are, and how many are generated at once."""

    # fmt: off
    n_parallel: int = row(4, "Number of sequences decoded in parallel.",
        Flags("-np", "--parallel", low=1, high=256))
    n_sequences: int = row(0,
        "Total number of texts; prompts repeat cyclically. 0: one per prompt.",
        Flags("-ns", "--sequences", high=_MAX_TEXTS))
    predict: int = row(128,
        "Number of tokens to generate per text. -1: until the end of text, or until its equal "
        "share of the context is full.", Flags("-n", "--predict", "--n-predict", low=-1))
    # fmt: on


@click.command("parallel", cls=Program)
@prompt_options
@parameter_options(ParallelOptions)
@model_options
@escape_option()
@context_options()
@kv_unified_option
@sampling_options
@grammar_options
@speculative_options()
@color_option
@ignored_option("-cb", "--cont-batching")
@ignored_option("--no-warmup", "--warmup")
@version_option()
def command(kv_unified: bool, **options: Any) -> None:
    """Complete many prompts at once: the prompt of -p, or each line of -f.

    With a fixed seed, text i uses seed + i.
    """
    own, text = from_options(ParallelOptions, options), from_options(PromptOptions, options).text()
    prompts = [line for line in (text or "").split("\n") if line.strip()]
    if options["prompt"] is not None:
        prompts = [text or ""]
    if not prompts:
        raise click.UsageError("there is no prompt: give one with -p or -f")
    total = own.n_sequences or len(prompts)
    sizes = ContextOptions.from_click(options)
    params = sampling_params(options)
    grammar = from_options(GrammarOptions, options).parse()
    text_params = [params.for_text(i) for i in range(total)]
    of_model, drafts = ModelOptions.from_click(options), SpeculativeOptions.from_click(options)
    n_seq = min(own.n_parallel, total)
    with Drafting(drafts, of_model, sizes, params, n_seq, kv_unified) as drafting:
        cells = sizes.params(n_seq, kv_unified)
        model = load_model(of_model, cells, sizes.n_threads, drafting.reserved)
        tokens = [model.tokenizer.encode(p, add_special=True, parse_special=True) for p in prompts]
        ids = [tokens[i % len(tokens)] for i in range(total)]
        if sizes.n_ctx == 0:
            sizes = replace(sizes, n_ctx=_cells(ids, n_seq, own.predict, kv_unified))
        context = make_context(model, sizes, n_seq_max=n_seq, unified=kv_unified)
        from pyllama.engine.generate import run_many

        events = run_many(
            context,
            ids,
            text_params,
            n_predict=own.predict,
            grammar=grammar,
            speculation=drafting.speculation(context),
        )
        totals, color = _Totals(n_seq), wants_color(options["color"])
        try:
            for i, n, text in totals.texts(events, ids, color):
                write_raw(f"--- {i}: {n} tokens ---\n{prompts[i % len(prompts)]}{text}\n\n")
        finally:  # also after Ctrl-C
            if totals.n_prompt:
                note(totals.line())
                drafting.write_stats()


def _cells(prompts: list[list[int]], n_parallel: int, n_predict: int, unified: bool) -> int:
    """Return a context size that holds the longest prompts together, at least 512 per sequence."""
    longest = sorted(map(len, prompts))[-n_parallel:]
    if not unified:
        longest = longest[-1:] * n_parallel
    n_gen = n_predict if n_predict >= 0 else 512
    return max(512 * n_parallel, sum(longest) + n_parallel * (n_gen + 1))


class _Totals:
    """Counts what is generated.

    Args:
        n_parallel: number of sequences.

    Attributes:
        n_prompt: tokens of the prompts whose texts have begun.
    """

    def __init__(self, n_parallel: int) -> None:
        self._n_parallel, self._start = n_parallel, time.perf_counter()
        self.n_prompt = self._n_generated = self._n_texts = 0

    def texts(
        self, events: Iterable[tuple[int, Event]], prompts: Sequence[Sized], color: bool
    ) -> Iterator[tuple[int, int, str]]:
        """Yield index, number of tokens and text of each completion."""
        texts: dict[int, str] = {}
        for i, event in events:
            if i not in texts:
                texts[i] = ""
                self.n_prompt += len(prompts[i])
            self._n_generated += len(event.tokens)
            texts[i] += drafted_text(event.text) if color and event.drafted else event.text
            if event.usage is not None:
                self._n_texts += 1
                yield i, event.usage.n_generated, texts[i]
                texts[i] = ""

    def line(self) -> str:
        """Return the numbers of texts and tokens, and the speeds."""
        seconds = time.perf_counter() - self._start
        n_prompt, n_generated = self.n_prompt, self._n_generated
        return (
            f"{self._n_texts} texts, {self._n_parallel} in parallel: {n_prompt} prompt and "
            f"{n_generated} generated tokens in {seconds:.2f} s, {n_generated / seconds:.2f} "
            f"generated tokens per second, {(n_prompt + n_generated) / seconds:.2f} tokens per "
            "second in total"
        )
