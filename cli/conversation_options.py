"""The options of conversation mode, and when it is on.

@conversation_options
def command(**options: Any) -> None:
    talk = ConversationOptions.take(options)
    mode = talk.mode(has_template)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from .options import Group, stack
from .output import note
from .paths import read_text
from .prompt import process_escapes
from .tool import ignored_option

if TYPE_CHECKING:
    from pyllama.tokenizer import Tokenizer

_MAX_VALUES = 1 << 16  # of --chat-template-kwargs
_MAX_TEMPLATE_BYTES = 4 << 20  # what is longer than a template may be is refused by `chat`
Mode = Literal["complete", "talk", "write"]


def is_terminal() -> bool:
    """Whether a person sits at both ends: stdin and stdout are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


@dataclass(frozen=True)
class ConversationOptions(Group):
    """How to talk with the model. ``conversation`` None lets the model and the terminal decide.

    From ``reverse_prompt`` on they are other groups' options, which count here too.
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
            raise click.UsageError("--prompt-cache-all is not for -i and -if; leave one out")

    def n_keep(self, tokens: Sequence[int], tokenizer: Tokenizer) -> int | None:
        """What a context shift keeps of a beginning; None without shifts, which -n -2 asks for too.

        As in llama.cpp, -1 and what is too long is all of it, and a BOS token is always kept.
        """
        if not self.context_shift or self.predict == -2:
            return None
        if not 0 <= self.keep <= len(tokens):
            return len(tokens)
        return self.keep + int(bool(tokenizer.add_bos) and self.keep < len(tokens))

    def mode(self, has_template: bool) -> Mode:
        """What to do with a model.

        A script never gets into a conversation by itself: only -cnv, -i or -st lead there without
        a terminal. Text around what the user says takes the place of a chat format.
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
            note("-sys and --chat-template are for conversations; -cnv makes this one")
        return "complete"

    @property
    def _names_template(self) -> bool:
        return self.chat_template is not None or self.chat_template_file is not None

    def between(self) -> tuple[str, str]:
        """What comes before and after what the user says."""
        return self._read(self.in_prefix), self._read(self.in_suffix)

    def _read(self, text: str) -> str:
        """Text of the command line, with its escapes."""
        if not self.escape:
            return text
        data = text.encode("utf-8", "surrogateescape")
        return process_escapes(data).decode("utf-8", "replace")

    def system(self) -> str:
        """What the model is told first."""
        if self.system_prompt_file is not None:
            return read_text(self.system_prompt_file).removesuffix("\n")
        return self._read(self.system_prompt or "")

    def template(self) -> str | None:
        """Name or source of the chat format that was asked for."""
        if self.chat_template_file is not None:
            from pyggml.files import read_regular

            return read_regular(self.chat_template_file, _MAX_TEMPLATE_BYTES).decode(
                "utf-8", "replace"
            )
        return self.chat_template


def _json(ctx: click.Context, param: click.Parameter, value: str | None) -> dict[str, Any]:
    from pyllama.files.bounded_json import parse_json

    try:
        values = parse_json((value or "{}").encode("utf-8", "surrogateescape"), _MAX_VALUES)
    except ValueError as error:
        raise click.BadParameter(f"it is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise click.BadParameter('it is not a JSON object, such as {"enable_thinking": false}')
    return values


conversation_options = stack(
    click.option(
        "-cnv/-no-cnv",
        "--conversation/--no-conversation",
        "conversation",
        default=None,
        help="Talk with the model in its chat format, or complete one text.  [default: talk, if "
        "the model has a chat template and stdin and stdout are a terminal]",
    ),
    click.option("-st", "--single-turn", is_flag=True, help="Talk for one turn, then exit."),
    click.option("-sys", "--system-prompt", help="What the model is told first."),
    click.option("-sysf", "--system-prompt-file", type=click.Path(path_type=Path)),
    click.option(
        "-i",
        "--interactive",
        is_flag=True,
        help="Write one text in turns with the model; after -r it is your turn.",
    ),
    click.option(
        "-if", "--interactive-first", is_flag=True, help="As -i, and the first turn is yours."
    ),
    click.option(
        "-mli",
        "--multiline-input",
        is_flag=True,
        help=r"Enter goes on to the next line; \ at a line's end sends.",
    ),
    click.option(
        "--in-prefix", default="", help="Text before what you say; without a chat template."
    ),
    click.option("--in-prefix-bos", is_flag=True, help="A BOS token before that."),
    click.option(
        "--in-suffix", default="", help="Text after what you say; without a chat template."
    ),
    click.option(
        "-co",
        "--color",
        type=click.Choice(["on", "off", "auto"]),
        is_flag=False,
        flag_value="on",
        default="auto",
        show_default=True,
        help="Colour what you say; auto: in a terminal, unless NO_COLOR is set.",
    ),
    click.option("--simple-io", is_flag=True, help="No line editing and no history."),
    click.option(
        "--chat-template",
        metavar="NAME|JINJA",
        help="Chat format by llama.cpp's name (chatml, llama3, gemma, ...) or as a template.",
    ),
    click.option(
        "--chat-template-file",
        type=click.Path(path_type=Path),
        help="A file that holds the template.",
    ),
    click.option(
        "--chat-template-kwargs",
        metavar="JSON",
        callback=_json,
        help='Values for the template, such as {"enable_thinking": false}.',
    ),
    ignored_option("--jinja"),
    ignored_option("--no-jinja", why="templates are always read as Jinja"),
)
