"""The part of `Llama` that talks: messages in, a reply in OpenAI's form out.

    llama = Llama("x.gguf", verbose=False)
    reply = llama.create_chat_completion([{"role": "user", "content": "Hi"}])
    reply["choices"][0]["message"]["content"]

What of the conversation was evaluated before is not evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..chat.formats import ChatFormat
from ..chat.results import chat_chunks, chat_completion
from ..compat import NotSupported
from ..sampling import LogitsProcessor
from .base import LlamaBase

if TYPE_CHECKING:
    from .completion import Completion, CompletionChunk

    Completed = Completion | Iterator[CompletionChunk]


class LlamaChat(LlamaBase):
    """See `Llama`, whose chat methods these are."""

    create_completion: Callable[..., Completed]

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        functions: Sequence[Mapping[str, Any]] | None = None,
        function_call: str | Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | Sequence[str] | None = (),
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Sequence[LogitsProcessor] | LogitsProcessor | None = None,
        grammar: object | None = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """Reply to a conversation, written down in the model's chat format.

        Args:
            messages: dictionaries with ``role`` and ``content``.
            functions, function_call, tools, tool_choice: given to the template. What the model
                makes of them comes back as text.
            max_tokens: at most; None or 0 for as many as fit into the context.
            logprobs: report log-probabilities; needs ``logits_all``.
            top_logprobs: likeliest tokens to report for each one.

        Other arguments are those of `create_completion`.

        Returns:
            A ``chat.completion``, or an iterator of ``chat.completion.chunk``: the role first.

        Raises:
            TemplateError (a ValueError): the template refuses the messages, or is wrong.
            ContextFull (a ValueError): the conversation leaves no room for a token.
            NotSupported: ``response_format`` other than text, or a tool that must be called.
        """
        options = {k: v for k, v in locals().items() if k not in ("self", "__class__")}
        if self.chat_handler is not None:
            return self.chat_handler(llama=self, **options)  # type: ignore[no-any-return]
        _check_free_text(response_format, tool_choice, function_call)
        asked = ("functions", "function_call", "tools", "tool_choice")
        prompt = self._chat_format().prompt(messages, **{k: options.pop(k) for k in asked})
        for used in ("messages", "response_format", "logprobs", "top_logprobs"):
            del options[used]
        stops = [stop] if isinstance(stop, str) else list(stop or ())
        options["stop"] = [*stops, *prompt.stop]
        options["logprobs"] = (top_logprobs or 0) if logprobs else None
        made: Any = self.create_completion(prompt.tokens, **options)
        return chat_chunks(made) if stream else chat_completion(made)

    def _chat_format(self) -> ChatFormat:
        return self._chat_formats.get(self.chat_format)


def _check_free_text(response_format: Any, *choices: Any) -> None:
    """Refuse what needs a grammar to hold the model to a form."""
    kind = (response_format or {}).get("type", "text")
    if kind != "text":
        raise NotSupported(
            f"create_chat_completion: response_format of type {kind!r} is not supported yet; "
            "ask for the form in the messages and leave it out"
        )
    for choice in choices:
        if isinstance(choice, Mapping) or choice == "required":
            raise NotSupported(
                f"create_chat_completion: a tool that must be called ({choice!r}) is not supported "
                "yet; leave the choice to the model"
            )
