"""MUL_MAT_ID_SPARSE and AXPY_ID: only active rows of the experts that a token chose.

Access: as MUL_MAT_ID (``matrix.experts``), whose kernel also reads a row's score, and as AXPY, with
a use of an expert in place of a token.
"""

from .....tensor import Tensor
from ...lowering import GpuLowering, lowers
from ..matrix.experts import launch_experts, supports_experts
from ..matrix.weights import reads_weight
from .active import NO_SCORES, NONE
from .axpy import launch_axpy


def _supports_scored(node: Tensor) -> bool:
    return supports_experts(node) and node.src[3].is_contiguous_rows()


@lowers("MUL_MAT_ID_SPARSE", _supports_scored)
def _lower_mul_mat_id_sparse(lowering: GpuLowering, node: Tensor) -> None:
    launch_experts(lowering, node, node.src[3], node.op_params["threshold"])


def _supports_axpy_id(node: Tensor) -> bool:
    a, b = node.src[:2]
    contiguous = a.is_contiguous() and b.is_contiguous()
    return node.src[-1] is None and contiguous and reads_weight(a) and node.nrows < 1 << 16


@lowers("AXPY_ID", _supports_axpy_id)
def _lower_axpy_id(lowering: GpuLowering, node: Tensor) -> None:
    everything = {
        "scores": 0, "scores1": NO_SCORES, "placed": 0, "placement": NONE, "threshold": 0.0,
        "error": lowering.error, "code": lowering.error_code(node),
    }  # fmt: skip
    launch_axpy(lowering, node, everything, node.src[2])
