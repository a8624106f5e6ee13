"""Record what llama.cpp's ``llama_model_quantize`` chooses and writes, in tests/data/quantize.

python -m tests.pyllama.quantize.record DIR

``DIR`` has libggml-base.so, libggml*.so and libllama*.so of release v0.5.0, as the npm package
@node-llama-cpp/linux-x64 3.22.1 has them (package/bins/linux-x64). Files are made without data, and
only planned (``dry_run``).
"""

from __future__ import annotations

import ctypes as c
import gzip
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import numpy as np

from pyggml.dtype import GGMLType
from pyggml.gguf.encode import Entry, encode_header, encode_value
from pyggml.rounding import round_up
from pyllama.quantize import FILE_TYPES

from .shapes import MODELS, Shape, letter
from .tiny import Weights, digest, write_tiny

OUT = Path(__file__).resolve().parents[2] / "data" / "quantize"
_FLAGS = ("allow_requantize", "output", "only_copy", "pure", "keep_split", "dry_run")
_POINTERS = ("imatrix", "kv_overrides", "tt_overrides", "prune_layers")
_LINE = re.compile(r"\] (\S+) +- \[.*\], type = +\S+, size = +\S+ MiB(?: -> +\S+ MiB \((\S+)\))?")


class _Params(c.Structure):
    _fields_ = (
        *((n, c.c_int32) for n in ("nthread", "ftype", "output_type", "embedding_type")),
        *((n, c.c_bool) for n in _FLAGS),
        *((n, c.c_void_p) for n in _POINTERS),
        ("max_buf_size", c.c_size_t),
    )


class _Matrix(c.Structure):
    _fields_ = (("name", c.c_char_p), ("data", c.c_void_p), ("size", c.c_size_t))


class Oracle:
    """libllama."""

    def __init__(self, folder: Path) -> None:
        for pattern in ("libggml-base.so", "libggml.*so", "libllama.*so"):
            self.lib = c.CDLL(str(next(folder.glob(pattern))), mode=c.RTLD_GLOBAL)
        self.lib.llama_model_quantize_default_params.restype = _Params
        self.log: list[str] = []
        kind = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
        self.callback = kind(lambda level, text, data: self.log.append(text.decode()))
        self.lib.llama_log_set(self.callback, None)

    def quantize(self, path: Path, out: Path, ftype: int, imatrix: Weights, dry: bool) -> bool:
        """Return whether llama.cpp succeeded."""
        params = self.lib.llama_model_quantize_default_params()
        params.ftype, params.dry_run = ftype, dry
        rows = [_Matrix(n.encode(), x.ctypes.data, x.size) for n, x in imatrix.items()]
        matrices = (_Matrix * (len(rows) + 1))(*rows, _Matrix(None, None, 0))
        if imatrix:
            params.imatrix = c.addressof(matrices)
        self.log.clear()
        paths = str(path).encode(), str(out).encode()
        return bool(self.lib.llama_model_quantize(*paths, c.byref(params)) == 0)

    def types(self, path: Path, ftype: int, imatrix: bool) -> dict[str, GGMLType]:
        """The types that llama.cpp would choose for the tensors; none if it refuses."""
        weights = {"none": np.ones(1, np.float32)} if imatrix else {}
        if not self.quantize(path, path, ftype, weights, dry=True):
            return {}
        found = map(_LINE.search, "".join(self.log).split("\n"))
        return {m[1]: GGMLType[(m[2] or "F32").upper()] for m in found if m}


def write_header(path: Path, shape: Shape) -> None:
    """Write a sparse file with the header of a model and no data."""
    tensors = shape.tensors()
    entries = [Entry(t.name, t.ne[: t.n_dims], GGMLType.F32, t.nbytes) for t in tensors]
    encoded = {key: encode_value(key, value) for key, value in shape.metadata().items()}
    header = encode_header(encoded, entries, 32, b"GGUF")
    path.write_bytes(header)
    os.truncate(path, len(header) + sum(round_up(t.nbytes, 32) for t in tensors))


def record_types(oracle: Oracle, folder: Path) -> None:
    found: dict[str, str] = {}
    for name, shape in MODELS.items():
        path = folder / f"{name}.gguf"
        write_header(path, shape)
        for file_type in FILE_TYPES.values():
            for imatrix in (False, True) if file_type.number is not None else ():
                types = oracle.types(path, file_type.number or 0, imatrix)
                key = f"{name} {file_type.name} {'imatrix' if imatrix else 'plain'}"
                found[key] = "".join(letter(types[t.name]) for t in shape.tensors() if types)
    data = json.dumps(found, separators=(",", ":")).encode()
    (OUT / "types.json.gz").write_bytes(gzip.compress(data, mtime=0))


def record_files(oracle: Oracle, folder: Path) -> None:
    path, weights = write_tiny(folder / "tiny.gguf")
    found: dict[str, str] = {}
    for file_type in FILE_TYPES.values():
        for imatrix in (False, True) if file_type.number is not None else ():
            out, used = folder / "out.gguf", weights if imatrix else {}
            if oracle.quantize(path, out, file_type.number or 0, used, dry=False):
                found[f"{file_type.name} {'imatrix' if imatrix else 'plain'}"] = digest(out)
    (OUT / "files.json").write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    oracle = Oracle(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        record_types(oracle, Path(folder))
        record_files(oracle, Path(folder))


if __name__ == "__main__":
    main()
