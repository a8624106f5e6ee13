"""The options of conversation mode, and the rule that turns it on.

@conversation_options
def command(**options: Any) -> None:
    talk = ConversationOptions.from_click(options)
    mode = talk.mode(has_template)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ..help_pages import stack
from ..output import color_option, note
from ..paths import read_text
from ..tool import ignored_option
from .options import INT32_MAX, Group, Number
from .prompt import process_escapes

if TYPE_CHECKING:
    from pyllama.tokenizer import Tokenizer

_MAX_VALUES = 1 << 16  # of --chat-template-kwargs
Mode = Literal["complete", "talk", "write"]


def is_terminal() -> bool:
    """Return whether both stdin and stdout are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


@dataclass(frozen=True)
class ConversationOptions(Group):
    """Options of a conversation. ``conversation`` None: decided by the model and the terminal.

    The fields from ``reverse_prompt`` on are declared by other option groups.
    """

    conversation: bool | None
    single_turn: bool
    interactive: bool
    interactive_first: bool
    system_prompt: str | None
    system_prompt_file: Path | None
    in_prefix: str
    in_prefix_bos: bool
    in_suffix: str
    multiline_input: bool
    color: str
    simple_io: bool
    chat_template: str | None
    chat_template_file: Path | None
    chat_template_kwargs: Mapping[str, Any]
    reasoning: str
    reasoning_format: str
    reasoning_effort: str
    reasoning_budget: int
    reasoning_budget_message: str
    reverse_prompt: tuple[str, ...]
    predict: int
    special: bool
    display_prompt: bool
    perf: bool
    escape: bool
    context_shift: bool
    keep: int
    prompt_cache: Path | None
    prompt_cache_all: bool
    prompt_cache_ro: bool

    def __post_init__(self) -> None:
        for flag, text, file in (
            ("-sys", self.system_prompt, self.system_prompt_file),
            ("--chat-template", self.chat_template, self.chat_template_file),
        ):
            if text is not None and file is not None:
                raise click.UsageError(f"give {flag} as text or as a file, not both")

        if self.prompt_cache_all and (self.interactive or self.interactive_first):
            raise click.UsageError("--prompt-cache-all cannot be used with -i or -if")

    def n_keep(self, tokens: Sequence[int], tokenizer: Tokenizer) -> int | None:
        """Return how many of ``tokens`` a context shift keeps; None without context shifts.

        As in llama.cpp: -1, or a number above ``len(tokens)``, keeps all of them; a BOS token is
        always kept; -n -2 disables context shifts.
        """
        if not self.context_shift or self.predict == -2:
            return None
        if not 0 <= self.keep <= len(tokens):
            return len(tokens)
        return self.keep + int(bool(tokenizer.add_bos) and self.keep < len(tokens))

    def mode(self, has_template: bool) -> Mode:
        """Return the mode: complete a prompt, chat in a format, or write one text interactively.

        Without a terminal only -cnv, -i or -st start a conversation. --in-prefix and --in-suffix
        replace the chat format.
        """
        has_template = has_template or self._names_template
        turns = self.interactive or self.interactive_first
        by_itself = self.conversation is None and has_template and is_terminal()
        if self.in_prefix or self.in_suffix or self.in_prefix_bos:
            return "write" if turns or self.conversation or by_itself else "complete"
        if self.conversation or (self.conversation is None and self.single_turn) or by_itself:
            return "talk"
        if turns:
            return "talk" if self.conversation is None and has_template else "write"
        if self.system_prompt is not None or self.system_prompt_file or self._names_template:
            note("-sys and --chat-template only apply to conversations; add -cnv to start one")
        return "complete"

    @property
    def _names_template(self) -> bool:
        return self.chat_template is not None or self.chat_template_file is not None

    def template_values(self) -> dict[str, Any]:
        """Return the variables for the chat template."""
        values: dict[str, Any] = {}
        if self.reasoning != "auto":
            values["enable_thinking"] = self.reasoning == "on"
        if self.reasoning_effort != "default":
            values["reasoning_effort"] = self.reasoning_effort
        return {**values, **self.chat_template_kwargs}

    def between(self) -> tuple[str, str]:
        """Return the texts before and after each message of the user."""
        return self._read(self.in_prefix), self._read(self.in_suffix)

    def _read(self, text: str) -> str:
        """Return a text from the command line with its escapes processed."""
        if not self.escape:
            return text
        data = text.encode("utf-8", "surrogateescape")
        return process_escapes(data).decode("utf-8", "replace")

    def system(self) -> str:
        """Return the system prompt."""
        if self.system_prompt_file is not None:
            return read_text(self.system_prompt_file).removesuffix("\n")
        return self._read(self.system_prompt or "")

    def template(self) -> str | None:
        """Return the name or source of the requested chat template, None for the model's own."""
        if self.chat_template_file is not None:
            return read_text(self.chat_template_file)
        return self.chat_template


