"""Which models run: loading, waiting, giving up, unloading, failing."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pyllama.errors import ModelError
from pyllama.server.request.errors import ApiError
from pyllama.server.router import pool as pools
from pyllama.server.router.pool import Instance, Pool

from ....waiting import WAIT_S
from .conftest import INFO, FakeChild, Fleet, entries


def in_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        async def limited() -> None:
            async with asyncio.timeout(WAIT_S):
                await test()

        asyncio.run(limited())

    return run


class World:
    """A pool of fake children."""

    def __init__(self, *names: str, max_models: int = 4, **options: Any) -> None:
        self.fleet = Fleet(FakeChild)
        self.pool = Pool(entries(*names, **options), self.fleet.spawn, max_models)

    def __getitem__(self, name: str) -> Instance:
        found = self.pool.find(name)
        assert found is not None
        return found

    def statuses(self) -> str:
        return " ".join(f"{one.name}:{one.status}" for one in self.pool.instances)

    async def child(self, n: int) -> FakeChild:
        """The n-th child that was started."""
        while len(self.fleet.children) <= n:
            await asyncio.sleep(0)
        await settle()
        child: FakeChild = self.fleet.children[n]
        return child

    async def loaded(self, name: str) -> FakeChild:
        """Load a model."""
        n = len(self.fleet.children)
        await self.pool.load(self[name])
        child = await self.child(n)
        child.ready()
        return child

    def request(self, name: str) -> Request:
        return Request(self, name)


class Request:
    """A request that holds its model until the test ends it."""

    def __init__(self, world: World, name: str, **options: Any) -> None:
        self.child: Any = None
        self.may_end = asyncio.Event()
        options = {"autoload": True, **options}
        self.task = asyncio.create_task(self._run(world, name, options))

    async def _run(self, world: World, name: str, options: dict[str, Any]) -> None:
        async with world.pool.use(world[name], **options) as child:
            self.child = child
            await self.may_end.wait()

    async def end(self) -> None:
        self.may_end.set()
        await self.task
        await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@in_loop
async def test_requests_for_a_model_share_one_loading() -> None:
    world = World("a")
    asked = [world.request("a") for _ in range(3)]
    child = await world.child(0)
    assert world.statuses() == "a:loading" and not any(one.child for one in asked)
    child.ready()
    await settle()
    assert all(one.child is child for one in asked) and world["a"].info == INFO
    for one in asked:
        await one.end()
    assert world.fleet.names() == ["a"] and world.statuses() == "a:loaded"
    assert world["a"].n_users == world["a"].n_served == 0
    await world.pool.close()
    assert child.orders == ["exit"]


@in_loop
async def test_a_model_that_fails_to_load() -> None:
    world = World("a")
    asked = [world.request("a") for _ in range(2)]
    (await world.child(0)).end(3, "error: it is damaged")
    for one in asked:
        with pytest.raises(ApiError, match="model name=a failed to load: it is damaged") as caught:
            await one.task
        assert caught.value.status == 500
    assert (world["a"].status, world["a"].exit_code) == ("unloaded", 3)
    again = world.request("a")  # the next request tries again
    (await world.child(1)).ready()
    await settle()
    assert again.child and world["a"].exit_code == 0
    await again.end()
    await world.pool.close()


@in_loop
async def test_a_process_that_cannot_be_started() -> None:
    async def spawn(*args: Any) -> Any:
        raise OSError("no more processes")

    pool = Pool(entries("a"), spawn)
    instance = pool.find("a")
    assert instance is not None
    with pytest.raises(ApiError, match="no more processes"):
        async with pool.use(instance, autoload=True):
            pass
    await pool.close()


@in_loop
async def test_the_least_recently_used_model_is_given_up() -> None:
    world = World("a", "b", "c", max_models=2)
    a, b = await world.loaded("a"), await world.loaded("b")
    used = world.request("a")
    await settle()
    await used.end()
    await world.pool.load(world["c"])
    await settle()
    assert b.orders == ["exit"] and not a.orders
    assert world.statuses() == "a:loaded b:unloaded c:loading"
    (await world.child(2)).ready()
    await world.pool.close()


@in_loop
async def test_a_look_does_not_count_as_use() -> None:
    world = World("a", "b", "c", max_models=2)
    a, _ = await world.loaded("a"), await world.loaded("b")
    look = Request(world, "a", touch=False)
    await settle()
    await look.end()
    await world.pool.load(world["c"])
    assert a.orders == ["exit"]
    await world.pool.close()


@in_loop
async def test_a_busy_model_is_not_given_up() -> None:
    world = World("a", "b", max_models=1)
    a = await world.loaded("a")
    busy = world.request("a")
    await settle()
    with pytest.raises(ApiError, match="model limit reached"):
        await world.pool.load(world["b"])
    waits = world.request("b")
    await settle()
    assert not a.orders and world.statuses() == "a:loaded b:unloaded"
    await busy.end()
    assert a.orders == ["exit"]
    (await world.child(1)).ready()
    await settle()
    assert waits.child is world.fleet.children[1]
    await waits.end()
    await world.pool.close()


@in_loop
async def test_requests_that_wait_for_one_model_give_up_one_other() -> None:
    world = World("a", "b", "c", max_models=2)
    a, b = await world.loaded("a"), await world.loaded("b")
    busy = world.request("a")
    await settle()
    waiting = [world.request("c") for _ in range(3)]
    (await world.child(2)).ready()
    await busy.end()
    for one in waiting:
        await one.end()
    assert b.orders == ["exit"] and not a.orders
    await world.pool.close()


@in_loop
async def test_who_leaves_the_queue_costs_nothing() -> None:
    world = World("a", "b", max_models=1)
    a = await world.loaded("a")
    busy, waits = world.request("a"), world.request("b")
    await settle()
    waits.task.cancel()
    await settle()
    await busy.end()
    assert not a.orders and world.fleet.names() == ["a"] and world["b"].n_users == 0
    await world.pool.close()


@in_loop
async def test_places_are_given_in_the_order_of_arrival() -> None:
    world = World("a", "b", "c", max_models=1)
    await world.loaded("a")
    busy = world.request("a")
    await settle()
    first, second = world.request("b"), world.request("c")
    await settle()
    await busy.end()
    (await world.child(1)).ready()
    await settle()
    assert first.child and not second.child
    await first.end()
    (await world.child(2)).ready()
    await settle()
    await second.end()
    assert world.fleet.names() == ["a", "b", "c"]
    await world.pool.close()


@in_loop
async def test_a_model_that_is_loaded_for_a_request_stays_for_it() -> None:
    world = World("a", "b", "c", max_models=1)
    first, second = world.request("b"), world.request("c")
    (await world.child(0)).ready()
    await settle()
    assert first.child and not world.fleet.children[0].orders
    await first.end()
    (await world.child(1)).ready()
    await settle()
    await second.end()
    await world.pool.close()


@in_loop
async def test_unloading_waits_for_running_requests() -> None:
    world = World("a")
    child = await world.loaded("a")
    running = world.request("a")
    await settle()
    world.pool.stop(world["a"])
    late = world.request("a")  # gets the next process
    await settle()
    assert not child.orders and world.statuses() == "a:loaded" and not late.child
    await running.end()
    assert child.orders == ["exit"]
    (await world.child(1)).ready()
    await settle()
    assert late.child is world.fleet.children[1]
    await late.end()
    await world.pool.close()


@in_loop
async def test_unloading_has_an_end() -> None:
    world = World("a", stop_s=0.05)
    child = await world.loaded("a")
    child.obeys = False
    running = world.request("a")
    await settle()
    before, pools._EXIT_S = pools._EXIT_S, 0.05
    try:
        await world.pool.unload(world["a"])
    finally:
        pools._EXIT_S = before
    assert child.orders == ["exit", "kill"] and world["a"].exit_code == 0
    await running.end()
    await world.pool.close()


@in_loop
async def test_a_model_that_is_unloaded_while_it_loads() -> None:
    world = World("a")
    waits = world.request("a")
    child = await world.child(0)
    world.pool.stop(world["a"])
    with pytest.raises(ApiError, match="it was unloaded"):
        await waits.task
    assert child.orders == ["kill"] and world["a"].exit_code == 0
    await world.pool.close()


@in_loop
async def test_a_process_that_dies_is_replaced_at_the_next_request() -> None:
    world = World("a")
    child = await world.loaded("a")
    child.end(-11)
    await settle()
    assert (world["a"].status, world["a"].exit_code) == ("unloaded", -11)
    again = world.request("a")
    (await world.child(1)).ready()
    await settle()
    assert again.child is world.fleet.children[1]
    await again.end()
    await world.pool.close()


@in_loop
async def test_without_autoload() -> None:
    world = World("a")
    with pytest.raises(ApiError, match="model is not loaded") as caught:
        await Request(world, "a", autoload=False).task
    assert caught.value.status == 400
    await world.pool.load(world["a"])
    with pytest.raises(ApiError, match="Loading model") as caught:
        await Request(world, "a", autoload=False).task
    assert caught.value.status == 503
    with pytest.raises(ApiError, match="already running"):
        await world.pool.load(world["a"])
    (await world.child(0)).ready()
    served = Request(world, "a", autoload=False)
    await settle()
    await served.end()
    await world.pool.close()


@in_loop
async def test_no_limit_and_sleep() -> None:
    world = World(*"abcdef", max_models=0)
    for name in "abcdef":
        child = await world.loaded(name)
    child.report({"state": "sleeping"})
    assert world["f"].status == "sleeping" and world["f"].is_ready and world["f"].info == INFO
    child.report({"state": "loaded"})
    child.report({"state": "nonsense"})
    assert world["f"].status == "loaded" and world["f"].info == INFO
    await world.pool.close()
    assert all(one.orders == ["exit"] for one in world.fleet.children)


@in_loop
async def test_models_of_the_start() -> None:
    world = World("a", on_startup=True)
    world.pool.begin()
    (await world.child(0)).ready()
    assert world.statuses() == "a:loaded"
    await world.pool.close()


@in_loop
async def test_a_new_list() -> None:
    world = World("a", "b", "c")
    a, b = await world.loaded("a"), await world.loaded("b")
    with world.pool.subscribed() as events:
        await world.pool.reload([*entries("b", "d"), *entries("c", tags=("new",))])
        assert not b.orders and a.orders == ["exit"]
        assert world.statuses() == "b:loaded c:unloaded d:unloaded"
        assert world["c"].entry.tags == ("new",) and world.pool.find("a") is None
        with pytest.raises(ModelError, match="belongs to two models"):
            await world.pool.reload(entries("x", "x"))
        await world.pool.reload(entries("b", tags=("changed",)))
        assert b.orders == ["exit"] and world.statuses() == "b:unloaded"
        seen = [events.get_nowait() for _ in range(events.qsize())]
    assert seen[-1] == {"model": "*", "event": "models_reload"}
    await world.pool.close()


@in_loop
async def test_who_waits_for_a_model_that_is_removed() -> None:
    world = World("a", "b", max_models=1)
    await world.loaded("a")
    busy, waits = world.request("a"), world.request("b")
    await settle()
    await world.pool.reload(entries("a"))
    with pytest.raises(ApiError, match="model 'b' not found"):
        await waits.task
    await busy.end()
    await world.pool.close()


@in_loop
async def test_events() -> None:
    world = World("a")
    with world.pool.subscribed() as events:
        child = await world.loaded("a")
        child.end(1)
        await settle()
        await world.pool.close()
        seen = []
        while (event := events.get_nowait()) is not None:
            seen.append((event["model"], event["event"], event["data"]))
    assert seen == [
        ("a", "model_status", {"status": "loading"}),
        ("a", "status_change", {"status": "loaded", "info": INFO}),
        ("a", "status_change", {"status": "unloaded", "exit_code": 1}),
    ]


@in_loop
async def test_the_end() -> None:
    world = World("a", "b", max_models=1)
    await world.loaded("a")
    busy, waits = world.request("a"), world.request("b")
    await settle()
    end = asyncio.create_task(world.pool.close())
    with pytest.raises(ApiError, match="shutting down") as caught:
        await waits.task
    assert caught.value.status == 503
    await busy.end()
    await end
    assert world.statuses() == "a:unloaded b:unloaded"


@in_loop
async def test_the_end_while_a_model_loads() -> None:
    world = World("a")
    waits = world.request("a")
    child = await world.child(0)
    await world.pool.close()
    assert child.orders == ["kill"]
    with pytest.raises(ApiError):
        await waits.task


@in_loop
async def test_draining() -> None:
    world = World("a", "b")
    a, b = await world.loaded("a"), await world.loaded("b")
    running = world.request("a")
    await settle()
    drained = asyncio.create_task(world.pool.drain(20))
    await settle()
    assert not a.orders and not b.orders
    await running.end()
    await drained
    assert a.orders == b.orders == ["exit"]
    world = World("a")
    a = await world.loaded("a")
    running = world.request("a")
    await settle()
    await world.pool.drain(0.01)
    assert a.orders == ["exit"]
    await running.end()
    await world.pool.close()
