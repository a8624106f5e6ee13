"""llama.cpp (xllamacpp, if installed) generates the same tokens from our files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyllama.convert import convert

from .checkpoints import recorded, write_checkpoint
from .llama_cpp import serve
from .variants import LLAMA_CPP

pytest.importorskip("xllamacpp")


@pytest.mark.long
@pytest.mark.parametrize("name", LLAMA_CPP)
def test_the_same_greedy_tokens(tmp_path: Path, name: str) -> None:
    record = recorded(name)
    server = serve(convert(write_checkpoint(tmp_path / name, name), tmp_path, "f32"))
    wanted = record["greedy"].tolist()
    request = {
        "prompt": record["tokens"].tolist(), "n_predict": len(wanted), "temperature": 0,
        "top_k": 1, "logprobs": 1,
    }  # fmt: skip
    reply = server.handle_completions(request)
    got = [token["id"] for token in reply["choices"][0]["logprobs"]["content"]]
    rest = iter(wanted)  # a token that ends inside a character is not reported by itself
    assert all(token in rest for token in got) and len(got) > len(wanted) // 2, (got, wanted)
