"""Limits of a GGUF file, each with its reason.

    if n_kv > limits.MAX_KV: ...

They make a malicious header fail at once. No real model comes near them, and a file within them
costs at most a few seconds and a small multiple of its header's size in memory.
Source: the GGUF specification and ggml, ``gguf.cpp``.
"""

from __future__ import annotations

# --- limits of the format -------------------------------------------------------------------------
VERSIONS = (2, 3)  # version 1 had 32-bit lengths and was replaced within a week
HEADER_BYTES = 24  # magic, version, two counts
DEFAULT_ALIGNMENT = 32  # without `general.alignment`
MIN_ALIGNMENT = 8  # the specification requires a multiple of 8; less would misalign float64 weights
MAX_ALIGNMENT = 2 << 20  # for writing: a huge page; every tensor may be padded by as much
MAX_DIMS = 4  # GGML_MAX_DIMS: tensor headers have four sizes
MAX_NAME_BYTES = 63  # GGML_MAX_NAME is 64 with the closing NUL
MAX_KEY_BYTES = 65_535  # limit of the specification
MAX_ELEMENTS = 2**63 - 1  # ggml counts elements in int64

# --- minimum sizes of entries: a count is first compared with the remaining bytes -----------------
MIN_KV_BYTES = 8 + 1 + 4 + 1  # key length, one byte of key, value type, one byte of value
MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8  # name length, one byte of name, n_dims = 0, type, offset
MIN_STRING_BYTES = 8  # the length of an empty string

# --- our limits: an entry becomes a Python object, much larger than its bytes in the file ---------
MAX_KV = 65_536  # models have 20 to 100 entries
MAX_TENSORS = 65_536  # the largest model files have about 2,000 (experts are stacked)
MAX_HEADER_BYTES = 256 << 20  # the largest vocabularies with merges take about 20 MiB
