"""Model architectures: one file each, named after ``general.architecture``.

    arch = get_arch("llama")
    arch.TENSORS, arch.build_graph

A file has

- ``HPARAMS``: the keys of hyperparameters that stand elsewhere than ``hparams.KEYS`` say, and the
  values that are always the same;
- ``TENSORS``: name pattern -> sizes in ne order; ``{i}`` is the layer, ``?`` marks an optional one;
  with a size of 0, as of what a variant lacks, it must not be there;
- ``build_graph(b)``, which reads sizes and weights from the builder and returns the logits;
- ``CONVERT``: how a checkpoint from Hugging Face becomes a GGUF file (``convert.mapping``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Protocol, cast

from ..errors import ModelError

if TYPE_CHECKING:
    from pyggml.gguf import GGUFFile
    from pyggml.tensor import Tensor

    from ..convert.mapping import Convert
    from ..graph.builder import GraphBuilder
    from ..hparams import Values


class Arch(Protocol):
    """What an architecture's module has."""

    HPARAMS: Values
    TENSORS: Mapping[str, tuple[str, ...]]
    build_graph: Callable[[GraphBuilder], Tensor]
    CONVERT: Convert


def arch_names() -> list[str]:
    """The architectures that can be run."""
    return sorted(module.name for module in iter_modules(__path__))


def get_arch(name: str) -> Arch:
    """The module of an architecture. Raises: ModelError."""
    if name not in arch_names():
        raise ModelError(
            f"architecture {name!r} is not supported; there are: {', '.join(arch_names())}"
        )
    return cast(Arch, import_module(f"{__name__}.{name}"))


def arch_of(file: GGUFFile) -> Arch:
    """The module of a file's architecture.

    Raises:
        ModelError: it is not supported.
        GGUFError: the file names none.
    """
    return get_arch(file.get_str("general.architecture"))
