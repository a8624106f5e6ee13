"""The umbrella command ``pyllama``: every tool as a sub-command.

    pyllama --help
    pyllama bench -m x.gguf                        # the same as pyllama-bench -m x.gguf

A sub-command is one line in ``TABLE`` and one file in ``commands``; it is imported only when named.
"""

from __future__ import annotations

import click

from .tool import LazyGroup, version_option

TABLE = {
    "completion": ".commands.completion:command",
    "bench": ".commands.bench:command",
    "batched-bench": ".commands.batched_bench:command",
    "parallel": ".commands.parallel:command",
    "perplexity": ".commands.perplexity:command",
    "tokenize": ".commands.tokenize:command",
    "info": ".commands.info:command",
    "eval-callback": ".commands.eval_callback:command",
    "graph": ".commands.graph:command",
    "convert": ".commands.convert:command",
    "quantize": ".commands.quantize:command",
    "imatrix": ".commands.imatrix:command",
    "gguf": ".commands.gguf:command",
    "powerinfer": ".commands.powerinfer:command",
}


@click.group("pyllama", cls=LazyGroup, table=TABLE)
@version_option()
def pyllama() -> None:
    """LLM inference from GGUF files in pure Python + Numba."""
