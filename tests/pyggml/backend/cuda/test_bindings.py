"""The calls of NVIDIA's bindings: their names, arguments and results, without a GPU."""

from __future__ import annotations

import ast
import inspect
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cuda.bindings")
pytest.importorskip("greenlet")

from pyggml.backend.cuda import bindings

from .stand_in import SIGNATURES

pytestmark = pytest.mark.long  # the bindings and the compiler are of the extra cuda-test
ROOT = Path(__file__).parents[4]
CALLS = [
    node
    for node in ast.walk(ast.parse(inspect.getsource(bindings)))
    if isinstance(node, ast.Attribute)
    and isinstance(node.value, ast.Name)
    and node.value.id == "cuda"
]
NUMBERS = {  # of cuda.h, which other drivers have too
    "CUresult.CUDA_ERROR_OUT_OF_MEMORY": 2,
    "CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL": 1,
    "CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": 8,
    "CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 75,
    "CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 97,
    "CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE": 38,
}


def test_all_names_exist() -> None:
    from cuda.bindings import driver

    names = {node.attr for node in CALLS}
    assert names and all(hasattr(driver, name) for name in names)
    assert {name for name in names if name.startswith("cu")} == SIGNATURES.keys()
    for name, number in NUMBERS.items():
        enum, _, member = name.partition(".")
        assert int(getattr(getattr(driver, enum), member)) == number


def test_calls_have_the_number_of_arguments_that_the_bindings_take() -> None:
    from cuda.bindings import driver

    seen = set()
    for node in ast.walk(ast.parse(inspect.getsource(bindings))):
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if not name.startswith("cuda.cu"):
            continue
        assert isinstance(node, ast.Call)
        inspect.signature(getattr(driver, name[5:])).bind(*node.args)
        seen.add(name[5:])
    assert SIGNATURES.keys() - seen == {"cuLaunchKernel"}  # called by another name, below
    # f, three of the grid, three of the block, dynamic shared memory; stream; arguments, extra
    assert len(inspect.signature(driver.cuLaunchKernel).parameters) == 8 + 1 + 2


def test_a_thread_changes_between_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call has the context of its own GPU; a thread's first one used to stay."""
    from cuda.bindings import driver as cuda

    entered: list[int] = []

    def set_current(context: int) -> tuple[Any]:
        entered.append(context)
        return (cuda.CUresult.CUDA_SUCCESS,)

    monkeypatch.setattr(cuda, "cuCtxSetCurrent", set_current)
    monkeypatch.setattr(bindings, "_here", threading.local())
    drivers = [object.__new__(bindings.CudaDriver) for _ in range(2)]
    for i, one in enumerate(drivers):
        vars(one).update(_context=i, info=SimpleNamespace(name="GPU"))
    for i in (0, 0, 1, 1, 0):
        drivers[i]._enter()
    assert entered == [0, 1, 0]


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize(
    "what",
    [
        "driver",
        "results",
        "models",
    ],
)
def test_the_driver_over_the_real_bindings(tmp_path: Path, what: str) -> None:
    """The driver's calls; then the parts of gpu_check. Each in a process, with the stand-in."""
    module = "tests.pyggml.backend.cuda.stand_in_run"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-m", module, what, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == f"{what}: done"
