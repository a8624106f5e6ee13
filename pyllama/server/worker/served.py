"""The model that a server serves, and the way from a request to its texts.

    served = ServedModel(engine, options)
    made = await served.prepare(lambda: ...)       # in a thread: templates, grammars, tokens
    stream = served.submit([tokens], options)      # in that thread too

Rendering a template, compiling a grammar and tokenizing take milliseconds to seconds, so they never
run in the event loop.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import string
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pyggml import __version__

from ...chat.formats import LLAMA_CPP_FORMATS, ChatFormat, ChatFormats
from ...chat.turn import Turn
from ...engine import Engine, Request
from ...parameters.sampling import DEFAULT_SAMPLERS
from ..page.graph_page import GraphQuery
from ..request.errors import ApiError, prompt_too_long
from ..request.fields import Fields
from ..request.options import ServerOptions
from ..request.request_options import CompletionOptions, read_completion
from .adapters import factors
from .choice import Choice, Recorder
from .preparing import Preparing, check_wanted
from .runner import EngineRunner
from .stream import Stream

T = TypeVar("T")
FINGERPRINT = f"b0-pyllama-{__version__}"
_ID_CHARS = string.ascii_letters + string.digits
MAX_TEXTS = 2048
"""Texts of one request: OpenAI's bound of the inputs of an embedding."""


@dataclass(frozen=True)
class GraphTexts:
    """The answers of ``/graph.json`` and ``/graph.html`` to a query."""

    query: GraphQuery
    data: str
    drawing: str


