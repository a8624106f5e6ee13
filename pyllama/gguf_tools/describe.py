"""Describes a GGUF file as plain data: the content of ``gguf-dump --json``, and sizes.

    found = describe(GGUFFile("x.gguf"))
    found["types"]["Q4_1"]                         # {'tensors': 181, 'parameters': ..., ...}

Source: gguf-py, ``gguf_dump``.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from pyggml.gguf import GGUFFile, GGUFStrings, ValueType

from ..graph.sparse.sources import THRESHOLD_KEY
from ..graph.sparse.weights import has_transposed_experts


def describe(file: GGUFFile, *, arrays: bool = False, tensors: bool = True) -> dict[str, Any]:
    """Return metadata, tensors and totals as plain data for JSON.

    Args:
        arrays: include the values of arrays, not only their types and lengths.
        tensors: include an entry for each tensor.
    """
    found: dict[str, Any] = {
        "filename": str(file.path),
        "magic": file.magic.decode(),
        "version": file.version,
        "endian": "LITTLE",
        "alignment": file.alignment,
        "data_offset": file.data_offset,
        "parts": [str(part.path) for part in file.parts],
        "metadata": {key: _entry(file, i, key, arrays) for i, key in enumerate(file.value_types)},
        **_sparse(file),
        **_adapter(file),
        "types": _totals(file),
    }
    if tensors:
        found["tensors"] = {
            t.name: {
                "index": i,
                "shape": list(t.ne[: t.n_dims]),
                "type": t.type.name,
                "offset": t.offset,
                "bytes": t.nbytes,
                **({"part": t.part} if len(file.parts) > 1 else {}),
            }
            for i, t in enumerate(file.tensors.values())
        }
    return found


def type_name(file: GGUFFile, key: str) -> str:
    """Return the type of a metadata value; for an array its element type in brackets."""
    kind = file.value_types[key]
    return f"[{element_type(file.metadata[key])}]" if kind is ValueType.ARRAY else kind.name


def element_type(value: Any) -> str:
    """Return the name of an array's element type."""
    if isinstance(value, GGUFStrings):
        return ValueType.STRING.name
    return next(t.name for t in ValueType if t.code and t.dtype == value.dtype)


def _entry(file: GGUFFile, index: int, key: str, arrays: bool) -> dict[str, Any]:
    value: Any = file.metadata[key]
    kind = file.value_types[key]
    entry: dict[str, Any] = {"index": index, "type": kind.name}
    if isinstance(value, np.ndarray | GGUFStrings):
        entry |= {"array_types": [element_type(value)], "length": len(value)}
        if not arrays:
            return entry
        value = value.tolist()
    return entry | {"value": value}


def _sparse(file: GGUFFile) -> dict[str, Any]:
    """Return the parts of a file that sparse inference uses; {} if there are none."""
    experts = [i for i in _layers(file, "ffn_down_exps") if has_transposed_experts(file, i)]
    down = sorted([*_layers(file, "ffn_down_t"), *experts])
    ranks = {i: file.tensors[f"blk.{i}.fc1.weight"].ne[1] for i in _layers(file, "fc1")}
    if not (down or ranks or THRESHOLD_KEY in file.metadata):
        return {}
    threshold = file.metadata.get(THRESHOLD_KEY)
    if not isinstance(threshold, int | float):
        threshold = None
    return {"sparse": {"threshold": threshold, "down_transposed": down, "predictor_ranks": ranks}}


def _adapter(file: GGUFFile) -> dict[str, Any]:
    """Return ranks and factors of a LoRA adapter, or layers of a control vector; {} for others."""
    base, type, hint = (
        value if isinstance(value := file.metadata.get(key), str) else None
        for key in ("general.architecture", "adapter.type", "controlvector.model_hint")
    )
    if base == "controlvector":
        layers = (re.fullmatch(r"direction\.([0-9]{1,6})", name) for name in file.tensors)
        found: dict[str, Any] = {"layers": sorted(int(match[1]) for match in layers if match)}
        return {"adapter": {"kind": "control vector", "architecture": hint} | found}
    if type != "lora":
        return {}
    alpha = file.metadata.get("adapter.lora.alpha")
    tokens = file.metadata.get("adapter.alora.invocation_tokens")
    ranks = {
        name.removesuffix(".lora_b"): info.ne[0]
        for name, info in file.tensors.items()
        if name.endswith(".lora_b")
    }
    found = {
        "kind": "LoRA",
        "architecture": base,
        "alpha": alpha if isinstance(alpha, int | float) else None,
        "ranks": ranks,
        "invocation_tokens": tokens.tolist() if isinstance(tokens, np.ndarray) else [],
    }
    return {"adapter": found}


def _layers(file: GGUFFile, part: str) -> list[int]:
    """Return the layers that have the matrix ``part``."""
    names = (re.fullmatch(rf"blk\.(\d+)\.{part}\.weight", name) for name in file.tensors)
    return sorted(int(match[1]) for match in names if match)


def _totals(file: GGUFFile) -> dict[str, dict[str, int]]:
    """Return the number of tensors, parameters and bytes of each type, largest first."""
    totals: dict[str, dict[str, int]] = {}
    for info in file.tensors.values():
        new = {"tensors": 0, "parameters": 0, "bytes": 0}
        total = totals.setdefault(info.type.name, new)
        total["tensors"] += 1
        total["parameters"] += info.n_elements
        total["bytes"] += info.nbytes
    return dict(sorted(totals.items(), key=lambda item: -item[1]["bytes"]))
