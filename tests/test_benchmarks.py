"""Benchmarks still run: their grids name ops that exist, their roofs call kernels as they are."""

from __future__ import annotations

import json

from benchmarks import backend_ops
from benchmarks.roof import mac_roof, read_roof
from pyggml.backend.registry import init_backend
from pyggml.dtype import GGMLType
from pyggml.ggml_ops import GGML_OPS
from pyggml.ops import OPS


def test_grids_are_well_formed() -> None:
    grids = json.loads(backend_ops.GRIDS.read_text(encoding="utf-8"))
    assert grids.pop("about")
    assert set(grids) <= set(GGML_OPS)
    backend = init_backend("cpu", n_threads=1)
    for name in set(grids) & set(OPS):
        for entry in grids[name]:
            for shape in backend_ops.shapes(entry):
                why = backend_ops.refusal(OPS[name], shape, backend)
                assert "takes the sources" not in why and "no parameter" not in why, (name, why)
    backend.close()


def test_roofs_can_be_measured() -> None:
    assert mac_roof(GGMLType.Q4_1, n_threads=1, tries=1) > 0
    assert read_roof(1 << 20, n_threads=2, tries=1) > 0
