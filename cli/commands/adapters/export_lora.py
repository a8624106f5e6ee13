"""``pyllama-export-lora``: merge LoRA adapters into a model's file, like llama-export-lora.

pyllama-export-lora -m base.gguf --lora-scaled lora.gguf:0.5 -o merged.gguf
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from pyllama.parameters import Flags, row

from ...options.adapters import files_of
from ...output import progress_bar, write_line
from ...parameters import parameter_options
from ...tool import Program, version_option


@dataclass(frozen=True, eq=False, repr=False)
class ExportLoraFlags:
    """The model, the adapters and the file."""

    # fmt: off
    model: Path | None = row(None, "GGUF file of the base.",
        Flags("-m", "--model", required=True))
    lora: tuple[str, ...] = row((), "LoRA adapters. Repeatable, or separated by commas.",
        Flags("--lora", metavar="FILE,...", repeated=True))
    lora_scaled: tuple[str, ...] = row((), "LoRA adapters with factors.",
        Flags("--lora-scaled", metavar="FILE:SCALE,...", repeated=True))
    output: Path = row(Path("ggml-lora-merged-f16.gguf"), "Output file.",
        Flags("-o", "--output", "--output-file"))
    outtype: str = row("f16",
        "Type of the changed matrices: f16, as llama-export-lora has it, or another; keep: as they "
        "are.", Flags("--outtype", metavar="TYPE"))
    # fmt: on


@click.command("export-lora", cls=Program)
@parameter_options(ExportLoraFlags)
@version_option()
def command(
    model: Path, lora: tuple[str, ...], lora_scaled: tuple[str, ...], output: Path, outtype: str
) -> None:
    """Merge LoRA adapters into a model's matrices."""
    loras = files_of(lora, lora_scaled, "--lora-scaled")
    if not loras:
        raise click.UsageError("no adapter is named: give --lora or --lora-scaled")
    from pyllama.quantize.merge_lora import merge_lora

    with progress_bar("merging") as progress:
        n = merge_lora(model, loras, output, outtype, progress)
    write_line(f"{output}: {n} matrices are changed")
