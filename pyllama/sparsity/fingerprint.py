"""A digest that tells models apart, and not the formats that one is stored in.

model_fingerprint(GGUFFile("x.f16.gguf")) == model_fingerprint(GGUFFile("x.q4_0.powerinfer.gguf"))
"""

from __future__ import annotations

from hashlib import sha256

from pyggml.gguf import GGUFFile


def model_fingerprint(file: GGUFFile) -> str:
    """A digest of the norms' weights, which no format of a model changes."""
    digest = sha256(file.get_str("general.architecture").encode())
    for name in sorted(file.tensors):
        if "norm" in name and file.tensors[name].n_dims == 1:
            digest.update(name.encode() + file.tensor_bytes(name).tobytes())
    return digest.hexdigest()


def content_key(file: GGUFFile, *parts: object) -> str:
    """A digest of a model in one format, and of what else a result depends on."""
    table = [(t.name, t.type.name, t.ne) for t in file.tensors.values()]
    text = repr((model_fingerprint(file), table, parts))
    return sha256(text.encode()).hexdigest()
