"""``pyllama-perplexity``: compute perplexity and KL divergence by llama.cpp's method.

    pyllama-perplexity -m x.gguf -f text.txt -c 512 --chunks 4
    pyllama-perplexity -m x.gguf -f text.txt --ppl-stride 256
    pyllama-perplexity -m x-F16.gguf -f text.txt --save-all-logits all.bin
    pyllama-perplexity -m x-Q4_K.gguf --kl-divergence --kl-divergence-base all.bin

Prints the running value after each chunk, then the final estimate with its error. With
--kl-divergence compares the model with the saved probabilities of another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import Flags, row

from ..loading import load_model, make_context
from ..options.options import ContextOptions, ModelOptions, context_options, model_options
from ..options.prompt import PromptOptions, escape_option, prompt_options
from ..output import note, write
from ..parameters import from_options, parameter_options
from ..paths import refuse_source
from ..tables.kl import HEADER, chunk_line, statistics
from ..tool import Program, ignored_option, version_option

if TYPE_CHECKING:
    from pyllama.runtime.context import Context


_CTX_STEP = 256  # llama.cpp rounds the size of a context up to a multiple, that is of a chunk here


@dataclass(frozen=True, eq=False, repr=False)
class PerplexityOptions:
    """What is scored, and how it is printed."""

    # fmt: off
    chunks: int = row(-1, "Maximum number of chunks to process. -1: all.",
        Flags("--chunks", low=-1))
    ppl_stride: int = row(0,
        "Distance of the beginnings of overlapping chunks, of which the last N tokens are scored; "
        "half of it is added to the context, which is rounded up to a multiple of 256. 0: no "
        "overlap, and the second half of each is scored.", Flags("--ppl-stride"))
    ppl_output_type: str = row("0",
        "0: running values in a line. 1: a line per chunk: its position and the running value; "
        "without --ppl-stride also the mean of -log p and its error.",
        Flags("--ppl-output-type", choices=("0", "1")))
    kl_divergence: bool = row(False,
        "Compute the KL divergence to the saved probabilities of --kl-divergence-base, over the "
        "tokens in that file.", Flags("--kl-divergence"))
    logits_file: Path | None = row(None,
        "File to save all token probabilities to, in llama.cpp's format; read with "
        "--kl-divergence.", Flags("--kl-divergence-base", "--save-all-logits", metavar="FILE"))
    # fmt: on


@click.command("perplexity", cls=Program)
@prompt_options
@parameter_options(PerplexityOptions)
@model_options
@escape_option(default=False)
@context_options(n_ctx=512)
@ignored_option("--no-warmup", "--warmup")
@version_option()
def command(**options: Any) -> None:
    """Compute the perplexity of a model over a text."""
    own = from_options(PerplexityOptions, options)
    stride, logits_file = own.ppl_stride, own.logits_file
    n_chunks = None if own.chunks < 0 else own.chunks
    if stride and (own.kl_divergence or logits_file is not None):
        raise click.UsageError("--ppl-stride works neither with --kl-divergence nor with its file")
    if own.kl_divergence:
        if logits_file is None:
            raise click.UsageError(
                "--kl-divergence needs --kl-divergence-base FILE, a file that was saved with "
                "--save-all-logits"
            )
        _compare(logits_file, n_chunks, options)
        return
    if logits_file is not None:
        refuse_source(logits_file, options["model"], options["file"])
    text = from_options(PromptOptions, options).text()
    if text is None:
        raise click.UsageError("give the text with -f or -p")
    context = _context(options, stride)
    tokens = context.model.tokenizer.encode(text, add_special=True, parse_special=False)
    from pyllama.eval.perplexity import perplexity, strided_perplexity

    n_ctx = context.n_ctx
    note(f"perplexity: {len(tokens)} tokens, n_ctx={n_ctx}, n_batch={context.n_batch}")
    if stride:
        results = strided_perplexity(context, tokens, stride, n_ctx, n_chunks)
    else:
        results = perplexity(context, tokens, n_ctx, n_chunks, logits_file)
    result = None
    for result in results:
        if own.ppl_output_type == "0":
            write(f"[{result.chunk}]{result.ppl:.4f},")
            continue
        position, more = (result.chunk - 1) * (stride or n_ctx), ""
        if not stride:
            more = f"  {result.nll / result.n_scored:4f}  {result.error / result.ppl:4f}"
        write(f"{position:8d}  {result.ppl:.4f}{more}\n")
    if result is not None:
        write(f"\nFinal estimate: PPL = {result.ppl:.4f} +/- {result.error:.5f}\n")


def _context(options: dict[str, Any], stride: int = 0) -> Context:
    """The context; for strided perplexity of llama.cpp's size, half a stride more and rounded.

    A reduced cache is reduced between batches, which are so small that it grows as by generation.
    """
    sizes = ContextOptions.from_click(options)
    if sizes.kv_keep:
        sizes = replace(sizes, n_batch=min(sizes.n_batch, max(1, sizes.kv_keep // 8)))
    if stride and sizes.n_ctx:
        rounded = -(-(sizes.n_ctx + stride // 2) // _CTX_STEP) * _CTX_STEP
        sizes = replace(sizes, n_ctx=rounded)
    model = load_model(ModelOptions.from_click(options), sizes.params(), sizes.n_threads)
    return make_context(model, sizes)


def _compare(path: Path, n_chunks: int | None, options: dict[str, Any]) -> None:
    from pyllama.eval.kl_divergence import kl_divergence
    from pyllama.eval.saved_logits import SavedLogits

    saved = SavedLogits(path)
    note(f"{path}: {saved.n_chunks} chunks of {saved.n_ctx} tokens")
    result = None
    for result in kl_divergence(_context(options), saved, n_chunks):
        write(("" if result.chunk > 1 else HEADER) + chunk_line(result))
    if result is not None:
        write(statistics(result))
