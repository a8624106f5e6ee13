"""``pyllama-convert``: convert the folder of a Hugging Face checkpoint to a GGUF file.

pyllama-convert Llama-3.2-1B --outfile llama.gguf --outtype q8_0
pyllama-convert ReluLLaMA-7B --predictor ReluLLaMA-7B-Predictor --outtype f16
pyllama-convert Llama-3.2-1B --dry-run                       # only check it
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from ..options.options import ByteCount
from ..options.parameters import INT32_MAX, Number
from ..output import note, progress_bar, visible_logs, write_line
from ..tool import Program, version_option


@click.command("convert", cls=Program)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--outfile",
    type=click.Path(path_type=Path),
    help="Output file, or a directory for a file of the default name. {ftype} in the file's name "
    "becomes the output type, {FTYPE} in capitals.  [default: DIR]",
)
@click.option(
    "--outtype",
    type=click.Choice(["f32", "f16", "bf16", "q8_0", "auto"]),
    default="auto",
    help="Output type of matrices. auto: f16 if DIR has f16, else bf16.",
)
@click.option(
    "--predictor",
    metavar="PREDICTOR_DIR",
    type=click.Path(path_type=Path),
    help="Write a PowerInfer file with the predictors model_{i}.pt of this folder.",
)
@click.option(
    "--transpose-down",
    is_flag=True,
    help="Transpose ffn_down for sparse inference, without predictors.",
)
@click.option("--dense", is_flag=True, help="Write an ordinary GGUF file. This is the default.")
@click.option("--vocab-only", is_flag=True, help="Write only the vocabulary, no weights.")
@click.option("--model-name", help="Name of the model.  [default: from DIR]")
@click.option(
    "--metadata",
    type=click.Path(path_type=Path),
    help="JSON file with general.* keys that override those of DIR.",
)
@click.option("--split-max-size", type=ByteCount(), help="Maximum size of tensors per split.")
@click.option(
    "--split-max-tensors", type=Number(1, INT32_MAX), help="Maximum number of tensors per split."
)
@click.option("--dry-run", is_flag=True, help="Check the checkpoint, write nothing.")
@click.option("--verbose", is_flag=True, help="Print how each tensor is converted.")
@version_option()
def command(
    folder: Path,
    outfile: Path | None,
    outtype: str,
    split_max_size: int | None,
    split_max_tensors: int | None,
    dense: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Convert the Hugging Face checkpoint in DIR to a GGUF file."""
    if split_max_size and split_max_tensors:
        raise click.UsageError("choose --split-max-tensors or --split-max-size, not both")
    if dense and (options["predictor"] is not None or options["transpose_down"]):
        raise click.UsageError("--dense cannot be used with --predictor or --transpose-down")
    logging.basicConfig(format="%(message)s")
    visible_logs()
    if verbose:
        logging.getLogger("pyllama").setLevel(logging.INFO)
    from pyllama.convert import ConvertOptions, convert

    settings = ConvertOptions(
        split_max_bytes=split_max_size, split_max_tensors=split_max_tensors, **options
    )
    with progress_bar("converting") as progress:
        path = convert(folder, outfile, outtype, settings, progress)
    if settings.dry_run:
        note("dry run: nothing was written")
    write_line(str(path))
