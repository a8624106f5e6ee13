"""``pyllama-convert-lora``: convert the folder of a PEFT adapter to a GGUF file.

pyllama-convert-lora my-adapter --base Llama-3.2-1B --outfile lora.gguf
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from pyllama.parameters import Flags, row

from ...output import note, write_line
from ...parameters import parameter_options
from ...tool import Program, version_option


@dataclass(frozen=True, eq=False, repr=False)
class ConvertLoraFlags:
    """What is written, and of which base."""

    # fmt: off
    base: Path | None = row(None,
        "Folder with the base's config.json.  [default: the folder that the adapter names]",
        Flags("--base"))
    outfile: Path | None = row(None,
        "Output file, or a directory for a file of the default name. {ftype} in the file's name "
        "becomes the output type.  [default: DIR]", Flags("--outfile"))
    outtype: str = row("f32", "Output type. auto: f16 if DIR has f16, else bf16.",
        Flags("--outtype", choices=("f32", "f16", "bf16", "q8_0", "auto")))
    dry_run: bool = row(False, "Check the adapter, write nothing.", Flags("--dry-run"))
    # fmt: on


@click.command("convert-lora", cls=Program)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@parameter_options(ConvertLoraFlags)
@version_option()
def command(
    folder: Path, base: Path | None, outfile: Path | None, outtype: str, dry_run: bool
) -> None:
    """Convert the LoRA adapter of PEFT in DIR to a GGUF file."""
    from pyllama.convert import convert_lora

    path = convert_lora(folder, base, outfile, outtype, dry_run=dry_run)
    if dry_run:
        note("dry run: nothing was written")
    write_line(str(path))
