"""Uses the CUDA backend over ``cuda.bindings`` and the stand-in of its library.

python -m tests.pyggml.backend.cuda.stand_in_run driver FOLDER
"""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from pyggml.backend.cuda.backend import CudaBackend
from pyggml.backend.cuda.driver import Grid
from pyggml.backend.registry import available
from pyggml.errors import AllocError, ComputeError

from . import samples
from .stand_in import SIGNATURES, StandIn, install, ptx_code, simulator_code


def raised(error: type[Exception], call: Any, *args: Any, **options: Any) -> str:
    """The message of the error that a call raises."""
    try:
        call(*args, **options)
    except error as e:
        return str(e)
    raise AssertionError(f"no {error.__name__}")


def use_driver(stand_in: StandIn, folder: Path) -> None:
    """Every call of ``bindings.py``."""
    from pyggml.backend.cuda.bindings import open_driver

    driver: Any = open_driver(0)
    assert driver.info == ("stand-in", (7, 0), 4, 100 << 10, 4 << 20)
    assert driver.memory() == stand_in.twin.memory()
    stream, other = driver.create_stream(), driver.create_stream()
    image = ptx_code(samples.scale, (8, 0))
    function = driver.load(image)
    x = np.arange(8, dtype=np.float32)
    a, b = driver.alloc(x.nbytes), driver.alloc(x.nbytes)
    pinned = driver.alloc_host(x.nbytes)

    def scaled(source: int, target: int, factor: float, **more: Any) -> Any:
        return driver.pack(
            function, Grid(1), threads=64, arguments=(source, target, 8, factor), **more
        )

    def result(address: int) -> Any:
        out = np.empty_like(x)
        driver.copy_out(int(out.ctypes.data), address, out.nbytes, stream)
        driver.synchronize(stream)
        return out

    launches = [scaled(a, b, 2.0), scaled(b, b, 5.0, shared_bytes=64 << 10)]
    first = driver.record(stream)
    driver.copy_in(a, int(x.ctypes.data), x.nbytes, stream)
    driver.launch(launches, stream)
    last = driver.record(stream)
    driver.wait(other, last)
    driver.copy_on(a, b, x.nbytes, other)
    driver.synchronize(other)
    driver.synchronize_event(last)
    assert np.array_equal(result(b), 10 * x) and np.array_equal(result(a), 10 * x)
    assert driver.elapsed_us(first, last) > 0
    graph = driver.capture(launches, stream)
    del launches, first, last
    gc.collect()  # the graph owns the arguments of its launches
    for factor in (1, 3):
        values = factor * x
        driver.copy_in(a, int(values.ctypes.data), x.nbytes, stream)
        driver.replay(graph, stream)
        assert np.array_equal(result(b), 10 * values)
    del graph
    driver.fill(b, 0, x.nbytes, stream)
    driver.launch([scaled(a, pinned, 2.0)], stream)  # kernels write to pinned memory
    assert not result(b).any()
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(result(a)))  # it has no context yet
    thread.start()
    thread.join()
    assert np.array_equal(seen[0], 3 * x)

    free, _ = driver.memory()
    message = raised(AllocError, driver.alloc, free + 1)
    assert f"{free + 1} bytes" in message and "CUDA_ERROR_OUT_OF_MEMORY" in message
    message = raised(ComputeError, scaled, a, b, 1.0, shared_bytes=200 << 10)
    assert "204800 bytes of shared memory" in message and "stand-in's error 1" in message
    driver.launch([driver.pack(function, Grid(1), threads=64, arguments=(a, b, 9, 1.0))], stream)
    assert "the work before this point" in raised(ComputeError, driver.synchronize, stream)
    driver.free(a)
    driver.free(b)
    driver.free_host(pinned)


def backend() -> CudaBackend:
    """The first GPU's, with kernels that need not be compiled."""
    from pyggml.backend.cuda.bindings import open_driver

    assert "cuda0" in available()  # the stand-in was discovered
    return CudaBackend(open_driver(0), "cuda0", compile=simulator_code)


def use_gpu_check(stand_in: StandIn, folder: Path, *, models: bool) -> None:
    """The parts of the script for machines with a GPU, on small sizes.

    Args:
        models: those that measure models, or all others.
    """
    for name in ("gguf", "hypothesis", "prompt_toolkit", "pyllama_cli", "pytest", "torch"):
        sys.modules[name] = None  # type: ignore[assignment]  # a machine may lack them
    from benchmarks import gpu_check

    check = gpu_check.Check(backend(), gpu_check.TINY, folder)
    parts = [part for part in gpu_check.PARTS if (part in ("speed", "hybrid")) == models]
    for part in parts:
        gpu_check.run_part(check, part)
    assert not check.failures, check.failures
    made = {line["what"] for line in check.lines}
    assert made >= {*parts} - {"costs"}, made
    assert stand_in.twin.counts.graphs > 0
    page = "".join(gpu_check.tables(check.lines))
    assert all(f"## {part}" in page for part in made)


if __name__ == "__main__":
    what, folder = sys.argv[1], Path(sys.argv[2])
    made = install(folder, cc=(7, 0))
    if what == "driver":
        use_driver(made, folder)
        gc.collect()
        assert made.n_objects == 0  # streams and code are freed with their handles
        assert made.calls >= SIGNATURES.keys() - {"cuInit"}
    else:
        use_gpu_check(made, folder, models=what == "models")
    print(f"{what}: done")
