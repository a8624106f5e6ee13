"""``pyllama-gguf set``: change one number or bool of the metadata in place.

pyllama-gguf set x.gguf tokenizer.ggml.add_bos_token false
"""

from __future__ import annotations

from pathlib import Path

import click

from ...output import write_line
from ...tool import Program, ignored_option, version_option
from .files import confirm, gguf_argument


@click.command("set", cls=Program)
@gguf_argument()
@click.argument("key")
@click.argument("value")
@click.option("--dry-run", is_flag=True, help="Print the change, do not write it.")
@click.option("--force", is_flag=True, help="Do not ask for confirmation.")
@ignored_option("--verbose", why="the change is always printed")
@version_option()
def command(model: Path, key: str, value: str, dry_run: bool, force: bool) -> None:
    """Set a number or bool of MODEL's metadata in place. Write "--" before a negative VALUE."""
    from pyggml.gguf import GGUFFile
    from pyllama.gguf_tools.edit import plan_change

    with GGUFFile(model) as file:
        change = plan_change(file, key, value)
        if change.old == change.new:
            write_line(f"{key} is {change.old!r} already")
            return
        write_line(f"{key} ({change.kind.name}): {change.old!r} -> {change.new!r}")
        if dry_run:
            return
        if not force:
            confirm(f"Changing metadata can make {model} unusable; there is no undo.")
        change.apply(file)
