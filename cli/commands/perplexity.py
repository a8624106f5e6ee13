"""``pyllama-perplexity``: how well a model predicts a text, by llama.cpp's method.

    pyllama-perplexity -m x.gguf -f text.txt -c 512 --chunks 4

Prints the running value after each chunk, then the final estimate with its error.
"""

from __future__ import annotations

from typing import Any

import click

from ..loading import load_model, make_context
from ..options import (
    INT32_MAX,
    ContextOptions,
    ModelOptions,
    Number,
    context_options,
    model_options,
)
from ..output import note, write
from ..prompt import PromptOptions, escape_option, prompt_options
from ..tool import Tool, ignored_option, version_option


@click.command("perplexity", cls=Tool)
@prompt_options
@click.option(
    "--chunks",
    type=Number(-1, INT32_MAX),
    default=-1,
    show_default=True,
    help="Most chunks to evaluate. -1: all.",
)
@model_options
@escape_option(default=False)
@context_options(ctx_size=512)
@ignored_option("--no-warmup", "--warmup")
@version_option()
def command(chunks: int, **options: Any) -> None:
    """Compute the perplexity of a model over a text."""
    text = PromptOptions.take(options).text()
    if text is None:
        raise click.UsageError("give the text with -f or -p")
    sizes = ContextOptions.take(options)
    model = load_model(ModelOptions.take(options), sizes.n_threads)
    context = make_context(model, sizes)
    tokens = model.tokenizer.encode(text, add_special=True, parse_special=False)
    from pyllama.perplexity import perplexity

    note(f"perplexity: {len(tokens)} tokens, n_ctx={context.n_ctx}, n_batch={context.n_batch}")
    result = None
    for result in perplexity(context, tokens, context.n_ctx, None if chunks < 0 else chunks):
        write(f"[{result.chunk}]{result.ppl:.4f},")
    if result is not None:
        write(f"\nFinal estimate: PPL = {result.ppl:.4f} +/- {result.error:.5f}\n")
