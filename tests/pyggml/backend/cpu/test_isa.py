"""Every instruction set: the ones of this host run, the others are compiled and read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llvmlite.binding as llvm
import pytest
from llvmlite import ir
from numba import types

from pyggml import jit
from pyggml.backend.cpu import selftest
from pyggml.backend.cpu.simd import (
    attend,
    axpy,
    kv_row,
    plain_rows,
    product,
    row_tile,
    tile,
    transpose,
)
from pyggml.backend.cpu.simd.vector import Avx2, Avx512Vnni, Generic
from pyggml.dtype import GGMLType
from pyggml.errors import BackendError, PyggmlError

ROOT = Path(__file__).parents[4]
FAMILIES = (
    "MUL_MAT",
    "MUL_MAT_ID",
    "MUL_MAT_SPARSE",
    "AXPY",
    "MUL_MAT_SIGNS",
    "FLASH_ATTN_EXT",
    "RMS_NORM",
    "ROPE",
    "GLU",
    "GET_ROWS",
    "SET_ROWS",
)
CASES_OF_AN_OP = 12


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    process = start_python(code, **env)
    out, error = process.communicate(timeout=280)
    return subprocess.CompletedProcess(code, process.returncode, out, error)


def start_python(code: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYGGML_SELF_TEST": "0", **env},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def start_children() -> dict[str, subprocess.Popen[str]]:
    """One for each of this host's simpler sets; they compile for minutes."""
    code = "from tests.pyggml.backend.cpu import test_isa; test_isa.child()"
    return {isa: start_python(code, PYGGML_ISA=isa) for isa in jit.host_isas()[1:]}


