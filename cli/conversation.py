"""Conversation mode of ``pyllama-cli``.

    talk = ConversationOptions.from_click(options)
    converse(engine, talk.mode(has_template), talk, params, prompt)

Replies are streamed to stdout; everything else goes to stderr, except the prompt marker in a
terminal. Ctrl-C during a reply stops it; at the prompt Ctrl-C and the end of input exit. In a pipe
each line is one message.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .conversation_options import ConversationOptions, Mode, is_terminal
from .drafting import drafted_text
from .flags import in_flags
from .lines import LineReader
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
    from pyllama.sampling import SamplingParams

    Dialogue = Conversation | Transcript

_HELP = r"""  /regen           regenerate the last reply
  /clear           clear the conversation
  /read FILE       add a text file to the next message
  /glob PATTERN    add text files that match a pattern
  /exit            exit, same as Ctrl-D
Ctrl-C stops a reply. A \ at the end of a line continues the message on the next line."""
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
    if is_terminal() and not options.single_turn:
        title = "Chat with the model" if mode == "talk" else "Write one text with the model"
        note(f"{title}; /help lists the commands, /exit or Ctrl-D exits.")
    if mode == "talk":
        dialogue: Dialogue = _conversation(lease, options)
    else:
        dialogue = _transcript(lease, options, prompt)
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
    reader = LineReader(
        editing=not options.simple_io,
        color=wants_color(options.color),
        multiline=options.multiline_input,
    )
    try:
        with reader as lines:
            _Talk(dialogue, mode, settings, timings, lines, options).run(prompt)
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


def _conversation(lease: Lease, options: ConversationOptions) -> Conversation:
    from pyllama.chat.conversation import Conversation
    from pyllama.chat.formats import NAMES_OF_TOOLS, ChatFormats

    formats, name = ChatFormats(lease.context.model, NAMES_OF_TOOLS), options.template()
    if name is None and not formats.has_own:
        note("the model has no chat template: using chatml, which it may not be trained for")
    return Conversation(
        lease,
        formats.get(name),
        system=options.system(),
        values=options.template_values(),
        reasoning_format=options.reasoning_format,
        reasoning_budget=options.reasoning_budget,
        budget_message=options.reasoning_budget_message,
    )


def _transcript(lease: Lease, options: ConversationOptions, prompt: str) -> Transcript:
    from pyllama.chat.transcript import Transcript

    if options.display_prompt:
        write_raw(prompt)
    return Transcript(lease, prompt, between=options.between(), bos=options.in_prefix_bos)


class _Talk:
    """The conversation loop and its commands."""

    def __init__(
        self,
        dialogue: Dialogue,
        mode: Mode,
        settings: ReplyOptions,
        timings: Timings,
        lines: LineReader,
        options: ConversationOptions,
    ) -> None:
        self._dialogue, self._settings, self._timings = dialogue, settings, timings
        self._lines, self._options, self._talks = lines, options, mode == "talk"
        self._terminal = is_terminal()
        self._marker = "> " if self._terminal and self._talks else ""
        self._files = ""  # texts of /read and /glob, for the next message
        self._n_replies = 0

    def run(self, prompt: str) -> None:
        """Run the conversation; the prompt of the command line is the first message."""
        replied = self._first(prompt)
        while not (replied and self._options.single_turn):
            text = self._lines.read(f"\n{self._marker}" if self._marker else "")
            if text is None:
                if self._terminal:
                    write_raw("\n")
                return
            needs_reply = self._command(text)
            if needs_reply is None:
                return
            replied = needs_reply and self._reply()

    def _first(self, prompt: str) -> bool:
        if not prompt or (not self._talks and self._options.interactive_first):
            return False
        if self._marker:
            write_raw(f"\n{self._marker}{prompt}\n")
        if self._talks:
            self._dialogue.say(prompt)
        return self._reply(strict=True)

    def _command(self, text: str) -> bool | None:
        """Run a command or add a message; return whether to reply now, None to exit."""
        word, _, rest = text.strip().partition(" ")
        if word in ("/exit", "/quit"):
            return None
        if word == "/regen" and not rest:
            return self._regenerate()
        if word == "/clear" and not rest:
            self._dialogue.clear()
            self._files = ""
            note("The conversation has been cleared.")
        elif word == "/help" and not rest:
            for line in _HELP.splitlines():
                note(line)
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
            self._files = ""
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

        printer = _ReplyPrinter(color=wants_color(self._options.color))
        self._timings.reset()
        with _ctrl_c_stops() as stopped:
            try:
                for delta in self._dialogue.reply(self._next_settings()):
                    printer.write(delta)
                    if stopped:
                        break
            except Aborted:
                if not stopped:
                    raise
            except PyggmlError as error:
                if strict:
                    raise
                full = isinstance(error, ContextFull) and self._settings.n_keep is None
                advice = "; /clear starts a new conversation" if full else ""
                note(f"error: {in_flags(str(error))}{advice}")
        printer.end_reasoning()
        if not printer.last and not self._dialogue.can_regenerate():
            self._dialogue.unsay()
            return False
        if self._talks and not printer.last.endswith("\n"):
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
        color: whether reasoning and accepted drafted tokens have colours.

    Attributes:
        last: the text printed last.

    Source: llama.cpp, ``llama-cli``.
    """

    def __init__(self, color: bool) -> None:
        self._color = color
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
        write_raw(drafted_text(text, after) if drafted and self._color else text)
        self.last = text


@contextlib.contextmanager
def _ctrl_c_stops() -> Iterator[list[bool]]:
    """Yield a list that Ctrl-C makes non-empty; a second Ctrl-C raises KeyboardInterrupt."""
    stopped: list[bool] = []

    def handle(number: int, frame: Any) -> None:
        if stopped and callable(before):
            before(number, frame)
        stopped.append(True)

    before: Any = signal.default_int_handler
    try:
        before = signal.signal(signal.SIGINT, handle)
    except ValueError:  # not the main thread
        yield stopped
        return
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
        sys.stdout.flush()
