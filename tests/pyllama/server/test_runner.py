"""The thread that steps the engine, and the event loop beside it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from pyggml.errors import ComputeError
from pyllama import Model
from pyllama.engine import Request
from pyllama.errors import BatchError, EngineDead
from pyllama.server.app import make_app
from pyllama.server.request.errors import ApiError
from pyllama.server.worker.choice import Choice, Piece, Recorder
from pyllama.server.worker.lifecycle import Lifecycle
from pyllama.server.worker.runner import EngineRunner
from pyllama.server.worker.stream import Stream
from pyllama.speculative import Draft, DraftView, Speculation

from ...tiers import only
from ...waiting import WAIT_S, until
from .conftest import Serve, make_served

ASK = {"prompt": "a b c", "n_predict": 5, "ignore_eos": True, "temperature": 0}


def runner_of(client: TestClient) -> EngineRunner:
    runner: EngineRunner = client.served.runner  # type: ignore[attr-defined]
    return runner


@contextmanager
def job_held(client: TestClient) -> Iterator[None]:
    """The thread that steps is held by a job."""
    begun, may_end = threading.Event(), threading.Event()

    def work(engine: Any) -> None:
        begun.set()
        assert may_end.wait(WAIT_S)

    async def call() -> None:
        await runner_of(client).call(work)

    task = client.portal.start_task_soon(call)  # type: ignore[union-attr]
    assert begun.wait(WAIT_S)
    try:
        yield
    finally:
        may_end.set()
        task.result(WAIT_S)


def test_one_wake_up_of_the_event_loop_a_step(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All events of a step, of all its streams, reach the event loop by one call."""
    client = serve(n_slots=4, n_ctx=1024)
    runner = client.served.runner  # type: ignore[attr-defined]
    step, in_loop = runner.engine.step, runner._in_loop
    counts: Counter[str] = Counter()

    def counted_step() -> Any:
        counts["steps"] += 1
        return step()

    def counted_wake_up(function: Any, *args: Any) -> None:
        counts["wake-ups"] += 1
        counts["events"] += len(args[0])
        in_loop(function, *args)

    monkeypatch.setattr(runner.engine, "step", counted_step)
    monkeypatch.setattr(runner, "_in_loop", counted_wake_up)
    body = {"prompt": "a b c", "n_predict": 50, "ignore_eos": True, "stream": True}
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(client.post, "/completion", json=body) for _ in range(4)]
        assert all(one.result().is_success for one in asked)
    assert counts["events"] >= 4 * 50
    assert counts["wake-ups"] <= counts["steps"] < counts["events"]


# --- requests of many texts -----------------------------------------------------------------------


