"""``pyllama run``: a conversation with a model, or one answer, like ollama's command.

    pyllama run                                    # a conversation, demo model
    pyllama run model.gguf "Why is the sky blue?"
    pyllama run user/model:Q4_K_M "Summarize:" < text.txt
    git diff | pyllama run demo "Write a commit message for this:"

The answer goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..options.conversation import conversation_options
from ..options.grammar import grammar_options
from ..options.hub import HubOptions
from ..options.options import context_options, load_options
from ..options.run import run_options
from ..options.sampling import sampling_options
from ..options.speculative import speculative_options
from ..paths import MAX_TEXT_BYTES
from ..tool import Program, version_option
from .completion import generate

_DEMO = "demo"
_HUB_HOST = re.compile(r"(https://)?(hf\.co|huggingface\.co)/")
_ON_HUB = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")


@click.command("run", cls=Program)
@click.argument("model", required=False, metavar="[MODEL]")
@click.argument("words", nargs=-1, metavar="[PROMPT]...")
@run_options
@conversation_options
@load_options
@context_options()
@sampling_options
@grammar_options
@speculative_options()
@version_option()
def command(model: str | None, words: tuple[str, ...], **options: Any) -> None:
    """Chat with a model, or get one answer to a prompt.

    MODEL is a GGUF file, USER/MODEL[:QUANT] on the Hugging Face hub, or "demo" (the default). A
    text from a pipe comes before the words of PROMPT.
    """
    prompt = " ".join(filter(None, (_piped(), *words)))
    if not prompt and not sys.stdin.isatty():
        raise click.UsageError("the prompt is empty: give one as an argument or by a pipe")
    given = click.get_current_context().get_parameter_source("perf")
    if given is ParameterSource.DEFAULT:
        options["perf"] = False
    if options["conversation"] is None:
        options["conversation"] = True
    if prompt:
        options |= {"single_turn": True, "display_prompt": False}
    # the prompt is text as it is: there are no escapes
    generate({**options, "model": _model(model), "prompt": prompt, "file": None, "escape": False})


def _piped() -> str:
    """The text on stdin, without the newline at its end; empty if stdin is a terminal."""
    if sys.stdin.isatty():
        return ""
    data = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise click.UsageError(f"the text on stdin has more than {MAX_TEXT_BYTES} bytes")
    from pyllama.inputs.text import decode_text

    return decode_text(data).removesuffix("\n")


def _model(name: str | None) -> Path | None:
    """The file of the model; None for the demo model, and for one on the hub."""
    if not name:
        return None
    path = Path(name).expanduser()
    if path.exists() or name.endswith(".gguf"):
        return path
    if name == _DEMO:
        return None
    repo = _HUB_HOST.sub("", name, count=1)
    if not _ON_HUB.fullmatch(repo):
        raise click.UsageError(
            f"no model {name}: give a GGUF file, USER/MODEL[:QUANT] on the Hugging Face hub, or "
            f'"{_DEMO}" for the demo model'
        )
    HubOptions.choose(repo)
    return None
