"""The options of conversation mode, and the rule that turns it on.

@conversation_options
def command(**options: Any) -> None:
    talk = from_options(ConversationOptions, options)
    mode = talk.mode(has_template)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from pyllama.parameters import Flags, row, rows
from pyllama.parameters.generation import REASONING_FORMATS, ChatParams

from ..help_pages import stack
from ..output import note
from ..parameters import parameter_options
from ..paths import read_text
from ..tool import ignored_option
from .prompt import process_escapes
from .run import RunOptions, color_option

if TYPE_CHECKING:
    from pyllama.tokenizer import Tokenizer

_MAX_VALUES = 1 << 16  # of --chat-template-kwargs
Mode = Literal["complete", "talk", "write"]


def is_terminal() -> bool:
    """Return whether both stdin and stdout are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ConversationOptions(RunOptions, ChatParams):
    """Options of a conversation. ``conversation`` None: decided by the model and the terminal."""

    # fmt: off
    conversation: bool | None = row(None,
        "Chat with the model in its chat format, or complete the prompt.  [default: chat, if the "
        "model has a chat template and stdin and stdout are a terminal]",
        Flags("-cnv/-no-cnv", "--conversation/--no-conversation"))
    single_turn: bool = row(False, "Exit after one reply.", Flags("-st", "--single-turn"))
    system_prompt: str | None = row(None, "System prompt.", Flags("-sys", "--system-prompt"))
    system_prompt_file: Path | None = row(None, "File that contains the system prompt.",
        Flags("-sysf", "--system-prompt-file"))
    interactive: bool = row(False,
        "Interactive mode: continue one text; at a -r text the model waits for your input.",
        Flags("-i", "--interactive"))
    interactive_first: bool = row(False, "Interactive mode that waits for your input first.",
        Flags("-if", "--interactive-first"))
    multiline_input: bool = row(False,
        r"Enter starts a new line; a line that ends in \ sends the message.",
        Flags("-mli", "--multiline-input"))
    in_prefix: str = row("", "Text before each input; replaces the chat template.",
        Flags("--in-prefix"))
    in_prefix_bos: bool = row(False, "Put a BOS token before --in-prefix.",
        Flags("--in-prefix-bos"))
    in_suffix: str = row("", "Text after each input; replaces the chat template.",
        Flags("--in-suffix"))
    simple_io: bool = row(False, "Disable line editing and history.", Flags("--simple-io"))
    reasoning_format: str = row("auto",
        "none prints the reasoning as part of the reply, the others mark it as reasoning and leave "
        "later turns without it, if the chat template does.",
        Flags("--reasoning-format", choices=REASONING_FORMATS))
    reasoning_effort: str = row("default",
        "Level of reasoning for the chat template, such as low, medium or high.",
        Flags("--reasoning-effort", metavar="LEVEL"))
    # fmt: on
    escape: bool = True  # of `escape_option`

    def __post_init__(self) -> None:
        _check_one("-sys", self.system_prompt, self.system_prompt_file)
        _check_one("--chat-template", self.chat_template, self.chat_template_file)
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
        effort = {"reasoning_effort": self.reasoning_effort}
        return (effort if self.reasoning_effort != "default" else {}) | template_values(self)

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


def template(chat: ChatParams) -> str | None:
    """Return the name or source of the requested chat template, None for the model's own."""
    _check_one("--chat-template", chat.chat_template, chat.chat_template_file)
    file = chat.chat_template_file
    return chat.chat_template if file is None else read_text(file)


def _check_one(flag: str, text: str | None, file: Path | None) -> None:
    if text is not None and file is not None:
        raise click.UsageError(f"give {flag} as text or as a file, not both")


def template_values(chat: ChatParams) -> dict[str, Any]:
    """Return the variables for the chat template."""
    on = {} if chat.reasoning == "auto" else {"enable_thinking": chat.reasoning == "on"}
    return {**on, **chat.chat_template_kwargs}


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


_REASONING = ("reasoning", "reasoning_budget", "reasoning_message")
chat_options = stack(
    parameter_options(
        ChatParams, but=_REASONING, callbacks={"--chat-template-kwargs": json_object}
    ),
    parameter_options(ChatParams, only=_REASONING, section="Reasoning"),
    ignored_option("--jinja"),
    ignored_option("--no-jinja", why="chat templates are always run as Jinja"),
)
"""The rows of `ChatParams`."""

_OWN_REASONING = ("reasoning_format", "reasoning_effort")
conversation_options = stack(
    parameter_options(
        ConversationOptions, but=(*rows(RunOptions), *rows(ChatParams), *_OWN_REASONING)
    ),
    color_option,
    chat_options,
    parameter_options(ConversationOptions, only=_OWN_REASONING, section="Reasoning"),
    section="Conversation",
)
