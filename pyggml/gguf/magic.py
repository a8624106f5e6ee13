"""The magic bytes of model files, and descriptions of other files by their first bytes.

    describe(b"PK\\x03\\x04...")                     # "a zip archive or PyTorch checkpoint: ..."

Only the first bytes are inspected; nothing is allocated.
"""

from __future__ import annotations

MAGIC = b"GGUF"
POWERINFER = b"PWRI"  # PowerInfer's sparse models; the rest of the file is GGUF
MAGICS = (MAGIC, POWERINFER)
HEAD_BYTES = 64  # describe() uses at most these

_CONVERT = "convert the model to GGUF first"
_OLD = "a model in a format older than GGUF (before August 2023): convert the original model again"
_KNOWN = (  # (first bytes, description and advice)
    (b"FUGG", "a byte-swapped GGUF file: convert it to little endian (gguf-convert-endian)"),
    *((magic, _OLD) for magic in (b"GGML", b"ggml", b"lmgg", b"fmgg", b"tjgg", b"ggjt", b"ggmf")),
    (b"algg", "a LoRA adapter in the format before GGUF: convert the original adapter again"),
    (b"PK\x03\x04", f"a zip archive or PyTorch checkpoint: unpack it or {_CONVERT}"),
    (b"\x80\x02", f"a Python pickle (PyTorch checkpoint): {_CONVERT}"),
    (b"\x80\x03", f"a Python pickle: {_CONVERT}"),
    (b"\x80\x04", f"a Python pickle: {_CONVERT}"),
    (b"\x80\x05", f"a Python pickle: {_CONVERT}"),
    (b"\x89HDF", f"an HDF5 file: {_CONVERT}"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it first"),
    (b"\xfd7zXZ", "an xz archive: unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer, not the model: run `git lfs pull`"),
    (b"<!DOCTYPE", "a web page, so the download went wrong: fetch the file itself"),
    (b"<!doctype", "a web page, so the download went wrong: fetch the file itself"),
    (b"<html", "a web page, so the download went wrong: fetch the file itself"),
)


def describe(head: bytes) -> str:
    """Return a clause that says what a file with these first bytes is, and what to do."""
    for magic, description in _KNOWN:
        if head.startswith(magic):
            return description
    if head[8:9] == b"{" and head[5:8] == b"\0\0\0":
        return f"a safetensors file: {_CONVERT}"
    if not any(head):
        return "all zeros, so the download is probably incomplete: fetch the file again"
    if all(byte in b"\t\n\r" or 0x20 <= byte < 0x7F for byte in head):
        return "a text file: name a .gguf model"
    return "some other kind of file: name a .gguf model"
