"""Digests that identify a model regardless of its quantization.

model_fingerprint(GGUFFile("x.f16.gguf")) == model_fingerprint(GGUFFile("x.q4_0.powerinfer.gguf"))
"""

from __future__ import annotations

from hashlib import sha256

from pyggml.gguf import GGUFFile


def model_fingerprint(file: GGUFFile) -> str:
    """Return a digest of the norm weights, which quantization does not change."""
    digest = sha256(file.get_str("general.architecture").encode())
    for name in sorted(file.tensors):
        if "norm" in name and file.tensors[name].n_dims == 1:
            digest.update(name.encode() + file.tensor_bytes(name).tobytes())
    return digest.hexdigest()


def content_key(file: GGUFFile, *parts: object) -> str:
    """Return a digest of a model with its tensor types, and of ``parts``."""
    table = [(t.name, t.type.name, t.ne) for t in file.tensors.values()]
    text = repr((model_fingerprint(file), table, parts))
    return sha256(text.encode()).hexdigest()
