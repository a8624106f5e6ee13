"""Benchmarks still run: their grids name existing ops, their roofs call the present kernels."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import (
    backend_ops,
    bench_attention,
    bench_model,
    bench_ops,
    bench_peers,
    bench_serve,
    kernel_hashes,
    kv_reduction,
    machine,
    malformed,
    performance_page,
    prepare,
    profile_model,
    random_llama,
    random_model,
    serving_page,
    soak_serve,
    sparse_files,
    sparse_speculation,
    sparse_union,
    steps,
)
from benchmarks.roof import around, mac_roof, read_roof
from pyggml.backend.registry import init_backend
from pyggml.dtype import GGMLType
from pyggml.ops.op import OPS
from pyllama import Batch, Context, Model
from pyllama.bench.bench import BenchCase
from pyllama.convert import convert
from pyllama.inspect.observe import observe
from tests.pyggml.ops.ggml_ops import GGML_OPS
from tests.pyllama.arch.checkpoints import write_checkpoint
from tests.pyllama.models import Spec, random_weights, write_model


@pytest.mark.long
def test_llama_trains_as_torch_does() -> None:
    pytest.importorskip("torch")
    from benchmarks import train_llama

    sizes = train_llama.Sizes(
        n_embd=32, n_head=4, n_head_kv=2, n_ff=48, n_layer=2, n_ctx=80, n_batch=2
    )
    line = train_llama.measure(sizes, steps=8, threads=2, compiled=False)
    assert line["largest_difference"] < 1e-3
    assert line["losses"]["pyggml"][-1] < line["losses"]["pyggml"][0]


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


@pytest.mark.long
def test_machine_code_is_compared_without_names() -> None:
    text = "\t.file\t1\n_ZN3fooB2v{}E:\n\tmovabsq\t$_ZN3fooB2v{}E, %rax\n\tret\n"
    texts = {kernel_hashes.normalized(text.format(n, n)) for n in (1, 27)}
    assert texts == {"symbol0:\n\tmovabsq\t$symbol0, %rax\n\tret"}
    code = "from benchmarks.kernel_hashes import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "scale_f32"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert re.fullmatch(r"[0-9a-f]{16} +\d+ kernels\.elementwise\.unary\.scale_f32\n", done.stdout)


def test_roofs_can_be_measured() -> None:
    assert mac_roof(GGMLType.Q4_1, n_threads=1, tries=1) > 0
    assert read_roof(1 << 20, n_threads=2, tries=1) > 0
    found, rate = around(lambda: 7.0, 1 << 20, n_threads=2, tries=1)
    assert found == 7.0 and rate > 0


@pytest.fixture
def small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"N_EMBD": 256, "N_FF": 512, "RANK": 32, "N_LAYER": 2, "N_HEAD": 4}
    for name, size in sizes.items():
        monkeypatch.setattr(sparse_files, name, size)


@pytest.mark.usefixtures("small_layers")
@pytest.mark.parametrize("type", [GGMLType.Q4_0, GGMLType.F16])
def test_random_layers_open_the_wanted_share_of_gates(type: GGMLType, tmp_path: Path) -> None:
    dense, sparse = sparse_files.write_files(tmp_path, type)
    assert Model.load(dense).hparams.n_ff == 512
    model = Model.load(sparse, sparse="exact")
    for share in (0.1, 0.5):
        sparse_files.set_gates(model, share)
        gates = observe(Context(model, n_ctx=64), list(range(260, 324)), ["ffn_gate-*"])
        assert abs(np.mean([g > 0 for g in gates.values()]) - share) < 0.04


@pytest.mark.usefixtures("small_layers")
def test_speculation_over_sparse_layers(tmp_path: Path) -> None:
    """A drafter that never errs is always accepted; the text does not change."""
    _, sparse = sparse_files.write_files(tmp_path, GGMLType.Q4_0)
    model = Model.load(sparse, sparse="predictor", sparse_threshold=0.0)
    sparse_files.set_gates(model, None)
    plain, *lines = sparse_speculation.speeds(Context(model, n_ctx=256), [0.0, 1.0], 1)
    assert plain["tokens_per_s"] > 0 and len(lines) == 8
    for line in lines:
        assert line["speed_up"] > 0
        if line["draft"] != "adaptive":
            assert line["added"] == 1 if line["accept"] == 0 else line["added"] > 1.9


@pytest.mark.long
def test_cases_of_reduced_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"N_CTX": 256, "BATCH": 8}.items():
        monkeypatch.setattr(kv_reduction, name, size)
    monkeypatch.setattr(kv_reduction, "text", lambda: "a cache of keys and values. " * 40)
    model = Model.load(write_model(tmp_path / "x.gguf", Spec(n_ctx=1024), random_weights(Spec())))
    lines = [*kv_reduction.measure_perplexity(model, 2)]
    assert [(line["method"], line["share"]) for line in lines] == [
        ("all", 1.0), *((m, s) for s in kv_reduction.SHARES for m in ("window", "important"))
    ]  # fmt: skip
    assert len({line["ppl"] for line in lines}) == 7


def test_masks_share_neurons_by_pairs() -> None:
    masks = sparse_union.masks_of(0.1, 0.5)[:4].astype(int)
    shared = masks @ masks.T
    n = round(0.1 * sparse_union.N_FF)
    assert (np.diag(shared) == n).all() and (shared[~np.eye(4, dtype=bool)] == round(n / 2)).all()


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


def test_steps_are_measured_against_products(
    small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "PROMPT", 32)
    model = Model.load(small_model)
    body, logits = steps.macs(model)
    assert body == 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512) + logits
    assert logits == 512 * 256 and steps.parents(4) == [-1, 0, 0, 1]
    line = steps.measure(model, 1, [2, 5], 20, 1)
    assert min(*line["ratio2"], *line["ratio5"], line["place_16_ms"]) > 0 and line["depth"] == 20


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


def test_attention_to_deep_caches_is_measured() -> None:
    heads = bench_attention.Heads(16, 1, 96, 64, latent=True)
    line = bench_attention.measure("x", heads, GGMLType.F16, 300, 1, repeats=1, least_bytes=1 << 16)
    assert line["us"] > 0 and line["bytes"] == 300 * 96 * 2 * -(-(1 << 16) // (300 * 96 * 2))
    assert min(line["of_fma_roof"], line["of_read_roof"], line["fma_limit_of_read_roof"]) > 0


def test_names_of_tests() -> None:
    found = bench_model.cases("pp512,tg64@d512")
    assert [bench_model.name(case) for case in found] == ["pp512", "tg64 @ d512"]
    with pytest.raises(SystemExit, match="no test"):
        bench_model.cases("pp")


def _x86(vendor: str, family: int, model: int, stepping: int, name: str, flags: str) -> str:
    fields = {
        "processor": 0, "vendor_id": vendor, "cpu family": family, "model": model,
        "model name": name, "stepping": stepping, "flags": flags,
    }  # fmt: skip
    return "".join(f"{key}\t: {value}\n" for key, value in fields.items()) * 2


NEOVERSE = """\
processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd asimddp sve i8mm
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1
"""
XEON = "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"


@pytest.mark.parametrize(
    ("text", "label", "flags"),
    [
        (_x86("AuthenticAMD", 25, 1, 1, "AMD EPYC", "fma avx2 hypervisor"),
         "AMD EPYC (Zen 3, family 25 model 1)", ("avx2", "hypervisor")),
        (_x86("AuthenticAMD", 25, 17, 1, "AMD EPYC 9R14 96-Core Processor", "avx2 avx512f"),
         "AMD EPYC 9R14 (Zen 4, family 25 model 17)", ("avx2", "avx512f")),
        (_x86("AuthenticAMD", 26, 2, 1, "AMD EPYC", "avx512f avx512_vnni"),
         "AMD EPYC (Zen 5, family 26 model 2)", ("avx512f", "avx512_vnni")),
        (_x86("AuthenticAMD", 23, 49, 0, "AMD EPYC 7R32", "avx2"),
         "AMD EPYC 7R32 (Zen 2, family 23 model 49)", ("avx2",)),
        (_x86("GenuineIntel", 6, 143, 8, XEON, "avx2 avx512f amx_int8"),
         "Intel Xeon Platinum 8481C (Sapphire Rapids, family 6 model 143)",
         ("avx2", "avx512f", "amx_int8")),
        (_x86("GenuineIntel", 6, 0x55, 7, "Intel(R) Xeon(R) CPU @ 2.50GHz", "avx512f"),
         "Intel Xeon (Cascade Lake, family 6 model 85)", ("avx512f",)),
        (_x86("GenuineIntel", 6, 0x55, 4, "Intel(R) Xeon(R) CPU @ 2.50GHz", ""),
         "Intel Xeon (Skylake, family 6 model 85)", ()),
        (_x86("AuthenticAMD", 99, 7, 0, "AMD EPYC", ""), "AMD EPYC (family 99 model 7)", ()),
        (NEOVERSE, "ARM (Neoverse V1, part 0xd40)", ("asimddp", "i8mm", "sve")),
    ],
)  # fmt: skip
def test_cpus_are_named(text: str, label: str, flags: tuple[str, ...]) -> None:
    found = machine.parse_cpuinfo(text)
    assert found.label == label
    assert set(found.flags) == set(flags)


def test_cpus_of_other_systems_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Intel64 Family 6 Model 143 Stepping 8, GenuineIntel"
    assert machine.parse_windows(text).label == "Intel (Sapphire Rapids, family 6 model 143)"
    assert machine.parse_windows("Alpha").label == "Alpha"
    assert machine.parse_cpuinfo("").family is None
    head = machine.head(2)
    assert head["cpu"] and head["host"]["cores"] > 0 and head["versions"]["numba"]
    assert json.loads(json.dumps(head)) == head
    assert 0 <= machine.busy_share(0.02) <= 1


def test_old_lines_name_a_cpu_only_where_it_is_known() -> None:
    old = {"cpu": "AMD EPYC", "time": "2026-11-22T00:29:20Z"}
    assert machine.label(old) == machine.ZEN3
    assert machine.label(old | {"time": "2026-11-22T05:37:31Z"}) == machine.ZEN5
    assert machine.label(old | {"time": "2026-11-23T02:15:25Z"}) == machine.NOT_RECORDED
    assert machine.label(old | {"host": {"cores": 2}}) == "AMD EPYC"
    assert machine.label({}) == "CPU not recorded"
    for name in ("peers", "model", "profile"):
        for line in performance_page._lines(f"{name}.jsonl"):
            assert machine.label(line) != "AMD EPYC"


def test_generated_tokens_count_keys_and_values(small_model: Path) -> None:
    context = Context(Model.load(small_model), n_ctx=64)
    case = BenchCase(n_gen=3, n_depth=10)  # reads 11, 12 and 13 cells of 2 layers, 2 heads, F16
    assert bench_model.kv_bytes(context, case) == 12 * (2 * 2 * 2 * 64 * 2)


def test_generated_tokens_read_and_write_states(tmp_path: Path) -> None:
    path = convert(write_checkpoint(tmp_path / "x", "mamba2"), tmp_path / "x.gguf", "f32")
    context = Context(Model.load(path), n_ctx=64, n_seq_max=2)
    sizes = [ne for of_layer in context.model.hparams.states for ne in of_layer.values()]
    assert bench_model.state_bytes(context) == 2 * sum(4 * math.prod(ne) for ne in sizes) > 0
    ours = SimpleNamespace(bytes=7, context=context)
    case = BenchCase(n_gen=3)
    want = 7 + bench_model.kv_bytes(context, case) + bench_model.state_bytes(context)
    assert bench_model.Ours.read_bytes(ours, case) == want  # type: ignore[arg-type]


def test_random_models_say_their_type() -> None:
    assert [random_model.file_type(t) for t in (GGMLType.Q4_0, GGMLType.Q8_0)] == [2, 7]


def test_the_phases_of_a_token_are_timed(small_model: Path) -> None:
    context = Context(Model.load(small_model), n_ctx=64, n_threads=1)
    context.decode(Batch([1]))
    times = profile_model.phase_times(context, 1, 2)
    assert len(context._graphs) == 1  # that of the token
    rows = profile_model.rows_of(times)
    assert math.isclose(sum(row["share"] for row in rows), 1)
    assert any(row["gb_per_s"] for row in rows)


ZEN5 = {"vendor": "AMD", "microarchitecture": "Zen 5", "cores": 2, "flags": ["avx512_vnni"],
        "caches": {"L2": 1 << 20, "L3": 32 << 20}}  # fmt: skip


def _line(time: str, test: str, ours: float, **more: Any) -> dict[str, Any]:
    kind = {"time": time, "isa": "avx512vnni", "threads": 2, "model": "llama 135M Q4_1"}
    line = kind | {"cpu": "AMD EPYC (Zen 5, family 26 model 2)", "host": ZEN5, "test": test}
    return line | {"ours": ours, "samples": {"ours": [ours] * 3}} | more


def _nameless(line: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in line.items() if k != "host"} | {"cpu": "AMD EPYC"}


def test_newest_lines_of_each_cpu_are_used() -> None:
    old, new = "2026-11-24T01:00:00Z", "2026-11-25T01:00:00Z"
    peer = {"native": 100.0, "over_native": 4.0}
    intel = {"cpu": "Intel Xeon (Sapphire Rapids, family 6 model 143)", "host": {"vendor": "Intel"}}
    tried = _line(new, "pp512", 9.0, **peer)
    tried["samples"] = {"ours": [9.0]}
    peers = [
        _line(old, "pp512", 300.0, **peer),
        _line(new, "pp512", 400.0, **peer),
        tried,  # one round counts less than an older line of three
        _line(old, "tg64", 50.0, **peer, of_roof=0.8),
        _line(old, "pp512", 700.0, **intel),
        _nameless(_line("2026-11-22T10:00:00Z", "pp512", 200.0)),  # measured again on a Zen 5
        _nameless(_line("2026-11-22T10:00:00Z", "pp2000", 200.0)),  # not measured again
        _nameless(_line("2026-11-22T01:00:00Z", "pp512", 100.0, isa="avx2")),  # a Zen 3
    ]
    alone = [_line(new, "tg64", 70.0), _line(new, "tg64 @ d512", 30.0, threads=1, of_roof=0.9)]
    model = [r | {"ts": r["ours"], "samples_ts": [1.0] * 5} for r in alone]
    for r in model:
        del r["ours"], r["samples"]
    cpus = performance_page.rows({"peers.jsonl": peers, "model.jsonl": model})
    found = {cpu: [(r["test"], r["ours"]) for r in lines] for cpu, lines in cpus.items()}
    assert found == {
        "AMD EPYC (Zen 5, family 26 model 2)": [
            ("pp512", 400.0), ("tg64", 50.0), ("tg64 @ d512", 30.0),
        ],
        "Intel Xeon (Sapphire Rapids, family 6 model 143)": [("pp512", 700.0)],
        machine.ZEN5: [("pp2000", 200.0)],
        machine.ZEN3: [("pp512", 100.0)],
    }  # fmt: skip
    deep = cpus["AMD EPYC (Zen 5, family 26 model 2)"][-1]
    assert "of_roof" not in deep  # of weights alone, before keys and values counted
    text = performance_page.summary(cpus)
    assert "4.0 times as fast as by llama.cpp compiled there" in text and "80% of the rate" in text
    assert text.count(". ") == 2 and "notes" not in text


def test_llama_cpp_is_built_once_and_without_amx_where_it_crashes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[bool] = []

    def compile(folder: Path, root: Path, program: Path, kind: str, no_amx: bool) -> None:
        made.append(no_amx)
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n" + ("" if no_amx else "kill -ILL $$\n"))
        program.chmod(0o755)

    amx = machine.Cpu("Intel", "Intel Xeon", 6, 143, 8, flags=("amx_int8",))
    monkeypatch.setattr(machine, "cpu", lambda: amx)
    monkeypatch.setattr(prepare, "_compile", compile)
    said: list[str] = []
    for _ in range(2):
        found = prepare.build(tmp_path, "native", tmp_path / "x.gguf", said.append)
        assert found.name == "llama.cpp 11434, native build, AMX off"
        assert "intel-6-143-8" in str(found.program)
        served = prepare.build_server(tmp_path, tmp_path / "x.gguf", said.append)
        assert served.program.name == "llama-server-native-no-amx"
    assert made == [False, True, True] and any("without AMX" in line for line in said)
    with pytest.raises(prepare.Missing, match="does not run"):
        prepare.build(tmp_path, "avx2", tmp_path / "x.gguf", said.append)
    monkeypatch.undo()
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(prepare.Missing, match="no C"):
        prepare.build(tmp_path, "sse42", tmp_path / "x.gguf", said.append)


def test_files_of_the_demo_model_are_made_once(
    small_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prepare, "demo_model_path", lambda: small_model)
    files = prepare.demo_files(tmp_path)
    assert [Model.load(path, vocab_only=True).desc.split()[-1] for path in files] == [
        "Q4_0", "Q4_0", "Q8_0", "F16",
    ]  # fmt: skip
    times = [path.stat().st_mtime_ns for path in files]
    assert [path.stat().st_mtime_ns for path in prepare.demo_files(tmp_path)] == times
    path = prepare.random_file(tmp_path)
    assert prepare.random_file(tmp_path) == path and path.stat().st_size > 0


def test_time_left_follows_measured_times(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    limits = bench_peers.Limits(5, 60.0)
    assert [limits.done(n, 0.0) for n in (3, 5)] == [False, True]
    tests = [(100_000_000, case) for case in bench_model.cases("pp512,tg64,tg64,tg64")]
    progress = bench_peers.Progress(tests, limits)
    before = progress.left()
    now[0], progress.done = 600.0, 2  # far slower than expected
    assert before == "about 3 min left" and progress.left() == "about 10 min left"
    assert limits.done(3, 0.0)
    progress.done = 4
    assert progress.left() == "done"


def test_instruction_sets_are_forced_in_children(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[tuple[list[str], str]] = []

    def run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        ran.append((command[4:], env["PYGGML_ISA"]))
        return subprocess.CompletedProcess(command, 3 if "x" in command else 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["bench_peers", "x", "--isa", "generic,none", "--rounds", "3"])
    with pytest.raises(SystemExit) as ended:
        bench_peers.main()
    assert ended.value.code == 3 and ran == [(["x", "--rounds", "3"], "generic")]


@pytest.mark.parametrize(("more", "loads"), [([], 1), (["--reload"], 9)])
def test_peers_and_their_page(
    more: list[str], loads: int, small_model: Path, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    loaded: list[Path] = []
    load = Model.load

    def counted(path: Path, **options: Any) -> Model:
        loaded.append(path)
        return load(path, **options)

    monkeypatch.setattr(Model, "load", counted)
    (tmp_path / "results").mkdir()
    (tmp_path / "pictures").mkdir()
    peer = tmp_path / "llama-bench"
    peer.write_text(
        f"#!{sys.executable} -P\nimport sys\nprint('{{\"avg_ts\": 2.0}}')\nsys.exit('-d 3' in "
        "' '.join(sys.argv))\n"
    )
    monkeypatch.setattr(machine, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(performance_page, "ROOT", tmp_path)
    monkeypatch.setattr(performance_page, "PICTURES", tmp_path / "pictures")
    ik = tmp_path / "python"
    ik.write_text(
        f"#!{sys.executable} -P\nimport sys\n"
        "print('log', 'PEER {\"ts\": %d.0}' % (3 + ('--repack' in sys.argv)))\n"
    )
    for program in (peer, ik):
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    flags = ["--native", str(peer), "--ik", str(ik), "--tests", "pp4,tg2,tg2@d3"]
    flags += ["--threads", "1", "--rounds", "3", *more]
    monkeypatch.setattr(sys, "argv", ["bench_peers", str(small_model), *flags])
    bench_peers.main()
    assert len(loaded) == loads
    text = (tmp_path / "results" / "peers.jsonl").read_text()
    prompt, generation, deep = map(json.loads, text.splitlines())
    assert "native" not in deep and "is left out of tg2 @ d3" in capsys.readouterr().out
    assert prompt["ik"] == deep["ik"] == 4.0 and prompt["native"] == 2.0
    assert prompt["over_native"] == pytest.approx(prompt["ours"] / 2)
    assert generation["of_roof"] > 0 and "of_roof" not in prompt
    page = performance_page.page()
    (plot,) = (tmp_path / "pictures").glob("speed-*.svg")
    assert "| pp4 |" in page and f"pictures/{plot.name}" in page
    assert plot.read_text().startswith("<svg")


class FakeServer:
    """Answers `/completion` as llama-server does: three tokens, some milliseconds apart."""

    def __init__(self) -> None:
        self.running = self.most_running = 0
        self.bodies: list[dict[str, Any]] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length
        self.bodies.append(json.loads(await reader.readexactly(int(length[1]))))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        final = {"content": "", "stop": True, "tokens_evaluated": 7, "tokens_predicted": 3}
        for event in ({"content": "a"}, {"content": "b"}, final):
            await asyncio.sleep(0.01)
            writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await writer.drain()
        self.running -= 1
        writer.close()


def test_loads_of_a_server() -> None:
    fake = FakeServer()

    async def loads() -> list[list[bench_serve.Answer]]:
        async with await asyncio.start_server(fake.answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            bodies = [bench_serve.MIXES["shared prompt"].body(f"0/{i}") for i in range(8)]
            closed = await bench_serve.closed_loop(port, bodies, 2)
            assert fake.most_running == 2
            return [closed, await bench_serve.open_loop(port, bodies, 500.0, "seed")]

    for answers in asyncio.run(loads()):
        assert [(a.n_prompt, a.n_tokens) for a in answers] == 8 * [(7, 3)]
        assert all(0.005 < a.first < a.last and a.good for a in answers)
        found = bench_serve.summary(answers, 2.0)
        assert found["tokens_per_s"] == 12.0 and found["prompt_tokens_per_s"] == 28.0
        assert found["ttft_p50"] <= found["ttft_p95"] <= found["ttft_p99"]
    prompts = [body["prompt"].split() for body in fake.bodies]
    assert fake.most_running > 2
    assert len({tuple(words[:500]) for words in prompts}) == 1
    assert len({tuple(words) for words in prompts}) == 8


def test_an_error_of_a_server_ends_the_benchmark() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
        writer.close()

    async def ask() -> None:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            await bench_serve.ask(server.sockets[0].getsockname()[1], {"prompt": "a"})

    with pytest.raises(bench_serve.Refused, match="503 Service Unavailable"):
        asyncio.run(ask())


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95, 1.0])
def test_percentiles(share: float) -> None:
    values = [3.0, 1.0, 2.0, 4.0]
    found = bench_serve.percentile(values, share)
    assert found in values and sum(v <= found for v in values) >= share * 4
    assert sum(v < found for v in values) < max(share * 4, 1)


def test_page_of_the_server_under_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(serving_page, "PICTURES", tmp_path)
    answers = [bench_serve.Answer(0.1 * i, 0.1 * i + 1, 50, 20) for i in range(1, 5)]
    head = machine.head(2) | {"file": "x.gguf"}
    loads = [bench_serve.Test("chat", 4, 0.0, 4), bench_serve.Test("chat", 0, 2.0, 4, 0.5)]
    lines = [
        head | dataclasses.asdict(test) | bench_serve.summary(answers, 4.0)
        | {"server": server, "name": server, "ours_over_tokens_per_s": 2.5}
        for test in loads for server in ("ours", "native")
    ]  # fmt: skip
    soak = head | {
        "run": "hang up", "requests": 100, "findings": 0, "rss_end_mib": 200.0, "growth": 0.001,
        **{f"{key}_{p}_ms": 2.0 for key in ("health", "late") for p in ("p50", "p99", "max")},
        "load_before": 1.0, "load_after": 2.0, "counts": {"a: answered": 70, "b: answered": 30},
        "samples": [(0, 0.0, 200.0, 8, 5), (100, 1.0, 200.2, 9, 5)],
    }  # fmt: skip
    huge = soak | {"run": "largest", "gap_p99_ms": 2.0, "gaps_ms": {
        "none": 1.0, "stop": 31.0, "all at once": 400.0}}  # fmt: skip
    ended = soak | {"run": "exits", "exit_p50_s": 0.5, "exit_max_s": 2.25}
    found = {"serve.jsonl": lines, "soak.jsonl": [soak, huge, ended]}
    monkeypatch.setattr(serving_page, "newest", lambda file, *keys: found[file])
    page = serving_page.page()
    assert "| hang up | 100 | 100 answered | 0 | 200 (+0.1%) | 2/2/2 | 2/2/2 | 1 to 2 |" in page
    assert "| largest | 100 | 0 | 2.0 | 31 (stop) | 400 | 2.0 |  | 1 to 2 |" in page
    assert "| exits | 100 | 0 |  |  |  |  | 0.5/2.2 | 1 to 2 |" in page
    assert "2.5 to 2.5 times as many tokens as llama-server, native" in page
    assert "**chat, 4 clients**" in page and "**chat, 2.00 requests a second arrive**" in page
    pictures = list(tmp_path.glob("serving-*.svg"))
    assert len(pictures) == 2
    for picture in pictures:
        assert f"pictures/{picture.name}" in page and picture.read_text().startswith("<svg")


def test_memory_that_grows() -> None:
    flat = [(i, i / 10, 200.0 + (i % 3) / 10, 9, 5) for i in range(0, 1000, 10)]
    early = [(n, s, mib - 50 * (n < 150), f, t) for n, s, mib, f, t in flat]
    leak = [(n, s, mib + n / 100, f, t) for n, s, mib, f, t in flat]
    for samples in (flat, early):
        assert abs(soak_serve.slope(samples)[1]) < soak_serve.MAX_GROWTH
    per_1000, growth = soak_serve.slope(leak)
    assert per_1000 == pytest.approx(10, rel=0.05) and growth > soak_serve.MAX_GROWTH


def test_the_largest_requests_are_as_large_as_is_allowed() -> None:
    from pyllama.server.request.limits import LIMITS, check_sizes

    requests = {name: body for name, (_, body) in malformed.largest(n_ctx=64).items()}
    for body in requests.values():
        check_sizes(body)
    for name in LIMITS.keys() - {"samplers", "model"}:  # which may be there once, and are read
        value, limit = requests[name][name], LIMITS[name]
        text = json.dumps(value, ensure_ascii=False)
        assert len(value) == limit.items or len(text) >= limit.chars // 3


def test_verdicts_of_malformed_requests() -> None:
    http, other = (malformed.malformed(0, kind) for kind in ("value", "bytes_on_a_socket"))
    assert soak_serve.verdict(http, [400]) == soak_serve.verdict(other, [400, 404]) == "4xx"
    assert soak_serve.verdict(other, []) == "closed" and soak_serve.verdict(http, [200]) == "valid"
    assert soak_serve.verdict(malformed.malformed(1141, "path"), [501]) == "501"
    for one, codes in ((http, []), (http, [500]), (other, [400, 501]), (http, [307])):
        assert soak_serve.verdict(one, codes).startswith("finding")
    body = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}"
    assert (soak_serve.missing(body), soak_serve.missing(body[:-1])) == (0, 1)
    assert soak_serve.missing(body + body[:20]) == soak_serve.missing(b"") == 1
