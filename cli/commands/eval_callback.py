"""``pyllama-eval-callback``: the values of a model's nodes, as llama.cpp's tool prints them.

    pyllama-eval-callback -m x.gguf -p "Hello" --tensor-filter "l_out-" --save states

The prompt is decoded once. ``--tensor-filter`` is a regular expression that a node's name starts
with; ``--save`` writes a .npy file for each node that is shown.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..loading import load_model, make_context
from ..options import ContextOptions, ModelOptions, context_options, model_options
from ..output import note, write
from ..prompt import PromptOptions, escape_option, prompt_options
from ..tool import Tool, ignored_option, version_option

if TYPE_CHECKING:
    from pyggml.tensor import Tensor


def _patterns(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[re.Pattern[str], ...]:
    found = []
    for value in values:
        try:
            found.append(re.compile(value))
        except re.error as e:
            raise click.BadParameter(f"{value!r} is not a regular expression: {e}.") from None
    return tuple(found)


@click.command("eval-callback", cls=Tool)
@prompt_options
@click.option(
    "--tensor-filter",
    multiple=True,
    callback=_patterns,
    metavar="REGEX",
    help="Only nodes whose name starts with this: l_out- are the layers' results. Repeatable.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write each node as a .npy file into this folder, with an index.json.",
)
@click.option("--stop-on-nan", is_flag=True, help="Stop at the first node with a NaN.")
@click.option(
    "--all-outputs",
    is_flag=True,
    help="Compute the end of the last layer for every token, not only for the last.",
)
@model_options
@escape_option()
@context_options()
@ignored_option("-n", "--predict", "--n-predict", takes_value=True, why="the prompt runs once")
@ignored_option("--no-warmup", "--warmup")
@version_option()
def command(
    tensor_filter: tuple[re.Pattern[str], ...],
    save: Path | None,
    stop_on_nan: bool,
    all_outputs: bool,
    **options: Any,
) -> None:
    """Print the values of a model's nodes while it reads a prompt."""
    prompt = PromptOptions.take(options).text() or ""
    sizes = ContextOptions.take(options)
    model = load_model(ModelOptions.take(options), sizes.n_threads)
    tokens = model.tokenizer.encode(prompt, add_special=True, parse_special=True)
    if not tokens:
        raise click.UsageError("there is nothing to compute: give a prompt with -p or -f")
    sizes = replace(sizes, batch_size=max(sizes.batch_size, len(tokens)))
    context = make_context(model, sizes)
    if len(tokens) > context.n_ctx:
        raise click.UsageError(
            f"the prompt has {len(tokens)} tokens, the context {context.n_ctx}: give a larger -c"
        )
    from pyllama.inspect.node_text import NodeFiles, node_text
    from pyllama.inspect.observe import watch

    shown = 0
    with contextlib.ExitStack() as stack:
        files = None if save is None else stack.enter_context(NodeFiles(save))

        def look(node: Tensor, values: Any) -> None:
            nonlocal shown
            shown += 1
            write(node_text(node, values))
            if files is not None:
                files.write(node, values)

        watch(
            context,
            tokens,
            look,
            wants=lambda name: not tensor_filter or any(p.match(name) for p in tensor_filter),
            logits="all" if all_outputs else "last",
            stop_on_nan=stop_on_nan,
        )
    if not shown:
        note("no node has a name that --tensor-filter matches")
