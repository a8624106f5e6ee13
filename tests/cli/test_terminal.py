"""Every tool escapes control characters from files in a terminal, but not in a pipe."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pyggml.gguf import GGUFFile, write_gguf

from ..pyllama.models import Spec, random_weights, write_model
from ..tiers import some

BAD = "\x1b]0;x\x07\u202e\x9b2J\r"
SHOWN = "\\x1b]0;x\\x07\\u202e\\x9b2J\\r"
# All functions that click finds are named `command`.
TOOL = "import sys; from pyllama_cli.commands.{} import command; command(sys.argv[1:])"
LEGAL = re.compile(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]*", re.DOTALL)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid model, models with bad names and values, and other input files of the tools."""
    folder = tmp_path_factory.mktemp("bad")
    spec = Spec(n_layer=1)
    good = write_model(folder / "good.gguf", spec, random_weights(spec))
    with GGUFFile(good) as file:
        metadata = file.typed_metadata()
        tensors = {
            t.name: (file.tensor_bytes(t.name), t.type, t.ne[: t.n_dims])
            for t in file.tensors.values()
        }
        more = {f"key{BAD}": f"value{BAD}", "tokenizer.chat_template": TEMPLATE}
        write_gguf(folder / "template.gguf", metadata | more, tensors, arch=None)
        tensors[f"t{BAD}"] = np.ones((2, 32), np.float32)
        write_gguf(folder / "names.gguf", metadata | more, tensors, arch=None)
        write_gguf(
            folder / "arch.gguf", metadata | {"general.architecture": f"a{BAD}"}, tensors, arch=None
        )
        array = {"general.architecture": np.zeros(3, np.int32)}
        write_gguf(folder / "array.gguf", metadata | array, tensors, arch=None)
        tokens = [f"{t}{BAD}" if 40 < i < 250 else t for i, t in enumerate(TOKENS(file))]
        write_gguf(
            folder / "tokens.gguf", metadata | {"tokenizer.ggml.tokens": tokens}, tensors, arch=None
        )
    sums = {f"blk.0.{BAD}.in_sum2": np.ones((1, 32), np.float32)}
    sums[f"blk.0.{BAD}.counts"] = np.ones((1, 1), np.float32)
    about = {"general.type": "imatrix", "imatrix.datasets": [BAD], "imatrix.chunk_count": 1}
    write_gguf(folder / "imatrix.gguf", about | {"imatrix.chunk_size": 2}, sums, arch=None)
    row = {"n_prompt": 1, "n_gen": 0, "n_depth": 0, "model_filename": BAD, "model_type": BAD}
    rows = [json.dumps(row | {"avg_ts": 1.0, "cpu_info": f"{BAD}{i}"}) for i in range(2)]
    for i, text in enumerate(rows):
        (folder / f"{i}.jsonl").write_text(text)
    return folder


def TOKENS(file: GGUFFile) -> list[str]:
    return file.get_strings("tokenizer.ggml.tokens").tolist()


TEMPLATE = "{{ raise_exception('no" + BAD.replace("\r", "\\r") + "') }}"


def in_terminal(folder: Path, tool: str, *args: str) -> str:
    """The output of a tool in a terminal, stdout and stderr together."""
    parent, child = os.openpty()
    env = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-P", "-c", TOOL.format(tool), *args]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=child, stderr=child, cwd=folder, env=env
    )
    os.close(child)
    pieces = []
    try:
        while piece := os.read(parent, 65536):
            pieces.append(piece)
    except OSError:  # Linux raises it when the other end is closed
        pass
    os.close(parent)
    process.wait(60)
    return b"".join(pieces).decode().replace("\r\n", "\n")


CASES = [
    ("gguf.validate", ["array.gguf"], "an array of 3 int32, expected a string"),
    ("gguf.dump", ["array.gguf"], ""),
    ("quantize", ["array.gguf", "x.gguf", "q8_0"], "an array of 3 int32, expected a string"),
    ("inspect.graph", ["-m", "array.gguf"], "an array of 3 int32, expected a string"),
    ("tokenize", ["-m", "array.gguf", "-p", "a"], "an array of 3 int32, expected a string"),
    ("gguf.dump", ["names.gguf"], SHOWN),
    ("gguf.dump", ["--markdown", "names.gguf"], SHOWN),
    ("gguf.dump", ["--json", "--arrays", "names.gguf"], "u001b"),
    ("gguf.diff", ["good.gguf", "names.gguf"], SHOWN),
    ("gguf.hash", ["names.gguf"], SHOWN),
    ("gguf.validate", ["names.gguf"], SHOWN),
    ("gguf.set", ["names.gguf", f"key{BAD}", "1"], SHOWN),
    ("gguf.dump", [f"no{BAD}.gguf"], SHOWN),
    ("quantize", ["--dry-run", "names.gguf", "q8_0"], SHOWN),
    ("imatrix", ["--show-statistics", "--in-file", "imatrix.gguf"], SHOWN[:5]),
    ("quantize", ["--imatrix", "imatrix.gguf", "names.gguf", "x.gguf", "q4_k"], ""),
    ("bench", ["--compare", "0.jsonl", "1.jsonl"], SHOWN),
    ("tokenize", ["-m", "tokens.gguf", "-p", "abc"], ""),
    ("completion", ["-m", "names.gguf", "-p", "a", "-n", "1", "-no-cnv"], SHOWN),
    ("completion", ["-m", "arch.gguf", "-p", "a", "-n", "1", "-no-cnv"], "architecture"),
    ("completion", ["-m", "template.gguf", "-p", "a", "-n", "1", "-cnv", "-st"], SHOWN[:-2]),
    ("completion", [f"--no{BAD}"], SHOWN[:-2]),
]


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals here")
@pytest.mark.parametrize(("tool", "args", "shown"), some(CASES, 3), ids=lambda x: str(x)[:20])
def test_control_characters_are_escaped_in_a_terminal(
    files: Path, tool: str, args: list[str], shown: str
) -> None:
    text = in_terminal(files, tool, *args)
    text = re.sub(r"\r[^\r\n]*\[[#-]*\][^\r\n]*|\x1b\[\?25[lh]", "", text)  # our progress bars
    assert LEGAL.fullmatch(text), ascii(text)
    assert shown in text, text
    assert "Traceback" not in text and "internal error" not in text, text


def test_control_characters_are_not_escaped_in_a_pipe(files: Path) -> None:
    code = TOOL.format("tokenize")
    command = [sys.executable, "-P", "-c", code, "-m", str(files / "tokens.gguf"), "-p", "\x1b[2J"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert b"\x1b" in done.stdout
