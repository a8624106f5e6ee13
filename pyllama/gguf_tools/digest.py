"""Hashes the weights of a file, by tensor and in total, and reads manifests of hashes.

    for line in digests(file, ("sha256",)):
        print(line.kind, line.digest, line.name)   # the last one is of all tensors: no name

Only the bytes of tensors in file order are hashed: metadata and the split into parts do not matter.
Source: llama.cpp, ``gguf-hash``.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from pyggml.files import read_regular
from pyggml.gguf import GGUFError, GGUFFile
from pyggml.visible import visible

from ..runtime.loader import Progress

KINDS = ("xxh64", "sha1", "sha256", "uuid")
# llama.cpp's namespace: the UUID of the URL en.wikipedia.org/wiki/Llama.cpp
_NAMESPACE = uuid.UUID("ef001206-dadc-5f6d-a15f-3359e577d4e5")


class Digest(NamedTuple):
    """A hash in hexadecimal, of the tensor ``name`` or of all tensors (None)."""

    kind: str
    digest: str
    name: str | None


class _State(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


def digests(
    file: GGUFFile, kinds: Sequence[str], *, layers: bool = True, progress: Progress | None = None
) -> Iterator[Digest]:
    """Yield the hashes of each tensor (with ``layers``; no uuid), then of all, in one pass."""
    whole = {kind: _new(kind) for kind in kinds}
    if "uuid" in whole:
        whole["uuid"].update(_NAMESPACE.bytes)
    total, done = sum(info.nbytes for info in file.tensors.values()) or 1, 0
    for name in file.tensors:
        own = {kind: _new(kind) for kind in kinds if layers and kind != "uuid"}
        for piece in file.chunks(name):
            for state in (*whole.values(), *own.values()):
                state.update(piece.data)
            done += piece.size
            if progress is not None:
                progress(done / total)
        for kind, state in own.items():
            yield Digest(kind, state.hexdigest(), name)
    for kind, state in whole.items():
        if kind == "uuid":
            sha1 = bytes.fromhex(state.hexdigest())
            yield Digest(kind, str(uuid.UUID(bytes=sha1[:16], version=5)), None)
        else:
            yield Digest(kind, state.hexdigest(), None)


def _new(kind: str) -> _State:
    if kind == "xxh64":
        import xxhash

        return xxhash.xxh64()
    return hashlib.new("sha1" if kind == "uuid" else kind)


_MAX_MANIFEST_BYTES = 64 << 20  # the line of a tensor has about 100 bytes
Manifest = dict[tuple[str, str | None], str]


def read_manifest(path: Path, model: Path) -> Manifest:
    """Return the hashes of a model in a manifest, the output of ``gguf-hash``.

    Raises:
        GGUFError: the manifest cannot be read, or has no hashes of the model.
    """
    try:
        lines = read_regular(path, _MAX_MANIFEST_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise GGUFError(f"{path}: cannot be read as a manifest: {error}") from error
    name = "|".join(map(re.escape, (model.name, visible(model.name, keep="\t"))))
    line_of_model = re.compile(rf"(\w+)\s+([-\w]+)\s+(?:.*[/\\])?(?:{name})(?::(.*))?")
    found = (line_of_model.fullmatch(line.strip()) for line in lines)
    manifest = {(m[1], m[3]): m[2].lower() for m in found if m is not None and m[1] in KINDS}
    if not manifest:
        raise GGUFError(
            f"{path}: has no {', '.join(KINDS)} hash of a file named {model.name}; create it with "
            f"`pyllama-gguf hash {model.name}`"
        )
    return manifest
