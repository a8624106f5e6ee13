"""From messages to tokens: choice of the format, a single BOS, contents in parts."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pyllama.chat.formats import DEFAULT, LLAMA_CPP_PYTHON_FORMATS, ChatFormats, Writer
from pyllama.errors import TemplateError
from pyllama.tokenizer import load_tokenizer

from ..fake_context import BOS, METADATA

SIMPLE = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
USER = [{"role": "user", "content": "Hi"}]


def formats(
    template: str | None = None,
    named: Mapping[str, Writer] = LLAMA_CPP_PYTHON_FORMATS,
    **metadata: Any,
) -> ChatFormats:
    """The formats of a model with this template."""
    values = {**METADATA, **metadata}
    if template is not None:
        values["tokenizer.chat_template"] = template
    model: Any = SimpleNamespace(metadata=values, tokenizer=load_tokenizer(values))
    return ChatFormats(model, named)


@pytest.mark.parametrize("bos", ["{{ bos_token }}", "", "<s>"])
@pytest.mark.parametrize("add_bos", [True, False])
def test_bos_is_not_doubled(bos: str, add_bos: bool) -> None:
    template = bos + SIMPLE.removeprefix("{{ bos_token }}")
    key = {"tokenizer.ggml.add_bos_token": add_bos}
    tokens = formats(template, **key).get().prompt(USER).tokens
    assert tokens.count(BOS) == (1 if add_bos or bos else 0)
    assert tokens.index(BOS) == 0 if BOS in tokens else not add_bos


def test_the_format_is_the_models_or_the_fallback() -> None:
    own = formats(SIMPLE, **{"tokenizer.chat_template.tool_use": "tools"})
    assert own.has_own and own.get().name == DEFAULT
    assert own.get("chat_template.tool_use").prompt(USER).text == "tools"
    assert own.get("vicuna-orca").prompt(USER).text == "USER: Hi\nASSISTANT:"
    assert own.get("{{ messages|length }}").prompt(USER).text == "1"
    assert own.get() is own.get()
    none = formats()
    assert not none.has_own and none.get().name == "chatml"
    assert none.get(fallback="llama-2").prompt(USER).text == " <s>[INST]Hi  [/INST]"
    with pytest.raises(TemplateError, match="did you mean zephyr"):
        none.get("zephir")
    with pytest.raises(TemplateError, match=r"there are: .*chatml"):
        none.get("???")


@pytest.mark.parametrize("name", ["messages", "self"])
@pytest.mark.parametrize("format", [None, "vicuna"])
def test_reserved_template_variables(name: str, format: str | None) -> None:
    with pytest.raises(TemplateError, match=f"a variable named '{name}': .*; use another name"):
        formats(SIMPLE).get(format).prompt(USER, **{name: []})


def test_ends_that_are_no_tokens_are_stop_texts() -> None:
    assert formats().get("chatml").prompt(USER).stop == ("<|im_end|>",)
    assert formats().get("zephyr").prompt(USER).stop == ()  # </s> is this vocabulary's EOS


def test_contents() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    assert formats(SIMPLE).get().prompt(messages).text == "<s>user:a\nb;assistant:;"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (["Hi"], r"messages\[0\] is not a dictionary"),
        ([{"content": "Hi"}], r"messages\[0\] is not a dictionary"),
        ([{"role": "user", "content": 5}], "neither text nor a list"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "type image_url; only text"),
    ],
)
def test_invalid_messages_are_refused(messages: Any, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        formats(SIMPLE).get().prompt(messages)


@pytest.mark.parametrize(
    "head",
    [
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}",
        "{% set messages = messages|rejectattr('role', 'equalto', 'system')|list %}",
    ],
    ids=["refuses", "ignores"],
)
def test_a_system_message_is_merged_into_the_users_if_unsupported(head: str) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *USER]
    prompt = formats(head + SIMPLE).get().prompt(messages)
    assert prompt.text == "<s>user:Be brief.\nHi;"
    assert formats(SIMPLE).get().prompt(messages).text == "<s>system:Be brief.;user:Hi;"
