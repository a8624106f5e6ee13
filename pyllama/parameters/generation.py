"""What is asked of a text besides its sampling: fields of requests, and a server's defaults.

ServerOptions(n_predict=128)                    # what a server's flags set for its requests
CompletionOptions(n_predict=8, stream=True)     # what a request asks
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import Flags, Json, Size, row, rows
from .sampling import SamplingParams

KIB = 1 << 10
MAX_PROBS = 100  # so that writing a response does not stop the others
REASONING_FORMATS = ("none", "auto", "deepseek", "deepseek-legacy")


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class GenerationParams:
    """What a server's flags set for requests that do not say it themselves."""

    # fmt: off
    n_predict: int = row(-1, "Maximum tokens of a text. -1: until the context is full.",
        Flags("-n", "--predict", "--n-predict"),
        Json("n_predict", "max_completion_tokens", "max_tokens", low=-1, outside="refuse",
            ollama="num_predict", responses="max_output_tokens"), low=-1)
    n_keep: int = row(0, "Tokens at the beginning that a context shift keeps. -1: the prompt.",
        Flags("--keep"), Json(low=-1, outside="refuse", ollama="num_keep"), low=-1)
    stop: tuple[str, ...] = row((), "Texts that end a generated text.",
        Flags("-r", "--reverse-prompt", repeated=True, help="Default stop string. Repeatable."),
        Json(size=Size(256, 16 * KIB), ollama="stop", anthropic="stop_sequences"))
    cache_prompt: bool = row(True, "Reuse prompts in the cache.",
        Flags("--cache-prompt/--no-cache-prompt"), Json())
    sse_ping_s: int = row(30, "Seconds of silence after which a stream gets a comment. -1: never.",
        Flags("--sse-ping-interval", high=1 << 20),
        Json("sse_ping_interval", low=-1, outside="refuse"), low=-1)
    reasoning_format: str = row("auto",
        "none leaves the reasoning in the content, the others report it apart.",
        Flags("--reasoning-format", choices=REASONING_FORMATS), Json())
    verbose: bool = row(False, "Report prompts and settings in responses.",
        Flags("-v", "--verbose", "--log-verbose", help="Log requests, and report prompts and "
        "settings in responses."), Json())
    # fmt: on


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class RequestParams(GenerationParams):
    """What a request asks of its texts; llama-server's README describes the fields."""

    # fmt: off
    n_discard: int = row(0, "Tokens that a context shift discards. 0: half of them.",
        Json(low=0, outside="refuse"), low=0)
    n_indent: int = row(0, "End the text at a line that is indented less than this.",
        Json(low=0, outside="refuse"), low=0)
    max_predict_ms: int = row(-1,
        "Milliseconds after which a text with a new line ends. -1: no limit.",
        Json("t_max_predict_ms", low=-1, outside="refuse"), low=-1)
    id_slot: int = row(-1, "The slot to use. -1: any.", Json(low=-1, outside="refuse"), low=-1)
    stream: bool = row(False, "Send the text while it is generated.", Json(anthropic="stream"))
    n_probs: int = row(0, "Number of likeliest tokens to report with their probabilities.",
        Json("n_probs", "logprobs", high=MAX_PROBS, outside="refuse"))
    post_sampling_probs: bool = row(False,
        "Report probabilities after the samplers instead of the model's own.", Json())
    timings_per_token: bool = row(False, "Report timings with each piece of a stream.", Json())
    return_tokens: bool = row(False, "Report the token ids.", Json(is_own=True))
    return_progress: bool = row(False, "Report the progress of the prompt in a stream.", Json())
    # each response has them
    response_fields: tuple[str, ...] = row((),
        "The fields that a response has; a slash descends into an object.",
        Json(size=Size(128, 8 * KIB), is_own=True))
    reasoning_control: bool = row(False, "Let /v1/chat/completions/control end the reasoning.",
        Json())
    # fmt: on


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class ChatParams:
    """The chat template of a tool, and how much its model reasons."""

    # fmt: off
    chat_template: str | None = row(None,
        "Chat template: a name of llama.cpp's (chatml, llama3, gemma, ...) or Jinja text.",
        Flags("--chat-template", metavar="NAME|JINJA"))
    chat_template_file: Path | None = row(None, "File that contains the chat template.",
        Flags("--chat-template-file"))
    chat_template_kwargs: Mapping[str, Any] = row({},
        'Variables for the chat template, such as {"enable_thinking": false}.',
        Flags("--chat-template-kwargs", metavar="JSON", default=None))
    reasoning: str = row("auto",
        "Whether the model reasons before it replies, if its template has the choice.",
        Flags("-rea", "--reasoning", choices=("on", "off", "auto")))
    reasoning_budget: int = row(-1,
        "Maximum number of tokens of the reasoning. -1: no limit, 0: none.",
        Flags("--reasoning-budget"), low=-1)
    reasoning_message: str = row("",
        "Text before the end of the reasoning when its budget is spent.",
        Flags("--reasoning-budget-message", metavar="TEXT"))
    # fmt: on


def names_in(api: str) -> dict[str, str]:
    """The names of fields in ``anthropic``, ``ollama`` or ``responses``, with llama.cpp's."""
    found = {}
    for table in (SamplingParams, RequestParams):
        for entry in rows(table).values():
            theirs = "" if entry.json is None else getattr(entry.json, api)
            if entry.json is not None and theirs:
                found[theirs] = entry.json.names[0]
    return found
