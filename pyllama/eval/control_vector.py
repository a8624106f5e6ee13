"""Makes a control vector of pairs of prompts: the direction from negative to positive ones.

    pairs = tokenize_pairs(model.tokenizer, ["I am happy."], ["I am sad."])
    rows = differences(context, pairs)             # by layer, [tokens of all pairs, n_embd]
    write_control_vector("v.gguf", "llama", [mean_direction(x) for x in rows])

For each layer but the last and each token, the output for the positive prompt minus the output for
the negative one is a row of a matrix. The direction is the mean of the rows or their first
principal component, of length 1.
Source: llama.cpp, ``llama-cvector-generator``; Zou et al. 2023, "Representation Engineering".
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyggml.files import replacing
from pyggml.gguf import write_gguf
from pyggml.sched import to_numpy
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph.adapters import layer_output
from ..runtime.batch import Batch

if TYPE_CHECKING:
    from ..runtime.context import Context
    from ..tokenizer import Tokenizer

Rows = npt.NDArray[np.float32]  # [n, n_embd]
Pair = tuple[list[int], list[int]]
_ZERO = 1e-6  # a row without a larger element is left out: the pair begins with the same tokens
_TOLERANCE = 1e-7  # of the direction's change in an iteration, at which it has converged


def tokenize_pairs(
    tokenizer: Tokenizer, positive: Sequence[str], negative: Sequence[str]
) -> list[Pair]:
    """The tokens of pairs of prompts; the shorter one of a pair is filled up with spaces.

    Raises:
        ModelError: there are no prompts, or their numbers differ.
    """
    if len(positive) != len(negative) or not positive:
        raise ModelError(
            f"there are {len(positive)} positive and {len(negative)} negative prompts: want pairs"
        )
    padding = tokenizer.encode(" ", add_special=False)[-1:]
    pairs = []
    for texts in zip(positive, negative, strict=True):
        some, other = (
            tokenizer.encode(text, add_special=True, parse_special=True) for text in texts
        )
        n = max(len(some), len(other))
        pairs.append((some + padding * (n - len(some)), other + padding * (n - len(other))))
    return pairs


class _Collector:
    """Keeps the outputs of all layers but the last."""

    def __init__(self, n_layer: int) -> None:
        self._places = {layer_output(i): i for i in range(n_layer - 1)}
        self.outputs: list[list[Rows]] = [[] for _ in self._places]

    def callback(self, node: Tensor, ask: bool) -> bool:
        i = self._places.get(node.name)
        if i is not None and not ask:
            self.outputs[i].append(to_numpy(node)[0, 0].copy())
        return i is not None


def layer_outputs(context: Context, tokens: Sequence[int]) -> list[Rows]:
    """The outputs of all layers but the last for a prompt, [tokens, n_embd] each.

    Raises:
        ModelError: layers of this architecture have no output to which vectors are added.
        BatchError, ContextFull: the prompt is too long for the context.
    """
    collector = _Collector(context.hparams.n_layer)
    context.kv.clear()
    with context.watched(collector.callback):
        for start in range(0, len(tokens), context.n_batch):
            context.decode(Batch(tokens[start : start + context.n_batch]))
    if not all(collector.outputs):
        raise ModelError(
            f"control vectors are not supported for {context.hparams.arch} models: their layers "
            "have no single output"
        )
    return [np.concatenate(parts) for parts in collector.outputs]


def differences(context: Context, pairs: Sequence[Pair]) -> Iterator[list[Rows]]:
    """For each pair the differences of its outputs, [tokens, n_embd] by layer, without zero rows.

    Raises:
        ModelError: as `layer_outputs`, or the prompts of a pair do not differ.
        BatchError, ContextFull: a prompt is too long for the context.
    """
    for number, (some, other) in enumerate(pairs, 1):
        both = zip(*(layer_outputs(context, tokens) for tokens in (some, other)), strict=True)
        rows = [a - b for a, b in both]
        rows = [x[(x > _ZERO).any(axis=1)] for x in rows]
        if not all(len(x) for x in rows):
            raise ModelError(f"the prompts of pair {number} do not differ")
        yield rows


def mean_direction(rows: Rows) -> Rows:
    """The mean of rows, scaled to length 1. Raises: ModelError: the mean is 0."""
    return _unit(rows.mean(axis=0, dtype=np.float64)).astype(np.float32)


def principal_direction(rows: Rows, n_iterations: int = 1000, seed: int = 0) -> Rows:
    """The first principal component of rows about 0, by power iteration, of length 1.

    Its product with the sum of the rows is not negative; llama.cpp's sign is random.
    """
    x = rows.astype(np.float64)
    square = x.T @ x if len(x) > x.shape[1] else None
    direction = _unit(np.random.default_rng(seed).random(x.shape[1]))
    for _ in range(n_iterations):
        after = _unit(x.T @ (x @ direction) if square is None else square @ direction)
        change = np.linalg.norm(after - direction)
        direction = after
        if change < _TOLERANCE:
            break
    side = float(np.sum(x @ direction))
    return np.asarray(direction if side >= 0 else -direction, np.float32)


def _unit(x: Any) -> npt.NDArray[np.float64]:
    length = np.linalg.norm(x)
    if length == 0:
        raise ModelError("the differences of the pairs add up to 0: they have no direction")
    return np.asarray(x / length, np.float64)


def write_control_vector(
    path: str | os.PathLike[str], arch: str, directions: Sequence[Rows]
) -> None:
    """Write llama.cpp's file. Raises: GGUFError: it cannot be written."""
    metadata: dict[str, Any] = {
        "general.architecture": "controlvector",
        "controlvector.model_hint": arch,
        "controlvector.layer_count": np.int32(len(directions)),
    }
    tensors = {f"direction.{i}": x for i, x in enumerate(directions, 1)}
    with replacing(Path(path)) as temporary:
        write_gguf(temporary, metadata, tensors)
