"""``pyllama-convert``: convert the folder of a Hugging Face checkpoint to a GGUF file.

pyllama-convert Llama-3.2-1B --outfile llama.gguf --outtype q8_0
pyllama-convert ReluLLaMA-7B --predictor ReluLLaMA-7B-Predictor --outtype f16
pyllama-convert Llama-3.2-1B --dry-run                       # only check it
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pyllama.parameters import Flags, row

from ..options.options import BYTE_COUNT
from ..output import note, progress_bar, visible_logs, write_line
from ..parameters import parameter_options
from ..tool import Program, version_option


@dataclass(frozen=True, eq=False, repr=False)
class ConvertFlags:
    """What is written, and how."""

    # fmt: off
    outfile: Path | None = row(None,
        "Output file, or a directory for a file of the default name. {ftype} in the file's name "
        "becomes the output type, {FTYPE} in capitals.  [default: DIR]", Flags("--outfile"))
    outtype: str = row("auto", "Output type of matrices. auto: f16 if DIR has f16, else bf16.",
        Flags("--outtype", choices=("f32", "f16", "bf16", "q8_0", "auto")))
    predictor: Path | None = row(None,
        "Write a PowerInfer file with the predictors model_{i}.pt of this folder.",
        Flags("--predictor", metavar="PREDICTOR_DIR"))
    transpose_down: bool = row(False,
        "Transpose ffn_down for sparse inference, without predictors.", Flags("--transpose-down"))
    dense: bool = row(False, "Write an ordinary GGUF file. This is the default.", Flags("--dense"))
    vocab_only: bool = row(False, "Write only the vocabulary, no weights.", Flags("--vocab-only"))
    model_name: str | None = row(None, "Name of the model.  [default: from DIR]",
        Flags("--model-name"))
    metadata: Path | None = row(None, "JSON file with general.* keys that override those of DIR.",
        Flags("--metadata"))
    split_max_bytes: int | None = row(None, "Maximum size of tensors per split.",
        Flags("--split-max-size", type=BYTE_COUNT))
    split_max_tensors: int | None = row(None, "Maximum number of tensors per split.",
        Flags("--split-max-tensors", low=1))
    dry_run: bool = row(False, "Check the checkpoint, write nothing.", Flags("--dry-run"))
    no_mtp: bool = row(False,
        "Leave layers of multi-token prediction out.", Flags("--no-nextn", "--no-mtp"))
    mtp_only: bool = row(False,
        "Write only the layers of multi-token prediction, for -md; the default name of the file "
        "then begins with mtp-.", Flags("--mtp"))
    target_model: Path | None = row(None,
        "Folder of the model that the head in DIR drafts for (EAGLE-3, DFlash).",
        Flags("--target-model-dir", metavar="TARGET_DIR"))
    verbose: bool = row(False, "Print how each tensor is converted.", Flags("--verbose"))
    # fmt: on


@click.command("convert", cls=Program)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@parameter_options(ConvertFlags)
@version_option()
def command(
    folder: Path, outfile: Path | None, outtype: str, dense: bool, verbose: bool, **options: Any
) -> None:
    """Convert the Hugging Face checkpoint in DIR to a GGUF file."""
    if options["split_max_bytes"] and options["split_max_tensors"]:
        raise click.UsageError("choose --split-max-tensors or --split-max-size, not both")
    if dense and (options["predictor"] is not None or options["transpose_down"]):
        raise click.UsageError("--dense cannot be used with --predictor or --transpose-down")
    if options["mtp_only"] and options["no_mtp"]:
        raise click.UsageError("choose --mtp or --no-mtp, not both")
    logging.basicConfig(format="%(message)s")
    visible_logs()
    if verbose:
        logging.getLogger("pyllama").setLevel(logging.INFO)
    from pyllama.convert import ConvertOptions, convert

    settings = ConvertOptions(mtp=not options.pop("no_mtp"), **options)
    with progress_bar("converting") as progress:
        path = convert(folder, outfile, outtype, settings, progress)
    if settings.dry_run:
        note("dry run: nothing was written")
    write_line(str(path))
