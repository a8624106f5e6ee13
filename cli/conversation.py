"""Conversation mode of ``pyllama-cli``.

    talk = from_options(ConversationOptions, options)
    converse(engine, talk.mode(has_template), talk, params, prompt)

Replies are streamed to stdout; everything else goes to stderr, except the prompt marker in a
terminal. There Ctrl-C stops a reply or discards a line; in an empty line it asks, and exits if it
is pressed again. The end of input exits. In a pipe each line is one message.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .drafting import drafted_text
from .flags import in_flags
from .lines import Discarded, Reader, line_reader
from .options.conversation import ConversationOptions, Mode, is_terminal
from .options.conversation import template as chosen_template
from .output import note, wants_color, write_raw
from .paths import MAX_TEXT_BYTES, read_text

if TYPE_CHECKING:
    from pyllama.chat.conversation import Conversation
    from pyllama.chat.reader import Delta
    from pyllama.chat.reply import ReplyOptions
    from pyllama.chat.transcript import Transcript
    from pyllama.engine import Engine, Lease, Timings
    from pyllama.engine.prompt_file import PromptFile
    from pyllama.grammar import Grammar
    from pyllama.runtime.context import Context
    from pyllama.sampling import SamplingParams

    Dialogue = Conversation | Transcript

_COMMANDS = {
    "/regen": "generate the last reply again",
    "/clear": "begin a new conversation",
    "/read FILE": "add a text file to the next message",
    "/glob PATTERN": "add text files that match a pattern",
    "/help": "show this help",
    "/exit": "exit",
}
_KEYS = {
    "Enter": "send the message",
    "Alt-Enter": "new line; also Enter after a \\ at the end of the message",
    "Up, Down, Ctrl-R": "earlier messages, search in them",
    "Tab": "complete a command or the name of a file",
    "Ctrl-C": "stop the reply, or discard the line",
    "Ctrl-D": "exit",
}
_ASK = "Press Ctrl-C again to exit, or go on."
_MAX_FILES = 100


def converse(
    engine: Engine,
    mode: Mode,
    options: ConversationOptions,
    params: SamplingParams,
    prompt: str,
    *,
    grammar: Grammar | None = None,
) -> None:
    """Run a conversation until the user exits.

    Args:
        engine: runs the requests; its timings are printed.
        mode: "talk" chats in a chat format, "write" continues one text interactively.
        prompt: the first message of the user, or the start of the text.
        grammar: what each reply must match.

    Raises:
        TemplateError: the chat template is wrong, or refuses the first message.
        KeyboardInterrupt: Ctrl-C at the prompt, or a second one.
    """
    from pyllama.chat.reply import ReplyOptions
    from pyllama.engine import Lease

    lease, timings = Lease(engine), engine.timings
    dialogue: Dialogue
    if mode == "talk":
        dialogue, template = _conversation(lease, options)
    else:
        dialogue, template = _transcript(lease, options, prompt), "none: you and it write one text"
    if is_terminal() and not options.single_turn:
        _banner(engine.context, template)
    opening = dialogue.opening(prompt if mode == "talk" else "")
    settings = ReplyOptions(
        replace(params, include_stop_str_in_output=mode == "write"),
        n_predict=options.predict,
        stop=options.reverse_prompt,
        special=options.special,
        n_keep=options.n_keep(opening, engine.context.model.tokenizer),
        grammar=grammar,
    )
    cache = _prompt_cache(lease, opening, options)
    reader = line_reader(
        editing=not options.simple_io,
        color=wants_color(options.color),
        multiline=options.multiline_input,
        commands=[re.sub("[A-Z]+", "", command) for command in _COMMANDS],
    )
    try:
        with reader:
            _Talk(dialogue, mode, settings, timings, reader, options).run(prompt)
    finally:
        writes = options.prompt_cache_all and not options.prompt_cache_ro
        if cache is not None and writes and lease.n_tokens and not lease.n_forgotten:
            cache.save(lease)
        if options.perf and timings.n_sample and not is_terminal():
            for line in timings.lines():
                note(line)


def _prompt_cache(
    lease: Lease, opening: list[int], options: ConversationOptions
) -> PromptFile | None:
    """Load and return the prompt cache; the start of the dialogue is saved to it if missing."""
    if options.prompt_cache is None:
        return None
    from pyllama.engine.prompt_file import PromptFile
    from pyllama.engine.request import check_prompt

    cache = PromptFile(options.prompt_cache)
    cache.load(lease)
    n = cache.matching(opening)
    note_cache(cache, n, len(opening))
    if n < len(opening) and not options.prompt_cache_ro:
        check_prompt(len(opening), 0, lease.context.n_ctx_seq, min_room=1)
        lease.catch_up(opening)
        cache.save(lease)
    return cache


def note_cache(cache: PromptFile, n: int, n_prompt: int) -> None:
    """Print how many prompt tokens the prompt cache provided."""
    if cache.tokens:
        note(f"prompt cache: {n} of {n_prompt} prompt tokens from {cache.path}")
    else:
        note(f"prompt cache: {cache.path} does not exist yet, or is empty")


def _banner(context: Context, template: str) -> None:
    """Print the model, the chat template, the size of the context, and how to get help and exit."""
    model = context.model
    note(f"model     {model.desc}, {model.path.name}")
    note(f"template  {template}")
    note(f"context   {context.n_ctx_seq} tokens")
    if model.n_gpu_layers:
        n_layer = model.hparams.n_layer + 1
        note(f"devices   {model.n_gpu_layers} of {n_layer} layers on the GPU, the rest on the CPU")
    note("/help lists the commands and keys; /exit or Ctrl-D exits.")


def _conversation(lease: Lease, options: ConversationOptions) -> tuple[Conversation, str]:
    """Return the conversation and a description of its chat template."""
    from pyllama.chat.conversation import Conversation
    from pyllama.chat.formats import LLAMA_CPP_FORMATS, ChatFormats

    formats, name = ChatFormats(lease.context.model, LLAMA_CPP_FORMATS), chosen_template(options)
    if name is None:
        template = "the model's own" if formats.has_own else "chatml"
        if not formats.has_own:
            note("the model has no chat template: using chatml, which it may not be trained for")
    else:
        is_source = "\n" in name or "{" in name
        template = "Jinja text of the command line" if is_source else name
    conversation = Conversation(
        lease,
        formats.get(name),
        system=options.system(),
        values=options.template_values(),
        reasoning_format=options.reasoning_format,
        reasoning_budget=options.reasoning_budget,
        budget_message=options.reasoning_message,
    )
    return conversation, template


def _transcript(lease: Lease, options: ConversationOptions, prompt: str) -> Transcript:
    from pyllama.chat.transcript import Transcript

    return Transcript(lease, prompt, between=options.between(), bos=options.in_prefix_bos)


class _Talk:
    """The conversation loop and its commands."""

    def __init__(
        self,
        dialogue: Dialogue,
        mode: Mode,
        settings: ReplyOptions,
        timings: Timings,
        lines: Reader,
        options: ConversationOptions,
    ) -> None:
        self._dialogue, self._settings, self._timings = dialogue, settings, timings
        self._lines, self._options, self._talks = lines, options, mode == "talk"
        self._terminal = is_terminal()
        self._ctrl_c = _CtrlC(self._terminal)
        self._marker = "> " if self._terminal and self._talks else ""
        self._files = ""  # texts of /read and /glob, for the next message
        self._sent_files = ""  # those of the last message
        self._shown = ""  # the unfinished line of output
        self._n_replies = 0

    def run(self, prompt: str) -> None:
        """Run the conversation; the prompt of the command line is the first message."""
        with self._ctrl_c:
            replied = self._first(prompt)
            while not (replied and self._options.single_turn):
                text = self._read_message()
                needs_reply = None if text is None else self._command(text)
                if needs_reply is None:
                    return
                replied = needs_reply and self._reply()

    def _read_message(self) -> str | None:
        """Return the next message, None at the end of input; after Ctrl-C ask before exiting."""
        if self._marker:
            write_raw("\n")
        while True:
            try:
                text = self._lines.read(self._marker, self._shown)
            except Discarded:
                self._ctrl_c.go_on()
            except KeyboardInterrupt:
                if not self._terminal:
                    raise
                self._ctrl_c.ask()
            else:
                self._ctrl_c.go_on()
                self._shown = ""
                return text

    def _first(self, prompt: str) -> bool:
        if not self._talks and self._options.display_prompt:
            self._write(prompt)
        if not prompt or (not self._talks and self._options.interactive_first):
            return False
        if self._marker and self._options.display_prompt:
            write_raw(f"\n{self._marker}{prompt}\n")
        if self._talks:
            self._dialogue.say(prompt)
        return self._reply(strict=True)

    def _write(self, text: str) -> None:
        write_raw(text)
        if not self._talks:
            self._shown = (self._shown + text).rpartition("\n")[2]

    def _command(self, text: str) -> bool | None:
        """Run a command or add a message; return whether to reply now, None to exit."""
        word, _, rest = text.rstrip().partition(" ") if "\n" not in text else ("", "", "")
        if word in ("/exit", "/quit"):
            return None
        if word == "/regen" and not rest:
            return self._regenerate()
        if word == "/clear" and not rest:
            self._dialogue.clear()
            self._files = ""
            note("The conversation has been cleared.")
        elif word == "/help" and not rest:
            for name, what in (_COMMANDS | _KEYS).items():
                note(f"  {name:<18}{what}")
        elif word == "/read" and rest:
            self._read(rest.strip())
        elif word == "/glob" and rest:
            self._glob(rest.strip())
        elif re.fullmatch(r"/[a-z]+", text) and self._terminal:
            note(
                f"There is no command {text}; see /help. To send it as a message, type a space "
                "before it."
            )
        elif text.strip() or (self._files and not text) or not self._talks:
            self._dialogue.say(self._files + text)
            self._sent_files, self._files = self._files, ""
            return True
        return False

    def _regenerate(self) -> bool:
        if not self._dialogue.can_regenerate():
            note("There is no reply to regenerate.")
            return False
        self._dialogue.unsay()
        return True

    def _read(self, name: str) -> bool:
        try:
            text = read_text(Path(os.path.expanduser(name)))
            if len(self._files) + len(text) > MAX_TEXT_BYTES:
                raise ValueError(f"more than {MAX_TEXT_BYTES} characters including earlier files")
        except (OSError, ValueError) as error:
            note(f"{name}: {getattr(error, 'strerror', None) or error}")
            return False
        self._files += f"--- File: {name} ---\n{text}\n"
        note(f"{name}: {len(text)} characters added to your next message")
        return True

    def _glob(self, pattern: str) -> None:
        names = sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
        files = [name for name in names if Path(name).is_file()]
        if not files:
            note(f"no file matches {pattern}")
        if len(files) > _MAX_FILES:
            note(f"only the first {_MAX_FILES} of {len(files)} files are read")
        for name in files[:_MAX_FILES]:
            self._read(name)

    def _reply(self, strict: bool = False) -> bool:
        """Print a reply and return whether there was one.

        After an error without any output the user's message is removed.

        Raises:
            PyggmlError: an error, if ``strict``; otherwise it is printed.
        """
        from pyggml.errors import Aborted, PyggmlError
        from pyllama.errors import ContextFull

        printer = _ReplyPrinter(self._write, color=wants_color(self._options.color))
        self._timings.reset()
        with self._ctrl_c.stops_reply() as stopped:
            try:
                for delta in self._dialogue.reply(self._next_settings()):
                    printer.write(delta)
                    if stopped():
                        break
            except Aborted:
                if not stopped():
                    raise
            except PyggmlError as error:
                if strict:
                    raise
                full = isinstance(error, ContextFull) and self._settings.n_keep is None
                advice = "; /clear starts a new conversation" if full else ""
                note(f"error: {in_flags(str(error))}{advice}")
        printer.end_reasoning()
        shown = printer.last
        if stopped() and self._terminal and self._talks:
            shown = "^C\n"
            write_raw(shown)
        if not printer.last and not self._dialogue.can_regenerate():
            self._dialogue.unsay()
            self._files = self._sent_files
            if shown:
                note("No reply yet: your message was taken back.")
            return False
        if self._talks and not shown.endswith("\n"):
            write_raw("\n")
        self._say_speed()
        return True

    def _next_settings(self) -> ReplyOptions:
        """Return the settings of the next reply, with its own seed derived from a fixed seed."""
        self._n_replies += 1
        params = self._settings.params.for_text(self._n_replies - 1)
        return replace(self._settings, params=params)

    def _say_speed(self) -> None:
        timings = self._timings
        if self._options.perf and self._terminal and self._talks:
            rates = (
                ("Prompt", timings.n_prompt_eval, timings.prompt_eval_ms),
                ("Generation", timings.n_eval, timings.eval_ms),
            )
            shown = [f"{name}: {1e3 * n / ms:.1f} t/s" for name, n, ms in rates if n and ms]
            note("")
            if shown:
                note(f"[ {' | '.join(shown)} ]")


class _ReplyPrinter:
    """Prints a reply, its reasoning between lines that mark it.

    Args:
        write: prints text.
        color: whether reasoning and accepted drafted tokens have colours.

    Attributes:
        last: the text printed last.

    Source: llama.cpp, ``llama-cli``.
    """

    def __init__(self, write: Callable[[str], None], color: bool) -> None:
        self._write_text, self._color = write, color
        self._gray, self._reset = ("\x1b[90m", "\x1b[0m") if color else ("", "")
        self._reasons = False
        self.last = ""

    def write(self, delta: Delta) -> None:
        """Print a piece."""
        if delta.reasoning:
            if not self._reasons:
                self._write(f"{self._gray}[Start thinking]\n")
            self._reasons = True
            self._write(delta.reasoning, delta.drafted)
        if delta.content:
            self.end_reasoning()
            self._write(delta.content, delta.drafted)

    def end_reasoning(self) -> None:
        """Mark the end of the reasoning, if it has not ended."""
        if self._reasons:
            self._write(f"\n[End thinking]{self._reset}\n\n")
        self._reasons = False

    def _write(self, text: str, drafted: bool = False) -> None:
        after = self._gray if self._reasons else self._reset
        self._write_text(drafted_text(text, after) if drafted and self._color else text)
        self.last = text


class _CtrlC:
    """Ctrl-C during a conversation (a context manager).

    The first stops the reply. Another one, or one at the prompt, raises KeyboardInterrupt: in a
    terminal it asks first.

    Args:
        asks: whether it asks.
    """

    def __init__(self, asks: bool) -> None:
        self._asks, self._asked = asks, False
        self._replies, self._stopped = False, False
        self._before: Any = signal.default_int_handler

    def __enter__(self) -> Self:
        with contextlib.suppress(ValueError):  # not the main thread
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._before)

    @contextlib.contextmanager
    def stops_reply(self) -> Iterator[Callable[[], bool]]:
        """Yield a function that says whether Ctrl-C has stopped this reply."""
        self._replies, self._stopped = True, False
        try:
            yield lambda: self._stopped
        finally:
            self._replies = False
            sys.stdout.flush()

    def ask(self) -> None:
        """Ask whether to exit. Raises: KeyboardInterrupt, if it was asked before."""
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        with contextlib.suppress(OSError):  # not by note(), which this may interrupt
            os.write(2, f"{_ASK}\n".encode())

    def go_on(self) -> None:
        """The user goes on: ask again next time."""
        self._asked = False

    def _handle(self, number: int, frame: Any) -> None:
        if self._replies and not self._stopped:
            self._stopped = True
        elif self._asks and not self._asked:
            self.ask()
        elif callable(self._before):
            self._before(number, frame)
