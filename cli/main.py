"""The umbrella command ``pyllama``: every tool as a sub-command.

    pyllama --help
    pyllama bench -m x.gguf                        # the same as pyllama-bench -m x.gguf

A sub-command is one line in ``commands.TABLE`` and one file there; it is imported only when named.
"""

from __future__ import annotations

import click

from .commands import TABLE
from .tool import LazyGroup, version_option


@click.group("pyllama", cls=LazyGroup, table=TABLE)
@version_option()
def pyllama() -> None:
    """LLM inference from GGUF files in pure Python + Numba."""
