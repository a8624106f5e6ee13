"""``pyllama-gguf set``: change one number or bool of the metadata where it stands.

pyllama-gguf set x.gguf tokenizer.ggml.add_bos_token false
"""

from __future__ import annotations

from pathlib import Path

import click

from ...output import write_line
from ...tool import Tool, version_option
from .files import confirm, gguf_argument


@click.command("set", cls=Tool)
@gguf_argument()
@click.argument("key")
@click.argument("value")
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@click.option("--force", is_flag=True, help="Do not ask.")
@click.option("--verbose", is_flag=True, hidden=True)
@version_option()
def command(model: Path, key: str, value: str, dry_run: bool, force: bool, verbose: bool) -> None:
    """Set one simple value of MODEL in place; a negative one stands behind "--"."""
    from pyggml.gguf import GGUFFile
    from pyllama.gguf_tools.edit import planned_change

    with GGUFFile(model) as file:
        change = planned_change(file, key, value)
        if change.old == change.new:
            write_line(f"{key} is {change.old!r} already")
            return
        write_line(f"{key} ({change.kind.name}): {change.old!r} -> {change.new!r}")
        if dry_run:
            return
        if not force:
            confirm(f"A changed value can make {model} unusable; there is no undo.")
        change.apply(file)
