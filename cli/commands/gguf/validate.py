"""``pyllama-gguf validate``: check a file without running it.

pyllama-gguf validate x.gguf && echo good
"""

from __future__ import annotations

from pathlib import Path

import click

from ...output import FAILED, note, progress_bar, write_line
from ...tool import Program, version_option
from .files import gguf_argument


@click.command("validate", cls=Program)
@gguf_argument()
@version_option()
def command(model: Path) -> None:
    """Check the layout, shapes and all weights of MODEL. The exit code is 1 if there are faults."""
    from pyllama.gguf_tools.validate import validate

    with progress_bar(f"checking {model}") as progress:
        report = validate(model, progress)
    for text in report.notes:
        note(f"note: {text}")
    for fault in report.faults:
        write_line(fault)
    if report.faults:
        note(f"error: {model}: faults: {len(report.faults)}")
        raise click.exceptions.Exit(FAILED)
    write_line(f"{model}: no faults in {report.n_tensors} tensors")
