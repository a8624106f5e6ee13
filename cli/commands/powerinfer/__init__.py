"""``pyllama-powerinfer``: activation statistics of ReLU models, GPU placement of
neurons, and predictors.

pyllama-powerinfer stats -m x.gguf -f text.txt -o stats.json --plot stats.svg
pyllama-powerinfer plan -m x.gguf --stats stats.json --vram-budget 8
pyllama-powerinfer train -m x.gguf -f text.txt -o predictors
"""

from __future__ import annotations

import click

from ...tool import LazyGroup, version_option

TABLE = {name: f".commands.powerinfer.{name}:command" for name in ("stats", "plan", "train")}


@click.group("powerinfer", cls=LazyGroup, sections={"Commands": TABLE})
@version_option()
def command() -> None:
    """Count active neurons of a ReLU model, plan their placement, and train their predictors."""
