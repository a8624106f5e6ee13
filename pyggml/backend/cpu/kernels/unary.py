"""UNARY: a function of every element, by its kind (see ``elementwise``)."""

from __future__ import annotations

from ....ops.unary import XIELU
from ....tensor import Tensor
from ..lowering import Lowering, lowers
from .elementwise import lower_element, supports_element


@lowers("UNARY", supports_element)
def _lower_unary(low: Lowering, node: Tensor) -> None:
    p = node.op_params
    names = ("alpha_n", "alpha_p", "beta", "eps") if p["kind"] == XIELU else ()
    lower_element(low, node, p["kind"], tuple(float(p[name]) for name in names))
