"""llama.cpp's chat formats, as data.

    FORMATS["chatml"].render([{"role": "user", "content": "Hi"}])

For ``--chat-template NAME`` and models without a template. ``{role}`` and ``{content}`` are
replaced by those of a message, ``{Role}`` and ``{ROLE}`` by its capitalized or upper-case role.

Source: llama.cpp, ``llm_chat_apply_template``. Its kimi-k2 begins a reply after every message; this
one only after the last, as the model's own template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_FIELD = re.compile(r"\{(role|Role|ROLE|content)\}")


@dataclass(frozen=True)
class NamedFormat:
    """A chat format.

    Attributes:
        forms: template of a message by role, ``*`` for any other; other roles are dropped.
        reply: beginning of the assistant's reply.
        begin: text before all messages.
        turn: text before the first message and before each that follows an assistant's.
        once: text removed from the beginning (a BOS that the tokenizer adds).
        trim: strip white space of contents; True, or a set of roles.
        system_first: prepend the system message to the next message.
        ends: stop string of a reply; None for the text after the content in its form.
    """

    forms: Mapping[str, str]
    reply: str = ""
    begin: str = ""
    turn: str = ""
    once: str = ""
    trim: bool | frozenset[str] = False
    system_first: bool = False
    ends: str | None = None

    @property
    def stop(self) -> tuple[str, ...]:
        """Stop strings of a reply, for vocabularies in which they are not tokens."""
        form = self.forms.get("assistant", self.forms.get("*", ""))
        text = form.rpartition("{content}")[2].strip() if self.ends is None else self.ends
        return (text,) if text else ()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        **values: Any,
    ) -> str:
        """The text of the prompt; other variables, such as tools, are ignored."""
        parts, waiting, inside = [self.begin], "", False
        for message in messages:
            role, content = str(message["role"]), str(message["content"] or "")
            if self.trim is True or (self.trim and role in self.trim):
                content = content.strip()
            if self.system_first and role == "system":
                waiting += content
                continue
            if waiting and role != "assistant":
                content, waiting = f"{waiting}\n\n{content}", ""
            if not inside:
                parts.append(self.turn)
            inside = role != "assistant"
            form = self.forms.get(role, self.forms.get("*", ""))
            names = {"role": role, "Role": role.capitalize(), "ROLE": role.upper()}
            parts.append(_fill(form, {**names, "content": content}))
        if add_generation_prompt:
            parts.append(self.reply)
        return "".join(parts).removeprefix(self.once)


def _fill(form: str, values: Mapping[str, str]) -> str:
    return _FIELD.sub(lambda match: values[match[1]], form)


def _all(form: str, reply: str = "", **options: Any) -> NamedFormat:
    return NamedFormat({"*": form}, reply, **options)


def _roles(system: str, user: str, assistant: str, reply: str = "", **options: Any) -> NamedFormat:
    more = options.pop("forms", {})
    forms = {"system": system, "user": user, "assistant": assistant, **more}
    return NamedFormat(forms, reply, **options)


def _llama2(system: str, **options: Any) -> NamedFormat:
    options = {"turn": "[INST] ", **options}
    return _roles(system, "{content} [/INST]", "{content}</s>", **options)


def _mistral(turn: str, user: str, assistant: str, **options: Any) -> NamedFormat:
    return _roles("{content}\n\n", user, assistant, turn=turn, **options)


def _exaone(**forms: str) -> NamedFormat:
    return _roles(
        "[|system|]{content}[|endofturn|]\n",
        "[|user|]{content}\n",
        "[|assistant|]{content}[|endofturn|]\n",
        "[|assistant|]",
        trim=True,
        forms=forms,
    )


_SYS = "<<SYS>>\n{content}\n<</SYS>>\n\n"
_COMMAND = "<|START_OF_TURN_TOKEN|><|{}_TOKEN|>{{content}}<|END_OF_TURN_TOKEN|>"
_KIMI = "<|im_{0}|>{1}<|im_middle|>{{content}}<|im_end|>"

FORMATS: dict[str, NamedFormat] = {
    "bailing": NamedFormat(
        {"user": "<role>HUMAN</role>{content}", "*": "<role>{ROLE}</role>{content}"},
        "<role>ASSISTANT</role>",
    ),
    "chatglm3": _all("<|{role}|>\n {content}", "<|assistant|>", begin="[gMASK]sop"),
    "chatglm4": _all("<|{role}|>\n{content}", "<|assistant|>\n", begin="[gMASK]<sop>"),
    "chatml": _all("<|im_start|>{role}\n{content}<|im_end|>\n", "<|im_start|>assistant\n"),
    "command-r": _roles(
        _COMMAND.format("SYSTEM"),
        _COMMAND.format("USER"),
        _COMMAND.format("CHATBOT"),
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        trim=True,
    ),
    "deepseek": _roles(
        "{content}",
        "### Instruction:\n{content}\n",
        "### Response:\n{content}\n<|EOT|>\n",
        "### Response:\n",
    ),
    "deepseek2": _roles(
        "{content}\n\n",
        "User: {content}\n\n",
        "Assistant: {content}<｜end▁of▁sentence｜>",
        "Assistant:",
    ),
    "deepseek3": _roles(
        "{content}\n\n",
        "<｜User｜>{content}",
        "<｜Assistant｜>{content}<｜end▁of▁sentence｜>",
        "<｜Assistant｜>",
    ),
    "dots1": _roles(
        "<|system|>{content}<|endofsystem|>",
        "<|userprompt|>{content}<|endofuserprompt|>",
        "<|response|>{content}<|endofresponse|>",
        "<|response|>",
    ),
    "exaone3": _exaone(),
    "exaone4": _exaone(tool="[|tool|]{content}[|endofturn|]\n"),
    "falcon3": _all("<|{role}|>\n{content}\n", "<|assistant|>\n"),
    "gemma": NamedFormat(
        {
            "assistant": "<start_of_turn>model\n{content}<end_of_turn>\n",
            "*": "<start_of_turn>{role}\n{content}<end_of_turn>\n",
        },
        "<start_of_turn>model\n",
        trim=True,
        system_first=True,
    ),
    "gigachat": _roles(
        "{content}<|message_sep|>",
        "user<|role_sep|>{content}<|message_sep|>available functions<|role_sep|>[]<|message_sep|>",
        "assistant<|role_sep|>{content}<|message_sep|>",
        "assistant<|role_sep|>",
        begin="<s>",
    ),
    "glmedge": _all("<|{role}|>\n{content}", "<|assistant|>"),
    "granite": NamedFormat(
        {
            "assistant_tool_call": "<|start_of_role|>assistant_tool_call<|end_of_role|>"
            "<|tool_call|>{content}<|end_of_text|>\n",
            "*": "<|start_of_role|>{role}<|end_of_role|>{content}<|end_of_text|>\n",
        },
        "<|start_of_role|>assistant<|end_of_role|>\n",
    ),
    "hunyuan-dense": _roles(
        "{content}<｜hy_place▁holder▁no▁3｜>",
        "<｜hy_User｜>{content}",
        "<｜hy_Assistant｜>{content}<｜hy_place▁holder▁no▁2｜>",
        "<｜hy_Assistant｜>",
        begin="<｜hy_begin▁of▁sentence｜>",
    ),
    "hunyuan-moe": NamedFormat(
        {
            "system": "<|startoftext|>{content}<|extra_4|>",
            "assistant": "{content}<|eos|>",
            "*": "<|startoftext|>{content}<|extra_0|>",
        }
    ),
    "kimi-k2": _roles(
        _KIMI.format("system", "system"),
        _KIMI.format("user", "user"),
        _KIMI.format("assistant", "assistant"),
        "<|im_assistant|>assistant<|im_middle|>",
        forms={"tool": _KIMI.format("system", "tool")},
    ),
    "llama2": _llama2("{content}\n"),
    "llama2-sys": _llama2(_SYS),
    "llama2-sys-bos": _llama2(_SYS, turn="<s>[INST] ", once="<s>"),
    "llama2-sys-strip": _llama2(_SYS, trim=True),
    "llama3": _all(
        "<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        trim=True,
    ),
    "llama4": _all(
        "<|header_start|>{role}<|header_end|>\n\n{content}<|eot|>",
        "<|header_start|>assistant<|header_end|>\n\n",
        trim=True,
    ),
    "megrez": _all(
        "<|role_start|>{role}<|role_end|>{content}<|turn_end|>",
        "<|role_start|>assistant<|role_end|>",
    ),
    "minicpm": NamedFormat({"user": "<用户>{content}<AI>", "*": "{content}"}, trim=True),
    "mistral-v1": _mistral(" [INST] ", "{content} [/INST]", " {content}</s>"),
    "mistral-v3": _mistral(
        "[INST] ", "{content}[/INST]", " {content}</s>", trim=frozenset({"assistant"})
    ),
    "mistral-v3-tekken": _mistral("[INST]", "{content}[/INST]", "{content}</s>"),
    "mistral-v7": _roles(
        "[SYSTEM_PROMPT] {content}[/SYSTEM_PROMPT]", "[INST] {content}[/INST]", " {content}</s>"
    ),
    "mistral-v7-tekken": _roles(
        "[SYSTEM_PROMPT]{content}[/SYSTEM_PROMPT]", "[INST]{content}[/INST]", "{content}</s>"
    ),
    "monarch": _all("<s>{role}\n{content}</s>\n", "<s>assistant\n", once="<s>"),
    "openchat": NamedFormat(
        {
            "system": "{content}<|end_of_turn|>",
            "*": "GPT4 Correct {Role}: {content}<|end_of_turn|>",
        },
        "GPT4 Correct Assistant:",
    ),
    "orion": NamedFormat(
        {"user": "Human: {content}\n\nAssistant: </s>", "*": "{content}</s>"}, system_first=True
    ),
    "phi3": _all("<|{role}|>\n{content}<|end|>\n", "<|assistant|>\n"),
    "phi4": _all(
        "<|im_start|>{role}<|im_sep|>{content}<|im_end|>", "<|im_start|>assistant<|im_sep|>"
    ),
    "rwkv-world": _roles(
        "System: {content}\n\n",
        "User: {content}\n\n",
        "Assistant: {content}\n\n",
        "Assistant:",
        trim=True,
        ends="\n\n",
    ),
    "smolvlm": _roles(
        "{content}\n\n",
        "User: {content}<end_of_utterance>\n",
        "Assistant: {content}<end_of_utterance>\n",
        "Assistant:",
        begin="<|im_start|>",
    ),
    "vicuna": _roles(
        "{content}\n\n", "USER: {content}\n", "ASSISTANT: {content}</s>\n", "ASSISTANT:"
    ),
    "vicuna-orca": _roles(
        "SYSTEM: {content}\n", "USER: {content}\n", "ASSISTANT: {content}</s>\n", "ASSISTANT:"
    ),
    "yandex": _roles(
        "",
        " Пользователь: {content}\n\n",
        " Ассистент: {content}\n\n",
        " Ассистент:[SEP]",
        begin="<s>",
        ends="\n\n",
    ),
    "zephyr": _all("<|{role}|>\n{content}<|endoftext|>\n", "<|assistant|>\n"),
}
"""Every format by its llama.cpp name."""
