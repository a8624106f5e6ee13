"""GGUF files for tests: a small one with every type, pieces to build bad ones by hand, the demo."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml import env
from pyllama.hub.demo import DEMO

NUMPY_CODES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")
METADATA: dict[str, Any] = {
    "u8": np.uint8(255),
    "i8": np.int8(-128),
    "u16": np.uint16(65_535),
    "i16": np.int16(-32_768),
    "u32": np.uint32(2**32 - 1),
    "i32": np.int32(-(2**31)),
    "u64": np.uint64(2**64 - 1),
    "i64": np.int64(-(2**63)),
    "f32": np.float32(0.1),
    "f64": np.float64(1e300),
    "yes": np.bool_(True),
    "no": np.bool_(False),
    "name": "tiny – 小",
    "empty": "",
    "tokens": ["a", "", "Ġthe", "x" * 300, "日本", "\n"],
    "one": ["only"],
    "ids.i32": np.array([-1, 2], np.int32),
    **{f"all.{t}": np.array([0, 1, 2], t) for t in NUMPY_CODES},
    "all.bool": np.array([True, False, True]),
}
QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "BF16", "IQ4_NL", "TQ2_0")


def write_sample(path: Path) -> Path:
    """All value types, all array types, plain and quantized tensors, by the gguf package alone."""
    import gguf

    kinds = gguf.GGUFValueType
    names = {"u": "UINT", "i": "INT", "f": "FLOAT"}
    w = gguf.GGUFWriter(path, "llama")
    for key, value in METADATA.items():
        if isinstance(value, str):
            w.add_key_value(key, value, kinds.STRING)
        elif isinstance(value, list):
            w.add_array(key, value)
        else:
            code = value.dtype.kind
            kind = kinds.BOOL if code == "b" else kinds[names[code] + str(8 * value.itemsize)]
            if value.ndim:
                w.add_key_value(key, value.tolist(), kinds.ARRAY, kind)
            else:
                w.add_key_value(key, value.item(), kind)
    rng = np.random.default_rng(1)
    w.add_tensor("weight", rng.normal(size=(3, 5)).astype(np.float32))
    for t in (np.float16, np.float64, np.int8, np.int16, np.int32, np.int64):
        w.add_tensor(f"plain.{np.dtype(t).name}", np.arange(7).reshape(1, 7, 1).astype(t))
    w.add_tensor("four", np.ones((2, 3, 1, 2), np.float32))
    for name in QUANTIZED:
        kind = gguf.GGMLQuantizationType[name]
        shape = gguf.quant_shape_to_byte_shape((2, 256), kind)
        w.add_tensor(f"q.{name}", rng.integers(0, 256, shape, np.uint8), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


# --- pieces of a file -----------------------------------------------------------------------------


def put(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    return path


def header(n_tensors: int, n_kv: int, *, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_kv)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def kv(key: str | bytes, kind: int, value: bytes) -> bytes:
    return string(key if isinstance(key, bytes) else key.encode()) + struct.pack("<I", kind) + value


def numbers(kind: int, values: bytes) -> bytes:
    """An array of one-byte values."""
    return struct.pack("<IQ", kind, len(values)) + values


def tensor(name: str, ne: Sequence[int], kind: int, offset: int) -> bytes:
    dims = struct.pack(f"<I{len(ne)}q", len(ne), *ne)
    return string(name.encode()) + dims + struct.pack("<IQ", kind, offset)


def tensors(*entries: bytes) -> bytes:
    """A file of these tensor entries and 256 bytes of data."""
    return header(len(entries), 0) + b"".join(entries) + bytes(256)


def demo_model() -> Path:
    """The demo model if this user has it; skips the test otherwise."""
    path = Path(env.DEMO_MODEL.get() or env.user_cache_dir("pyllama") / DEMO.file_name)
    if not path.is_file():
        pytest.skip("the demo model is not cached")
    return path