def test_a_request_of_many_texts_is_admitted_whole(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its texts are no reason to refuse it, and the engine has a few of them at a time."""
    client = serve(max_waiting=1, n_slots=2)
    engine, most = runner_of(client).engine, 0
    step = engine.step

    def counted() -> Any:
        nonlocal most
        most = max(most, engine.n_waiting + len(engine.scheduler.running))
        return step()

    monkeypatch.setattr(engine, "step", counted)
    prompts = [f"{'abc'[i % 3]} {i % 7}" for i in range(40)]
    found = client.post("/completion", json={**ASK, "prompt": prompts}).json()
    assert [one["index"] for one in found] == list(range(40))
    texts = {p: client.post("/completion", json={**ASK, "prompt": p}).json() for p in prompts[:4]}
    assert all(found[i]["content"] == texts[p]["content"] for i, p in enumerate(prompts[:4]))
    assert 2 <= most <= 4
    sent = client.post("/v1/completions", json={**ASK, "prompt": prompts, "stream": True, "n": 2})
    assert sent.is_success and sent.text.count('"finish_reason":"length"') == 80
    assert runner_of(client).is_idle


def test_a_text_that_ends_while_another_is_given_to_the_engine() -> None:
    """The event loop and the thread that gives texts count without a lock, so each on its own."""
    texts: Any = [SimpleNamespace(), SimpleNamespace()]
    stream = Stream(texts, lambda stream: None, n_open=2, n_given=1)

    class Given(list[Any]):
        def __len__(self) -> int:
            stream.put(texts[0], Piece(is_last=True))
            return 1

    stream.n_given += len(Given())
    assert stream.n_fed == 1


def test_embeddings_and_scores_of_many_texts(serve: Serve) -> None:
    texts = [f"text {i}" for i in range(50)]
    client = serve(pooling="mean", max_waiting=1)
    rows = client.post("/v1/embeddings", json={"input": texts}).json()["data"]
    last = client.post("/v1/embeddings", json={"input": texts[-1]}).json()["data"]
    assert len(rows) == 50 and rows[-1]["embedding"] == last[0]["embedding"]
    client = serve(pooling="last", reranking=True, max_waiting=1)
    found = client.post("/rerank", json={"query": "a", "documents": texts}).json()["results"]
    assert sorted(one["index"] for one in found) == list(range(50))


def test_a_full_queue(serve: Serve) -> None:
    """Those before it count, whether they have one text or many."""
    client = serve(max_waiting=1, n_slots=2)
    with ThreadPoolExecutor(3) as threads:
        with job_held(client):
            many = {**ASK, "prompt": ["a", "b"]}
            asked = [threads.submit(client.post, "/completion", json=many)]
            until(lambda: runner_of(client)._n_open == 2)
            asked.append(threads.submit(client.post, "/completion", json=ASK))
            until(lambda: runner_of(client)._n_open == 3)
            refused = client.post("/completion", json=ASK)
            assert refused.status_code == 429 and refused.headers["retry-after"]
        assert all(one.result().is_success for one in asked)
    assert client.post("/completion", json=ASK).is_success


def test_a_large_request_leaves_room_for_small_ones(serve: Serve) -> None:
    """It waits as one, but a second large one would make the queue longer than it may be."""
    client = serve(max_waiting=2, n_slots=2)
    large = {**ASK, "prompt": ["a"] * 40}
    with ThreadPoolExecutor(2) as threads:
        with job_held(client):
            asked = [threads.submit(client.post, "/completion", json=large)]
            until(lambda: runner_of(client)._n_open == 40)
            refused = client.post("/completion", json=large)
            assert refused.status_code == 429 and "38 texts" in refused.text
            asked.append(threads.submit(client.post, "/completion", json=ASK))
            until(lambda: runner_of(client)._n_open == 41)
            refused = client.post("/completion", json=ASK)
            assert refused.status_code == 429 and "2 requests" in refused.text
        assert all(one.result().is_success for one in asked)


def test_a_request_with_a_wrong_text_is_refused_whole(serve: Serve) -> None:
    runner = runner_of(serve())
    good, bad = Request([5], max_tokens=1), Request([10**6], max_tokens=1)
    with pytest.raises(BatchError, match="vocabulary"):
        runner.submit([good] * 9 + [bad], [])
    assert runner.is_idle and not runner.engine.has_work


@pytest.mark.parametrize("fields", [{"prompt": ["a"] * 2049}, {"prompt": ["a"] * 1025, "n": 2}])
def test_the_texts_of_one_request_are_bounded(client: TestClient, fields: dict[str, Any]) -> None:
    response = client.post("/v1/completions", json={**ASK, **fields})
    assert response.status_code == 400
    assert "at most 2048 are allowed" in response.json()["error"]["message"]


def test_a_text_that_cannot_begin_ends_its_request(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve()
    engine = runner_of(client).engine
    make_runs, n_made = engine.make_runs, 0

    def failing(*args: Any) -> Any:
        nonlocal n_made
        n_made += 1
        if n_made > 6:
            raise MemoryError
        return make_runs(*args)

    monkeypatch.setattr(engine, "make_runs", failing)
    response = client.post("/completion", json={**ASK, "prompt": ["a"] * 20})
    assert response.status_code == 500 and runner_of(client).is_idle


def test_a_client_that_leaves_takes_its_waiting_texts_along(serve: Serve) -> None:
    client = serve()
    runner = runner_of(client)
    with job_held(client), ThreadPoolExecutor(1) as threads:
        asked = threads.submit(client.post, "/completion", json={**ASK, "prompt": ["a"] * 20})
        until(lambda: runner._n_open == 20)
        (stream,) = runner._open_streams()
        until(lambda: len(stream.numbers) == 4)
        client.portal.call(stream.close)  # type: ignore[union-attr]
        assert asked.result().status_code == 499
        assert runner.is_idle and not stream.waiting
    assert client.post("/completion", json=ASK).is_success
    assert not runner.engine.scheduler.runs


def test_a_client_that_leaves_ends_the_texts_that_have_not_ended(serve: Serve) -> None:
    client = serve()
    runner = runner_of(client)
    with job_held(client), ThreadPoolExecutor(1) as threads:
        asked = threads.submit(client.post, "/completion", json={**ASK, "prompt": ["a", "b"]})
        until(lambda: runner._n_open == 2)
        (stream,) = runner._open_streams()
        client.portal.call(stream.put, stream.texts[0], Piece(is_last=True))  # type: ignore[union-attr]
        client.portal.call(stream.close)  # type: ignore[union-attr]
        assert stream.texts[1].is_done and runner.is_idle
        asked.result()
    assert client.post("/completion", json=ASK).is_success
    assert not runner.engine.scheduler.runs


# --- races ----------------------------------------------------------------------------------------


def test_a_request_is_known_before_its_first_event(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve()
    runner, known = runner_of(client), []
    enqueue = runner.engine.enqueue

    def checked(jobs: Any) -> int:
        known.append(any(jobs[0].number in one.numbers for one in runner._streams))
        return enqueue(jobs)

    monkeypatch.setattr(runner.engine, "enqueue", checked)
    assert client.post("/completion", json={**ASK, "prompt": ["a"] * 9}).is_success
    assert known == [True] * 9


def test_no_request_begins_after_the_server_has_drained(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve()
    runner = runner_of(client)
    begun, may_end = threading.Event(), threading.Event()
    make_runs, enqueued = runner.engine.make_runs, []

    def slow(*args: Any) -> Any:
        begun.set()
        assert may_end.wait(WAIT_S)
        return make_runs(*args)

    monkeypatch.setattr(runner.engine, "make_runs", slow)
    monkeypatch.setattr(runner.engine, "enqueue", enqueued.append)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(client.post, "/completion", json=ASK)
        assert begun.wait(WAIT_S)
        client.portal.call(runner.drain, 0.0)  # type: ignore[union-attr]
        may_end.set()
        assert asked.result().status_code == 503 and not enqueued and runner.is_idle
    assert client.post("/completion", json=ASK).status_code == 503


# --- failures -------------------------------------------------------------------------------------


TWO = [{**ASK, "cache_prompt": False, "n_predict": n} for n in (5, 3)]


def asked_twice(client: TestClient) -> list[Any]:
    """The responses to `TWO` requests that run beside each other."""
    with ThreadPoolExecutor(2) as threads:
        with job_held(client):
            asked = [threads.submit(client.post, "/completion", json=body) for body in TWO]
            until(lambda: runner_of(client)._n_open == 2)
        return [one.result() for one in asked]


INSIDE = ["engine.wait", "engine.step", "engine._take_all", "stepper.step",
          "scheduler._admit", "scheduler.plan", "context.decode", "context.decode_token",
          "may_run"]  # fmt: skip
"""What the thread calls; an error of the first call costs nobody anything."""


def place(runner: EngineRunner, name: str) -> tuple[Any, str]:
    owner, _, method = name.rpartition(".")
    engine = runner.engine
    owners: dict[str, Any] = {
        "engine": engine, "context": engine.context, "scheduler": engine.scheduler,
        "stepper": engine.stepper, "": runner,
    }  # fmt: skip
    return owners[owner], method


@pytest.mark.parametrize("error", only([RuntimeError, ComputeError], [ComputeError]))
@pytest.mark.parametrize("name", INSIDE)
def test_an_error_within_the_thread(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, name: str, error: type[Exception]
) -> None:
    client = serve()
    runner, n_raised = runner_of(client), 0
    good = [client.post("/completion", json=body).json()["content"] for body in TWO]

    async def call() -> int:
        return await runner.call(lambda engine: 1, lambda engine: bool(fail_once()))

    def fail_once(*args: Any, **options: Any) -> Any:
        nonlocal n_raised
        n_raised += 1
        if n_raised == 1:
            raise error("injected")
        return True if name == "may_run" else original(*args, **options)

    if name == "may_run":
        with pytest.raises(error, match="injected"):
            client.portal.call(call)  # type: ignore[union-attr]
    else:
        owner, method = place(runner, name)
        original = getattr(owner, method)
        monkeypatch.setattr(owner, method, fail_once)
    assert [one.json()["content"] for one in asked_twice(client)] == good
    assert n_raised > 0 and client.get("/health").is_success


@pytest.mark.parametrize("name", ["engine.wait", "context.decode", "_in_loop", "engine.step_apart"])
def test_an_engine_that_has_ended(model: Model, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """All requests and jobs end with an error, and whoever started the server is told."""
    served = make_served(model)
    life, runner = Lifecycle.of(served), served.runner
    failed: list[BaseException] = []
    life.on_failed = failed.append
    in_loop = runner._in_loop

    def fail(*args: Any, **options: Any) -> Any:
        if name == "_in_loop" and args[0] != runner._deliver:
            return in_loop(*args)
        raise RuntimeError("injected")

    with TestClient(make_app(life), base_url="http://localhost") as client:
        client.served = served  # type: ignore[attr-defined]
        waits = client.portal.start_task_soon(call_forever, runner)  # type: ignore[union-attr]
        owner, method = place(runner, name)
        with ThreadPoolExecutor(2) as threads:
            with job_held(client):
                monkeypatch.setattr(owner, method, fail)
                if name != "engine.wait":
                    monkeypatch.setattr(served.engine.context, "decode_token", fail)
                if name == "engine.step_apart":
                    monkeypatch.setattr(served.engine, "step", fail)
                body = {**ASK, "stream": True}
                asked = [threads.submit(client.post, "/completion", json=b) for b in (ASK, body)]
                until(lambda: runner._n_open == 2)
            for one in asked:
                assert one.result(WAIT_S).status_code in (500, 503)
        until(lambda: bool(failed))
        with pytest.raises(ApiError):
            waits.result(WAIT_S)
        assert isinstance(life.error, EngineDead) and not runner.is_alive and runner.is_idle
        for response in (client.get("/health"), client.post("/completion", json=ASK)):
            assert response.status_code == 503
            assert response.json()["error"]["type"] == "unavailable_error"
        with pytest.raises(ApiError, match=r"engine|evaluated"):
            client.portal.call(call_forever, runner)  # type: ignore[union-attr]


async def call_forever(runner: EngineRunner) -> None:
    await runner.call(lambda engine: None, lambda engine: False)


@pytest.mark.parametrize("method", ["take", "stamp"])
def test_an_error_of_one_text_ends_its_request(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    client = serve()
    original, n_calls = getattr(Choice, method), Counter[int]()

    def failing(text: Choice, *args: Any) -> Any:
        n_calls[text.prompt[-1]] += 1
        if n_calls[bad] > 2 and text.prompt[-1] == bad:
            raise ZeroDivisionError
        return original(text, *args)

    bad = client.post("/tokenize", json={"content": "z"}).json()["tokens"][-1]
    monkeypatch.setattr(Choice, method, failing)
    with ThreadPoolExecutor(2) as threads:
        with job_held(client):
            asked: list[Future[Any]] = []
            for prompt in ("a b c", ["c", "a z"]):
                body = {**ASK, "prompt": prompt}
                asked.append(threads.submit(client.post, "/completion", json=body))
            until(lambda: runner_of(client)._n_open == 3)
        good, failed = (one.result() for one in asked)
    assert good.is_success and good.json()["tokens_predicted"] == 5
    assert failed.status_code == 500 and runner_of(client).is_idle
    until(lambda: not runner_of(client).engine.has_work)
    assert not runner_of(client).engine.scheduler.runs


def test_an_error_of_a_sampler_ends_its_request(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve()
    monkeypatch.setattr(Recorder, "of", lambda *_: 1 // 0)
    body = {**ASK, "post_sampling_probs": True, "n_probs": 2}
    assert client.post("/completion", json=body).status_code == 500
    assert client.post("/completion", json=ASK).is_success


@dataclass
class FailingDrafter:
    """Drafts two tokens that are wrong, until one of its methods fails."""

    method: str
    draft: tuple[int, int] = (5, 6)
    n_calls: Counter[str] = field(default_factory=Counter)

    def propose(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        self._call("propose")
        return [Draft.chain(self.draft[:n]) if n else None for n in max_nodes]

    def accepted(self, view: DraftView, path: Sequence[int]) -> None:
        self._call("accepted")

    def release(self, view: DraftView) -> None:
        self._call("release")

    def _call(self, method: str) -> None:
        self.n_calls[method] += 1
        if method == self.method:
            raise ZeroDivisionError


@pytest.mark.parametrize("method", ["propose", "accepted", "release", "draft"])
def test_a_drafter_that_fails_costs_no_text(
    serve: Serve, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    text = serve().post("/completion", json=ASK).json()["content"]
    drafter = FailingDrafter(method, (5, 10**6) if method == "draft" else (5, 6))
    client = serve(speculation=Speculation(drafter, adaptive=False))
    for _ in range(2):
        response = client.post("/completion", json=ASK)
        assert response.status_code == 200 and response.json()["content"] == text
    (record,) = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert record.message == "FailingDrafter failed: the texts go on without drafts"
    assert drafter.n_calls["propose"] == 1 or method == "release"
