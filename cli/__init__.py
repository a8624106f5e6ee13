"""The command-line tools: options in, results out, errors as exit codes; no numerics here.

Installed under the name ``pyllama_cli``. One file in ``commands`` is one tool.
Where one of our programs starts, Ctrl-C is looked after before anything slow is imported, and the
current folder, which an empty entry of PYTHONPATH would add, is no place to import from.
"""

import os
import sys

from . import interrupt


def _starts_a_program() -> bool:
    return os.path.basename(sys.argv[0] if sys.argv else "").startswith("pyllama")


def _leave_current_folder_out() -> None:
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if len(entries) > 1 and not sys.flags.ignore_environment:
        for entry in entries:
            if not entry and os.getcwd() in sys.path:
                sys.path.remove(os.getcwd())  # the first: those of PYTHONPATH come first


if _starts_a_program():
    interrupt.begin()
    _leave_current_folder_out()
