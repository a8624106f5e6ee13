"""``pyllama-eval-callback``: print the values of graph nodes, like llama-eval-callback.

    pyllama-eval-callback -m x.gguf -p "Hello" --tensor-filter l_out --save states

The prompt is decoded once. ``--tensor-filter`` is a regular expression matched at the start of a
node's name; ``--save`` writes each printed node to a .npy file.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import Flags, row

from ...loading import load_model, make_context
from ...options.options import ContextOptions, ModelOptions, context_options, model_options
from ...options.prompt import PromptOptions, escape_option, prompt_options
from ...output import note, write
from ...parameters import from_options, parameter_options
from ...tool import Program, ignored_option, version_option

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


@dataclass(frozen=True, eq=False, repr=False)
class WatchOptions:
    """Which nodes are printed, and where their values are saved."""

    # fmt: off
    tensor_filter: tuple[re.Pattern[str], ...] = row((),
        "Only nodes whose name starts with a match; l_out- matches the outputs of layers. "
        "Repeatable.", Flags("--tensor-filter", metavar="REGEX", repeated=True, callback=_patterns))
    save: Path | None = row(None,
        "Save each node as a .npy file in this folder, with an index.json.",
        Flags("--save", type=click.Path(path_type=Path, file_okay=False)))
    stop_on_nan: bool = row(False, "Stop at the first node that contains a NaN.",
        Flags("--stop-on-nan"))
    all_outputs: bool = row(False,
        "Compute the end of the last layer for all tokens, not only for the last token.",
        Flags("--all-outputs"))
    # fmt: on


@click.command("eval-callback", cls=Program)
@prompt_options
@parameter_options(WatchOptions)
@model_options
@escape_option()
@context_options()
@ignored_option(
    "-n", "--predict", "--n-predict", takes_value=True, why="only the prompt is evaluated"
)
@ignored_option("--no-warmup", "--warmup")
@version_option()
def command(**options: Any) -> None:
    """Print the values of a model's graph nodes during the evaluation of a prompt."""
    own = from_options(WatchOptions, options)
    prompt = from_options(PromptOptions, options).text() or ""
    sizes = ContextOptions.from_click(options)
    model = load_model(ModelOptions.from_click(options), sizes.params(), sizes.n_threads)
    tokens = model.tokenizer.encode(prompt, add_special=True, parse_special=True)
    if not tokens:
        raise click.UsageError("the prompt is empty: give one with -p or -f")
    sizes = replace(sizes, n_batch=max(sizes.n_batch, len(tokens)))
    context = make_context(model, sizes)
    if len(tokens) > context.n_ctx:
        raise click.UsageError(
            f"the prompt has {len(tokens)} tokens, the context {context.n_ctx}: use a larger -c"
        )
    from pyllama.inspect.node_text import NodeFiles, node_text
    from pyllama.inspect.observe import watch

    shown = 0
    with contextlib.ExitStack() as stack:
        files = None if own.save is None else stack.enter_context(NodeFiles(own.save))

        def show(node: Tensor, values: Any) -> None:
            nonlocal shown
            shown += 1
            write(node_text(node, values))
            if files is not None:
                files.write(node, values)

        watch(
            context,
            tokens,
            show,
            name_filter=lambda name: (
                not own.tensor_filter or any(p.match(name) for p in own.tensor_filter)
            ),
            logits="all" if own.all_outputs else "last",
            stop_on_nan=own.stop_on_nan,
        )
    if not shown:
        note("--tensor-filter matches no node")
