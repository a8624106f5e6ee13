"""llama.cpp's formats, on the conversation of its own test.

Source of the expected texts: llama.cpp, ``tests/test-chat-template.cpp`` (its built-in formatter).
"""

from __future__ import annotations

import pytest

from pyllama.chat.llama_cpp_formats import FORMATS

CONVERSATION = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi there"},
    {"role": "user", "content": "Who are you"},
    {"role": "assistant", "content": "   I am an assistant   "},
    {"role": "user", "content": "Another question"},
]
S, H, T, W, A, Q = (message["content"] for message in CONVERSATION)
I = A.strip()  # noqa: E741

EXPECTED = {
    "chatml": f"<|im_start|>system\n{S}<|im_end|>\n<|im_start|>user\n{H}<|im_end|>\n"
    f"<|im_start|>assistant\n{T}<|im_end|>\n<|im_start|>user\n{W}<|im_end|>\n"
    f"<|im_start|>assistant\n{A}<|im_end|>\n<|im_start|>user\n{Q}<|im_end|>\n"
    "<|im_start|>assistant\n",
    "llama2": f"[INST] {S}\n{H} [/INST]{T}</s>[INST] {W} [/INST]{A}</s>[INST] {Q} [/INST]",
    "llama2-sys": f"[INST] <<SYS>>\n{S}\n<</SYS>>\n\n{H} [/INST]{T}</s>[INST] {W} [/INST]{A}</s>"
    f"[INST] {Q} [/INST]",
    "llama2-sys-bos": f"[INST] <<SYS>>\n{S}\n<</SYS>>\n\n{H} [/INST]{T}</s><s>[INST] {W} [/INST]"
    f"{A}</s><s>[INST] {Q} [/INST]",
    "llama2-sys-strip": f"[INST] <<SYS>>\n{S}\n<</SYS>>\n\n{H} [/INST]{T}</s>[INST] {W} [/INST]"
    f"{I}</s>[INST] {Q} [/INST]",
    "mistral-v1": f" [INST] {S}\n\n{H} [/INST] {T}</s> [INST] {W} [/INST] {A}</s>"
    f" [INST] {Q} [/INST]",
    "mistral-v3": f"[INST] {S}\n\n{H}[/INST] {T}</s>[INST] {W}[/INST] {I}</s>[INST] {Q}[/INST]",
    "mistral-v3-tekken": f"[INST]{S}\n\n{H}[/INST]{T}</s>[INST]{W}[/INST]{A}</s>[INST]{Q}[/INST]",
    "mistral-v7": f"[SYSTEM_PROMPT] {S}[/SYSTEM_PROMPT][INST] {H}[/INST] {T}</s>[INST] {W}[/INST] "
    f"{A}</s>[INST] {Q}[/INST]",
    "monarch": f"system\n{S}</s>\n<s>user\n{H}</s>\n<s>assistant\n{T}</s>\n<s>user\n{W}</s>\n"
    f"<s>assistant\n{A}</s>\n<s>user\n{Q}</s>\n<s>assistant\n",
    "gemma": f"<start_of_turn>user\n{S}\n\n{H}<end_of_turn>\n<start_of_turn>model\n{T}"
    f"<end_of_turn>\n<start_of_turn>user\n{W}<end_of_turn>\n<start_of_turn>model\n{I}"
    f"<end_of_turn>\n<start_of_turn>user\n{Q}<end_of_turn>\n<start_of_turn>model\n",
    "orion": f"Human: {S}\n\n{H}\n\nAssistant: </s>{T}</s>Human: {W}\n\nAssistant: </s>{A}</s>"
    f"Human: {Q}\n\nAssistant: </s>",
    "openchat": f"{S}<|end_of_turn|>GPT4 Correct User: {H}<|end_of_turn|>GPT4 Correct Assistant: "
    f"{T}<|end_of_turn|>GPT4 Correct User: {W}<|end_of_turn|>GPT4 Correct Assistant: {A}"
    f"<|end_of_turn|>GPT4 Correct User: {Q}<|end_of_turn|>GPT4 Correct Assistant:",
    "deepseek": f"{S}### Instruction:\n{H}\n### Response:\n{T}\n<|EOT|>\n### Instruction:\n{W}\n"
    f"### Response:\n{A}\n<|EOT|>\n### Instruction:\n{Q}\n### Response:\n",
    "vicuna": f"{S}\n\nUSER: {H}\nASSISTANT: {T}</s>\nUSER: {W}\nASSISTANT: {A}</s>\n"
    f"USER: {Q}\nASSISTANT:",
    "vicuna-orca": f"SYSTEM: {S}\nUSER: {H}\nASSISTANT: {T}</s>\nUSER: {W}\nASSISTANT: {A}</s>\n"
    f"USER: {Q}\nASSISTANT:",
    "llama3": "".join(
        f"<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>"
        for role, text in zip(
            ["system", "user", "assistant", "user", "assistant", "user"],
            [S, H, T, W, I, Q],
            strict=True,
        )
    )
    + "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "phi3": f"<|system|>\n{S}<|end|>\n<|user|>\n{H}<|end|>\n<|assistant|>\n{T}<|end|>\n"
    f"<|user|>\n{W}<|end|>\n<|assistant|>\n{A}<|end|>\n<|user|>\n{Q}<|end|>\n<|assistant|>\n",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_conversation(name: str) -> None:
    assert FORMATS[name].render(CONVERSATION) == EXPECTED[name]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_keeps_contents_unchanged(name: str) -> None:
    said = [{"role": "user", "content": "{role} {content} %s"}]
    text = FORMATS[name].render(said)
    assert "{role} {content} %s" in text
    reply = FORMATS[name].reply
    assert text.endswith(reply)
    assert FORMATS[name].render(said, add_generation_prompt=False) + reply == text
    assert all(FORMATS[name].stop)


def test_names() -> None:
    assert FORMATS["chatml"].stop == ("<|im_end|>",)
    assert FORMATS["rwkv-world"].stop == ("\n\n",)
    tool = [{"role": "assistant_tool_call", "content": "f()"}]
    assert "<|tool_call|>f()" in FORMATS["granite"].render(tool)
