"""The umbrella command ``pyllama``: every tool as a sub-command.

    pyllama bench -m x.gguf            # the same as pyllama-bench -m x.gguf
    pyllama completion --help          # the same as pyllama-cli --help

A sub-command is one line in ``programs.COMMANDS`` and one file in ``commands``; it is imported
only when named.
"""

from __future__ import annotations

import click

from .programs import COMMANDS
from .tool import LazyGroup, version_option


@click.group("pyllama", cls=LazyGroup, sections=COMMANDS)
@version_option()
def pyllama() -> None:
    """LLM inference from GGUF files in pure Python + Numba."""