class ServedModel:
    """A model with its engine, runner and options.

    Args:
        engine: the engine.
        options: of the server.

    Attributes:
        name: id of the model.
        model, tokenizer, formats: of the engine's context.
        runner: steps the engine.
        n_ctx: tokens of a slot.
        graph: the last drawing of the graph.
        drawing: held while another one is made, which takes seconds.
        resources: what is closed with the model, such as files of its drafter.
    """

    def __init__(self, engine: Engine, options: ServerOptions) -> None:
        self.engine, self.options = engine, options
        self.model = engine.context.model
        self.tokenizer = self.model.tokenizer
        self.formats = ChatFormats(self.model, LLAMA_CPP_FORMATS)
        self.runner = EngineRunner(engine, options.max_waiting)
        self.n_ctx = engine.context.n_ctx_seq
        self._longest_token = max(1, max(map(len, self.tokenizer.vocab.tokens)))
        self.graph: GraphTexts | None = None
        self.drawing = asyncio.Lock()
        self.resources = ExitStack()
        file = os.path.basename(options.model_path) or "pyllama"
        self.name = min(options.aliases, default=file)
        if options.endpoint_metrics:
            self.runner.counts.observe()
        self._preparing = Preparing(self._close_unused)

    def has_name(self, name: Any) -> bool:
        """Whether a name is the model's; Ollama's clients add ``:latest``."""
        return str(name).removesuffix(":latest") in (self.name, *self.options.aliases)

    def chat_format(self, *, tools: bool = False) -> ChatFormat:
        """The chat format of the options, or the model's own."""
        return self.formats.get(self.options.chat_template, tools=tools)

    async def prepare(self, work: Callable[[], T]) -> T:
        """Run work in a thread, see `Preparing.run`.

        A stream that it returns, alone or first in a tuple, is closed if nobody takes it.
        """
        return await self._preparing.run(work)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let the running ones go on for a time, and then end them."""
        end = time.monotonic() + timeout_s
        await self.runner.drain(timeout_s)
        while self._preparing.is_busy and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self._preparing.refuse()

    def _close_unused(self, made: Any) -> None:
        stream = made[0] if isinstance(made, tuple) else made
        if isinstance(stream, Stream):
            self.runner.loop.call_soon_threadsafe(stream.close)

    def close(self) -> None:
        """End the threads of `prepare`; close the resources, unless the engine still runs."""
        self._preparing.close()
        if not self.runner.is_alive:
            self.resources.close()

    @property
    def is_computing(self) -> bool:
        """Whether a thread of the engine or of `prepare` still runs."""
        return self.runner.is_alive or self._preparing.is_busy

    def read(
        self, fields: Fields, turn: Turn | None = None, *, is_own: bool = False
    ) -> CompletionOptions:
        """The options of a completion, see `read_completion`. Raises: ApiError, PyllamaError."""
        n_slots = len(self.runner.slots)
        return read_completion(fields, self.options, self.tokenizer, n_slots, turn, is_own=is_own)

    def prompts(self, value: Any) -> list[list[int]]:
        """The tokens of ``prompt``: a text, tokens, a mix of both, or a list of such prompts.

        Raises:
            ApiError: it is none of these.

        Source: llama.cpp, ``tokenize_input_prompts``.
        """
        if isinstance(value, list) and not _is_one_prompt(value):
            check_number("prompt", len(value))
            prompts = [self._prompt(item) for item in value]
        else:
            prompts = [self._prompt(value)]
        if not prompts:
            raise ApiError.invalid('"prompt" must not be empty')
        return prompts

    def _prompt(self, value: Any) -> list[int]:
        if isinstance(value, dict) and "prompt_string" in value:
            if "multimodal_data" in value:
                raise ApiError.invalid(
                    "Multimodal data provided, but model does not support multimodal requests."
                )
            value = value["prompt_string"]
        if isinstance(value, str) or (isinstance(value, list) and _is_one_prompt(value)):
            self.check_length(value)
            tokens = self.tokens(value, add_special=True, parse_special=True)
            self._check_room(len(tokens))  # before the others are tokenized
            return tokens
        raise ApiError.invalid(
            '"prompt" elements must be a string, a list of tokens, a JSON object containing a '
            "prompt string, or a list of mixed strings & tokens."
        )

    def check_length(self, value: str | list[Any]) -> None:
        """Raise ApiError for a prompt whose tokens cannot fit, however long each is.

        Tokenizing megabytes takes up to a minute, which others would wait for.
        """
        texts = [value] if isinstance(value, str) else [v for v in value if isinstance(v, str)]
        least = sum(map(len, texts)) // self._longest_token
        if least >= self.n_ctx:
            raise prompt_too_long(least, self.n_ctx, at_least=True)

    def tokens(self, value: Any, *, add_special: bool, parse_special: bool) -> list[int]:
        """Tokens of a text, or of a list of texts and tokens. Raises: ApiError."""
        check_wanted()
        encode = self.tokenizer.encode
        if isinstance(value, str):
            return encode(value, add_special, parse_special)
        if not isinstance(value, list):
            raise ApiError.invalid("the text must be a string or a list of strings and tokens")
        found: list[int] = []
        for i, item in enumerate(value):
            if isinstance(item, str):
                found += encode(item, add_special and i == 0, parse_special)
            elif isinstance(item, int) and not isinstance(item, bool):
                found.append(item)
            else:
                raise ApiError.invalid(f"element {i} is neither a string nor a token")
        return found

    def submit(self, prompts: Sequence[list[int]], options: CompletionOptions) -> Stream:
        """Queue the texts of some prompts.

        Raises:
            ApiError: a prompt is too long, or not made of tokens of the model.
            PyllamaError: as ``Engine.submit``.
        """
        requests: list[Request] = []
        texts: list[Choice] = []
        check_number("n", len(prompts) * options.params.n)
        for prompt in prompts:
            check_wanted()
            self.check(prompt)
            recorder, params = None, options.params
            if options.post_sampling_probs and options.n_probs:
                recorder = Recorder(options.n_probs)
                chosen = params.samplers or DEFAULT_SAMPLERS
                params = replace(params, samplers=(*chosen, recorder))
            for _ in range(params.n):
                index = len(texts)
                texts.append(Choice(options, self.tokenizer, index, prompt, recorder))
            requests.append(self._request(prompt, options, params, has_recorder=bool(recorder)))
        return self.runner.submit(requests, texts)

    def reply(self, options: CompletionOptions) -> Stream:
        """Queue the replies to a conversation. Raises: as `submit`."""
        return self.submit([options.conversation.prompt.tokens], options)

    @property
    def n_prompt_max(self) -> int:
        """The most tokens of a prompt; of a text that is read as a whole, those of a ubatch."""
        context = self.engine.context
        n = self.n_ctx - self._n_room
        return min(n, context.n_ubatch) if context.hparams.reads_texts else n

    @property
    def _n_room(self) -> int:
        """The room that a prompt must leave: for a token of text, and for a decoder's first one."""
        hparams = self.engine.context.hparams
        return int(hparams.causal) + int(hparams.has_encoder)

    def _check_room(self, n: int) -> None:
        if n > self.n_ctx - self._n_room:
            raise prompt_too_long(n, self.n_ctx)
        if n > self.n_prompt_max:
            raise prompt_too_long(n, self.n_prompt_max, is_batch=True)

    def cut_prompt(self, text: str) -> list[int]:
        """The tokens of a text up to the most that fit, with the end that the tokenizer adds."""
        n = self.n_prompt_max
        text = text[: (self.n_ctx - 1) * self._longest_token]
        prompt = self.tokens(text, add_special=True, parse_special=True)
        if len(prompt) <= n:
            return prompt
        return [*prompt[: n - 1], prompt[-1]] if self.tokenizer.add_eos else prompt[:n]

    def check(self, prompt: list[int]) -> None:
        """Raise ApiError for a prompt that is empty, too long, or not of the model's tokens."""
        if not prompt:
            raise ApiError.invalid('"prompt" must not be empty')
        self._check_room(len(prompt))
        if not 0 <= min(prompt) <= max(prompt) < self.tokenizer.n_vocab:
            raise ApiError.invalid("Prompt contains invalid tokens")

    def _request(
        self, prompt: list[int], options: CompletionOptions, params: Any, *, has_recorder: bool
    ) -> Request:
        n_predict, n_keep = options.n_predict, options.n_keep
        shift: int | None = None
        # a text without tokens is generated with one, so that its prompt is in the cache
        max_tokens = None if n_predict < 0 else max(1, n_predict)
        if not self.options.context_shift:  # as in llama.cpp, the last token has a cell too
            room = self.n_ctx - len(prompt)
            max_tokens = room if max_tokens is None else min(room, max_tokens)
        else:
            shift = len(prompt) if n_keep < 0 else min(n_keep, len(prompt))
            shift = min(shift + int(bool(self.tokenizer.add_bos)), len(prompt), self.n_ctx - 4)
        return Request(
            prompt,
            params,
            max_tokens=max_tokens,
            stop=options.stop,
            special=options.shown,
            grammar=options.grammar,
            n_keep=shift,
            n_discard=options.n_discard,
            deadline_s=self.options.deadline_s,
            max_predict_s=1e-3 * options.max_predict_ms if options.max_predict_ms > 0 else None,
            n_indent=options.n_indent,
            progress=True,
            max_draft=0 if has_recorder else None,
            seq_id=None if options.id_slot < 0 else options.id_slot,
            reuse=options.cache_prompt,
            adapters=None if options.lora is None else factors(self.engine.context, options.lora),
        )

    def detokenize(self, tokens: list[int]) -> str:
        """The text of tokens, with special ones."""
        pieces = (self.tokenizer.token_to_piece(token, True) for token in tokens)
        return b"".join(pieces).decode("utf-8", "replace")


def check_number(field: str, n: int) -> None:
    """Raise ApiError if a field asks for too many texts."""
    if n > MAX_TEXTS:
        raise ApiError.invalid(
            f"Field '{field}': asks for {n} texts, at most {MAX_TEXTS} are allowed"
        )


def _is_one_prompt(value: list[Any]) -> bool:
    """Whether a list is one prompt: it has a token and nothing but tokens and texts."""
    has_token = any(isinstance(item, int) and not isinstance(item, bool) for item in value)
    return has_token and all(isinstance(item, (int, str)) for item in value)


def random_id(prefix: str) -> str:
    """A new id, such as ``chatcmpl-...``."""
    return prefix + "".join(secrets.choice(_ID_CHARS) for _ in range(32))
