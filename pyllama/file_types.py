"""llama.cpp's file types: names, numbers and default tensor types.

    file_type = find_file_type("q4_k_m")           # or "15", or the alias "Q4_K"
    file_type.number, file_type.type               # (15, GGMLType.Q4_K)
    file_type_name(file.metadata.get("general.file_type"))    # "Q4_K_M"

The number is the value of ``general.file_type``. ``mixes`` lists the tensors with other types.
Source: llama.cpp, enum ``llama_ftype`` and ``llama_ftype_get_default_type``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyggml.dtype import GGMLType
from pyggml.quants import BLOCK_TYPES

from .errors import ModelError

T = GGMLType
COPY = "COPY"
_PLAIN = (T.F32, T.F16, T.BF16)


@dataclass(frozen=True)
class FileType:
    """A file type.

    Attributes:
        name: in capitals.
        number: value of ``general.file_type``; None for COPY, which keeps the file's.
        type: default type of matrices; None for COPY.
    """

    name: str
    number: int | None
    type: GGMLType | None


FILE_TYPES = {
    name: FileType(name, number, type)
    for name, number, type in (
        ("Q1_0", 40, T.Q1_0),
        ("Q2_0", 41, T.Q2_0),
        ("Q4_0", 2, T.Q4_0),
        ("Q4_1", 3, T.Q4_1),
        ("MXFP4_MOE", 38, T.MXFP4),
        ("Q5_0", 8, T.Q5_0),
        ("Q5_1", 9, T.Q5_1),
        ("IQ2_XXS", 19, T.IQ2_XXS),
        ("IQ2_XS", 20, T.IQ2_XS),
        ("IQ2_S", 28, T.IQ2_XS),
        ("IQ2_M", 29, T.IQ2_S),
        ("IQ1_S", 24, T.IQ1_S),
        ("IQ1_M", 31, T.IQ1_M),
        ("TQ1_0", 36, T.TQ1_0),
        ("TQ2_0", 37, T.TQ2_0),
        ("Q2_K", 10, T.Q2_K),
        ("Q2_K_S", 21, T.Q2_K),
        ("IQ3_XXS", 23, T.IQ3_XXS),
        ("IQ3_S", 26, T.IQ3_S),
        ("IQ3_M", 27, T.IQ3_S),
        ("IQ3_XS", 22, T.IQ3_S),
        ("Q3_K_S", 11, T.Q3_K),
        ("Q3_K_M", 12, T.Q3_K),
        ("Q3_K_L", 13, T.Q3_K),
        ("IQ4_NL", 25, T.IQ4_NL),
        ("IQ4_XS", 30, T.IQ4_XS),
        ("Q4_K_S", 14, T.Q4_K),
        ("Q4_K_M", 15, T.Q4_K),
        ("Q5_K_S", 16, T.Q5_K),
        ("Q5_K_M", 17, T.Q5_K),
        ("Q6_K", 18, T.Q6_K),
        ("Q8_0", 7, T.Q8_0),
        ("F16", 1, T.F16),
        ("BF16", 32, T.BF16),
        ("F32", 0, T.F32),
        (COPY, None, None),
    )
}
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_BY_NUMBER = {str(f.number): f for f in FILE_TYPES.values() if f.number is not None}
_ONLY_READ = {39: "NVFP4"}  # has no default type in llama.cpp: converters write it
_GUESSED = 1024  # a bit of ``general.file_type`` in files whose writer had to guess it


def is_file_type(text: str) -> bool:
    """Return whether ``text`` names a file type."""
    name = text.upper()
    return name in FILE_TYPES or name in ALIASES or text in _BY_NUMBER


def find_file_type(text: str) -> FileType:
    """Return the file type of a name (in any case) or number. Raises: ModelError."""
    if not is_file_type(text):
        raise ModelError(f"unknown file type {text!r}; known are {', '.join(FILE_TYPES)}")
    name = text.upper()
    return _BY_NUMBER.get(text) or FILE_TYPES[ALIASES.get(name, name)]


def file_type_name(number: object) -> str | None:
    """Return the name of a value of ``general.file_type``; None if it is unknown or missing."""
    if isinstance(number, bool) or not isinstance(number, int):
        return None
    number &= ~_GUESSED
    found = _BY_NUMBER.get(str(number))
    return _ONLY_READ.get(number) if found is None else found.name


def find_tensor_type(text: str) -> GGMLType:
    """Return the writable tensor type of a name, in any case. Raises: ModelError."""
    found = {t.name: t for t in T}.get(text.upper())
    if found is None or not can_write(found):
        have = ", ".join(t.name for t in T if can_write(t))
        raise ModelError(f"tensors cannot be quantized to {text!r}; possible types are {have}")
    return found


def can_write(type: GGMLType) -> bool:
    """Return whether tensors can be converted to this type."""
    if type in BLOCK_TYPES and type is not T.Q8_K:  # Q8_K is only for activations
        return BLOCK_TYPES[type].encode is not None
    return type in _PLAIN


def can_read(type: GGMLType) -> bool:
    """Return whether tensors of this type can be dequantized."""
    return type in BLOCK_TYPES or type in _PLAIN
