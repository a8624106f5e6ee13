"""``pyllama-speculative`` and ``pyllama-speculative-simple``: complete a prompt with drafts.

    pyllama-speculative -m x.gguf -md small.gguf -np 4 -p "Once upon a time" -n 64
    pyllama-speculative-simple -m x.gguf --spec-type suffix -f prompt.txt -n 64

Like llama.cpp's tools: prompt and text go to stdout, counts and timings to stderr. The first needs
a draft model and drafts trees with ``-np``; the second takes any drafter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from ..drafting import Drafting, write_event
from ..help_pages import stack
from ..loading import load_model, make_context
from ..options.grammar import GrammarOptions, grammar_options
from ..options.options import ContextOptions, ModelOptions, context_options, model_options
from ..options.prompt import PromptOptions, escape_option, prompt_options
from ..options.run import RunOptions, color_option
from ..options.sampling import sampling_options, sampling_params
from ..options.speculative import SpeculativeOptions, speculative_options
from ..output import note, wants_color, write_raw
from ..parameters import from_options, parameter_options
from ..tool import Program, ignored_option, version_option

text_options = stack(
    prompt_options,
    parameter_options(RunOptions, only=("predict",)),
    color_option,
    parameter_options(RunOptions, only=("special",)),
    model_options,
    escape_option(),
    context_options(),
    sampling_options,
    grammar_options,
    ignored_option("--no-warmup", "--warmup"),
    ignored_option("--log-disable"),
)


@dataclass
class Speeds:
    """Numbers of tokens of a run, and the seconds that they took.

    The first generated token is counted with the prompt.
    """

    n_prompt: int
    n_predict: int = 0
    prompt_s: float = 0.0
    predict_s: float = 0.0

    def lines(self) -> list[str]:
        """The lines that llama.cpp's speculative tools print."""
        rows = (
            ("encoded", self.n_prompt, self.prompt_s),
            ("decoded", self.n_predict, self.predict_s),
        )
        return [
            f"{name} {n:4d} tokens in {s:8.3f} seconds, speed: {n / max(s, 1e-9):8.3f} t/s"
            for name, n, s in rows
        ]


def complete(
    options: Mapping[str, Any],
    drafts: SpeculativeOptions,
    write_stats: Callable[[Drafting, Speeds], None],
) -> None:
    """Complete the prompt with drafts; print the text, the speeds, the drafts and the timings.

    Args:
        options: click's values.
        drafts: what drafts.
        write_stats: prints the statistics of the drafts.
    """
    start = time.perf_counter()
    prompt = from_options(PromptOptions, options).text()
    if not prompt:
        raise click.UsageError("there is no prompt: give one with -p or -f")
    params = sampling_params(options)
    grammar = from_options(GrammarOptions, options).parse()
    sizes, of_model = ContextOptions.from_click(options), ModelOptions.from_click(options)
    with Drafting(drafts, of_model, sizes, params) as drafting:
        model = load_model(of_model, sizes.params(), sizes.n_threads, drafting.reserved)
        tokens = model.tokenizer.encode(prompt, add_special=True, parse_special=True)
        context = make_context(model, sizes)
        from pyllama.engine import Engine, Request, TextAssembler, Timings
        from pyllama.engine.request import check_prompt

        timings = Timings(load_ms=1e3 * (time.perf_counter() - start))
        engine = Engine(context, timings=timings, speculation=drafting.speculation(context))
        check_prompt(len(tokens), 0, context.n_ctx_seq)
        predict, special = options["predict"], options["special"]
        request = Request(
            tokens,
            params,
            max_tokens=predict if predict >= 0 else None,
            special=special,
            grammar=grammar,
        )
        events = engine.run(request)  # raises for an invalid request
        shown = TextAssembler(model.tokenizer, special=special)
        write_raw("".join(map(shown.push, tokens)) + shown.flush())
        color, speeds = wants_color(options["color"]), Speeds(len(tokens))
        start = time.perf_counter()
        try:
            for event in events:
                if event.tokens and not speeds.n_predict:
                    speeds.prompt_s = time.perf_counter() - start
                speeds.n_predict += len(event.tokens)
                write_event(event, color=color)
            write_raw("\n")
        finally:  # also after Ctrl-C
            speeds.predict_s = time.perf_counter() - start - speeds.prompt_s
            for line in ("", *speeds.lines()):
                note(line)
            write_stats(drafting, speeds)
            for line in ("", "target:", "", *timings.lines()):
                note(line)


def _write_stats(drafting: Drafting, speeds: Speeds) -> None:
    drafting.write_stats(speeds.n_predict)


@click.command("speculative", cls=Program)
@text_options
@speculative_options("-np", "--parallel")
@version_option()
def command(**options: Any) -> None:
    """Complete a prompt with a draft model, by chains or (-np) trees of drafted tokens."""
    drafts = SpeculativeOptions.from_click(options)
    if not (drafts.has_model or drafts.is_self_draft):
        raise click.UsageError(
            "there is no draft model: give one with -md or -hfd, or let the model draft for itself "
            "(--self-draft-threshold, --self-draft-layers)"
        )
    complete(options, drafts, _write_stats)


@click.command("speculative-simple", cls=Program)
@text_options
@speculative_options()
@version_option()
def simple(**options: Any) -> None:
    """Complete a prompt with any drafter."""
    drafts = SpeculativeOptions.from_click(options)
    if not drafts.types:
        raise click.UsageError(
            "nothing drafts: give a draft model (-md, -hfd), --lookup or --spec-type"
        )
    complete(options, drafts, _write_stats)
