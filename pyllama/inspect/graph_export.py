"""Exports a model's compute graph for drawing, without loading its weights.

    drawn = drawn_graph("x.gguf")                  # drawn.graph, drawn.plan, drawn.title

Only the header of the file is read, so this is fast for models of any size.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyggml.alloc import GraphAllocator, TensorAllocator
from pyggml.alloc.gallocr import Plan
from pyggml.buffer import ALIGNMENT, HOST, AddressBuffer, HostBufferType
from pyggml.cgraph import CGraph
from pyggml.gguf import GGUFFile
from pyggml.rounding import round_up
from pyggml.tensor import Tensor
from pyggml.viz import NodeTime

from ..arch import arch_of
from ..graph.sparse.sources import choose_sources
from ..graph.sparse.weights import normalize_powerinfer_metadata, plan_weights
from ..hparams_reader import read_hparams
from ..runtime.loader import check_tensors, header_graph, weight_headers
from ..tokenizer import load_tokenizer

if TYPE_CHECKING:
    from pyggml.backend.trace import RunTrace


def model_graph(
    path: str | os.PathLike[str],
    n_tokens: int = 1,
    sparse: str = "auto",
    sparse_threshold: float | None = None,
) -> CGraph:
    """Return the graph of a ubatch of ``n_tokens`` with one output; tensors have no memory.

    Args:
        sparse, sparse_threshold: as for ``Model.load``.

    Raises:
        GGUFError, ModelError, TokenizerError: the file is not a model that can be run.
    """
    file = GGUFFile(path)
    normalize_powerinfer_metadata(file)
    arch, tokenizer = arch_of(file), load_tokenizer(file.metadata, file.path)
    hparams = read_hparams(file, tokenizer.n_vocab, arch.HPARAMS)
    hparams = choose_sources(file, hparams, sparse, sparse_threshold)
    infos = check_tensors(file, arch.TENSORS, hparams)
    headers = weight_headers(infos, plan_weights(infos, hparams))
    return header_graph(arch, hparams, headers, n_tokens)


class _FileType(HostBufferType):
    name = "in the file"


@dataclass(frozen=True, eq=False)
class DrawnGraph:
    """A graph and the data for drawings of it.

    Attributes:
        plan: memory plan of the intermediate results.
        runs: traces of runs, empty if it was not run.
        times: times of nodes, None if it was not run.
    """

    graph: CGraph
    plan: Plan
    title: str
    runs: tuple[RunTrace, ...] = ()
    times: dict[Tensor, NodeTime] | None = None


def drawn_graph(
    path: str | os.PathLike[str],
    n_tokens: int = 1,
    sparse: str = "auto",
    sparse_threshold: float | None = None,
) -> DrawnGraph:
    """Return ``model_graph`` with addresses: weights as in the file, caches, planned results.

    Raises:
        GGUFError, ModelError: the file is not a model that can be run.
        AllocError: there is not enough memory for the results.
    """
    graph = model_graph(path, n_tokens, sparse, sparse_threshold)
    weights = [leaf for leaf in graph.leafs if not leaf.data and not leaf.flags]
    size = sum(round_up(leaf.nbytes, ALIGNMENT) for leaf in weights)
    file = TensorAllocator(AddressBuffer(size, _FileType()))
    for leaf in weights:
        file.alloc(leaf)
    plan = GraphAllocator(HOST).alloc_graph(graph)
    return DrawnGraph(graph, plan, graph_title(path, n_tokens))


def graph_title(path: str | os.PathLike[str], n_tokens: int) -> str:
    """Return a title such as ``x.gguf, 1 token``."""
    return f"{os.path.basename(path)}, {n_tokens} token{'s' if n_tokens > 1 else ''}"
