"""Untrusted JSON: values are counted before they are created."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyggml.errors import PyggmlError
from pyllama.bench.compare import read_rows
from pyllama.inputs.bounded_json import MAX_DEPTH, count_values, parse_json
from pyllama.runtime.state import MAGIC, VERSION, _read
from pyllama.sparsity.stats import load_stats


def test_limits_of_values_and_nesting() -> None:
    for value in (1, "a", [], {}, [1, 2], {"a": [1, {"b": None}], "c": "d"}, [[]] * 10):
        n, waiting = 0, [value]
        while waiting:
            one = waiting.pop()
            n += 1 + (len(one) if isinstance(one, dict) else 0)
            waiting += (
                one.values() if isinstance(one, dict) else one if isinstance(one, list) else []
            )
        data = json.dumps(value).encode()
        assert count_values(data) >= n and parse_json(data, count_values(data)) == value
        with pytest.raises(ValueError, match=f"{count_values(data)} values, the limit is 0"):
            parse_json(data, 0)
    for n, begin, end in ((MAX_DEPTH, b"[", b"]"), (10**6, b"[", b""), (10**6, b'{"":', b"")):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(begin * n + b"[]" + end * n, 1 << 30)
    n = MAX_DEPTH - 1
    assert parse_json(b"[" * n + b"[]" + b"]" * n, 1 << 30)
    for bad in (b"", b"[1,]", b"\xff", b"9" * 5000, b'"'):
        with pytest.raises(ValueError):
            parse_json(bad, 10)


def _state(path: Path) -> Any:
    text = path.read_bytes()
    return _read(struct.pack("<4sIQI", MAGIC, VERSION, len(text), zlib.crc32(text)) + text, "x")


@pytest.mark.parametrize("read", [read_rows, load_stats, _state])
def test_readers_count_values_before_parsing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], Any]
) -> None:
    """Parsed JSON may take 24 times its size: 300 MB of statistics took 8 GB of memory."""
    (tmp_path / "x").write_bytes(b"[" + b"{}," * (13 << 20) + b"0]")

    def loads(*args: Any, **named: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(json, "loads", loads)
    with pytest.raises(PyggmlError):
        read(tmp_path / "x")


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "[1e999]", '{"a": -1e400}'])
def test_numbers_that_are_not_finite(text: str) -> None:
    parse_json(text.encode(), 9)
    with pytest.raises(ValueError, match="is not a finite number"):
        parse_json(text.encode(), 9, finite=True)
    assert parse_json(b"[1.5, -2e3]", 9, finite=True) == [1.5, -2000.0]
