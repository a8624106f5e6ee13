"""Renders DOT as an SVG file with Graphviz.

    render_svg(graph_dump_dot(graph), "graph.svg")

Needs graphviz's program ``dot``; everything else of this package works without.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from ..errors import PyggmlError
from ..files import write_whole

_INSTALL = "`apt-get install graphviz`, `brew install graphviz`, or https://graphviz.org/download"


def render_svg(dot_text: str, path: str | os.PathLike[str], *, timeout: float = 120.0) -> None:
    """Render DOT text to an SVG file.

    Args:
        timeout: seconds that graphviz may take.

    Raises:
        PyggmlError: graphviz is not installed, refuses the text, or takes too long.
        OSError: the file cannot be written.
    """
    program = shutil.which("dot")
    if program is None:
        raise PyggmlError(
            f"{os.fspath(path)}: drawing SVG needs dot, of graphviz, which is not on the PATH; "
            f"get it with {_INSTALL}"
        )
    try:
        done = subprocess.run(
            [program, "-Tsvg"],
            input=dot_text.encode("utf-8"),
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PyggmlError(
            f"{os.fspath(path)}: graphviz did not finish within {timeout:g} s; draw fewer layers "
            "(layers=(0, 2)) or give it more time"
        ) from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit code {done.returncode}"
        raise PyggmlError(f"graphviz cannot draw {os.fspath(path)}: {reason}")
    write_whole(path, done.stdout)
