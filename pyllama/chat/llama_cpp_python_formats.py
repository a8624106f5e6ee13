"""llama-cpp-python's chat formats, as data.

    FORMATS["vicuna"].render([{"role": "user", "content": "Hi"}])

For ``Llama(chat_format=NAME)``. Prompts and stop strings are those of version 0.3.36 to the letter,
so some drop what others write: ``vicuna``, ``gemma``, ``phind`` and others the system message,
``saiga`` the replies (its role is ``bot``), ``open-orca`` all but ``User`` and ``Assistant``.

Source: llama-cpp-python, ``llama_chat_format.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .function_calling import FUNCTION_CALLING, ToolFormat
from .template import Messages


@dataclass(frozen=True)
class TextFormat:
    """A chat format without tools.

    Attributes:
        write: writes all messages; their contents are text or None.
        reply: beginning of the assistant's reply.
        stop: stop strings of the reply.
    """

    write: Callable[[Messages], str]
    reply: str
    stop: tuple[str, ...] = ()

    def render(
        self, messages: Messages, /, *, add_generation_prompt: bool = True, **values: Any
    ) -> str:
        """The text of the prompt; other variables are ignored."""
        return self.write(messages) + (self.reply if add_generation_prompt else "")


# gap and empty: a message is ``role + gap + content + end``, or ``role + empty`` without content
_PLAIN, _LINES, _COLON, _COLON_SPACE = ("", ""), ("\n", "\n"), (": ", ":"), (": ", ": ")


def _format(
    style: tuple[str, str],
    roles: Mapping[str, str],
    *ends: str,
    system: str = "",
    default: str = "",
    reply: str | None = None,
    stop: str = "",
) -> TextFormat:
    """A format that writes one message after the other.

    Args:
        roles: text of each role; messages of other roles are dropped.
        ends: text after the content of the first message, of the second, of the first again, ...
        system: text before the messages; ``{content}`` is the first system message.
        default: system message if there is none.
        reply: beginning of the reply; None for the text of an empty message of the assistant.
    """

    gap, empty = style

    def write(messages: Messages) -> str:
        parts = [system.replace("{content}", _system(messages) or default)]
        for i, (role, content) in enumerate(_known(messages, roles)):
            end = ends[i % len(ends)]
            parts.append(f"{role}{gap}{content}{end}" if content else role + empty)
        return "".join(parts)

    begin = roles["assistant"] + empty if reply is None else reply
    return TextFormat(write, begin, (stop,) if stop else ())


def _system(messages: Messages) -> str:
    """The first system message."""
    return next((m.get("content") or "" for m in messages if m["role"] == "system"), "")


def _known(messages: Messages, roles: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """Text of the role, and content, of each message whose role has a text."""
    return [(roles[m["role"]], m.get("content")) for m in messages if m["role"] in roles]


def _write_llama_2(messages: Messages) -> str:
    system = _system(messages)
    parts = [f"[INST] <<SYS>>\n{system}\n<</SYS>> " if system else " "]
    known = _known(messages, {"user": "<s>[INST]", "assistant": "[/INST]"})
    for i, (role, content) in enumerate(known):
        if system and i == 0:
            parts.append(f"{content or ''} ")
        elif content:
            parts.append(f"{role}{content} {'</s>' if i % 2 else ' '}")
        else:
            parts.append(f"{role} ")
    return "".join(parts)


def _write_mistral_instruct(messages: Messages) -> str:
    forms = {"user": "[INST] {}", "assistant": " [/INST]{}</s>"}
    return "".join(
        form.replace("{}", content)
        for form, content in _known(messages, forms)
        if content is not None
    )


_SYSTEM = "{content}"
_BUDDY = """\
You are a helpful, respectful and honest INTP-T AI Assistant named Buddy. You are talking to a \
human User.
Always answer as helpfully and logically as possible, while being safe. Your answers should not \
include any harmful, political, religious, unethical, racist, sexist, toxic, dangerous, or illegal \
content. Please ensure that your responses are socially unbiased and positive in nature.
If a question does not make any sense, or is not factually coherent, explain why instead of \
answering something not correct. If you don't know the answer to a question, please don't share \
false information.
You can speak fluently in many languages, for example: English, Chinese.
You cannot access the internet, but you have vast knowledge, cutoff: 2021-09.
You are trained by OpenBuddy team, (https://openbuddy.ai, https://github.com/OpenBuddy/OpenBuddy), \
you are based on LLaMA and Falcon transformers model, not related to GPT or OpenAI.


"""
_ORCA = (
    "You are a helpful assistant. Please answer truthfully and write out your thinking step by "
    "step to be sure you get the right answer. If you make a mistake or encounter an error in your "
    "thinking, say so out loud and attempt to correct it. If you don't know or aren't sure about "
    "something, say so clearly. You will act as a professional logician, mathematician, and "
    "physicist. You will also act as the most appropriate type of expert to answer any particular "
    "question or solve the relevant problem; state which expert type your are, if so. Also think "
    "of any particular named expert that would be ideal to answer the relevant question or solve "
    "the relevant problem; name and act as them, if appropriate."
)
_SNOOZY = (
    "The prompt below is a question to answer, a task to complete, or a conversation to respond "
    "to; decide which and write an appropriate response."
)
_VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions."
)

FORMATS: dict[str, TextFormat | ToolFormat] = {
    "alpaca": _format(
        _COLON,
        {"user": "### Instruction", "assistant": "### Response"},
        "\n\n",
        "</s>",
        system=_SYSTEM + "\n\n",
        reply="",
    ),
    "baichuan": _format(
        _PLAIN, {"user": "<reserved_102>", "assistant": "<reserved_103>"}, "", system=_SYSTEM
    ),
    "baichuan-2": _format(
        _PLAIN, {"user": "<reserved_106>", "assistant": "<reserved_107>"}, "", system=_SYSTEM
    ),
    "chatglm3": _format(
        ("\n ", ""),
        {"user": "<|user|>", "assistant": "<|assistant|>"},
        "",
        system="<|system|>\n{content}",
        stop="</s>",
    ),
    "chatml": _format(
        _LINES,
        {"user": "<|im_start|>user", "assistant": "<|im_start|>assistant"},
        "<|im_end|>\n",
        system="<|im_start|>system\n{content}<|im_end|>\n",
        stop="<|im_end|>",
    ),
    "gemma": _format(
        _PLAIN,
        {"user": "<start_of_turn>user\n", "assistant": "<start_of_turn>model\n"},
        "<end_of_turn>\n",
        stop="<end_of_turn>\n",
    ),
    "intel": _format(
        _COLON,
        {"user": "### User:", "assistant": "### Assistant:"},
        "\n",
        system="### System:\n{system_message}\n",
    ),
    "llama-2": TextFormat(_write_llama_2, "[/INST]"),
    "llama-3": _format(
        _PLAIN,
        {
            role: f"<|start_header_id|>{role}<|end_header_id|>\n\n"
            for role in ("system", "user", "assistant")
        },
        "<|eot_id|>",
        stop="<|eot_id|>",
    ),
    "mistral-instruct": TextFormat(_write_mistral_instruct, " [/INST]", ("</s>",)),
    "mistrallite": _format(
        _PLAIN,
        {"user": "<|prompter|>", "assistant": "</s>\n<|assistant|>"},
        " ",
        system="<|system|>{content}</s>",
    ),
    "oasst_llama": _format(
        _PLAIN,
        {"user": "<|prompter|>", "assistant": "<|assistant|>"},
        "</s>",
        system="[INST] <<SYS>>\n{content}\n<</SYS>>\n\n",
    ),
    "open-orca": _format(
        _COLON_SPACE,
        {"User": "User", "Assistant": "Assistant"},
        "<|end_of_turn|>\n",
        system=_ORCA + "<|end_of_turn|>\n",
        reply="Assistant: ",
        stop="User",
    ),
    "openbuddy": _format(_COLON, {"user": "User", "assistant": "Assistant"}, "\n", system=_BUDDY),
    "openchat": _format(
        _LINES,
        {
            "user": "GPT4 Correct User: ",
            "assistant": "<|end_of_turn|>GPT4 Correct Assistant: ",
        },
        "<|end_of_turn|>\n",
        system="{content}<|end_of_turn|><|end_of_turn|>\n",
        stop="<|end_of_turn|>",
    ),
    "phind": _format(
        _COLON,
        {"user": "### User Message", "assistant": "### Assistant"},
        "\n\n",
        system="### System Prompt\nYou are an intelligent programming assistant.\n\n",
    ),
    "pygmalion": _format(
        _LINES,
        {"user": "<|user|>", "assistant": "<|model|>"},
        "\n\n",
        system="<|system|>{content}\n\n",
        stop="\n",
    ),
    "qwen": _format(
        _LINES,
        {"user": "<|im_start|>user", "assistant": "<|im_start|>assistant"},
        "<|im_end|>\n",
        system="<|im_start|>system\n{content}<|im_end|>\n",
        default="You are a helpful assistant.",
        stop="<|endoftext|>",
    ),
    "redpajama-incite": _format(
        _COLON,
        {"user": "<human>", "assistant": "<bot>"},
        "\n",
        system=_SYSTEM + "\n",
        stop="<human>",
    ),
    "saiga": _format(
        _LINES, {role: f"<s>{role}" for role in ("system", "user", "bot")}, "</s>", reply="<s>bot"
    ),
    "snoozy": _format(
        _COLON,
        {"user": "### Prompt", "assistant": "### Response"},
        "\n",
        system=_SYSTEM + "\n",
        default=_SNOOZY,
        stop="###",
    ),
    "vicuna": _format(
        _COLON, {"user": "USER", "assistant": "ASSISTANT"}, " ", "</s>", system=_VICUNA + " "
    ),
    "zephyr": _format(
        _LINES,
        {"user": "<|user|>\n", "assistant": "<|assistant|>\n"},
        "</s>\n",
        system="<|system|>\n{content}</s>\n",
        stop="</s>",
    ),
    **FUNCTION_CALLING,
}
"""Every format by its llama-cpp-python name."""
