"""Which neurons are active: the test that both sparse products make of scores and placement.

    neuron, score = active_neuron(row, scores, at, placed, placement, n_neurons, error, code)

A row of the matrix belongs to the neuron of its number, or to that of its place in a bucket. It is
inactive if the neuron is marked as absent, or its score is below the threshold. A neuron that is
out of range, or a score that is no number, is reported.
"""

import math
from typing import Any

from numba import float32, int32, int64

from .....tensor import Tensor
from ...intrin import device, load_f32, load_i32, store_i32
from ...lowering import GpuLowering

NONE, MARKS, BUCKET = range(3)  # what the placement is
NO_SCORES = -1


@device
def neuron_of(row, placed, placement):
    """The neuron of a row; -1 if it is absent, less than that if it is out of range."""
    if placement == BUCKET:
        neuron = load_i32(placed, int64(4) * row)
        return neuron if neuron >= 0 else int32(-2)
    if placement == MARKS and load_i32(placed, int64(4) * row) == 1:
        return int32(-1)
    return int32(row)


@device
def score_of(neuron, scores, at, n_neurons, error, code):
    """The score of a neuron of a token, whose scores begin at byte ``at``.

    -inf if there is no such neuron, inf if ``at`` is negative: there are no scores.
    """
    if neuron >= n_neurons or neuron < 0:
        store_i32(error, 0, code)
        return float32(-math.inf)
    if at < 0:
        return float32(math.inf)
    score = load_f32(scores, at + int64(4) * neuron)
    if score != score:
        store_i32(error, 0, int32(-code))
    return score


def placement_of(lowering: GpuLowering, node: Tensor) -> dict[str, Any]:
    """The values of kernels' parameters for scores and placement."""
    idx, placed = node.src[2:4]
    kind = NONE if placed is None else BUCKET if node.op_params["bucket"] else MARKS
    return {
        "scores": 0 if idx is None else idx, "scores1": NO_SCORES if idx is None else idx.nb[1],
        "placed": 0 if placed is None else placed, "placement": kind,
        "threshold": node.op_params["threshold"],
        "error": lowering.error, "code": lowering.error_code(node),
    }  # fmt: skip
