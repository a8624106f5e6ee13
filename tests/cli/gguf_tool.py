"""Run ``pyllama-gguf`` and gguf-py's scripts in tests; write a tiny model for them.

run("dump", path).stdout
script("gguf_dump", path)                      # output of gguf-py's script
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from pyggml.dtype import GGMLType
from pyllama_cli.commands.gguf import command

from ..pyllama.models import Spec, random_weights, write_model

SPEC = Spec(n_ff=64)


def run(*args: str | Path, code: int = 0, input: str | None = None) -> Result:
    result = CliRunner().invoke(command, [str(arg) for arg in args], input=input)
    assert result.exit_code == code, result.output
    return result


def script(name: str, *args: str | Path) -> str:
    """The output of one of gguf-py's scripts."""
    line = [sys.executable, "-P", "-m", f"gguf.scripts.{name}", *map(str, args)]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


def write_tiny(path: Path) -> Path:
    more = {"tokenizer.chat_template": "old", "tokenizer.ggml.add_bos_token": True}
    return write_model(path, SPEC, random_weights(SPEC), GGMLType.Q4_0, more)
