"""``pyllama-powerinfer``: activation statistics of ReLU models, and GPU placement of neurons.

pyllama-powerinfer stats -m x.gguf -f text.txt -o stats.json --plot stats.svg
pyllama-powerinfer plan -m x.gguf --stats stats.json --vram-budget 8
"""

from __future__ import annotations

import click

from ...tool import LazyGroup, version_option

TABLE = {name: f".commands.powerinfer.{name}:command" for name in ("stats", "plan")}


@click.group("powerinfer", cls=LazyGroup, sections={"Commands": TABLE})
@version_option()
def command() -> None:
    """Count active neurons of a ReLU model, and plan their placement on GPU and CPU."""
