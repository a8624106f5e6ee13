"""Which models run: loading on demand, one process each, the least recently used ends first.

    pool = Pool(entries, spawn, max_models=4)
    async with pool.use(pool.find("tiny"), autoload=True) as child: ...
    await pool.close()

Requests for a model that is not loaded wait in the order of their arrival, all requests for one
model at one place. A model that has requests is never given up for another. All of this runs in
the event loop, and nothing blocks it.

Source: llama.cpp, ``server_models`` and ``server_lru_sched``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any

from pyggml.visible import visible

from ..request.errors import ApiError
from ..request.paths import without_folders
from .catalog import CatalogEntry, checked
from .process import ChildProcess, Report

UNLOADED, LOADING, LOADED, SLEEPING = "unloaded", "loading", "loaded", "sleeping"
_CHILD_S = 0.25  # that a process needs to end its responses by an error
_EXIT_S = 5.0  # between the order to exit and SIGKILL
_LOST_S = 2.0  # after a broken connection, within which the process has ended or runs on
_MAX_EVENTS = 1000  # that a subscriber may leave unread
Events = asyncio.Queue[dict[str, Any] | None]
Spawn = Callable[[CatalogEntry, Report], Awaitable[ChildProcess]]
_log = logging.getLogger("pyllama.server")


class Instance:
    """A model of the pool.

    Attributes:
        status: unloaded, loading, loaded or sleeping, as ``/models`` reports it.
        child: its process; None if there is none.
        info: what the process tells of its model, reported by ``/models``.
        exit_code: of the last process, 0 if it was ended on purpose.
        reason: why it could not be loaded.
        n_failed: how often it could not.
        is_stopping: whether it ends; it gets no more requests then.
        is_listed: whether it still belongs to the pool's models.
        n_users: requests that wait for it or are served by it.
        n_served: those that are served.
    """

    def __init__(self, entry: CatalogEntry) -> None:
        self.entry = entry
        self.status = UNLOADED
        self.child: ChildProcess | None = None
        self.info: dict[str, Any] = {}
        self.exit_code, self.reason, self.n_failed = 0, "", 0
        self.is_stopping, self.is_listed = False, True
        self.n_users = self.n_served = 0
        self.last_used_s = 0.0
        self.ended: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The model's id."""
        return self.entry.name

    @property
    def is_running(self) -> bool:
        """Whether it has a process, or is about to."""
        return self.status != UNLOADED

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests; a model that sleeps wakes for them."""
        return self.status in (LOADED, SLEEPING) and not self.is_stopping


class Pool:
    """The models of a router.

    Args:
        entries: all that may be loaded.
        spawn: starts the process of one, and passes on the states that it reports.
        max_models: that may run at the same time; 0 for no limit.

    Raises:
        ModelError: a name is used twice.
    """

    def __init__(self, entries: Iterable[CatalogEntry], spawn: Spawn, max_models: int = 4) -> None:
        self._instances = {name: Instance(entry) for name, entry in checked(entries).items()}
        self._spawn, self._max_models = spawn, max_models
        self._queue: list[Instance] = []  # those that wait for a place
        self._change = asyncio.Event()  # of the next change
        self._tasks: set[asyncio.Task[Any]] = set()
        self._subscribers: set[Events] = set()
        self._is_closing = False

    @property
    def max_models(self) -> int:
        """How many models may run at the same time; 0 for any number."""
        return self._max_models

    @property
    def instances(self) -> list[Instance]:
        """All models, by name."""
        return [one for _, one in sorted(self._instances.items()) if one.is_listed]

    def find(self, name: str) -> Instance | None:
        """The model of a name or an alias."""
        named = self._instances.get(name)
        if named is not None and named.is_listed:
            return named
        return next((one for one in self.instances if name in one.entry.aliases), None)

    def begin(self) -> None:
        """Load the models that are wanted at the start. Needs the event loop."""
        for instance in self.instances:
            if instance.entry.on_startup:
                self._start(instance)

    @contextlib.asynccontextmanager
    async def use(
        self, instance: Instance, *, autoload: bool, touch: bool = True
    ) -> AsyncIterator[ChildProcess]:
        """The process of a model for a request, loaded if necessary; it stays until the end.

        Args:
            autoload: whether a model that does not run is loaded.
            touch: whether this counts as use of the model.

        Raises:
            ApiError: it is not loaded (400), or cannot be (500).
        """
        instance.n_users += 1
        try:
            if autoload:
                await self._ready(instance)
            elif not instance.is_running or instance.is_stopping:
                raise ApiError.invalid("model is not loaded")
            if instance.status == LOADING or instance.child is None:
                raise ApiError(503, "Loading model")
            if touch:
                instance.last_used_s = time.monotonic()
            instance.n_served += 1
            try:
                yield instance.child
            finally:
                instance.n_served -= 1
        finally:
            instance.n_users -= 1
            self._changed()

    async def lost(self, instance: Instance, child: ChildProcess) -> None:
        """A connection to a process broke: wait until the pool knows its end, if it has ended."""
        if instance.child is child and instance.ended is not None:
            await asyncio.wait([instance.ended], timeout=_LOST_S)

    async def load(self, instance: Instance) -> None:
        """Begin to load a model; one that is idle may be given up for it.

        Raises:
            ApiError: it runs already (400), or all others have requests (500).
        """
        if instance.is_running:
            raise ApiError.invalid("model is already running")
        if not self._has_place():
            victim = self._idle()
            if victim is not None:
                await self.unload(victim)
        if instance.status == UNLOADED:  # else a request was faster
            if not self._has_place():
                raise ApiError(500, "model limit reached, try again later")
            self._start(instance)

    def stop(self, instance: Instance) -> None:
        """End a model's process, after its requests if they end in time.

        Its status is that of a running one until then, and new requests wait for the next process.
        """
        if instance.is_running and not instance.is_stopping:
            instance.is_stopping = True
            self._task(self._end(instance))

    async def unload(self, instance: Instance) -> None:
        """As `stop`; return when the process has ended."""
        ended = instance.ended
        self.stop(instance)
        if ended is not None:
            await asyncio.wait([ended])

    async def reload(self, entries: Iterable[CatalogEntry]) -> None:
        """Replace the list of models; those that run with other options than before end.

        Raises:
            ModelError: a name is used twice; nothing has changed then.
        """
        new = checked(entries)
        changed = []
        for instance in self._instances.values():
            entry = new.get(instance.name)
            if entry == instance.entry:
                continue
            changed.append(instance)
            if entry is None:
                instance.is_listed = False
            else:
                instance.entry, instance.exit_code = entry, 0
        for name in new.keys() - self._instances.keys():
            self._instances[name] = Instance(new[name])
        self._changed()
        await asyncio.gather(*map(self.unload, changed))
        for instance in changed:
            if not instance.is_listed and self._instances.get(instance.name) is instance:
                del self._instances[instance.name]
        self._emit("models_reload", "*")
        self._changed()

    async def close(self) -> None:
        """End all processes; those that take too long are killed."""
        self._is_closing = True
        self.leave()
        running = [one for one in self._instances.values() if one.is_running]
        await asyncio.gather(*map(self.unload, running))

    async def drain(self, timeout_s: float) -> None:
        """Begin no more requests, let the running ones go on for a time, and then end them."""
        self.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, timeout_s - _CHILD_S)):
                while any(one.n_served for one in self._instances.values()):
                    await self._next_change()
        for instance in self._instances.values():
            if instance.child is not None:
                instance.child.ask_exit()

    def leave(self) -> None:
        """End the events of all subscribers: the server is about to end."""
        self._is_closing = True
        for queue in self._subscribers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)
        self._changed()

    @contextlib.contextmanager
    def subscribed(self) -> Iterator[Events]:
        """What happens to the models from now on, as ``/models/sse`` reports it; None is the end.

        A subscriber that reads too slowly misses events.
        """
        queue: Events = asyncio.Queue(_MAX_EVENTS)
        self._subscribers.add(queue)
        try:
            yield queue
        finally:
            self._subscribers.discard(queue)

    # --- waiting --------------------------------------------------------------------------------

    async def _ready(self, instance: Instance) -> None:
        """Wait until a model takes requests; load it if it does not run. Raises: ApiError."""
        n_failed = instance.n_failed
        try:
            while not instance.is_ready:
                if self._is_closing:
                    raise ApiError(503, "the server is shutting down")
                if not instance.is_listed:
                    raise ApiError.invalid(f"model '{instance.name}' not found")
                if instance.n_failed != n_failed:
                    raise ApiError(500, f"model name={instance.name} {instance.reason}")
                if not instance.is_running and instance not in self._queue:
                    self._queue.append(instance)
                    self._fill()
                else:
                    await self._next_change()
        finally:
            if instance.n_users == 1 and instance in self._queue:  # nobody else waits for it
                self._queue.remove(instance)

    async def _next_change(self) -> None:
        await self._change.wait()

    def _changed(self) -> None:
        """Something changed: fill free places, and let all that wait look again."""
        self._fill()
        self._change.set()
        self._change = asyncio.Event()

    def _fill(self) -> None:
        """Load models that wait while there are places, and give up idle ones for the others."""
        if self._is_closing:
            return
        n_missing = 0
        for instance in [*self._queue]:
            if instance.is_running:  # it ends, and is wanted again
                n_missing += 1
            elif self._has_place():
                self._start(instance)
            else:
                n_missing += 1
        if self._has_place():
            return
        n_missing -= sum(one.is_stopping for one in self._instances.values())
        while n_missing > 0 and (victim := self._idle()) is not None:
            _log.info("%s is given up for a request", visible(victim.name))
            self.stop(victim)
            n_missing -= 1

    def _has_place(self) -> bool:
        n_running = sum(one.is_running for one in self._instances.values())
        return self._max_models <= 0 or n_running < self._max_models

    def _idle(self) -> Instance | None:
        """The model that was used least recently, of those without requests."""
        idle = [one for one in self._instances.values() if one.is_ready and not one.n_users]
        return min(idle, key=lambda one: one.last_used_s, default=None)

    # --- processes ------------------------------------------------------------------------------

    def _start(self, instance: Instance) -> None:
        """Begin the process of a model that does not run."""
        if instance in self._queue:
            self._queue.remove(instance)
        instance.status, instance.exit_code, instance.info = LOADING, 0, {}
        instance.is_stopping = False
        instance.last_used_s = time.monotonic()
        _log.info("loading %s", visible(instance.name))
        self._emit("model_status", instance.name, status=LOADING)
        instance.ended = self._task(self._run(instance))

    async def _run(self, instance: Instance) -> None:
        """Start the process of a model, and wait until it has ended."""
        last_line = ""
        try:
            child = await self._spawn(instance.entry, lambda state: self._told(instance, state))
        except Exception as error:
            code, last_line = 1, f"error: {error}"
        else:
            instance.child = child
            if instance.is_stopping or self._is_closing:
                child.kill()
            code = await child.wait()
            last_line = child.last_line
        if instance.status == LOADING:
            instance.n_failed += 1
            why = "it was unloaded" if instance.is_stopping else last_line.removeprefix("error: ")
            file = instance.entry.file
            why = without_folders(why, *(() if file is None else (file.parent,)))
            instance.reason = "failed to load" + (f": {why}" if why else "")
        elif not instance.is_stopping and not self._is_closing:
            _log.error("%s ended with exit code %d", visible(instance.name), code)
        instance.exit_code = 0 if instance.is_stopping else code
        instance.child, instance.status, instance.is_stopping = None, UNLOADED, False
        instance.ended = None
        self._emit(
            "status_change", instance.name, status=UNLOADED, exit_code=instance.exit_code
        )  # fmt: skip
        self._changed()

    def _told(self, instance: Instance, told: dict[str, Any]) -> None:
        """Take a state that a process reports."""
        state = told.get("state")
        if state not in (LOADED, SLEEPING) or not instance.is_running:
            return
        instance.status = state
        info = told.get("info")
        if info:
            instance.info = info
        more = {"info": info} if info else {}
        self._emit("status_change", instance.name, status=state, **more)
        self._changed()

    async def _end(self, instance: Instance) -> None:
        ended = instance.ended
        assert ended is not None
        if instance.status != LOADING:
            left_s = instance.entry.stop_s
            deadline = time.monotonic() + left_s
            while instance.n_served and not ended.done() and left_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._next_change()
                left_s = deadline - time.monotonic()
            if instance.child is not None:
                instance.child.ask_exit()
                await asyncio.wait([ended], timeout=_EXIT_S)
        if instance.child is not None and not ended.done():
            instance.child.kill()

    def _task(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)  # the loop alone would not keep it
        task.add_done_callback(self._tasks.discard)
        return task

    def _emit(self, event: str, model: str, **data: Any) -> None:
        found = {"model": model, "event": event, **({"data": data} if data else {})}
        for queue in self._subscribers:
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(found)
