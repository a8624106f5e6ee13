"""``pyllama-gguf split``: split a file into several, like llama-gguf-split.

pyllama-gguf split --split-max-size 2G x.gguf x  # x-00001-of-00003.gguf ...
"""

from __future__ import annotations

from pathlib import Path

import click

from ...options.options import BYTE_COUNT
from ...output import progress_bar, write_line
from ...parameters import INT32_MAX, Number
from ...tool import Program, version_option
from .files import gguf_argument


@click.command("split", cls=Program)
@gguf_argument()
@click.argument("prefix", type=click.Path(path_type=Path))
@click.option("--split-max-tensors", type=Number(1, INT32_MAX),
              help="Maximum number of tensors per split.  [default: 128]")  # fmt: skip
@click.option("--split-max-size", type=BYTE_COUNT,
              help="Maximum size of tensors per split.")  # fmt: skip
@click.option("--no-tensor-first-split", is_flag=True, help="Put no tensors in the first split.")
@click.option("--dry-run", is_flag=True, help="Only print the plan of the split.")
@version_option()
def command(
    model: Path,
    prefix: Path,
    split_max_tensors: int | None,
    split_max_size: int | None,
    no_tensor_first_split: bool,
    dry_run: bool,
) -> None:
    """Split MODEL into PREFIX-00001-of-0000N.gguf and so on."""
    from pyggml.gguf import GGUFFile, plan_split, write_split

    if split_max_tensors is not None and split_max_size is not None:
        raise click.UsageError("choose --split-max-tensors or --split-max-size, not both")
    with GGUFFile(model) as file:
        plans = plan_split(
            file,
            prefix,
            max_tensors=split_max_tensors or 128,
            max_bytes=split_max_size,
            tensors_in_first=not no_tensor_first_split,
        )
        write_line(f"n_split: {len(plans)}")
        for plan in plans:
            size = f"{plan.nbytes / 1000**2:.1f}M"
            write_line(f"{plan.path}: n_tensors = {len(plan.names)}, total_size = {size}")
        if not dry_run:
            with progress_bar("writing the parts") as progress:
                write_split(file, plans, progress)
