"""Runs a program with `pyllama.compat.install` called before.

python -m pyllama.compat script.py --option
python -m pyllama.compat -m pytest
python -m pyllama.compat --sources llama_cpp_python-0.3.36 -m llama_cpp.server --model x.gguf
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from . import install


def main() -> None:
    """Run the program that the arguments name, with the arguments after it."""
    parser = argparse.ArgumentParser("python -m pyllama.compat", description=__doc__.split("\n")[0])
    parser.add_argument("--sources", help="folder of llama-cpp-python's sources, for its server")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="module and arguments")
    parser.add_argument("script", nargs="?")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if not given.module and given.script is None:
        parser.error("name a script, or a module with -m")
    install(given.sources)
    if given.module:
        sys.argv = given.module
        runpy.run_module(given.module[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = [given.script, *given.arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(given.script)))  # as `python script.py`
    runpy.run_path(given.script, run_name="__main__")


if __name__ == "__main__":
    main()
