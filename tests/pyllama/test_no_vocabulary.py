"""Models without a vocabulary, which run on token ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyllama import Llama, Model
from pyllama.errors import TokenizerError
from pyllama.tokenizer import load_tokenizer

from .models import Spec, random_weights, write_model

SPEC = Spec()
PROMPT = [5, 9, 200, 31]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """The same weights without a vocabulary, by both names, and with one."""
    keys = {"llama.vocab_size": SPEC.n_vocab, "tokenizer.ggml.tokens": None}
    weights = random_weights(SPEC)
    return [
        write_model(
            tmp_path / f"{kind}.gguf", SPEC, weights,
            metadata=None if kind == "llama" else keys | {"tokenizer.ggml.model": kind},
        )
        for kind in ("none", "no_vocab", "llama")
    ]  # fmt: skip


def test_the_tokenizer_knows_only_the_number_of_tokens() -> None:
    metadata = {
        "general.architecture": "llama", "llama.vocab_size": np.uint32(9),
        "tokenizer.ggml.model": "none", "tokenizer.ggml.bos_token_id": 1,
    }  # fmt: skip
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.n_vocab == 9
    assert (tokenizer.bos, tokenizer.eos, tokenizer.eot, tokenizer.eog) == (None,) * 3 + (set(),)
    assert not tokenizer.add_bos and not tokenizer.add_eos
    assert tokenizer.encode("") == [] and tokenizer.decode([3, 8]) == ""
    assert tokenizer.decode([3, 8], special=True) == "" and tokenizer.text_to_id("") is None
    with pytest.raises(TokenizerError, match="it takes token ids, not text"):
        tokenizer.encode("a")
    with pytest.raises(TokenizerError, match="token 9 is not in the vocabulary of 9"):
        tokenizer.decode([9])


def test_llama_runs_on_token_ids(paths: list[Path]) -> None:
    made = []
    for path in paths:
        llama = Llama(str(path), n_ctx=64, verbose=False)
        tokens = []
        for token in llama.generate(PROMPT, temp=0.0):
            tokens.append(token)
            if len(tokens) == 5:
                break
        made.append(tokens)
    assert made[0] == made[1] == made[2]
    llama = Llama(str(paths[0]), n_ctx=64, verbose=False)
    result = llama.create_completion(PROMPT, max_tokens=5, temperature=0.0)
    assert result["choices"][0] == {
        "text": "", "index": 0, "logprobs": None, "finish_reason": "length"
    }  # fmt: skip
    assert result["usage"]["completion_tokens"] == 5
    for call in (
        lambda: llama("text"),
        lambda: llama.create_chat_completion([{"role": "user", "content": "text"}]),
        lambda: llama.tokenize(b"text"),
    ):
        with pytest.raises(TokenizerError, match="it takes token ids, not text") as error:
            call()
        assert "\n" not in str(error.value)


def test_the_number_of_tokens_must_fit_the_weights(tmp_path: Path) -> None:
    keys = {"llama.vocab_size": 260, "tokenizer.ggml.model": "none"}
    path = write_model(tmp_path / "x.gguf", SPEC, random_weights(SPEC), metadata=keys)
    with pytest.raises(Exception, match=r"'token_embd.weight' has sizes \[32, 261"):
        Model.load(path)
