"""All environment variables of pyggml and pyllama, and the folders that depend on them.

    env.ISA.get()                                  # "avx2", or None if it is not set
    env.FUSION.enabled()                           # True unless PYGGML_FUSION=0
    env.unknown()                                  # ["PYGGML_THREADS"]: a mistake of the user
    env.user_cache_dir("pyllama")                  # ~/.cache/pyllama on Linux

Variables are read on access, not at import, so tests can set them. ``docs/env.md`` is generated
from this table (``python -m pyggml.env``).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from .errors import PyggmlError

_ON, _OFF = ("1", "yes", "on", "true"), ("0", "no", "off", "false")
_OURS = ("PYGGML_", "PYLLAMA_")
_OF_TESTS = "PYLLAMA_TEST_"


@dataclass(frozen=True)
class Variable:
    """One environment variable.

    Attributes:
        name: name of the variable.
        default: value if it is not set; None: no value.
        doc: one sentence for the table in the docs.
    """

    name: str
    default: str | None
    doc: str

    def get(self) -> str | None:
        """Return the value, or the default if it is not set or empty."""
        return os.environ.get(self.name) or self.default

    def make_default(self) -> None:
        """Set the default in the environment, for a library or a child that reads it there."""
        if self.default is not None:
            os.environ.setdefault(self.name, self.default)

    def enabled(self) -> bool:
        """Return whether a switch is on: ``1``, ``yes``, ``on`` or ``true``.

        Raises:
            PyggmlError: it is neither on nor off.
        """
        text = (self.get() or "0").strip().lower()
        if text not in (*_ON, *_OFF):
            raise PyggmlError(f"{self.name} is {text!r:.60}, must be 1 or 0")
        return text in _ON

    def whole(self) -> int | None:
        """Return a whole number above 0, or None if it is not set.

        Raises:
            PyggmlError: it is something else.
        """
        text = self.get()
        if text is None:
            return None
        text = text.strip()
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
            raise PyggmlError(f"{self.name} is {text!r:.60}, must be a whole number above 0")
        return int(text)


ISA = Variable(
    "PYGGML_ISA",
    None,
    "Instruction set of the CPU kernels: `avx512amx`, `avx512vnni`, `avxvnni`, `avx2`, `sse42`, "
    "`neon`, `asimd` or `generic`. Unset: the best of this CPU.",
)
NUM_THREADS = Variable(
    "PYGGML_NUM_THREADS",
    None,
    "Number of threads, unless a flag or an argument sets it. "
    "Unset: min(affinity, cgroup quota, physical cores).",
)
CACHE_DIR = Variable(
    "PYGGML_CACHE_DIR",
    None,
    "Folder in which `pyggml-code` is made, for compiled kernels. "
    "Unset: `pyggml/code` in the user's cache folder.",
)
SELF_TEST = Variable(
    "PYGGML_SELF_TEST",
    "1",
    "`0` skips the child processes that test an instruction set before its first use.",
)
TUNING = Variable(
    "PYGGML_TUNING",
    None,
    "Prefetch distances, chunk sizes and the like, in place of their defaults: "
    "`one_hint=3,one_bytes=2048`. `pyllama info` lists names and values.",
)
FUSION = Variable("PYGGML_FUSION", "1", "`0` disables the fusion of graph nodes.")
CUDA_GRAPHS = Variable(
    "PYGGML_CUDA_GRAPHS",
    "1",
    "`0` launches the kernels of a GPU one by one instead of replaying them as a CUDA graph.",
)
KEEP_BARRIERS = Variable(
    "PYGGML_KEEP_BARRIERS",
    "0",
    "`1` keeps the barrier between nodes that do not depend on each other.",
)
GRAPH_REUSE = Variable(
    "PYLLAMA_GRAPH_REUSE", "1", "`0` rebuilds the graph for every decode. Results are identical."
)
DEMO_MODEL = Variable(
    "PYLLAMA_DEMO_MODEL",
    None,
    "A GGUF file to use as the demo model instead of downloading it (on machines without network).",
)
TRACEBACK = Variable(
    "PYLLAMA_TRACEBACK", "0", "`1` makes the command-line tools print tracebacks of errors."
)
SPARSE_THRESHOLD = Variable(
    "LLAMA_SPARSE_PRED_THRESHOLD",
    None,
    "Minimum predictor score of a neuron that is computed; overrides the file's value. "
    "`--sparse-threshold` takes precedence. `inf` and `-inf` are allowed.",
)
HF_ENDPOINT = Variable(
    "HF_ENDPOINT", None, "URL of the model hub for `-hf`. Unset: `https://huggingface.co`."
)
HF_TOKEN = Variable(
    "HF_TOKEN",
    None,
    "Token for private and gated models of the hub. Unset: the token saved by `hf auth login`.",
)
NO_COLOR = Variable(
    "NO_COLOR", None, "Any value disables colours in a terminal, unless `--color on` is given."
)
TERM = Variable(
    "TERM", None, "The terminal's type; a `dumb` one gets no colours and no editor of lines."
)
RAY_USAGE = Variable(
    "RAY_USAGE_STATS_ENABLED",
    "0",
    "`1` lets Ray report its use to its makers. `pyllama cluster` and `pyllama-batch` switch that "
    "off unless it is set.",
)
RAY_NETWORK = Variable(
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
    "0",
    "`0` keeps all of Ray's processes on 127.0.0.1, on any system. Set where `pyllama cluster` and "
    "`pyllama-batch` start Ray themselves, not where they join a cluster.",
)

VARIABLES = (
    ISA,
    NUM_THREADS,
    CACHE_DIR,
    SELF_TEST,
    TUNING,
    FUSION,
    CUDA_GRAPHS,
    KEEP_BARRIERS,
    GRAPH_REUSE,
    DEMO_MODEL,
    TRACEBACK,
    SPARSE_THRESHOLD,
    HF_ENDPOINT,
    HF_TOKEN,
    NO_COLOR,
    TERM,
    RAY_USAGE,
    RAY_NETWORK,
)


def unknown() -> list[str]:
    """Return the names that look like variables of ours and are none: nothing reads them."""
    known = {variable.name for variable in VARIABLES}
    ours = (name for name in os.environ if name.startswith(_OURS) and name not in known)
    return sorted(name for name in ours if not name.startswith(_OF_TESTS))


def user_cache_dir(app: str) -> Path:
    """Return the user's cache folder of ``app``; it may not exist yet.

    ``XDG_CACHE_HOME`` or ``~/.cache`` (Linux and others), ``~/Library/Caches`` (macOS),
    ``LOCALAPPDATA`` (Windows).
    """
    return _user_dir("XDG_CACHE_HOME", ".cache", "Library/Caches") / app


def user_state_dir(app: str) -> Path:
    """Return the user's state folder of ``app``, for histories and the like; it may not exist yet.

    ``XDG_STATE_HOME`` or ``~/.local/state`` (Linux and others), ``~/Library/Application Support``
    (macOS), ``LOCALAPPDATA`` (Windows).
    """
    return _user_dir("XDG_STATE_HOME", ".local/state", "Library/Application Support") / app


def _user_dir(variable: str, usual: str, macos: str) -> Path:
    home = Path(os.path.expanduser("~"))
    folder = os.environ.get(variable, "")
    if os.path.isabs(folder):  # XDG specification: ignore relative paths
        return Path(folder)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    return home / (macos if sys.platform == "darwin" else usual)


def code_dir() -> Path:
    """Return the folder of compiled kernels, which has nothing else; it may not exist yet."""
    folder = CACHE_DIR.get()
    return Path(folder) / "pyggml-code" if folder else user_cache_dir("pyggml") / "code"


def markdown_table() -> str:
    """Return the variables as a Markdown table, for the docs."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for v in VARIABLES:
        default = "unset" if v.default is None else f"`{v.default}`"
        rows.append(f"| `{v.name}` | {default} | {v.doc} |")
    rows += [
        "",
        "Options of the command-line tools can also be set by `LLAMA_ARG_` and the long name:",
        "`LLAMA_ARG_CTX_SIZE=4096` for `--ctx-size 4096`. The command line takes precedence.",
        "",
        "A wrong value is an error. A variable that begins with `PYGGML_`, `PYLLAMA_` or",
        "`LLAMA_ARG_`, and that a tool does not have, is named in a line on stderr.",
    ]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print("# Environment variables\n\nGenerated by `python -m pyggml.env > docs/env.md`.\n")
    print(markdown_table(), end="")
