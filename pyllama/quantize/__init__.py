"""Quantizes GGUF files like llama-quantize, with its types, mixes and options.

from pyllama.quantize import Options, find_file_type, quantize_model

plan = quantize_model("x-F16.gguf", "x-Q4_K_M.gguf", find_file_type("Q4_K_M"))
"""

from ..file_types import FILE_TYPES, FileType, find_file_type, find_tensor_type, is_file_type
from .importance import Importance, read_importance, write_importance
from .plan import QuantizeOptions, QuantizePlan
from .rules import TypeOverrides
from .write import quantize_model

__all__ = [
    "FILE_TYPES",
    "FileType",
    "Importance",
    "QuantizeOptions",
    "QuantizePlan",
    "TypeOverrides",
    "find_file_type",
    "find_tensor_type",
    "is_file_type",
    "quantize_model",
    "read_importance",
    "write_importance",
]
