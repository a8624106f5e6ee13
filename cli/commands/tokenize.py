"""``pyllama-tokenize``: print the tokens of a text in llama-tokenize's format.

pyllama-tokenize -m x.gguf -p "Hello"          # "  9906 -> 'Hello'"
pyllama-tokenize -m x.gguf --stdin --ids       # [9906, 1917]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pyllama.parameters import Flags, row

from ..loading import load_vocab
from ..options.kv_overrides import override_kv_option
from ..options.options import model_option
from ..options.prompt import PromptOptions, escape_option
from ..output import write
from ..parameters import from_options, parameter_options
from ..tool import Program, version_option


@dataclass(frozen=True)
class TokenizeOptions(PromptOptions):
    """Where the text comes from, how it is read, and what is printed of its tokens."""

    # fmt: off
    stdin: bool = row(False, "Read the text from standard input.", Flags("--stdin"))
    ids: bool = row(False, "Print only the token ids, as a Python list.", Flags("--ids"))
    no_bos: bool = row(False, "Do not add a BOS token.", Flags("--no-bos"))
    no_parse_special: bool = row(False, "Do not parse special tokens.",
        Flags("--no-parse-special"))
    show_count: bool = row(False, "Print the total number of tokens.", Flags("--show-count"))
    # fmt: on


@click.command("tokenize", cls=Program)
@model_option
@parameter_options(TokenizeOptions)
@escape_option()
@override_kv_option
@version_option()
def command(model: Path | None, **options: Any) -> None:
    """Print the tokens of a text."""
    source = from_options(TokenizeOptions, options)
    if source.stdin + (source.prompt is not None) + (source.file is not None) != 1:
        raise click.UsageError("give the text with exactly one of -p, -f and --stdin")
    tokenizer = load_vocab(model, options["kv_overrides"]).tokenizer
    text = source.text(sys.stdin.buffer.read() if source.stdin else None, whole_file=True)
    assert text is not None
    special = {"add_special": not source.no_bos, "parse_special": not source.no_parse_special}
    tokens = tokenizer.encode(text, **special)
    if source.ids:
        write(f"[{', '.join(map(str, tokens))}]\n")
    else:
        for token in tokens:
            piece = tokenizer.token_to_piece(token, special=True).decode("utf-8", "replace")
            write(f"{token:6d} -> '{piece}'\n")
    if source.show_count:
        write(f"Total number of tokens: {len(tokens)}\n")
