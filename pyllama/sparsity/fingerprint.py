"""Digests that identify a model, regardless of its quantization or with it.

model_fingerprint(GGUFFile("x.f16.gguf")) == model_fingerprint(GGUFFile("x.q4_0.powerinfer.gguf"))
"""

from __future__ import annotations

from hashlib import sha256

from pyggml.gguf import GGUFFile

_SAMPLE_BYTES = 1 << 16  # of each tensor


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


def weights_digest(file: GGUFFile) -> str:
    """Twelve hexadecimal digits of all tensors' names, types, sizes and first bytes."""
    digest = sha256(file.get_str("general.architecture").encode())
    for t in file.tensors.values():
        digest.update(repr((t.name, t.type.name, t.ne)).encode())
        digest.update(file.tensor_bytes(t.name)[:_SAMPLE_BYTES].tobytes())
    return digest.hexdigest()[:12]
