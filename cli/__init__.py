"""The command-line tools: parse options, call the library, print results, return exit codes.

Installed as ``pyllama_cli``. Each file in ``commands`` is one tool.
When one of our programs starts, the Ctrl-C handler is installed before any slow import, and the
current folder is removed from ``sys.path`` if an empty entry of PYTHONPATH added it.
"""

import os
import sys

from . import interrupt


def _remove_current_folder() -> None:
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if len(entries) > 1 and not sys.flags.ignore_environment:
        for entry in entries:
            if not entry and os.getcwd() in sys.path:
                sys.path.remove(os.getcwd())  # the first match: PYTHONPATH's entries lead the list


if os.path.basename(sys.argv[0] if sys.argv else "").startswith("pyllama"):
    interrupt.begin()
    _remove_current_folder()
