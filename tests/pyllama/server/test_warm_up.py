"""What is compiled before a server is ready and after it, and what is told of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from pyggml.compiler.progress import CompileProgress
from pyllama import Model
from pyllama.server.app import make_app
from pyllama.server.request.options import ServerOptions
from pyllama.server.worker import warm_up as module
from pyllama.server.worker.lifecycle import Lifecycle
from pyllama.server.worker.served import ServedModel

from ...waiting import WAIT_S
from .conftest import make_served

ROOT = Path(__file__).parents[3]

# After the warm-up, what ordinary requests load or compile: nothing.
ORDINARY = """
import sys
from starlette.testclient import TestClient
from pyggml.compiler import jit
from pyggml.compiler.progress import progress
from pyllama import Model
from pyllama.server.app import make_app
from pyllama.server.worker.warm_up import compile_rest, warm_up
from tests.pyllama.server.conftest import make_served

served = make_served(Model.load(sys.argv[1]), n_slots=4, pooling="mean")
with progress.compiling():  # a first start on a machine: something was missing
    pass
warm_up(served)
found, load, is_warm = [], jit.Code.load, False

def watched(code):
    is_new, is_kept = "machine_code" not in code.__dict__, load(code)
    if is_new and (not is_kept or not is_warm):
        found.append(code.name)
    return is_kept

jit.Code.load = watched
with TestClient(make_app(served), base_url="http://localhost") as client:
    def ask(path, **body):
        answer = client.post(path, json=body)
        assert answer.is_success, answer.text
    for n in (1, 2, 5, 8, 20, 100):
        ask("/v1/completions", prompt=list(range(n)), max_tokens=2)
        ask("/v1/embeddings", input=list(range(n)))
    ask("/v1/completions", prompt=["a b", "c d e", "f", "g h"], max_tokens=4, temperature=0.5)
    ask("/v1/completions", prompt="a b c", max_tokens=4, temperature=0)
    messages = [{"role": "user", "content": "Who are you?"}]
    ask("/v1/chat/completions", messages=messages, max_tokens=2)
    ordinary = list(found)
    compile_rest()
    found.clear()
    is_warm = True
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    ask("/completion", prompt="a", n_predict=4, json_schema=schema)
    ask("/completion", prompt="a", n_predict=4, n_probs=2, typical_p=0.9, dry_multiplier=0.5,
        xtc_probability=0.5, xtc_threshold=0.1, top_n_sigma=1.0, mirostat=2)
print(ordinary, found)
"""


def test_an_ordinary_request_finds_its_kernels(model_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", ORDINARY, str(model_path)],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[] []\n", "")


def test_where_nothing_was_missing_no_graph_is_built(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start with a full cache takes no longer than without the warm-up."""
    served, built = make_served(model), list[object]()
    monkeypatch.setattr(served.engine.context, "compile_for", built.append)
    monkeypatch.setattr(module, "progress", CompileProgress())
    module.warm_up(served)
    assert built == []
    monkeypatch.setattr(module, "progress", progress := CompileProgress())
    with progress.compiling():
        pass
    module.warm_up(served)
    assert len(built) == 1


def test_progress_is_told_while_the_model_loads_and_after_it(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress, now, may_end = CompileProgress(lambda: now), 5.0, threading.Event()
    monkeypatch.setattr(module, "progress", progress)

    def load() -> ServedModel:
        assert may_end.wait(WAIT_S)
        return make_served(model)

    life, ready = Lifecycle(load, ServerOptions()), threading.Event()
    life.on_ready = lambda served: ready.set()
    progress.expect(4)
    with progress.compiling():
        now += 2
    with TestClient(make_app(life), base_url="http://localhost") as client:
        told = {"n": 1, "of": 4, "elapsed_s": 2.0, "expected_s": 8.0}
        message = "Loading model: compiling kernels, 1 of 4 (2 s of about 8 s)"
        for path in ("/health", "/props", "/v1/models"):
            answer = client.get(path)
            assert answer.status_code == 503
            assert answer.json()["error"] == {
                "code": 503, "message": message, "type": "unavailable_error", "compiling": told,
            }  # fmt: skip
        may_end.set()
        assert ready.wait(WAIT_S)
        assert client.get("/health").json() == {"status": "ok", "compiling": told}
        progress.expect(-3)
        assert client.get("/health").json() == {"status": "ok"}


def test_the_rest_is_compiled_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Function:
        def __init__(self, name: str, is_kept: bool = False) -> None:
            self.name, self.is_kept = name, lambda: is_kept

        @property
        def machine_code(self) -> None:
            done.append(self.name)

    asked = {"pyllama": [Function("run"), Function("kept", True), Function("pick")]}
    monkeypatch.setattr(module, "functions_of", asked.__getitem__)
    module.compile_rest()
    assert done == ["run", "pick"]
