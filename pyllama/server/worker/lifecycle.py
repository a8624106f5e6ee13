"""When the model of a server is loaded, and freed while nobody asks.

    life = Lifecycle(load, options, sleep_idle_s=600)  # load() returns a `ServedModel`
    app = make_app(life)                           # its lifespan begins to load
    async with life.use() as served: ...           # ApiError 503 until the model is loaded

The port is open before the model is loaded. After ``sleep_idle_s`` seconds without requests the
model is freed, and the next request loads it again. All but ``load`` runs in the event loop, which
is never blocked.

Source: llama.cpp, ``server_queue::start_loop`` and ``server_routes::update_cached_responses``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

from ..request.errors import ApiError
from ..request.options import ServerOptions
from .adapters import applied, apply
from .description import Description, describe
from .metrics import Counts
from .served import ServedModel
from .threads import Workers
from .warm_up import loading

_log = logging.getLogger("pyllama.server")
_ABORT_S = 0.2  # that a running step or job of the engine gets when the server ends


class Lifecycle:
    """The model of a server, which is loaded while the server already answers.

    Args:
        load: loads the model; called in a thread.
        options: of the server, as far as they are known without the model.
        sleep_idle_s: seconds without requests after which the model is freed; None for never.

    Attributes:
        served: the model, None while it is loaded or freed.
        on_ready: called when the model has been loaded for the first time.
        on_failed: called when that fails, or when the engine has ended by itself.
        on_sleeping, on_awake: called when it has been freed, and when it has been loaded again.
        error: why it failed or ended.
    """

    def __init__(
        self,
        load: Callable[[], ServedModel],
        options: ServerOptions,
        sleep_idle_s: float | None = None,
    ) -> None:
        self.options = options
        self.served: ServedModel | None = None
        self.error: BaseException | None = None
        self.on_ready: Callable[[ServedModel], object] = lambda _: None
        self.on_failed: Callable[[BaseException], object] = lambda _: None
        self.on_sleeping: Callable[[], object] = lambda: None
        self.on_awake: Callable[[], object] = lambda: None
        self._load, self._sleep_idle_s = load, sleep_idle_s
        self._description: Description | None = None
        self._counts: Counts | None = None
        self._scales: list[float] = []  # of the adapters, when the model was freed
        self._loader = Workers(2, "load")  # for the model, and for `later`
        self._tasks: list[asyncio.Task[None]] = []
        self._waking: asyncio.Task[ServedModel] | None = None
        self._lock = asyncio.Lock()  # held while the model is loaded or freed
        self._n_users, self._last_used_s = 0, 0.0

    @classmethod
    def of(cls, served: ServedModel) -> Lifecycle:
        """The lifecycle of a model that is loaded already."""

        life = cls(lambda: served, served.options)
        life.served, life._description = served, describe(served)
        return life

    def begin(self) -> None:
        """Begin to load."""
        if self.served is not None:
            self._enter(self.served)
        else:
            self._tasks.append(asyncio.create_task(self._first()))

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let the running ones go on for a time, and then end them."""
        if self.served is not None:
            await self.served.drain(timeout_s)

    async def end(self) -> None:
        """Free the model; what cannot be stopped, such as compiling, is not waited for."""
        tasks = [*self._tasks, *([self._waking] if self._waking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loader.close()
        if self.served is not None:
            await self._close(self.served, _ABORT_S)

    @property
    def is_computing(self) -> bool:
        """Whether a thread still loads, computes or compiles, as may be after `end`."""
        return self._loader.is_busy or (self.served is not None and self.served.is_computing)

    @property
    def description(self) -> Description:
        """What the server tells of its model, also while it sleeps. Raises: ApiError (503)."""
        if self._description is None:
            raise loading()
        return self._description

    @property
    def is_sleeping(self) -> bool:
        """Whether the model has been freed, or is being loaded again."""
        return self.served is None

    @property
    def counts(self) -> Counts:
        """The totals for ``/metrics``, of all times that the model was loaded."""
        assert self._counts is not None
        return self._counts

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[ServedModel]:
        """The model for a request; one that sleeps is loaded again.

        Raises:
            ApiError: it is being loaded for the first time, or cannot be loaded again (503).
        """
        _ = self.description
        self._n_users += 1
        try:
            yield self.served or await self._woken()
        finally:
            self._n_users -= 1
            self._last_used_s = time.monotonic()

    def later(self, work: Callable[[], object]) -> None:
        """Run work that requests do not wait for in a thread, such as compiling."""
        self._loader.submit(work)

    # --- loading --------------------------------------------------------------------------------

    async def _first(self) -> None:
        try:
            served = await self._loader.run(self._load)
            self._description = await self._loader.run(partial(describe, served))
        except Exception as error:
            self._failed(error)
            return
        self._enter(served)
        self.on_ready(served)

    def _enter(self, served: ServedModel) -> None:
        """Let a loaded model run."""
        if self._counts is None:
            self._counts = served.runner.counts
            if self._sleep_idle_s is not None:
                watch = self._sleep_when_idle(self._sleep_idle_s)
                self._tasks.append(asyncio.create_task(watch))
        served.runner.counts, served.runner.on_dead = self._counts, self._failed
        served.runner.start(asyncio.get_running_loop())
        self.served, self._last_used_s = served, time.monotonic()

    async def _woken(self) -> ServedModel:
        """Load the model again; all requests that wait share one loading."""
        if self._waking is None:
            self._waking = asyncio.create_task(self._wake())
        return await asyncio.shield(self._waking)

    async def _wake(self) -> ServedModel:
        try:
            async with self._lock:
                _log.info("loading the model again")
                served = await self._loader.run(self._load)
                apply(served.engine.context, self._scales)
                self._enter(served)
                self.on_awake()
                return served
        except Exception:
            _log.exception("the model cannot be loaded again")
            raise ApiError(503, "the model cannot be loaded again") from None
        finally:
            self._waking = None

    # --- sleeping -------------------------------------------------------------------------------

    async def _sleep_when_idle(self, idle_s: float) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._idle_left_s(idle_s)))
            if self.served is not None and self._idle_left_s(idle_s) <= 0:
                async with self._lock:
                    served, self.served = self.served, None
                    _log.info("the model is freed until the next request")
                    await self._close(served)
                    self._scales = applied(served.engine.context)
                    del served
                    await self._loader.run(_collect)
                self.on_sleeping()

    def _idle_left_s(self, idle_s: float) -> float:
        """Seconds until the model may be freed, if nobody asks in the meantime."""
        served = self.served
        if served is None or self._n_users or not served.runner.is_idle:
            return idle_s
        return idle_s + max(self._last_used_s, served.runner.last_active_s) - time.monotonic()

    def _failed(self, error: BaseException) -> None:
        self.error = error
        self.on_failed(error)

    async def _close(self, served: ServedModel, abort_s: float | None = None) -> None:
        await served.runner.close(0.0, abort_s)
        if served.engine.speculation is not None:
            self.counts.keep(served.engine.speculation.stats)
        served.close()


def _collect() -> None:
    """Free what is left of a model, also if its program has frozen what was alive."""
    gc.unfreeze()
    gc.collect()
