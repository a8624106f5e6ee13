"""Every instruction set: those of this host run, the assembly of the others is checked."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import pytest
from llvmlite import ir
from llvmlite.binding.targets import FeatureMap
from numba import types

from pyggml.backend.cpu import selftest
from pyggml.backend.cpu.simd import (
    aarch64,
    axpy,
    kv_row,
    plain_rows,
    tile,
    x86,
)
from pyggml.backend.cpu.simd.aarch64 import Asimd, Neon
from pyggml.backend.cpu.simd.amx import splits
from pyggml.backend.cpu.simd.attention import attend, attend_codes, attend_tile
from pyggml.backend.cpu.simd.vector import Generic
from pyggml.backend.cpu.simd.x86 import Avx2, Avx512Vnni, AvxVnni, Sse42
from pyggml.backend.cpu.weights.layout import K_TYPES
from pyggml.compiler import jit, numba_internals
from pyggml.compiler.code_cache import CodeCache
from pyggml.dtype import GGMLType
from pyggml.errors import BackendError, PyggmlError
from pyggml.tensor import Tensor
from tests.tiers import long, only, some
from tests.waiting import until

ROOT = Path(__file__).parents[4]
FAMILIES = (  # ops that take about as long to compile, so that they are shared by test processes
    ("MUL_MAT", "MUL_MAT_ID", "MUL_MAT_SIGNS"),
    ("MUL_MAT_SPARSE", "AXPY"),
    ("FLASH_ATTN_EXT",),
    ("RMS_NORM", "NORM", "SOFT_MAX", "ROPE", "GLU", "GET_ROWS", "SET_ROWS"),
)
CASES_OF_AN_OP = 2  # with the marker ``long``; by default one of some ops, from the middle
UNFUSED = ("sse42", "generic") if jit.ISAS is jit._X86 else ("generic",)
COVERED = {  # sets that need no comparison where another one is there
    "generic": "sse42",  # which is compared with it, and its results are then checked as well
    "avx512vnni": "avx512amx",  # many hosts have no AMX, and run everything with it
}
COMPARED = [i for i in jit.host_isas()[1:] if COVERED.get(i) not in jit.host_isas()]


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYGGML_SELF_TEST": "0", **env},
        capture_output=True, text=True, cwd=ROOT, timeout=280,
    )  # fmt: skip


def has_own_bits(node: Tensor) -> bool:
    """Whether AMX, where there is one, computes a matmul with sums of its own."""
    assert node.op is not None
    w = node.src[0]
    is_matmul = node.op.name == "MUL_MAT" and "avx512amx" in jit.host_isas()
    return is_matmul and splits(w.type, node.op_params["many"])


def child(n_cases: int, *names: str) -> None:
    """In a process of its own: some cases of ops against their references; the results' digest."""
    from pyggml.backend.registry import init_backend
    from pyggml.ops.op import OPS
    from pyggml.quants import to_float
    from tests.pyggml.ops.harness import CaseRun

    backend = init_backend("cpu", n_threads=2)
    tried, digest = 0, hashlib.sha256()
    for name in names:
        op = OPS[name]
        cases = [c for c in op.cases if all(prod(a.ne) <= 1 << 15 for a in c.args if a is not None)]
        step = max(1, len(cases) // n_cases)
        for case in cases[step // 2 :: step]:
            run = CaseRun(op, case, backend)
            if backend.supports_op(run.node) and not has_own_bits(run.node):
                run.compute()
                assert run.error() <= op.tolerance(run.node), (name, case.id, run.error())
                digest.update(to_float(run.node).tobytes())
                tried += 1
    print(jit.isa(), tried, digest.hexdigest())


@cache
def digest_of(isa: str, n_cases: int, names: tuple[str, ...]) -> str:
    code = f"from tests.pyggml.backend.cpu import test_isa; test_isa.child({n_cases}, *{names})"
    done = python(code, PYGGML_ISA=isa)
    assert done.returncode == 0, done.stderr
    name, tried, digest = done.stdout.split()
    assert name == isa and int(tried) > n_cases / 2 * len(names)
    return digest


@pytest.mark.parametrize(
    ("isa", "n_cases", "names"),
    [
        *((isa, 1, ("MUL_MAT", "RMS_NORM", "GET_ROWS")) for isa in jit.host_isas()[1:2]),
        *(long((isa, CASES_OF_AN_OP, names)) for isa in COMPARED for names in FAMILIES),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_simpler_instruction_set_gives_the_same_bits(
    isa: str, n_cases: int, names: tuple[str, ...]
) -> None:
    """All sets but the best: the bits of the best set, or without FMA those of "generic"."""
    same = "generic" if isa in UNFUSED else jit.host_isas()[0]
    assert digest_of(isa, n_cases, names) == digest_of(same, n_cases, names)


@pytest.mark.long
@pytest.mark.skipif(jit.ISAS is jit._AARCH64, reason="names of x86's registers")
@pytest.mark.parametrize("isa", only(jit.host_isas()[1:], jit.host_isas()[-1:]))
def test_loops_that_llvm_vectorises_use_a_simpler_instruction_set_too(isa: str) -> None:
    code = """if True:
        from pyggml.backend.cpu.kernels.rows.norm import rms_norm_f32
        text = rms_norm_f32.assembly()
        print([register for register in ("xmm", "ymm", "zmm") if register in text])
    """
    done = python(code, PYGGML_ISA=isa)
    wide = [] if isa in UNFUSED else ["ymm"]
    widest = ["zmm"] if isa == "avx512vnni" else []  # the simpler set where there is AMX
    assert done.stdout.strip() == str(["xmm", *wide, *widest]), done.stderr


@pytest.mark.parametrize(
    "isa", some(["sse9", *(n for n in jit.ISAS if n not in jit.host_isas())], 1)
)
def test_an_unavailable_instruction_set_is_refused(isa: str) -> None:
    code = "from pyggml.backend.cpu.backend import CpuBackend; CpuBackend()"
    done = python(code, PYGGML_ISA=isa)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "PyggmlError" in last and isa in last and jit.host_isas()[0] in last
    with pytest.raises(PyggmlError, match="PYGGML_ISA"):
        jit.use_isa(isa)


@pytest.mark.parametrize(
    ("system", "cpuinfo", "want"),
    [
        ("linux", "Features\t: fp asimd fphp asimdhp asimddp\nCPU part\t: 0xd0c\n", True),
        ("linux", "Features\t: fp asimd fphp asimdhp\n", False),
        ("darwin", "", True),
    ],
    ids=["neoverse", "old", "mac"],
)
def test_a_host_with_arm(
    system: str, cpuinfo: str, want: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """LLVM does not report dot products on ARM hosts, so they are requested from Numba."""
    (tmp_path / "cpuinfo").write_text(cpuinfo, encoding="utf-8")
    monkeypatch.setattr(jit, "ISAS", jit._AARCH64)
    monkeypatch.setattr(jit, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(jit, "host_isas", jit.host_isas.__wrapped__)
    monkeypatch.setattr(jit.sys, "platform", system)
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: FeatureMap(neon=True))
    monkeypatch.setattr(numba_internals, "_target", None)
    monkeypatch.setattr(jit, "_chosen", None)
    # no code generator for it on this machine
    monkeypatch.setattr(numba_internals, "JITCPUCodegen", lambda name: name)
    monkeypatch.delenv("PYGGML_ISA", raising=False)
    assert jit.host_isas() == (*(["neon"] if want else []), "asimd", "generic")
    assert jit.isa() == jit.host_isas()[0]
    told = numba_internals._target
    assert told == ((None, "+dotprod,+fullfp16,+neon", "pyggml.exec") if want else None)
    if want:
        jit.use_isa("generic")
        assert numba_internals._target == ("generic", "", "pyggml.exec")


@pytest.mark.skipif(jit.ISAS is jit._AARCH64, reason="x86's features")
@pytest.mark.parametrize("permitted", [True, False])
@pytest.mark.parametrize(
    "lacks", ["", "amx-tile", "amx-int8", "amx-bf16", "avx512fp16", "avx512vnni"]
)
def test_a_host_with_amx_tiles(
    permitted: bool, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU must have them, and Linux must grant their use; simpler sets do not use them."""
    features = FeatureMap({f: f != lacks for f in (*jit._X86["avx512amx"][0], "avx2")})
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: features.copy())
    monkeypatch.setattr(jit, "host_isas", jit.host_isas.__wrapped__)
    monkeypatch.setattr(jit, "_request_tiles", lambda: permitted)
    monkeypatch.setattr(jit, "_chosen", None)
    monkeypatch.setattr(numba_internals, "JITCPUCodegen", lambda name: name)
    monkeypatch.setattr(numba_internals, "_target", None)
    monkeypatch.delenv("PYGGML_ISA", raising=False)
    wide = [] if lacks == "avx512vnni" else ["avx512vnni"]
    tiles = ["avx512amx"] if permitted and not lacks else []
    assert jit.host_isas() == (*tiles, *wide, "avx2", "generic")
    assert jit.isa() == jit.host_isas()[0]
    assert numba_internals._target is None
    jit.use_isa("generic")
    assert numba_internals._target == ("x86-64", "", "pyggml.exec")
    if not tiles:
        with pytest.raises(PyggmlError, match="avx512amx"):
            jit.use_isa("avx512amx")


@pytest.mark.parametrize("answer", [0, -1, None])
def test_amx_tiles_are_requested_on_linux_only(
    answer: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, ...]] = []

    def syscall(*numbers: Any) -> int:
        asked.append(tuple(n.value for n in numbers))
        return answer or 0

    library = SimpleNamespace() if answer is None else SimpleNamespace(syscall=syscall)
    monkeypatch.setattr(jit.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(jit.sys, "platform", "linux")
    assert jit._request_tiles() == (answer == 0)
    assert asked == ([] if answer is None else [(158, 0x1023, 18)])
    monkeypatch.setattr(jit.sys, "platform", "win32")
    assert not jit._request_tiles() and len(asked) == (answer is not None)


def test_every_instruction_set_has_an_emitter() -> None:
    assert set(jit._X86) == {*x86.SETS, "generic"}
    assert set(jit._AARCH64) == {*aarch64.SETS, "generic"}


# --- the self-test ---


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Sets that were tried; the host has a, b and c, and "a" fails."""
    names: list[str] = []

    def attempt(name: str) -> str:
        names.append(name)
        return "exit code -4: no message" if name == "a" else ""

    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(jit, "on_compile", None)  # no progress on stderr
    monkeypatch.setattr(jit, "host_isas", lambda: ("a", "b", "c"))
    caches = {name: CodeCache(tmp_path / name) for name in ("a", "b", "c")}
    monkeypatch.setattr(jit, "code_cache", caches.__getitem__)
    monkeypatch.setattr(selftest, "_try", attempt)
    return names


def test_self_test_falls_back_with_one_line_and_remembers_passes(
    tries: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert selftest._first_working() == "b"
    assert tries == ["a", "b"]
    lines = capsys.readouterr().err.splitlines()  # slow compilers add lines
    (error,) = [line for line in lines if "kernels fail here" in line]
    assert error.startswith("pyggml: the a kernels") and "code -4" in error
    assert selftest._first_working() == "b"
    assert tries == ["a", "b", "a"]  # a failed set is tried again, a working one is not


def test_no_instruction_set_works(tries: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_try", lambda name: "no")
    with pytest.raises(BackendError, match="PYGGML_SELF_TEST"):
        selftest._first_working()


def test_a_child_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "wrong_isa" in selftest._try("wrong_isa")
    monkeypatch.setattr(selftest, "_CHILD", "no_such_module")
    assert "no_such_module" in selftest._try(jit.host_isas()[0])
    monkeypatch.setattr(selftest.sys, "executable", "/nowhere/python")
    assert "/nowhere/python" in selftest._try("generic")


TRIES = "from pyggml.backend.cpu import selftest; selftest._try({name!r})"


def running(parent: int | None = None) -> set[int]:
    """Processes that have not ended; with ``parent`` only its children."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, above = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z" and parent in (None, int(above)):
                found.add(int(stat.parent.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_children_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Otherwise they would go on compiling, and the next start would add two more."""
    code = TRIES.format(name=jit.host_isas()[0])
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYGGML_CACHE_DIR": str(tmp_path)}
    started: set[int] = set()
    with subprocess.Popen([sys.executable, "-P", "-c", code], env=env) as parent:
        # the first file shows that the children are compiling
        while parent.poll() is None and not any(tmp_path.rglob("*.nbc")):
            started |= running(parent.pid)
            time.sleep(0.01)
        started |= running(parent.pid)
        parent.kill()
    assert started
    until(lambda: not started & running())


# --- assembly of other hosts ---

QUANTIZED = (GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q5_1, GGMLType.Q8_0)
TABLES = (GGMLType.IQ4_NL, GGMLType.MXFP4)
SUPER = K_TYPES
FLOATS = (GGMLType.F16, GGMLType.BF16, GGMLType.F32)


class Target(NamedTuple):
    """A host to compile for, and the instructions expected in its machine code."""

    vectors: type[Generic]
    cpu: str
    dot: str = ""  # integer products of a line, part and token
    dots: int = 1  # instructions of one such product
    triple: str = "x86_64-unknown-linux-gnu"
    register: str = "ymm"
    half: str = "vcvtph2ps"  # conversion from half floats; "" if by integer operations
    spills: int = 0  # of a tile of 4 tokens

    @property
    def add(self) -> str:
        """The multiply-add of floats."""
        if self.register == "v":
            return r"fmla\s+v\d+\.4s"
        if self.register == "xmm":
            return r"\taddps\s"
        return rf"vfmadd\S+ps\s.*{self.register}"


ARM = {"triple": "aarch64-unknown-linux-gnu", "register": "v", "half": "fcvtl"}
SDOT = r"sdot\s+v\d+\.4s, v\d+\.16b, v\d+\.16b"
SMLAL = r"sm(?:ul|la)l2?\s+v\d+\.8h, v\d+\.(?:8|16)b, v\d+\.(?:8|16)b"
X86 = {
    "avx512vnni": Target(Avx512Vnni, "cascadelake", r"\tvpdpbusd\s.*zmm", register="zmm"),
    "avxvnni": Target(AvxVnni, "alderlake", r"\{vex\}\s+vpdpbusd\s.*ymm", spills=10),
    "avx2": Target(Avx2, "haswell", r"vpmaddubsw\s.*ymm", spills=18),
    "sse42": Target(Sse42, "x86-64-v2", r"\tpmaddubsw\s.*xmm", register="xmm", half="", spills=44),
}
SETS = {
    **X86,
    "neon": Target(Neon, "neoverse-n1", SDOT, spills=40, **ARM),
    "asimd": Target(Asimd, "cortex-a72", SMLAL, dots=2, spills=40, **ARM),
}
HOSTS = {**SETS, "apple": Target(Neon, "apple-m1", SDOT, spills=4, **ARM)}
DEFAULT = [HOSTS[name] for name in ("avx512vnni", "avx2", "neon")]
FOR_SETS = pytest.mark.parametrize("host", only(SETS.values(), DEFAULT), ids=SETS)
FOR_HOSTS = pytest.mark.parametrize("host", only(HOSTS.values(), DEFAULT), ids=HOSTS)


def assembly(
    intrinsic: Any, kind: GGMLType | None, n_args: int, host: Target, rows: tuple[int, ...] = (4, 2)
) -> str:
    """The machine code of a tile (4 tokens, prefetch hint 2) as text; without calls."""
    parsed = llvm.parse_assembly(str(tile_module(intrinsic, kind, n_args, host.triple, rows)))
    parsed.verify()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(host.triple).create_target_machine(cpu=host.cpu, opt=3)
    text = str(machine.emit_assembly(parsed))
    assert not re.search(r"\t(callq?|bl)\b", text)
    return text


def spills(text: str) -> int:
    """Vectors that assembly stores on the stack."""
    return len(re.findall(r"mov\S+\s+%[xyz]mm\d+, -?\d*\(%rsp\)|st[rp]\s+q.*\[sp", text))


def tile_module(
    intrinsic: Any, kind: GGMLType | None, n_args: int, triple: str, rows: tuple[int, ...]
) -> ir.Module:
    """A module whose function ``tile`` is an intrinsic, of a kind unless ``kind`` is None."""
    module = ir.Module("tile")
    module.triple = triple
    i64 = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [i64] * n_args), "tile")
    builder = ir.IRBuilder(function.append_basic_block())
    literals = [types.literal(n) for n in (*([] if kind is None else [int(kind)]), *rows)]
    _, codegen = intrinsic._defn(None, *literals, *[types.int64] * n_args)
    context = SimpleNamespace(get_dummy_value=lambda: None)
    codegen(context, builder, None, [*(None for _ in literals), *function.args])
    builder.ret_void()
    return module


@FOR_HOSTS
@pytest.mark.parametrize("kind", some((*QUANTIZED, *TABLES, *SUPER), 4), ids=lambda t: t.name)
def test_quantized_tiles(
    kind: GGMLType, host: Target, emit_for: Callable[[type[Generic]], None]
) -> None:
    """8 lines of codes, 4 tokens: 32 products, in whole registers and none wider.

    With AVX-512 the widest tile keeps its sums in registers.
    """
    emit_for(host.vectors)
    text = assembly(tile.q_tile, kind, 6, host)
    assert len(re.findall(host.dot, text)) == 32 * host.vectors().parts * host.dots
    if kind in QUANTIZED:  # other kinds loop over a block
        assert spills(text) <= host.spills
    if kind != GGMLType.MXFP4:
        assert host.half in text
    if host.vectors is Avx512Vnni:
        assert "ymm" not in text
        widest = tile.widest_tile(int(kind))
        assert spills(assembly(tile.q_tile, kind, 6, host, (widest, 2))) < widest
    elif host.register == "ymm":  # no masks or registers of AVX-512
        assert not re.search(r"zmm|%k\d|[xy]mm(1[6-9]|[23]\d)", text)


@pytest.mark.parametrize("kind", (GGMLType.Q5_1, GGMLType.Q8_0, GGMLType.F16), ids=lambda t: t.name)
def test_tiles_of_the_generic_set(
    kind: GGMLType, emit_for: Callable[[type[Generic]], None]
) -> None:
    """The generic set, for an unknown processor."""
    emit_for(Generic)
    host = Target(Generic, "generic", **ARM)
    is_float = kind is GGMLType.F16
    made, n_args = (tile.float_tile, 8) if is_float else (tile.q_tile, 6)
    text = assembly(made, kind, n_args, host)
    assert len(re.findall(r"fadd\s+v\d+\.4s", text)) >= 4 and host.half not in text


@FOR_HOSTS
@pytest.mark.parametrize("kind", FLOATS, ids=lambda t: t.name)
def test_float_tiles(
    kind: GGMLType, host: Target, emit_for: Callable[[type[Generic]], None]
) -> None:
    emit_for(host.vectors)
    text = assembly(tile.float_tile, kind, 8, host)
    assert len(re.findall(host.add, text)) >= 4 * host.vectors().parts
    assert not host.half or (host.half in text) == (kind == GGMLType.F16)


@FOR_SETS
@pytest.mark.parametrize("kind", some((*QUANTIZED, *FLOATS), 2), ids=lambda t: t.name)
def test_plain_rows(
    kind: GGMLType, host: Target, emit_for: Callable[[type[Generic]], None]
) -> None:
    """The tile of plain rows, their packing, and AXPY's sums: no calls, whole registers."""
    emit_for(host.vectors)
    for intrinsic, n_args, literals, least in (
        (plain_rows.row_tiles, 7, (1,), 1),
        (plain_rows.row_tiles, 7, (4,), 4),
        (plain_rows.pack_rows, 3, (), 0),
        (axpy.axpy_rows, 6, (2, 1), 8),
        (axpy.axpy_rows, 6, (2, 4), 8),
        (axpy.decode_row, 4, (), 0),
    ):
        text = assembly(intrinsic, kind, n_args, host, literals)
        assert len(re.findall(host.add, text)) >= least
        if intrinsic is plain_rows.row_tiles and kind in QUANTIZED:
            assert len(re.findall(host.dot, text)) == 8 * host.dots * literals[0]


@FOR_SETS
def test_packed_keys_and_values(host: Target, emit_for: Callable[[type[Generic]], None]) -> None:
    """Attention's tiles of six query rows fill the registers: 24 sums with AVX-512, else 12."""
    emit_for(host.vectors)
    wide = host.vectors().width == 64
    for intrinsic, n_args in ((attend.attn_qk_packed, 7), (attend.attn_pv_packed, 8)):
        text = assembly(intrinsic, None, n_args, host, ())
        assert len(re.findall(host.add, text)) >= (24 if wide else 12)
    for intrinsic, n_args in ((attend_tile.score_tile, 6), (attend_tile.sum_tile, 7)):
        text = assembly(intrinsic, None, n_args, host, ())
        assert len(re.findall(host.add, text)) == (16 if wide else 8)
        assert not spills(text)


@FOR_SETS
def test_products_of_codes(host: Target, emit_for: Callable[[type[Generic]], None]) -> None:
    """A product of pairs of int16 is one instruction on x86, and a sum with VNNI."""
    emit_for(host.vectors)
    vectors = 64 // host.vectors().lanes  # of 64 columns
    for intrinsic, n_args, literals, products in (
        (attend_codes.qk_codes, 12, (4, 2), 4 * 16),
        (attend_codes.qk_codes_packed, 7, (6,), 6 * 16),
        (attend_codes.pv_codes, 14, (4, 64, 2), 4 * vectors),
        (attend_codes.pv_codes_packed, 6, (6, 64), 6 * vectors),
        (attend_codes.pack_key_codes, 6, (), 0),
        (attend_codes.pack_value_codes, 6, (), 0),
        (attend_codes.round_query, 2, (), 0),
    ):
        text = assembly(intrinsic, None, n_args, host, literals)
        if issubclass(host.vectors, Sse42):
            wanted = "vpdpwssds" if issubclass(host.vectors, AvxVnni) else "pmaddwd"
            assert len(re.findall(rf"{wanted}\s", text)) == products


@FOR_SETS
@pytest.mark.parametrize("kind", some(kv_row.KINDS, 2), ids=lambda t: t.name)
def test_rows_of_the_cache(
    kind: GGMLType, host: Target, emit_for: Callable[[type[Generic]], None]
) -> None:
    emit_for(host.vectors)
    for intrinsic, n_args, rows, least in (
        (attend.attn_qk, 12, (3, 0, 2), 12),
        (attend.attn_qk, 12, (3, 0 if kind.is_quantized else 4, 2), 12),
        (attend.attn_pv, 14, (4, attend.pv_columns(64), 2), 16),
        (kv_row.transpose_8x8, 11, (), 0),
        (kv_row.widen_8, 3, (), 0),
        (attend_tile.widen_keys, 11, (2,), 0),
        (attend_tile.widen_values, 10, (2,), 0),
    ):
        text = assembly(intrinsic, kind, n_args, host, rows)
        assert len(re.findall(host.add, text)) >= least
        widens = host.half if not kind.is_quantized else host.half.rstrip("l")  # fcvt of a scale
        has_halves = kind is GGMLType.F16 or kind.is_quantized
        assert not widens or (widens in text) == has_halves
        if host.triple == X86["avx2"].triple:
            assert ("pmovsxbd" in text) == (kind in (GGMLType.Q8_0, GGMLType.IQ4_NL))
            assert ("pmovzxbd" in text) == (kind.is_quantized and kind is not GGMLType.Q8_0)
