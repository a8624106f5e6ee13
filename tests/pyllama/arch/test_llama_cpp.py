"""llama.cpp (xllamacpp, if installed) generates the same tokens from our files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyllama.convert import convert

from .checkpoints import recorded, write_checkpoint
from .llama_cpp import generate, plain_words, serve
from .variants import LLAMA_CPP

pytest.importorskip("xllamacpp")


@pytest.mark.long
@pytest.mark.parametrize("name", LLAMA_CPP)
def test_the_same_greedy_tokens(tmp_path: Path, name: str) -> None:
    record = recorded(name)
    path = convert(write_checkpoint(tmp_path / name, name), tmp_path / "x.gguf", "f32")
    greedy = record["greedy"].tolist()
    assert generate(serve(plain_words(path)), record["tokens"].tolist(), len(greedy))[0] == greedy
