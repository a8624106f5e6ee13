"""``pyllama-gguf set``: change one number or bool of the metadata in place.

pyllama-gguf set x.gguf tokenizer.ggml.add_bos_token false
pyllama-gguf set x.gguf x.logit_scale -0.5 --dry-run
"""

from __future__ import annotations

from pathlib import Path

import click

from ...output import write_line
from ...tool import Program, ignored_option, version_option
from .files import confirm, gguf_argument


class _Setter(Program):
    """A program with arguments that may be negative numbers, which are no flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse these numbers as arguments."""
        numbers = [] if "--" in args else [x for x in args if x[:1] == "-" and _is_number(x)]
        if numbers:
            args = [*(x for x in args if x not in numbers), "--", *numbers]
        return super().parse_args(ctx, args)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@click.command("set", cls=_Setter)
@gguf_argument()
@click.argument("key")
@click.argument("value")
@click.option("--dry-run", is_flag=True, help="Print the change, do not write it.")
@click.option("--force", is_flag=True, help="Do not ask for confirmation.")
@ignored_option("--verbose", why="the change is always printed")
@version_option()
def command(model: Path, key: str, value: str, dry_run: bool, force: bool) -> None:
    """Set a number or bool of MODEL's metadata in place."""
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
