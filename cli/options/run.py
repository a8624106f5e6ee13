"""Options of ``pyllama-cli`` for the end of a text, the output and the prompt cache.

@run_options
def command(**options: Any) -> None:
    run = from_options(RunOptions, options)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyllama.parameters import Flags, row

from ..help_pages import stack
from ..parameters import parameter_options
from ..paths import writable
from ..tool import ignored_option

FILL = -2  # --predict -2: generate until the context is full, without a context shift


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunOptions:
    """When to stop, what to show, and the prompt cache."""

    # fmt: off
    predict: int = row(-1,
        "Number of tokens to generate. -1: until the end of text or a full context, -2: until a "
        "full context, without context shift.", Flags("-n", "--predict", "--n-predict", low=FILL))
    reverse_prompt: tuple[str, ...] = row((), "Stop generating at this text. Repeatable.",
        Flags("-r", "--reverse-prompt", repeated=True))
    display_prompt: bool = row(True, "Print the prompt before the generated text.",
        Flags("--display-prompt/--no-display-prompt"))
    context_shift: bool = row(False,
        "When the context is full, discard half of it and continue, or stop.",
        Flags("--context-shift/--no-context-shift"))
    keep: int = row(0, "Number of prompt tokens that a context shift keeps. -1: all.",
        Flags("--keep", low=-1))
    prompt_cache: Path | None = row(None,
        "File to cache the prompt state in, for a faster start of the next run.",
        Flags("--prompt-cache", callback=writable))
    prompt_cache_all: bool = row(False, "Save the generated text to the cache as well.",
        Flags("--prompt-cache-all"))
    prompt_cache_ro: bool = row(False, "Read the prompt cache, never write it.",
        Flags("--prompt-cache-ro"))
    special: bool = row(False, "Print special tokens.", Flags("-sp", "--special"))
    perf: bool = row(True, "Print timings at the end.", Flags("--perf/--no-perf"))
    color: str = row("auto",
        "Colour your input, and drafted tokens that were accepted. auto: in a terminal, unless "
        "NO_COLOR is set or TERM is dumb.",
        Flags("-co", "--color", choices=("on", "off", "auto"), is_flag=False, flag_value="on"))
    verbose: bool = row(False, "Print the model and the parameters on stderr.",
        Flags("-v", "--verbose"))
    # fmt: on


run_options = stack(
    parameter_options(RunOptions, but=("color",)),
    ignored_option("--no-warmup", "--warmup"),
    ignored_option("--log-disable"),
)
color_option = parameter_options(RunOptions, only=("color",))
