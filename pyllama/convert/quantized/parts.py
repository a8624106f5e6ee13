"""The tensors of a quantized checkpoint while codes and scales are replaced by decoded tensors.

    parts = Parts(tensors, config["quantization_config"])
    for scale_name, weight_name in parts.names("_scale_inv"):
        scale = parts.take(scale_name, "F32")

Tensors that no method takes are not changed. Files are untrusted: methods check each shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import ModelError
from ...inputs.budget import shown
from ..files.decoded import CheckpointTensor, DecodedTensor
from ..files.stored import StoredTensor


class Parts:
    """Tensors by name, and the settings of the quantization.

    Attributes:
        settings: ``quantization_config`` of config.json.
        stored: the tensors not taken yet.
        decoded: the tensors added.
    """

    def __init__(self, stored: Mapping[str, StoredTensor], settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.stored = dict(stored)
        self.decoded: dict[str, DecodedTensor] = {}

    @property
    def tensors(self) -> dict[str, CheckpointTensor]:
        """All tensors by name."""
        return {**self.stored, **self.decoded}

    def names(self, pattern: str) -> list[tuple[str, str]]:
        """Return the tensors whose names end in a pattern: each name, and the part before it."""
        end = re.compile(f"(.*){pattern}", re.DOTALL)
        matches = ((name, end.fullmatch(name)) for name in self.stored)
        return [(name, match[1]) for name, match in matches if match is not None]

    def drop(self, *patterns: str) -> None:
        """Remove the tensors whose names end in one of the patterns."""
        for name, _ in self.names(f"(?:{'|'.join(patterns)})"):
            del self.stored[name]

    def take(self, name: str, *dtypes: str) -> StoredTensor:
        """Remove a tensor and return it. Raises: ModelError: it is missing or of another type."""
        stored = self.find(name, *dtypes)
        if stored is None:
            raise ModelError(f"tensor {shown(name)} is missing")
        return stored

    def find(self, name: str, *dtypes: str) -> StoredTensor | None:
        """``take``, or None if it is missing."""
        stored = self.stored.pop(name, None)
        if stored is not None and stored.dtype not in dtypes:
            raise ModelError(
                f"{stored.path}: tensor {shown(name)} is {stored.dtype}, must be "
                f"{' or '.join(dtypes)}"
            )
        return stored

    def add(self, name: str, tensor: DecodedTensor) -> None:
        """Add a tensor. Raises: ModelError: there is one of its name."""
        if name in self.stored or name in self.decoded:
            raise ModelError(f"{tensor.path}: tensor {shown(name)} is there twice, packed and not")
        self.decoded[name] = tensor


def check_shape(name: str, stored: StoredTensor, expected: tuple[int, ...]) -> None:
    """Raise ModelError unless a tensor has the shape that its weight needs."""
    if stored.shape != expected:
        raise ModelError(
            f"{stored.path}: tensor {shown(name)} has the shape {list(stored.shape)}, must be "
            f"{list(expected)}"
        )
