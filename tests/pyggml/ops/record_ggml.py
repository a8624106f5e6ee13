"""Record what ggml computes for the ops' small cases: ``tests/data/ggml_ops/recorded.npz``.

    python -m tests.pyggml.ops.record_ggml DIR     # DIR has libggml-base.so and libggml-cpu.so
    python -m tests.pyggml.ops.record_ggml DIR SSM_SCAN     # keeps what is recorded of other ops

The file was made with libggml 0.13.1 on x86-64 (AVX2), the recurrent ops and SOLVE_TRI with 0.24.0.
Each case runs in a child process, since ggml aborts for types or strides it does not support. Such
cases are not recorded, nor those for which ``differs`` is true.
"""

from __future__ import annotations

import ctypes as c
import io
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pyggml.backend.registry import init_backend
from pyggml.dtype import GGMLType, numpy_dtype
from pyggml.ops.op import OPS, Case, Op
from pyggml.quants.reference import bf16_to_float

from .harness import CaseRun, random_values, stored

RECORDED = Path(__file__).parents[2] / "data" / "ggml_ops" / "recorded.npz"
MAX_ELEMENTS = 1200  # of a source or result
I, F, L, S, B = c.c_int, c.c_float, c.c_int64, c.c_size_t, c.c_bool  # noqa: E741
Array = np.ndarray[Any, Any]
Params = Mapping[str, Any]

PLAIN = "SQR SQRT LOG SIN COS SUM SUM_ROWS MEAN CUMSUM COUNT_EQUAL DIAG ADD ADD1 SUB MUL DIV UNARY"
# op: (types of ggml's arguments after the sources, their values)
ARGUMENTS: dict[str, tuple[list[Any], Callable[[Params], tuple[Any, ...]]]] = {
    **dict.fromkeys(PLAIN.split(), ([], lambda p: ())),
    "LEAKY_RELU": ([F, B], lambda p: (p["negative_slope"], False)),
    "CLAMP": ([F, F], lambda p: (p["min"], p["max"])),
    "SCALE": ([F], lambda p: (p["s"],)),
    "NORM": ([F], lambda p: (p["eps"],)),
    "RMS_NORM": ([F], lambda p: (p["eps"],)),
    "L2_NORM": ([F], lambda p: (p["eps"],)),
    "GROUP_NORM": ([I, F], lambda p: (p["n_groups"], p["eps"])),
    "REPEAT": ([L] * 4, lambda p: p["ne"]),
    "CONCAT": ([I], lambda p: (p["dim"],)),
    "PAD": ([I] * 8, lambda p: tuple(np.stack([p["left"], p["right"]], 1).ravel().tolist())),
    "PAD_REFLECT_1D": ([I, I], lambda p: (p["p0"], p["p1"])),
    "ROLL": ([I] * 4, lambda p: p["shift"]),
    "SET": ([S] * 4, lambda p: (*p["nb"], p["offset"])),
    "ACC": ([S] * 4, lambda p: (*p["nb"], p["offset"])),
    "DIAG_MASK_INF": ([I], lambda p: (p["n_past"],)),
    "DIAG_MASK_ZERO": ([I], lambda p: (p["n_past"],)),
    "TRI": ([I], lambda p: (["upper_diag", "upper", "lower_diag", "lower"].index(p["kind"]),)),
    "ARGSORT": ([I], lambda p: (int(p["order"] == "desc"),)),
    "TOP_K": ([I], lambda p: (p["k"],)),
    "ARANGE": ([F] * 3, lambda p: (p["start"], p["stop"], p["step"])),
    "FILL": ([F], lambda p: (p["c"],)),
    "GLU": ([F, F], lambda p: (p["alpha"], p["limit"])),
    **dict.fromkeys(["MUL_MAT", "MUL_MAT_ID", "ADD_ID", "OUT_PROD"], ([], lambda p: ())),
    "IM2COL": ([I] * 6 + [B, I], lambda p: (*_steps(p), p["is_2d"], int(p["type"]))),
    "CONV_2D": ([I] * 6, lambda p: _steps(p)),
    "CONV_2D_DW": ([I] * 6, lambda p: _steps(p)),
    "CONV_TRANSPOSE_1D": ([I] * 3, lambda p: (p["s0"], 0, 1)),
    "CONV_TRANSPOSE_2D": ([I], lambda p: (p["s0"],)),
    "POOL_1D": ([I] * 4, lambda p: (_pool(p), p["k0"], p["s0"], p["p0"])),
    "POOL_2D": (
        [I] * 5 + [F] * 2,
        lambda p: (_pool(p), *(p[k] for k in ("k0", "k1", "s0", "s1", "p0", "p1"))),
    ),
    "UPSCALE": ([L] * 4 + [I], lambda p: (*p["ne"], _mode(p))),
    "TIMESTEP_EMBEDDING": ([I] * 2, lambda p: (p["dim"], p["max_period"])),
    "WIN_PART": ([I], lambda p: (p["w"],)),
    **dict.fromkeys(["SSM_CONV", "RWKV_WKV6", "RWKV_WKV7"], ([], lambda p: ())),
    "SSM_SCAN": ([L], lambda p: (p["K"],)),
    "GATED_LINEAR_ATTN": ([F], lambda p: (p["scale"],)),
    "GATED_DELTA_NET": ([L], lambda p: (p["K"],)),
    "SOLVE_TRI": ([B] * 3, lambda p: (True, True, False)),
    "WIN_UNPART": ([I] * 3, lambda p: (p["w0"], p["h0"], 0)),  # see run for the window
}
_NAMES = {  # where they differ from the op's
    "REPEAT": "repeat_4d", "PAD": "pad_ext", "CONV_2D": "conv_2d_direct",
    "CONV_2D_DW": "conv_2d_dw_direct", "CONV_TRANSPOSE_2D": "conv_transpose_2d_p0",
    "UPSCALE": "interpolate",
}  # fmt: skip


