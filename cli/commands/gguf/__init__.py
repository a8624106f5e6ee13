"""``pyllama-gguf``: inspect, edit, split, merge, hash, validate and compare GGUF files.

pyllama-gguf dump x.gguf
pyllama-gguf set x.gguf tokenizer.ggml.add_bos_token false
pyllama-gguf split --split-max-size 2G x.gguf x
"""

from __future__ import annotations

import click

from ...tool import LazyGroup, version_option

TABLE = {
    name: f".commands.gguf.{name}:command"
    for name in ("dump", "set", "new", "split", "merge", "hash", "validate", "diff")
}


@click.group("gguf", cls=LazyGroup, sections={"Commands": TABLE})
@version_option()
def command() -> None:
    """Inspect, edit, split, merge and compare GGUF files."""
