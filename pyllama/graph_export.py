"""A model's compute graph as a picture, without loading its weights.

    text = graph_dot("x.gguf", n_tokens=1, layers=(0, 2))

Only the header of the file is read, so this takes a moment for a model of any size.
"""

from __future__ import annotations

import os
from typing import Literal

from pyggml.cgraph import CGraph
from pyggml.gguf import GGUFFile
from pyggml.tensor import Tensor
from pyggml.viz import graph_dump_dot

from .arch import get_arch
from .graph.builder import GraphBuilder
from .hparams import read_hparams
from .loader import check_tensors
from .memory import Memory
from .tokenizer import load_tokenizer

_CELLS = 256  # of the drawn cache: its length does not change the graph


def model_graph(path: str | os.PathLike[str], n_tokens: int = 1) -> CGraph:
    """The graph of a ubatch of ``n_tokens`` with one output; tensors have no memory.

    Raises:
        GGUFError, ModelError: the file is not a model that can be run.
    """
    file = GGUFFile(path)
    hparams = read_hparams(file, load_tokenizer(file.metadata).n_vocab)
    arch = get_arch(hparams.arch)
    weights = {
        name: Tensor(info.type, info.ne).set_name(name)
        for name, info in check_tensors(file, arch.TENSORS, hparams).items()
    }
    builder = GraphBuilder(hparams, weights, Memory(hparams, _CELLS), n_tokens, n_outputs=1)
    builder.finish(arch.build_graph(builder))
    return builder.graph


def graph_dot(
    path: str | os.PathLike[str],
    *,
    n_tokens: int = 1,
    layers: tuple[int, int] | None = None,
    color: Literal["family", "buffer"] = "family",
    out: str | os.PathLike[str] | None = None,
) -> str:
    """DOT text of ``model_graph``, the same on every run; also written to ``out`` if given."""
    title = f"{os.path.basename(path)}, {n_tokens} token{'s' if n_tokens > 1 else ''}"
    graph = model_graph(path, n_tokens)
    return graph_dump_dot(graph, out, color=color, layers=layers, title=title)
