"""``pyllama-diffusion``: text of diffusion language models, as llama-diffusion-cli.

    pyllama-diffusion -m dream.gguf -p "Hi" -ub 256 --diffusion-eps 0.001
    pyllama-diffusion -m llada.gguf -p "Hi" --diffusion-block-length 32

The prompt and the text have -ub tokens together, which become known in --diffusion-steps steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import Flags, row
from pyllama.parameters.diffusion import DiffusionParams
from pyllama.parameters.sampling import SamplingParams

from ..loading import load_model, make_context
from ..options.options import ContextOptions, ModelOptions, context_options, model_options
from ..options.prompt import PromptOptions, escape_option, prompt_options
from ..output import note, progress_bar, visible, write_raw
from ..parameters import from_options, parameter_options
from ..tool import Program, ignored_option, version_option

if TYPE_CHECKING:
    from pyllama.runtime.model import Model

_CLEAR = "\033[2J\033[H"  # the screen; the cursor is at the top


@dataclass(frozen=True, eq=False, repr=False)
class DiffusionOptions:
    """How the prompt is written, and whether the text is shown while it is made."""

    # fmt: off
    conversation: bool | None = row(None,
        "Write the prompt as a message in the model's chat format, or leave it as it is.  "
        "[default: a message, if the model has a chat template]",
        Flags("-cnv/-no-cnv", "--conversation/--no-conversation"))
    system_prompt: str | None = row(None, "System prompt, before the message.",
        Flags("-sys", "--system-prompt"))
    visual: bool = row(False, "Show the text after each step.", Flags("--diffusion-visual"))
    # fmt: on


@click.command("diffusion", cls=Program)
@prompt_options
@parameter_options(DiffusionOptions)
@parameter_options(DiffusionParams)
@parameter_options(SamplingParams, only=("seed", "temp", "top_k", "top_p"), section="Sampling")
@model_options
@escape_option()
@context_options()
@ignored_option("--no-warmup", "--warmup")
@version_option()
def command(**options: Any) -> None:
    """Make text with a diffusion language model.

    Give --diffusion-eps or --diffusion-block-length.
    """
    own = from_options(DiffusionOptions, options)
    prompt = from_options(PromptOptions, options).text() or ""
    names = ("seed", "temp", "top_k", "top_p")
    sampling = SamplingParams(**{name: options[name] for name in names})
    sizes = ContextOptions.from_click(options)
    n = sizes.n_ubatch
    sizes = replace(sizes, n_ctx=max(sizes.n_ctx, n), n_batch=max(sizes.n_batch, n))
    model = load_model(ModelOptions.from_click(options), sizes.params(), sizes.n_threads)
    context = make_context(model, sizes)
    from pyllama.diffusion import mask_token, unmask

    mask, params = mask_token(context), from_options(DiffusionParams, options)
    tokens = _prompt(model, prompt, own)
    start, done, text = time.perf_counter(), 0, tokens
    show = None
    if own.visual and sys.stderr.isatty():
        show = _screen(model, mask, len(tokens), sys.stderr.write)
    with progress_bar("" if show else "unmasking") as progress:
        for step in unmask(context, tokens, params, sampling):
            done, text = done + 1, step.tokens
            if show is None:
                progress(step.number / params.steps)
            else:
                show(f"step {step.number} of {params.steps}", text)
    seconds = time.perf_counter() - start
    write_raw(model.tokenizer.decode([t for t in text[len(tokens) :] if t != mask]) + "\n")
    note(
        f"{len(text) - len(tokens)} tokens in {done} steps and {seconds:.2f} s, "
        f"{1000 * seconds / max(done, 1):.0f} ms per step"
    )


def _prompt(model: Model, prompt: str, own: DiffusionOptions) -> list[int]:
    """The tokens of the prompt, in the model's chat format if it is wanted."""
    from pyllama.chat.formats import LLAMA_CPP_FORMATS, ChatFormats

    formats = ChatFormats(model, LLAMA_CPP_FORMATS)
    if not (formats.has_own if own.conversation is None else own.conversation):
        if own.system_prompt is not None:
            raise click.UsageError("-sys is for messages in a chat format: add -cnv")
        return model.tokenizer.encode(prompt, add_special=True, parse_special=True)
    messages = [{"role": "user", "content": prompt}]
    if own.system_prompt is not None:
        messages.insert(0, {"role": "system", "content": own.system_prompt})
    return list(formats.get(None).prompt(messages, add_generation_prompt=True).tokens)


def _screen(
    model: Model, mask: int, n_prompt: int, draw: Callable[[str], object]
) -> Callable[[str, list[int]], None]:
    """A function that draws a title and the text on a cleared screen; masked tokens are blank."""

    def show(title: str, tokens: list[int]) -> None:
        pieces = [
            b" " if token == mask else model.tokenizer.token_to_piece(token)
            for token in tokens[n_prompt:]
        ]
        text = visible(b"".join(pieces).decode("utf-8", "replace"), keep="\n\t")
        draw(f"{_CLEAR}{title}\n{text}\n")

    return show