_NO_STRIDES = "ARGSORT TOP_K LEAKY_RELU CLAMP POOL_1D WIN_PART IM2COL"  # ggml ignores strides


def _steps(p: Params) -> tuple[int, ...]:
    return tuple(p[k] for k in ("s0", "s1", "p0", "p1", "d0", "d1"))


def _pool(p: Params) -> int:
    return ["max", "avg"].index(p["pool"])


def _mode(p: Params) -> int:
    """``ggml_scale_mode`` with its flags."""
    mode = {"nearest": 0, "bilinear": 1, "bicubic": 2, "antialias": 1 | 1 << 9}[p["mode"]]
    return mode | p["align_corners"] << 8


def differs(op: Op, case: Case) -> bool:
    """Whether ggml computes something else, or its result is undefined or a bug."""
    permuted = any(a is not None and a.permute for a in case.args)
    p = {**op.params, **case.params}
    return (
        (op.name == "ADD" and p["type"] is not None)  # add_cast, not add
        or (op.name == "GLU" and (p["kind"] != "swiglu_oai" or p["swapped"]))  # other builders
        or (op.name == "UNARY" and p["kind"] == "xielu")
        or (op.name in _NO_STRIDES.split() and permuted)  # reads other rows
        or (op.name in ("ARGSORT", "TOP_K") and case.args[0].values is not None)  # NaN, ties
        or (op.name == "COUNT_EQUAL" and len(case.args[0].ne) > 2)  # reads other rows
        or (op.name == "PAD" and p["circular"])  # pad_ext_circular
        or (op.name == "SCALE" and p["b"] != 0)
        or (op.name == "RWKV_WKV7" and case.args[0].ne[0] % 32 > 0)  # reads past the rows
        or (bool(op.updates) and len(case.args) == len(op.src))  # with slots of states
    )


class _Init(c.Structure):
    _fields_ = [("mem_size", S), ("mem_buffer", c.c_void_p), ("no_alloc", B)]


