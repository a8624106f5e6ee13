"""The GGUF container: a fast reader that checks everything, and a small writer.

    from pyggml.gguf import GGUFFile, write_gguf

    with GGUFFile("x.gguf") as f:
        print(f.get_str("general.architecture"), len(f.tensors))

Importing it loads only NumPy.
"""

from ..errors import GGUFError
from .reader import GGUFFile
from .split import copy_gguf, merge, plan_split, whole_metadata, write_split
from .types import GGUFStrings, TensorInfo, Value, ValueType
from .writer import write_gguf

__all__ = [
    "GGUFError",
    "GGUFFile",
    "GGUFStrings",
    "TensorInfo",
    "Value",
    "ValueType",
    "copy_gguf",
    "merge",
    "plan_split",
    "whole_metadata",
    "write_gguf",
    "write_split",
]
