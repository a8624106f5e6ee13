"""Model architectures: one file each, named after ``general.architecture``.

    arch = get_arch("llama")
    arch.TENSORS, arch.build_graph

A file has

- ``HPARAMS``: metadata keys of hyperparameters that differ from ``hparams.KEYS``, and fixed values;
- ``TENSORS``: name pattern -> sizes in ne order; ``{i}`` is the layer, ``?`` marks an optional
  tensor; a tensor with a size of 0 must not be in the file;
- ``build_graph(b)``, which reads sizes and weights from the builder and returns the logits;
- ``CONVERT``: conversion of Hugging Face checkpoints to GGUF (``mapping.rules``);
- ``MTP``, only where llama.cpp's files have layers of multi-token prediction (``mtp_of``);
- ``NAME``, only where the name has a dash: ``gpt-oss`` is in ``gpt_oss.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Protocol, cast

from ..errors import ModelError

if TYPE_CHECKING:
    from pyggml.gguf import GGUFFile
    from pyggml.tensor import Tensor

    from ..graph.builder import GraphBuilder
    from ..hparams import Values
    from ..mapping.rules import Convert, Nextn


class Arch(Protocol):
    """The module of an architecture."""

    HPARAMS: Values
    TENSORS: Mapping[str, tuple[str, ...]]
    build_graph: Callable[[GraphBuilder], Tensor]
    CONVERT: Convert


def arch_names() -> list[str]:
    """The names of the supported architectures."""
    return sorted(map(_name_of, _modules()))


def get_arch(name: str) -> Arch:
    """The module of an architecture. Raises: ModelError."""
    module = name.replace("-", "_")
    if module not in _modules() or _name_of(module) != name:
        raise ModelError(
            f"architecture {name!r} is not supported; supported are: {', '.join(arch_names())}"
        )
    return cast(Arch, import_module(f"{__name__}.{module}"))


@cache
def _modules() -> frozenset[str]:
    return frozenset(module.name for module in iter_modules(__path__))


def _name_of(module: str) -> str:
    """The name of a module's architecture: its ``NAME`` where that has a dash."""
    if "_" not in module:
        return module
    return getattr(import_module(f"{__name__}.{module}"), "NAME", module)


def mtp_of(arch: Arch) -> Nextn | None:
    """How an architecture's layers of multi-token prediction differ; None if it has none."""
    return getattr(arch, "MTP", None)


def arch_of(file: GGUFFile) -> Arch:
    """The module of a file's architecture.

    Raises:
        ModelError: the architecture is not supported.
        GGUFError: the file does not name one.
    """
    return get_arch(file.get_str("general.architecture"))