def json_object(ctx: click.Context, param: click.Parameter, value: str | None) -> dict[str, Any]:
    """Return the JSON object of an option's text; empty for None."""
    from pyllama.inputs.bounded_json import parse_json

    try:
        values = parse_json((value or "{}").encode("utf-8", "surrogateescape"), _MAX_VALUES)
    except ValueError as error:
        raise click.BadParameter(f"not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise click.BadParameter('not a JSON object, such as {"enable_thinking": false}')
    return values


conversation_options = stack(
    click.option(
        "-cnv/-no-cnv",
        "--conversation/--no-conversation",
        "conversation",
        default=None,
        help="Chat with the model in its chat format, or complete the prompt.  [default: chat, if "
        "the model has a chat template and stdin and stdout are a terminal]",
    ),
    click.option("-st", "--single-turn", is_flag=True, help="Exit after one reply."),
    click.option("-sys", "--system-prompt", help="System prompt."),
    click.option(
        "-sysf",
        "--system-prompt-file",
        type=click.Path(path_type=Path),
        help="File that contains the system prompt.",
    ),
    click.option(
        "-i",
        "--interactive",
        is_flag=True,
        help="Interactive mode: continue one text; at a -r text the model waits for your input.",
    ),
    click.option(
        "-if",
        "--interactive-first",
        is_flag=True,
        help="Interactive mode that waits for your input first.",
    ),
    click.option(
        "-mli",
        "--multiline-input",
        is_flag=True,
        help=r"Enter starts a new line; a line that ends in \ sends the message.",
    ),
    click.option(
        "--in-prefix",
        default="",
        help="Text before each input; replaces the chat template.",
    ),
    click.option("--in-prefix-bos", is_flag=True, help="Put a BOS token before --in-prefix."),
    click.option(
        "--in-suffix",
        default="",
        help="Text after each input; replaces the chat template.",
    ),
    color_option,
    click.option("--simple-io", is_flag=True, help="Disable line editing and history."),
    click.option(
        "--chat-template",
        metavar="NAME|JINJA",
        help="Chat template: a name of llama.cpp's (chatml, llama3, gemma, ...) or Jinja text.",
    ),
    click.option(
        "--chat-template-file",
        type=click.Path(path_type=Path),
        help="File that contains the chat template.",
    ),
    click.option(
        "--chat-template-kwargs",
        metavar="JSON",
        callback=json_object,
        help='Variables for the chat template, such as {"enable_thinking": false}.',
    ),
    stack(
        click.option(
            "-rea",
            "--reasoning",
            type=click.Choice(["on", "off", "auto"]),
            default="auto",
            help="Whether the model reasons before it replies, if its template has the choice.",
        ),
        click.option(
            "--reasoning-format",
            type=click.Choice(["none", "auto", "deepseek", "deepseek-legacy"]),
            default="auto",
            help="none prints the reasoning as part of the reply, the others mark it as reasoning "
            "and leave later turns without it, if the chat template does.",
        ),
        click.option(
            "--reasoning-effort",
            metavar="LEVEL",
            default="default",
            help="Level of reasoning for the chat template, such as low, medium or high.",
        ),
        click.option(
            "--reasoning-budget",
            type=Number(-1, INT32_MAX),
            default=-1,
            help="Maximum number of tokens of the reasoning. -1: no limit, 0: none.",
        ),
        click.option(
            "--reasoning-budget-message",
            metavar="TEXT",
            default="",
            help="Text before the end of the reasoning when its budget is spent.",
        ),
        section="Reasoning",
    ),
    ignored_option("--jinja"),
    ignored_option("--no-jinja", why="chat templates are always run as Jinja"),
    section="Conversation",
)
