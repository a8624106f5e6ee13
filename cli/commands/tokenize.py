"""``pyllama-tokenize``: print the tokens of a text in llama-tokenize's format.

pyllama-tokenize -m x.gguf -p "Hello"          # "  9906 -> 'Hello'"
pyllama-tokenize -m x.gguf --stdin --ids       # [9906, 1917]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ..loading import load_vocab
from ..options.kv_overrides import override_kv_option
from ..options.options import model_option
from ..options.prompt import PromptOptions, escape_option, prompt_options
from ..output import write
from ..tool import Program, version_option


@click.command("tokenize", cls=Program)
@model_option
@prompt_options
@click.option("--stdin", is_flag=True, help="Read the text from standard input.")
@click.option("--ids", is_flag=True, help="Print only the token ids, as a Python list.")
@click.option("--no-bos", is_flag=True, help="Do not add a BOS token.")
@click.option("--no-parse-special", is_flag=True, help="Do not parse special tokens.")
@click.option("--show-count", is_flag=True, help="Print the total number of tokens.")
@escape_option()
@override_kv_option
@version_option()
def command(
    model: Path | None,
    stdin: bool,
    ids: bool,
    no_bos: bool,
    no_parse_special: bool,
    show_count: bool,
    **options: Any,
) -> None:
    """Print the tokens of a text."""
    source = PromptOptions.from_click(options)
    if stdin + (source.prompt is not None) + (source.file is not None) != 1:
        raise click.UsageError("give the text with exactly one of -p, -f and --stdin")
    tokenizer = load_vocab(model, options["kv_overrides"]).tokenizer
    text = source.text(sys.stdin.buffer.read() if stdin else None, whole_file=True)
    assert text is not None
    tokens = tokenizer.encode(text, add_special=not no_bos, parse_special=not no_parse_special)
    if ids:
        write(f"[{', '.join(map(str, tokens))}]\n")
    else:
        for token in tokens:
            piece = tokenizer.token_to_piece(token, special=True).decode("utf-8", "replace")
            write(f"{token:6d} -> '{piece}'\n")
    if show_count:
        write(f"Total number of tokens: {len(tokens)}\n")
