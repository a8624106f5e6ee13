"""Conversations with a hybrid model: what the server reads again, and that texts are the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pyllama import Model
from pyllama.convert import convert

from ..arch.checkpoints import write_checkpoint
from .conftest import Serve

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = write_checkpoint(tmp_path_factory.mktemp("m") / "x", "lfm2")
    names = {"300": "<|im_start|>", "301": "<|im_end|>"}
    special = {id: {"content": text, "special": True} for id, text in names.items()}
    config = {"added_tokens_decoder": special, "eos_token": "<|im_end|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    yield Model.load(convert(folder, folder / "x.gguf", "f32"))


def test_a_conversation_reads_only_the_last_message_again(serve: Serve) -> None:
    client, one = serve(n_slots=1, n_ctx=2048), {"max_tokens": 6, "temperature": 0, "seed": 1}

    def ask(messages: list[dict[str, str]], **options: Any) -> tuple[str, int]:
        """The reply, and how many tokens of the prompt were read."""
        body = {"messages": messages, **one, **options}
        found = client.post("/v1/chat/completions", json=body).json()
        n, timings = found["usage"]["prompt_tokens"], found["timings"]
        assert timings["prompt_n"] + timings["cache_n"] == n
        return found["choices"][0]["message"]["content"], n - timings["cache_n"]

    def n_tokens(text: str) -> int:
        body = {"content": text, "parse_special": True}
        return len(client.post("/tokenize", json=body).json()["tokens"])

    told: list[dict[str, str]] = [{"role": "system", "content": "Be brief."}]
    for turn in range(20):
        draft = {"role": "user", "content": f"Question {turn} with a longer first wording"}
        ask([*told, draft])
        edited = {"role": "user", "content": f"Question {turn}, edited"}
        text, n_read = ask([*told, edited])
        message = f"<|im_start|>user {edited['content']}<|im_end|><|im_start|>assistant "
        assert n_read <= n_tokens(message)
        assert text == ask([*told, edited], cache_prompt=False)[0]
        told += [edited, {"role": "assistant", "content": text}]
