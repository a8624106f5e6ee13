"""``pyllama-finetune``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile
from pyllama import Model
from pyllama.runtime.adapters import load_lora
from pyllama_cli.main import pyllama

from ..pyllama.models import Spec, random_weights, write_model

SPEC = Spec(n_layer=2, n_ff=64)


def run(*args: object, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(pyllama, ["finetune", *map(str, args)])
    assert result.exit_code == code, result.stderr
    return result.stdout, result.stderr


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "x.gguf", SPEC, random_weights(SPEC))
    write_model(tmp_path / "q.gguf", SPEC, random_weights(SPEC), GGMLType.Q4_0)
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 20)
    chats = [
        {"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "A"}]}
        for i in range(12)
    ]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    return tmp_path


def losses(out: str) -> list[float]:
    return [float(line.split()[3].rstrip(",")) for line in out.splitlines() if "held-out" in line]


def test_an_adapter_of_conversations() -> None:
    out, err = run(
        "-m", "q.gguf", "-f", "chats.jsonl", "--lora-rank", 4, "-c", 96, "-lr", 1e-2, "-epochs", 4,
        "--val-split", 0.2, "-b", 96, "-o", "a.gguf", "--recompute-layers", "-t", 1,
    )  # fmt: skip
    before, after = losses(out)
    assert after < before - 0.5
    assert out.splitlines()[-1] == "a.gguf: an adapter, for --lora"
    assert "held out; " in err and "train [" in err
    load_lora("a.gguf", Model.load("q.gguf"))


def test_all_weights_on_a_text_and_a_run_that_goes_on() -> None:
    args = (
        "-m", "x.gguf", "-f", "text.txt", "-c", 32, "-b", 64, "-lr", 1e-3, "-lr-min", 1e-4,
        "-decay-epochs", 2, "-wd", 0.01, "-opt", "adamw", "--checkpoint", "run.gguf", "-t", 1,
    )  # fmt: skip
    run(*args, "-epochs", 1, "-o", "1.gguf")
    out, _ = run(*args, "-epochs", 2, "-o", "2.gguf")
    assert losses(out)[1] < losses(out)[0]
    out, _ = run(*args, "-epochs", 2, "-o", "3.gguf")  # nothing is left to do
    with GGUFFile("2.gguf") as some, GGUFFile("3.gguf") as other:
        for name in some.tensors:
            assert some.tensor_bytes(name).tobytes() == other.tensor_bytes(name).tobytes()


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 2, "give the data with -f"),
        (("-f", "none.txt"), 1, "none.txt: No such file"),
        (("-f", "text.txt", "-m", "q.gguf"), 1, "pyllama-quantize --allow-requantize q.gguf"),
        (("-f", "text.txt", "-c", 4096), 1, "use a longer text or a smaller --ctx-size"),
        (("-f", "text.txt", "-o", "no/x.gguf"), 2, "no such directory"),
        (
            ("-f", "text.txt", "-c", 32, "--lora-rank", 2, "--lora-target", "x"),
            1,
            "there are: attn",
        ),
        (("-f", "text.txt", "-c", 32, "--lora-rank", 2, "--lora-target", ","), 1, "names of matri"),
        (("-f", "text.txt", "-opt", "lion"), 2, "lion"),
        (("-f", "text.txt", "-o", "."), 2, "is a directory"),
        (("-f", "text.txt", "-o", "x.gguf"), 2, "x.gguf is read too"),
        (("-f", "text.txt", "-o", "text.txt"), 2, "text.txt is read too"),
        (("-f", "text.txt", "--checkpoint", "x.gguf", "-c", 32), 1, "not a checkpoint"),
    ],
)
def test_mistakes_end_in_one_line(args: tuple[object, ...], code: int, message: str) -> None:
    if "-m" not in args:
        args = ("-m", "x.gguf", *args)
    _, err = run(*args, code=code)
    assert message in err


def test_a_conversation_that_the_template_rejects_is_named() -> None:
    chat = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": 3}]}
    with Path("chats.jsonl").open("a") as file:
        file.write("\n\n" + json.dumps(chat) + "\n")
    _, err = run("-m", "x.gguf", "-f", "chats.jsonl", code=1)
    assert "chats.jsonl, conversation 13: " in err.splitlines()[-1]


def test_an_empty_file() -> None:
    Path("empty.txt").write_text("")
    Path("empty.jsonl").write_text("")
    assert "the text has" in run("-m", "x.gguf", "-f", "empty.txt", code=1)[1]
    assert "no conversations" in run("-m", "x.gguf", "-f", "empty.jsonl", code=1)[1]
