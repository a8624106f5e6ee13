"""``pyllama-cli``: continue a prompt, or talk, as llama.cpp's llama-completion does.

    pyllama-cli -m x.gguf -p "The capital of France is" -n 24 --temp 0 -no-cnv

Prompt and text go to stdout, each token as it is made; timings in llama.cpp's form to stderr.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..conversation import converse, note_cache
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
from ..output import note, write_raw
from ..prompt import PromptOptions, escape_option, prompt_options
from ..tool import Tool, ignored_option, version_option

if TYPE_CHECKING:
    from pyllama.context import Context
    from pyllama.prompt_cache import PromptCache
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
    prompt_cache: Path | None
    prompt_cache_all: bool
    prompt_cache_ro: bool


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
    click.option(
        "--context-shift/--no-context-shift",
        default=False,
        show_default=True,
        help="When the context is full, forget half of it and go on, or stop.",
    ),
    click.option(
        "--keep",
        type=Number(-1, INT32_MAX),
        default=0,
        show_default=True,
        help="Tokens of the prompt that a context shift never forgets. -1: all.",
    ),
    click.option(
        "--prompt-cache",
        type=click.Path(path_type=Path),
        help="File that keeps the evaluated prompt for the next run.",
    ),
    click.option(
        "--prompt-cache-all", is_flag=True, help="Keep the text that was made in it as well."
    ),
    click.option("--prompt-cache-ro", is_flag=True, help="Use the file, but do not change it."),
    click.option("-sp", "--special", is_flag=True, help="Show special tokens too."),
    click.option("--perf/--no-perf", default=True, help="Show timings at the end."),
    click.option("-v", "--verbose", is_flag=True, help="Say what is loaded and run, on stderr."),
    ignored_option("--no-warmup", "--warmup"),
    ignored_option("--log-disable"),
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
        n_keep = talk.n_keep(tokens, model.tokenizer)
        _stream(context, tokens, params, run, timings, n_keep)
    finally:  # also after Ctrl-C
        if run.perf and timings.n_prompt_eval + timings.n_eval:
            for line in timings.lines():
                note(line)


def _stream(
    context: Context,
    tokens: list[int],
    params: SamplingParams,
    run: RunOptions,
    timings: Timings,
    n_keep: int | None,
) -> None:
    """Print the prompt and what follows it, token by token."""
    from pyllama.generate import generate
    from pyllama.tokenizer import TokenStream

    tokenizer = context.model.tokenizer
    cache, n_past = _load_prompt(context, tokens, run)
    decoder = TokenStream(tokenizer, special=run.special)
    shown = "".join(map(decoder.push, tokens))
    made: list[int] = []
    tail = ""
    keep = max(map(len, run.reverse_prompt), default=1) - 1
    stream = generate(
        context,
        tokens[n_past:],
        params,
        n_predict=run.predict,
        n_past=n_past,
        past=tokens[:n_past],
        n_keep=n_keep,
        timings=timings,
    )
    if run.display_prompt:  # nothing is wrong with what was asked for
        write_raw(shown)
    for token in stream:
        if cache is not None and not made and not run.prompt_cache_ro:
            cache.save(context, tokens)  # the prompt is evaluated, and nothing more
        made.append(token)
        text = decoder.push(token)
        write_raw(text)
        tail += text
        if any(stop in tail for stop in run.reverse_prompt):
            break
        tail = tail[-keep:] if keep else ""
    write_raw(decoder.flush())
    write_raw(" [end of text]\n" if made and tokenizer.is_eog(made[-1]) else "\n")
    if cache is not None and run.prompt_cache_all and not run.prompt_cache_ro:
        ids, n = [*tokens, *made], context.kv.seq_pos_max(0) + 1
        if n >= len(ids) - 1:  # not after a context shift
            cache.save(context, ids[:n])


def _load_prompt(
    context: Context, tokens: list[int], run: RunOptions
) -> tuple[PromptCache | None, int]:
    """The prompt cache, and how many tokens of the prompt came from it."""
    if run.prompt_cache is None:
        return None, 0
    from pyllama.prompt_cache import PromptCache

    cache = PromptCache(run.prompt_cache)
    n_past = cache.load(context, tokens)
    note_cache(cache, n_past, len(tokens))
    return cache, n_past


def _describe(context: Context, params: SamplingParams, n_predict: int) -> None:
    model = context.model
    note(f"model: {model.desc}, {model.size_bytes / 2**20:.2f} MiB, {model.n_params / 1e6:.2f} M")
    note(
        f"system_info: n_threads = {context.n_threads} "
        f"(n_threads_batch = {context.n_threads_batch})"
    )
    note(f"sampler seed: {params.seed}")
    note("sampler params:")
    for line in params.describe().splitlines():
        note(line)
    note(f"generate: n_ctx = {context.n_ctx}, n_batch = {context.n_batch}, n_predict = {n_predict}")
