"""``pyllama-cli``: continue a prompt, or talk, as llama.cpp's llama-completion does.

    pyllama-cli -m x.gguf -p "The capital of France is" -n 24 --temp 0 -no-cnv

Prompt and text go to stdout, each token as it is made; timings in llama.cpp's form to stderr.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ..conversation import converse
from ..conversation_options import ConversationOptions, conversation_options
from ..loading import load_model, make_context
from ..options import (
    INT32_MAX,
    ContextOptions,
    Group,
    ModelOptions,
    Number,
    SamplingOptions,
    context_options,
    model_options,
    sampling_options,
    stack,
)
from ..output import note, write
from ..prompt import PromptOptions, escape_option, prompt_options
from ..tool import Tool, ignored_option, version_option

if TYPE_CHECKING:
    from pyllama.context import Context
    from pyllama.sampling import SamplingParams
    from pyllama.timings import Timings


@dataclass(frozen=True)
class RunOptions(Group):
    """How long to go on, and what to show."""

    predict: int
    reverse_prompt: tuple[str, ...]
    display_prompt: bool
    special: bool
    perf: bool
    verbose: bool


run_options = stack(
    click.option(
        "-n",
        "--predict",
        "--n-predict",
        type=Number(-2, INT32_MAX),
        default=-1,
        show_default=True,
        help="Tokens to make. -1: until the text ends or the context is full.",
    ),
    click.option(
        "-r",
        "--reverse-prompt",
        multiple=True,
        help="Stop after this text. Repeatable.",
    ),
    click.option(
        "--display-prompt/--no-display-prompt",
        default=True,
        help="Show the prompt, or only what follows.",
    ),
    click.option("-sp", "--special", is_flag=True, help="Show special tokens too."),
    click.option("--perf/--no-perf", default=True, help="Show timings at the end."),
    click.option("-v", "--verbose", is_flag=True, help="Say what is loaded and run, on stderr."),
    ignored_option("--no-warmup", "--warmup"),
    ignored_option("--no-context-shift"),
    ignored_option("--log-disable"),
    ignored_option("--keep", takes_value=True, why="nothing is discarded when a context is full"),
)


@click.command("completion", cls=Tool)
@prompt_options
@run_options
@conversation_options
@model_options
@escape_option()
@context_options()
@sampling_options
@version_option()
def command(**options: Any) -> None:
    """Continue a prompt with a model's text, or talk with the model."""
    start = time.perf_counter()
    run = RunOptions.take(options)
    prompt = PromptOptions.take(options).text() or ""
    params = SamplingOptions.take(options).params()
    sizes = ContextOptions.take(options)
    talk = ConversationOptions.take(options)
    model = load_model(ModelOptions.take(options), sizes.n_threads)
    if (mode := talk.mode(model.tokenizer.chat_template is not None)) != "complete":
        context = make_context(model, sizes)
        load_ms = 1e3 * (time.perf_counter() - start)
        converse(context, mode, talk, params, prompt, load_ms=load_ms)
        return
    tokens = model.tokenizer.encode(prompt, add_special=True, parse_special=True)
    if not tokens:
        raise click.UsageError("there is nothing to continue: give a prompt with -p or -f")
    context = make_context(model, sizes)
    if run.verbose:
        _describe(context, params, run.predict)
    from pyllama.timings import Timings

    timings = Timings(load_ms=1e3 * (time.perf_counter() - start))
    try:
        _stream(context, tokens, params, run, timings)
    finally:  # also after Ctrl-C
        if run.perf:
            for line in timings.lines():
                note(line)


def _stream(
    context: Context,
    tokens: list[int],
    params: SamplingParams,
    run: RunOptions,
    timings: Timings,
) -> None:
    """Print the prompt and what follows it, token by token."""
    from pyllama.generate import generate
    from pyllama.tokenizer import TokenStream

    tokenizer = context.model.tokenizer
    decoder = TokenStream(tokenizer, special=run.special)
    shown = "".join(map(decoder.push, tokens))
    if run.display_prompt:
        write(shown)
    token = -1
    tail = ""
    keep = max(map(len, run.reverse_prompt), default=1) - 1
    for token in generate(context, tokens, params, n_predict=run.predict, timings=timings):
        text = decoder.push(token)
        write(text)
        tail += text
        if any(stop in tail for stop in run.reverse_prompt):
            break
        tail = tail[-keep:] if keep else ""
    write(decoder.flush())
    write(" [end of text]\n" if tokenizer.is_eog(token) else "\n")


def _describe(context: Context, params: SamplingParams, n_predict: int) -> None:
    model = context.model
    note(f"model: {model.desc}, {model.size_bytes / 2**20:.2f} MiB, {model.n_params / 1e6:.2f} M")
    note(
        f"system_info: n_threads = {context.n_threads} "
        f"(n_threads_batch = {context.n_threads_batch})"
    )
    note(f"sampler seed: {params.seed}\nsampler params:\n{params.describe()}")
    note(f"generate: n_ctx = {context.n_ctx}, n_batch = {context.n_batch}, n_predict = {n_predict}")
