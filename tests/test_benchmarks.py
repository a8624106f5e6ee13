"""Benchmarks still run: their grids name ops that exist, their roofs call kernels as they are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import backend_ops, sparse_files
from benchmarks.roof import mac_roof, read_roof
from pyggml.backend.registry import init_backend
from pyggml.dtype import GGMLType
from pyggml.ggml_ops import GGML_OPS
from pyggml.ops import OPS
from pyllama import Context, Model
from pyllama.observe import observe


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


@pytest.mark.parametrize("type", [GGMLType.Q4_0, GGMLType.F16])
def test_random_layers_open_the_wanted_share_of_gates(
    type: GGMLType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes = {"N_EMBD": 256, "N_FF": 512, "RANK": 32, "N_LAYER": 2, "N_HEAD": 4}
    for name, size in sizes.items():
        monkeypatch.setattr(sparse_files, name, size)
    dense, sparse = sparse_files.write_files(tmp_path, type)
    assert Model.load(dense).hparams.n_ff == 512
    model = Model.load(sparse, sparse="exact")
    for share in (0.1, 0.5):
        sparse_files.set_gates(model, share)
        gates = observe(Context(model, n_ctx=64), list(range(260, 324)), ["ffn_gate-*"])
        assert abs(np.mean([g > 0 for g in gates.values()]) - share) < 0.04
