"""``pyllama-gguf merge``: merge the files of a split model, like llama-gguf-split --merge.

pyllama-gguf merge x-00001-of-00003.gguf x.gguf
"""

from __future__ import annotations

from pathlib import Path

import click

from ...output import progress_bar, write_line
from ...tool import Program, version_option
from .files import gguf_argument


@click.command("merge", cls=Program)
@gguf_argument()
@gguf_argument("output")
@click.option("--dry-run", is_flag=True, help="Only check that all parts exist and match.")
@version_option()
def command(model: Path, output: Path, dry_run: bool) -> None:
    """Merge a split model into the file OUTPUT. MODEL is its first file."""
    from pyggml.gguf import GGUFFile, merge

    if output.exists():
        raise click.ClickException(f"{output} exists: remove it, or name another file")
    with GGUFFile(model) as file:
        write_line(f"{len(file.parts)} parts with {len(file.tensors)} tensors")
        if not dry_run:
            with progress_bar(f"writing {output}") as progress:
                merge(file, output, progress)
