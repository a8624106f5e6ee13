"""The grids of benchmarks/backend_ops.json name ops of ggml, and parameters and sources of ours."""

from __future__ import annotations

import json

from benchmarks import backend_ops
from pyggml.backend.registry import init_backend
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
