"""Kernels by the emulator of PTX and by the simulator, and the mistakes that each must find."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("greenlet")

from pyggml.backend.cuda.driver import Grid
from pyggml.backend.cuda.kernel import GpuKernel

from . import samples
from .memory import KernelFault
from .twin import TwinDriver, ptx_image, simulator_image

Array = npt.NDArray[Any]
ENGINES = [pytest.param("ptx", marks=pytest.mark.long), "forward", "reverse", "random"]


def run(
    engine: str,
    kernel: GpuKernel,
    blocks: int,
    threads: int,
    *arguments: Any,
    shared: int = 0,
    cc: tuple[int, int] = (8, 0),
) -> list[Array]:
    """The arrays among the arguments after a launch."""
    twin = TwinDriver(cc, order=engine)
    stream = twin.create_stream()
    function = twin.load((ptx_image if engine == "ptx" else simulator_image)(kernel, cc))
    arrays = {i: a for i, a in enumerate(arguments) if isinstance(a, np.ndarray)}
    at = {i: twin.alloc(a.nbytes) for i, a in arrays.items()}
    for i, a in arrays.items():
        twin.copy_in(at[i], a.ctypes.data, a.nbytes, stream)
    values = [at.get(i, a) for i, a in enumerate(arguments)]
    launch = twin.pack(
        function, Grid(blocks), threads=threads, arguments=values, shared_bytes=shared
    )
    twin.launch([launch], stream)
    results = [np.empty_like(a) for a in arrays.values()]
    for address, result in zip(at.values(), results, strict=True):
        twin.copy_out(result.ctypes.data, address, result.nbytes, stream)
    twin.synchronize(stream)
    return results


def nans(*shape: int) -> Array:
    return np.full(shape, np.nan, np.float32)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


RNG = np.random.default_rng(0)


@pytest.mark.parametrize("cc", [(7, 5), (8, 0), (9, 0), (12, 0)])
def test_rms_norm(engine: str, cc: tuple[int, int]) -> None:
    n = 300
    x, w = RNG.standard_normal((3, n)).astype(np.float32), RNG.standard_normal(n).astype(np.float32)
    y = run(engine, samples.rms_norm, 3, 64, x, w, nans(3, n), n, 1e-5, cc=cc)[2]
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(y, expected, rtol=2e-6)


def test_softmax(engine: str) -> None:
    n, stride = 77, 80
    x = (RNG.standard_normal((3, stride)) * 4).astype(np.float32)
    length = np.array([n], np.int32)
    y = run(engine, samples.softmax, 3, 64, x, nans(3, stride), length, stride, 0.5)[1]
    wide = x[:, :n].astype(np.float64) * 0.5
    e = np.exp(wide - wide.max(1, keepdims=True))
    np.testing.assert_allclose(y[:, :n], e / e.sum(1, keepdims=True), rtol=3e-6)
    assert np.isnan(y[:, n:]).all()


def test_mul_mat_vec_q4(engine: str) -> None:
    rows, nb = 11, 40
    q = RNG.integers(0, 16, (rows, nb, 32), np.uint8)
    scales = RNG.standard_normal((rows, nb)).astype(np.float16)
    planes = np.concatenate(
        [(q[..., :16] | q[..., 16:] << 4).reshape(-1), scales.reshape(-1).view(np.uint8)]
    )
    x = RNG.integers(-127, 128, (nb, 32)).astype(np.int8)
    d = RNG.random(nb).astype(np.float32)
    sums = (d * x.sum(1)).astype(np.float32)
    y = run(engine, samples.mul_mat_vec_q4, 3, 128, planes, rows * nb * 16, x, d, sums,
            nans(rows), nb, rows)[4]  # fmt: skip
    weights = (q.astype(np.float64) - 8) * scales[:, :, None]
    expected = np.einsum("rbi,bi,b->r", weights, x, d.astype(np.float64))
    np.testing.assert_allclose(y, expected, rtol=1e-4)


def test_compact(engine: str) -> None:
    n = 201
    x = RNG.random(n).astype(np.float32)
    ids, count = np.full(n, -1, np.int32), np.zeros(1, np.int32)
    ids, count = run(engine, samples.compact, 1, 256, x, 0.7, n, ids, count)[1:]
    expected = np.flatnonzero(x >= np.float32(0.7))
    assert count[0] == expected.size
    np.testing.assert_array_equal(ids[: count[0]], expected)


def test_dynamic_and_local_memory(engine: str) -> None:
    x = RNG.integers(-100, 100, 128).astype(np.int32)
    y = run(engine, samples.dynamic_reverse, 2, 64, x, np.zeros_like(x), shared=256)[1]
    np.testing.assert_array_equal(y.reshape(2, 64), x.reshape(2, 64)[:, ::-1])


# Mistakes


def test_access_outside(engine: str) -> None:
    x = np.ones(100, np.float32)
    run(engine, samples.scale, 1, 128, x, nans(100), 100, 2.0)
    with pytest.raises(KernelFault, match=r"scale.*byte 400 .* of 400.*thread 100"):
        run(engine, samples.scale, 1, 128, x, nans(128), 101, 2.0)


def test_type_of_a_buffer(engine: str) -> None:
    """float64 data for a pointer to float32 are not converted."""
    x = np.arange(1, 33, dtype=np.float64)
    y = run(engine, samples.scale, 1, 32, x, nans(32), 32, 1.0)[1]
    np.testing.assert_array_equal(y, x.view(np.float32)[:32])


def test_missing_barrier_depends_on_the_order() -> None:
    x = np.arange(64, dtype=np.float32)
    forward, backward = (
        run(order, samples.missing_barrier, 1, 64, x, nans(64))[1]
        for order in ("forward", "reverse")
    )
    assert np.isnan(forward[:32]).all() and np.isnan(backward[32:]).all()


@pytest.mark.long
def test_missing_barriers_are_races() -> None:
    x = np.arange(64, dtype=np.float32)
    with pytest.raises(
        KernelFault, match=r"sample_missing_barrier: race: it reads byte 128 .* another warp wrote"
    ):
        run("ptx", samples.missing_barrier, 1, 64, x, nans(64))
    with pytest.raises(KernelFault, match=r"race: it writes .* another warp read"):
        run("ptx", samples.late_barrier, 1, 64, np.arange(128, dtype=np.float32), nans(64))


def test_divergent_barrier(engine: str) -> None:
    with pytest.raises(KernelFault, match="divergent_barrier"):
        run(engine, samples.divergent_barrier, 1, 64, np.ones(64, np.float32), nans(64))


@pytest.mark.long
def test_hoisted_load() -> None:
    """Only the compiled code has it: the load runs where no thread asks for it."""
    arguments = (64, nans(256), 4, 0)
    run("forward", samples.hoisted_load, 1, 64, *arguments)
    with pytest.raises(KernelFault, match=r"hoisted_load.*'ld\.global\.nc"):
        run("ptx", samples.hoisted_load, 1, 64, *arguments)
