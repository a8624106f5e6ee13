"""SQR, SQRT, LOG, SIN, COS, LEAKY_RELU and CLAMP: a function of every element (``elementwise``)."""

from __future__ import annotations

from ....tensor import Tensor
from ..lowering import GRAIN, Lowering, lowers
from .elementwise import lower_element, supports_element


def _lower_function(low: Lowering, node: Tensor) -> None:
    assert node.op is not None
    lower_element(low, node, node.op.name.lower())


for _op in ("SQR", "SQRT", "LOG", "SIN", "COS"):
    lowers(_op, supports_element)(_lower_function)


@lowers("LEAKY_RELU", supports_element)
def _lower_leaky_relu(low: Lowering, node: Tensor) -> None:
    slope = float(node.op_params["negative_slope"])
    lower_element(low, node, "leaky_relu", (slope,), GRAIN)


@lowers("CLAMP", supports_element)
def _lower_clamp(low: Lowering, node: Tensor) -> None:
    limits = float(node.op_params["min"]), float(node.op_params["max"])
    lower_element(low, node, "clamp", limits, GRAIN)