class GGML:
    """The functions of a libggml."""

    def __init__(self, directory: str) -> None:
        self.base = c.CDLL(f"{directory}/libggml-base.so", mode=c.RTLD_GLOBAL)
        self.cpu = c.CDLL(f"{directory}/libggml-cpu.so", mode=c.RTLD_GLOBAL)

    def call(self, name: str, *args: Any, types: list[Any] | None = None) -> int:
        """Call by name; arguments without a type are pointers."""
        function = getattr(self.base, name, None) or getattr(self.cpu, name)
        types = types or []
        function.argtypes = [c.c_void_p] * (len(args) - len(types)) + types
        function.restype = c.c_void_p
        return function(*args)  # type: ignore[no-any-return]

    def run(self, case: CaseRun) -> Array:
        """The result of a case."""
        self.base.ggml_init.restype = c.c_void_p
        ctx = self.base.ggml_init(_Init(1 << 26, None, False))
        sources = []
        for a in case.case.args:
            if a is None:
                continue
            ne = (L * 4)(*a.ne, *(1,) * (4 - len(a.ne)))
            t = self.call("ggml_new_tensor", ctx, int(a.type), 4, ne, types=[I, I, c.c_void_p])
            values = stored(random_values(a, case.rng), a.type)
            dtype = numpy_dtype(a.type)
            raw = np.ascontiguousarray(values if dtype is None else values.astype(dtype))
            c.memmove(self.call("ggml_get_data", t), raw.ctypes.data, raw.nbytes)
            if a.permute is not None:
                t = self.call("ggml_permute", ctx, t, *a.permute, types=[I] * 4)
            sources.append(t)
        p = case.node.op_params
        name = case.op.name
        types, values_of = ARGUMENTS[name]
        values = values_of(p)
        if name == "WIN_UNPART":
            values = (*values[:2], case.case.args[0].ne[1])
        kind = p["kind"] if name in ("UNARY", "GLU") else _NAMES.get(name, name.lower())
        suffix = "_inplace" if p.get("inplace") else ""
        if name == "GLU" and len(sources) == 1:
            sources.append(0)
        node = self.call(f"ggml_{kind}{suffix}", ctx, *sources, *values, types=types)
        graph = self.call("ggml_new_graph", ctx)
        self.call("ggml_build_forward_expand", graph, node)
        self.call("ggml_graph_compute_with_ctx", ctx, graph, 1, types=[I])
        return self._values(node)

    def _values(self, t: int) -> Array:
        type = GGMLType(c.c_int.from_address(t).value)
        words = (L * 8).from_address(t + 16)  # struct ggml_tensor: ne[4], nb[4]
        dtype = numpy_dtype(type)
        assert dtype is not None
        size = self.call("ggml_nbytes", t)
        data = c.string_at(self.call("ggml_get_data", t), size) if size else b""
        out = np.ndarray(tuple(words[:4])[::-1], dtype, data, 0, tuple(words[4:])[::-1])
        if type is GGMLType.BF16:
            return bf16_to_float(out)
        return out.astype(np.float32) if type is GGMLType.F16 else out.copy()


def _recorded(ggml: GGML, case: CaseRun) -> Array | None:
    """A case's result from a child process, None if it aborts."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            out = io.BytesIO()
            np.save(out, ggml.run(case))
            os.write(write, out.getvalue())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return np.load(io.BytesIO(data)) if data else None


def main() -> None:
    """Record all cases."""
    os.environ["GGML_NO_BACKTRACE"] = "1"
    ggml, backend = GGML(sys.argv[1]), init_backend("reference")
    found: dict[str, Array] = {}
    if names := sys.argv[2:]:
        with np.load(RECORDED) as file:
            found = {key: x for key, x in file.items() if key.partition("[")[0] not in names}
    for name in names or ARGUMENTS:
        for case in OPS[name].cases:
            run = CaseRun(OPS[name], case, backend)
            sizes = [run.node.nelements, *(s.nelements for s in run.sources if s is not None)]
            if max(sizes) > MAX_ELEMENTS or differs(run.op, case):
                continue
            values = _recorded(ggml, run)
            if values is None:
                print(f"not in ggml: {name}[{case.id}]")
            else:
                found[f"{name}[{case.id}]"] = values
    RECORDED.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(RECORDED, **found)
    print(f"{len(found)} cases, {RECORDED.stat().st_size} bytes")


if __name__ == "__main__":
    main()