def child() -> None:
    """In a process of its own: some cases of each family against the references."""
    from pyggml.backend.registry import init_backend
    from pyggml.ops import OPS
    from tests.pyggml.ops.harness import CaseRun

    backend = init_backend("cpu", n_threads=2)
    tried = 0
    for name in FAMILIES:
        op = OPS[name]
        cases = [c for c in op.cases if all(prod(a.ne) <= 1 << 15 for a in c.args if a is not None)]
        step = max(1, len(cases) // CASES_OF_AN_OP)
        for case in cases[::step]:
            run = CaseRun(op, case, backend)
            if backend.supports_op(run.node):
                run.compute()
                assert run.error() <= op.tolerance(run.node), (name, case.id, run.error())
                tried += 1
    print(jit.isa(), tried)


@pytest.mark.parametrize("isa", jit.host_isas()[1:])  # the first one is what all tests run on
def test_a_simpler_instruction_set_computes_the_same(
    isa: str, children: dict[str, subprocess.Popen[str]]
) -> None:
    """Code of all but the host's best set; its cache directory has the set in its name."""
    out, error = children[isa].communicate(timeout=280)
    assert children[isa].returncode == 0, error
    name, tried = out.split()
    assert name == isa and int(tried) > 3 * len(FAMILIES)


@pytest.mark.parametrize("isa", ["sse9", *(n for n in jit.ISAS if n not in jit.host_isas())])
def test_an_instruction_set_that_is_not_here(isa: str) -> None:
    code = "from pyggml.backend.cpu.backend import CpuBackend; CpuBackend()"
    done = python(code, PYGGML_ISA=isa)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "PyggmlError" in last and isa in last and jit.host_isas()[0] in last
    with pytest.raises(PyggmlError, match="PYGGML_ISA"):
        jit.use_isa(isa)


# --- the self-test ---


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Names that were tried; only "b" and "c" work of a host that has a, b and c."""
    names: list[str] = []

    def attempt(name: str) -> str:
        names.append(name)
        return "exit code -4: no message" if name == "a" else ""

    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(jit, "on_compile", None)  # no progress on stderr
    monkeypatch.setattr(jit, "host_isas", lambda: ("a", "b", "c"))
    monkeypatch.setattr(jit, "cache_dir", lambda name: tmp_path / name)
    monkeypatch.setattr(selftest, "_try", attempt)
    return names


def test_it_steps_down_with_one_line_and_remembers(
    tries: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert selftest._first_working() == "b"
    assert tries == ["a", "b"]
    lines = capsys.readouterr().err.splitlines()  # with those of compilers, where they are slow
    (error,) = [line for line in lines if "kernels fail here" in line]
    assert error.startswith("pyggml: the a kernels") and "code -4" in error
    assert selftest._first_working() == "b"
    assert tries == ["a", "b", "a"]  # a failure is tried again, what passed is not


def test_no_instruction_set_works(tries: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_try", lambda name: "no")
    with pytest.raises(BackendError, match="PYGGML_SELF_TEST"):
        selftest._first_working()


def test_a_child_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "wrong_isa" in selftest._try("wrong_isa")
    monkeypatch.setattr(selftest, "__name__", "no_such_module")
    assert "no_such_module" in selftest._try(jit.host_isas()[0])
    monkeypatch.setattr(selftest.sys, "executable", "/nowhere/python")
    assert "did not end" in selftest._try("generic")


# --- assembly of hosts that we do not have ---

QUANTIZED = (GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q5_1, GGMLType.Q8_0)
FLOATS = (GGMLType.F16, GGMLType.BF16, GGMLType.F32)
X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"


def assembly(
    intrinsic: Any, kind: GGMLType, n_args: int, cpu: str, triple: str, rows: tuple[int, ...] = (4,)
) -> str:
    """The machine code of a tile for 4 tokens (or other literals), as text."""
    module = ir.Module("tile")
    module.triple = triple
    i64 = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [i64] * n_args), "tile")
    builder = ir.IRBuilder(function.append_basic_block())
    literals = [types.literal(int(kind)), *(types.literal(n) for n in rows)]
    _, codegen = intrinsic._defn(None, *literals, *[types.int64] * n_args)
    context = SimpleNamespace(get_dummy_value=lambda: None)
    codegen(context, builder, None, [*(None for _ in literals), *function.args])
    builder.ret_void()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    return str(machine.emit_assembly(parsed))


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("vectors", "cpu", "triple", "dot"),
    [
        (Avx512Vnni, "cascadelake", X86, r"vpdpbusd\s.*zmm"),
        (Avx2, "haswell", X86, r"vpmaddubsw\s.*ymm"),
        (Generic, "generic", ARM, r"fmla\s+v\d+\.4s"),
    ],
    ids=["avx512vnni", "avx2", "aarch64"],
)
def test_quantized_tiles(
    kind: GGMLType, vectors: type[Generic], cpu: str, triple: str, dot: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for module in (tile, product):
        monkeypatch.setattr(module, "vectors", vectors)
    text = assembly(tile.q_tile, kind, 6, cpu, triple)
    assert len(re.findall(dot, text)) >= 4 * (1 if vectors is Generic else 8)
    spilled = len(re.findall(r"vmov\S+\s+%[yz]mm\d+, -?\d*\(%rsp\)", text))
    assert spilled <= (18 if vectors is Avx2 else 0)  # a block's sums stay in registers
    assert not re.search(r"\t(call|bl)\b", text)
    if vectors is Avx512Vnni:  # 8 lines of 64 codes, 4 tokens: and nothing narrower
        assert len(re.findall(dot, text)) == 32 and "ymm" not in text


@pytest.mark.parametrize("kind", FLOATS, ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("vectors", "cpu", "triple", "add"),
    [
        (Avx512Vnni, "cascadelake", X86, r"vfmadd\S+ps\s.*zmm"),
        (Avx2, "haswell", X86, r"vfmadd\S+ps\s.*ymm"),
        (Generic, "generic", ARM, r"fmla\s+v\d+\.4s"),
    ],
    ids=["avx512vnni", "avx2", "aarch64"],
)
def test_float_tiles(
    kind: GGMLType, vectors: type[Generic], cpu: str, triple: str, add: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(tile, "vectors", vectors)
    text = assembly(tile.float_tile, kind, 7, cpu, triple)
    assert len(re.findall(add, text)) >= 4 * vectors().parts
    assert not re.search(r"\t(call|bl)\b", text)
    assert ("vcvtph2ps" in text) == (kind == GGMLType.F16 and triple == X86)


@pytest.mark.parametrize("kind", (*QUANTIZED, *FLOATS), ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("vectors", "cpu", "triple", "register"),
    [
        (Avx512Vnni, "cascadelake", X86, "zmm"),
        (Avx2, "haswell", X86, "ymm"),
        (Generic, "generic", ARM, "v"),
    ],
    ids=["avx512vnni", "avx2", "aarch64"],
)
def test_plain_rows(
    kind: GGMLType, vectors: type[Generic], cpu: str, triple: str, register: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The tile of plain rows, their packing, and AXPY's sums: no calls, whole registers."""
    for module in (plain_rows, product, row_tile, transpose, axpy):
        monkeypatch.setattr(module, "vectors", vectors)
    multiply = r"fmla\s+v\d+\.4s" if triple == ARM else rf"vfmadd\S+ps\s.*{register}"
    for intrinsic, n_args, least in (
        (row_tile.row_tiles, 5, 1),
        (row_tile.pack_rows, 3, 0),
        (axpy.axpy_rows, 5, 8),
        (axpy.decode_row, 5, 0),
    ):
        text = assembly(intrinsic, kind, n_args, cpu, triple, ())
        assert len(re.findall(multiply, text)) >= least
        assert not re.search(r"\t(call|bl)\b", text)


@pytest.mark.parametrize("kind", kv_row.KINDS, ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("vectors", "cpu", "triple", "add"),
    [
        (Avx512Vnni, "cascadelake", X86, r"vfmadd\S+ps\s.*ymm"),
        (Avx2, "haswell", X86, r"vfmadd\S+ps\s.*ymm"),
        (Generic, "generic", ARM, r"fmla\s+v\d+\.4s"),
    ],
    ids=["avx512vnni", "avx2", "aarch64"],
)
def test_rows_of_the_cache(
    kind: GGMLType, vectors: type[Generic], cpu: str, triple: str, add: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for module in (attend, kv_row):
        monkeypatch.setattr(module, "vectors", vectors)
    for intrinsic, n_args, rows, least in (
        (attend.score_cells, 12, (3, 0), 12),
        (attend.score_cells, 12, (3, 0 if kind.is_quantized else 4), 12),
        (attend.weigh_cells, 11, (4, 32), 16),
        (kv_row.transpose_8x8, 11, (), 0),
        (kv_row.widen_8, 3, (), 0),
    ):
        text = assembly(intrinsic, kind, n_args, cpu, triple, rows)
        assert len(re.findall(add, text)) >= least
        assert not re.search(r"\t(call|bl)\b", text)
        if triple == X86:
            assert ("vcvtph2ps" in text) == (kind is GGMLType.F16 or kind.is_quantized)
            assert ("vpmovsxbd" in text) == (kind in (GGMLType.Q8_0, GGMLType.IQ4_NL))
            assert ("vpmovzxbd" in text) == (kind.is_quantized and kind is not GGMLType.Q8_0)
