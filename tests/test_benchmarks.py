"""Benchmarks still run: their grids name ops that exist, their roofs call kernels as they are."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    backend_ops,
    bench_model,
    bench_ops,
    bench_peers,
    performance_page,
    random_llama,
    sparse_files,
)
from benchmarks.roof import mac_roof, read_roof
from pyggml.backend.registry import init_backend
from pyggml.dtype import GGMLType
from pyggml.ggml_ops import GGML_OPS
from pyggml.ops import OPS
from pyllama import Batch, Context, Model
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


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    sizes = {"N_EMBD": 256, "N_FF": 512, "N_LAYER": 2, "N_HEAD": 4, "N_HEAD_KV": 2, "N_VOCAB": 512}
    for name, size in sizes.items():
        monkeypatch.setattr(random_llama, name, size)
    path = tmp_path / "small.gguf"
    random_llama.write_gguf(path, random_llama.metadata(), random_llama.tensors())
    return path


def test_random_model_keeps_values_in_bounds(small_model: Path) -> None:
    context = Context(Model.load(small_model), n_ctx=64)
    context.decode(Batch(list(range(260, 290))))
    assert 0.3 < np.std(context.logits[-1]) < 3
    matrices = 512 * 256 + 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512)
    assert bench_model.token_bytes(context.model) == matrices * 18 // 32


def test_ops_are_measured_at_their_shapes() -> None:
    (found, *_) = bench_ops.chosen(["RMS_NORM"], "")
    line = bench_ops.measure(*found, threads=1, repeats=1)
    assert line["us"] > 0 and line["gb_per_s"] > 0 and "gmac_per_s" not in line
    (found, *_) = bench_ops.chosen(["MUL_MAT"], "q4_1")
    line = bench_ops.measure(*found, threads=1, repeats=1)
    assert "mul_mat_q4_1_x16" in line["kernels"]
    assert line["gmac_per_s"] > 0 and line["of_mac_roof"] > 0
    with pytest.raises(SystemExit, match="no op NONE"):
        bench_ops.chosen(["NONE"], "")


def test_names_of_tests() -> None:
    found = bench_model.cases("pp512,tg64@d512")
    assert [bench_model.name(case) for case in found] == ["pp512", "tg64 @ d512"]
    with pytest.raises(SystemExit, match="no test"):
        bench_model.cases("pp")


def test_peers_and_the_page_of_them(
    small_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "pictures").mkdir()
    peer = tmp_path / "llama-bench"
    peer.write_text(f"#!{sys.executable} -P\nprint('{{\"avg_ts\": 2.0}}')\n")
    peer.chmod(peer.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(bench_model, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(performance_page, "ROOT", tmp_path)
    monkeypatch.setattr(performance_page, "PLOT", tmp_path / "pictures" / "speed.svg")
    flags = ["--native", str(peer), "--tests", "pp4,tg2", "--threads", "1", "--rounds", "2"]
    monkeypatch.setattr(sys, "argv", ["bench_peers", str(small_model), *flags])
    bench_peers.main()
    text = (tmp_path / "results" / "peers.jsonl").read_text()
    prompt, generation = map(json.loads, text.splitlines())
    assert prompt["native"] == 2.0 and prompt["over_native"] == pytest.approx(prompt["ours"] / 2)
    assert generation["of_roof"] > 0 and "of_roof" not in prompt
    assert "| pp4 |" in performance_page.page()
    assert (tmp_path / "pictures" / "speed.svg").read_text().startswith("<svg")
