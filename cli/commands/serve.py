"""``pyllama-server``: an HTTP server with llama.cpp's, OpenAI's, Anthropic's and Ollama's API.

    pyllama-server -m x.gguf --port 8080 -np 4
    pyllama serve                                  # the demo model
    pyllama-server --models-dir models --models-max 2

Needs ``pip install pyggml[server]``. docs/server.md describes the API.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from pyllama.parameters import Flags, row, rows
from pyllama.parameters.generation import ChatParams
from pyllama.parameters.serving import MIB, Listening, ServingParams

from ..drafting import Drafting
from ..help_pages import stack
from ..loading import load_model, make_context
from ..options.conversation import chat_options, template, template_values
from ..options.grammar import GrammarOptions, grammar_options
from ..options.hub import HubOptions
from ..options.options import (
    ContextOptions,
    ModelOptions,
    context_options,
    host_names,
    keys_of,
    model_options,
)
from ..options.prompt import escape_option
from ..options.router import RouterOptions, router_options, spawner
from ..options.sampling import sampling_options, sampling_params
from ..options.server_presets import preset_options
from ..options.speculative import SpeculativeOptions, speculative_options
from ..output import note, report
from ..parameters import from_options, parameter_options
from ..paths import read_text
from ..tool import Program, ignored_option, version_option

if TYPE_CHECKING:
    from pyllama.engine.prefix_store import PrefixStore
    from pyllama.runtime.model import Model
    from pyllama.server.request.options import ServerOptions
    from pyllama.server.router.catalog import CatalogEntry
    from pyllama.server.router.child import RouterLink
    from pyllama.server.worker.served import ServedModel

F = TypeVar("F", bound=Callable[..., Any])
_DEFAULT_SLOTS = 4
_CACHE_MIB = 8192
# partial collections of milliseconds; full ones are as rare as in other commands
_GC_THRESHOLDS = 2_000, 10, 100
_MAX_SLOTS = 256
_MISSING = "the server needs more packages: pip install 'pyggml[server]'"
_PREFIX = re.compile(r"(/[\w.~-]+)*")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ServeOptions(ChatParams):
    """What is no option of the library's server."""

    # fmt: off
    parallel: int = row(-1,
        "Number of slots: texts generated at the same time. -1: 4, --kv-unified.",
        Flags("-np", "--parallel", low=-1, high=_MAX_SLOTS))
    kv_unified: bool | None = row(None,
        "Share one KV cache among all slots, or give each an equal part.  [default: on unless -np "
        "is given]", Flags("-kvu/-no-kvu", "--kv-unified/--no-kv-unified"))
    embedding: bool = row(False, "Serve /embeddings and /v1/embeddings.",
        Flags("--embedding", "--embeddings"))
    cache_ram: int | None = row(None,
        "Memory for prompts that no slot holds any more. 0: none, -1: no limit.  [default: 8192, "
        "or a quarter of the machine's if that is less]",
        Flags("-cram", "--cache-ram", low=-1, high=1 << 24, metavar="MIB"))
    cache_idle_slots: bool | None = row(None,
        "Move the prompts of idle slots there when another text begins; else only those that would "
        "be lost.  [default: on if -cram is given]",
        Flags("--cache-idle-slots/--no-cache-idle-slots"))
    lora_init_without_apply: bool = row(False,
        "Load LoRA adapters without applying them; requests and POST /lora-adapters do.",
        Flags("--lora-init-without-apply"))
    sleep_idle_seconds: int = row(-1,
        "Free the model after this time without requests; the next one loads it again. -1: never.",
        Flags("--sleep-idle-seconds", low=-1, metavar="SECONDS"))
    warmup: bool = row(True,
        "Compile what an ordinary request needs before the server says that it is ready, and the "
        "rest after that. Later starts load it.", Flags("--warmup/--no-warmup"))
    log_jsonl: bool = row(False, "Log requests and errors on stdout, as one JSON object a line.",
        Flags("--log-jsonl/--no-log-jsonl"))
    api_key_file: Path | None = row(None, "File with a key in each line.", Flags("--api-key-file"))
    tools: str | None = row(None,
        "llama.cpp's built-in tools are not run; the flag only sets --cors-origins to localhost.",
        Flags("--tools"))
    # fmt: on

    @property
    def n_slots(self) -> int:
        """Number of sequences."""
        return self.parallel if self.parallel > 0 else _DEFAULT_SLOTS

    @property
    def is_unified(self) -> bool:
        """Whether the sequences share all cells; by default unless their number is given."""
        return self.parallel < 0 if self.kv_unified is None else self.kv_unified

    def how_pooled(self, settings: ServerOptions, model: Model) -> str | None:
        """Return the pooling; None for no embeddings.

        A model without a classification head does not rank: as in llama.cpp, the scores are then
        numbers without a meaning.

        Raises:
            ModelError: it is a diffusion model, and not served for its embeddings.
        """
        if not (self.embedding or settings.reranking or model.hparams.encoder):
            if model.hparams.diffusion:
                from pyllama.errors import ModelError

                raise ModelError(
                    f"{model.path}: {model.hparams.arch} is a diffusion model: use "
                    "pyllama-diffusion, or --embeddings for embeddings alone"
                )
            return None
        pooling = "rank" if settings.reranking else settings.pooling or model.pooling

        from pyllama.graph.builder import HEAD

        if pooling == "rank" and HEAD not in model.weights:
            note("this model has no classification head: scores of documents have no meaning")
            return "last" if model.hparams.causal else "cls"
        return pooling

    def prefixes(self) -> PrefixStore | None:
        """Return the store of prompts; None for none."""
        from pyllama.engine.prefix_store import PrefixStore

        limit, idle = self.cache_ram, self.cache_idle_slots
        if idle is None:
            idle = limit is not None
        if limit is None:
            from pyggml.host import total_memory

            n_bytes = total_memory()
            limit = _CACHE_MIB if n_bytes is None else min(_CACHE_MIB, n_bytes // (4 << 20))
        if limit == 0:
            return None
        if idle:
            logging.getLogger("pyllama.server").debug("__TEST_TAG_CACHE_IDLE_SLOTS_ENABLED__")
        return PrefixStore(limit << 20 if limit > 0 else sys.maxsize, save_idle=idle)

    def server(self, options: Mapping[str, Any], listening: Listening) -> ServerOptions:
        """Return the options of the command line; the loaded model's are not set yet.

        Raises:
            click.UsageError: options contradict each other, or name no folder or an empty key.
        """
        from pyllama.server.request.options import ServerOptions

        given = from_options(
            ServerOptions,
            {**options, "api_keys": None},
            sampling=sampling_params(options),
            grammar=from_options(GrammarOptions, options).parse(),
            chat_template=template(self),
            reasoning_budget=self.reasoning_budget,
            reasoning_message=self.reasoning_message,
            template_values=template_values(self),
        )
        for flag, folder in (("--slot-save-path", given.slot_save_path), ("--path", given.path)):
            if folder is not None and not folder.is_dir():
                raise click.UsageError(f"{flag}: {folder} is not a folder")
        prefix = given.api_prefix.rstrip("/")
        if not _PREFIX.fullmatch(prefix):
            raise click.UsageError(f"--api-prefix: {prefix!r} is not a path such as /llm or /a/b")
        return replace(
            given,
            stop=tuple(filter(None, given.stop)),
            api_keys=self._keys(options["api_keys"]),
            api_prefix=prefix,
            allowed_hosts=host_names(options["allowed_hosts"], listening.hosts),
            cors_origins=given.cors_origins or ("localhost" if self.tools else ""),
            max_body_bytes=given.max_body_bytes * MIB,
            reranking=given.reranking or given.pooling == "rank",
        )

    def _keys(self, given: tuple[str, ...]) -> tuple[str, ...]:
        """The keys of the flags and the file; an empty one would let everybody in."""
        keys = [key for text in given for key in keys_of("--api-key", text)]
        if self.api_key_file is not None:
            lines = [line.strip() for line in read_text(self.api_key_file).splitlines()]
            if not any(lines):
                raise click.UsageError(f"--api-key-file: {self.api_key_file} has no key in it")
            keys += filter(None, lines)
        return tuple(keys)


def listening_of(options: Mapping[str, Any]) -> Listening:
    """Return where and how to listen. Raises: click.UsageError."""
    found = from_options(Listening, options)
    if (found.ssl_key is None) != (found.ssl_cert is None):
        raise click.UsageError("give both --ssl-key-file and --ssl-cert-file, or neither")
    return found


def _sleep_s(ctx: click.Context, param: click.Parameter, value: int) -> int:
    if value == 0:
        raise click.BadParameter("cannot be 0; -1 means never")
    return value


serve_options = stack(
    parameter_options(Listening),
    parameter_options(
        ServeOptions,
        but=rows(ChatParams),
        callbacks={"--sleep-idle-seconds": _sleep_s},
    ),
    parameter_options(ServingParams),
    chat_options,
    ignored_option("-cb", "--cont-batching"),
    ignored_option("--log-disable"),
    ignored_option("-bs", "--backend-sampling", why="the CPU samples"),
    *(ignored_option(*flags, takes_value=True, why=why) for *flags, why in (
        ("--cache-reuse", "prompts are reused up to their first difference"),
        ("-sps", "--slot-prompt-similarity", "a request gets the slot that has most of its prompt"),
        ("--threads-http", "one thread serves all connections"),
    )),
)  # fmt: skip


@click.command("serve", cls=Program)
@serve_options
@model_options
@router_options
@escape_option()
@context_options()
@sampling_options
@grammar_options
@speculative_options()
@preset_options
@version_option()
def command(router_child: bool, **options: Any) -> None:
    """Serve a model over HTTP, for many clients at once; or several, with --models-dir."""
    router_link = _open_router_link() if router_child else None
    try:
        from pyllama.server.app import make_app
        from pyllama.server.http.listener import serve
    except ModuleNotFoundError as error:
        raise click.UsageError(f"{_MISSING} ({error.name} is missing)") from None
    from pyllama.engine import Engine
    from pyllama.server.worker.lifecycle import Lifecycle
    from pyllama.server.worker.served import ServedModel
    from pyllama.server.worker.warm_up import compile_rest, warm_up

    serving, listening = from_options(ServeOptions, options), listening_of(options)
    settings = serving.server(options, listening)
    sizes, loading = ContextOptions.from_click(options), ModelOptions.from_click(options)
    _log_to(serving, settings.verbose)
    drafts = SpeculativeOptions.from_click(options)
    router = from_options(RouterOptions, options)
    if router.is_router and router_link is None:
        if loading.model is None and HubOptions.current() is None:
            _route(router, settings, listening, serving)
            return
        note("--models-dir and --models-preset are ignored: one model is named")
    if router_link is not None:
        settings = replace(
            settings, api_keys=(router_link.key,), open_health=False, aliases=(router_link.name,)
        )
    click_context = click.get_current_context()

    def load() -> ServedModel:
        with click_context.scope(cleanup=False), ExitStack() as resources:
            n_slots, unified = serving.n_slots, serving.is_unified
            made = Drafting(drafts, loading, sizes, settings.sampling, n_slots, unified)
            drafting = resources.enter_context(made)
            cells = sizes.params(n_slots, unified)
            model = load_model(loading, cells, sizes.n_threads, drafting.reserved)
            context = make_context(
                model, sizes, n_seq_max=n_slots, unified=unified,
                apply_loras=not serving.lora_init_without_apply,
            )  # fmt: skip
            engine = Engine(
                context, speculation=drafting.speculation(context), prefixes=serving.prefixes()
            )
            own_options = replace(
                settings,
                model_path=str(model.path),
                pooling=serving.how_pooled(settings, model),
                drafters=tuple(drafts.types),
            )
            served = ServedModel(engine, own_options)
            served.chat_format()  # a wrong template is found now
            if serving.warmup:
                warm_up(served)
            served.resources = resources.pop_all()
            # a collection stops all threads: it need not look at what stays, nor at much at once
            gc.collect()
            gc.freeze()
            gc.set_threshold(*_GC_THRESHOLDS)
            return served

    sleep_s = serving.sleep_idle_seconds
    life = Lifecycle(load, settings, sleep_s if sleep_s > 0 else None)

    def listens(urls: Sequence[str], stop: Callable[[], None]) -> None:
        def ready(served: ServedModel) -> None:
            n_slots = len(served.runner.slots)
            line = f"{served.name}, {n_slots} slots of {served.n_ctx} tokens: {' '.join(urls)}"
            _say(line, serving)
            if router_link is not None:
                router_link.report("loaded", info=life.description.models["data"][0])
            if serving.warmup:
                life.later(compile_rest)

        if router_link is not None:
            router_link.report("listening", port=int(urls[0].rpartition(":")[2]))
            life.on_sleeping = partial(router_link.report, "sleeping")
            life.on_awake = partial(router_link.report, "loaded")
        life.on_ready, life.on_failed = ready, lambda error: stop()

    serve(make_app(life), listening, listens, life.drain, lambda: _leave(life.error))
    if life.error is None or life.is_computing:
        _leave(life.error)
    raise life.error


def _leave(error: BaseException | None = None) -> NoReturn:
    """End the process at once, from any thread.

    Python would free all that there is, which takes half a second on a busy machine, and wait until
    a thread that computes lets go of the GIL.
    """
    code = report(error) if isinstance(error, Exception) else 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _say(line: str, serving: ServeOptions) -> None:
    """Say that the server is ready."""
    if serving.log_jsonl:
        logging.getLogger("pyllama.server").info(line)
    else:
        note(line)


def _open_router_link() -> RouterLink:
    """The pipes to the router that started this process."""
    from pyllama.server.router.child import RouterLink

    try:
        return RouterLink.open()
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _route(
    router: RouterOptions, settings: ServerOptions, listening: Listening, serving: ServeOptions
) -> None:
    """Serve several models."""
    from pyllama.server.http.listener import serve
    from pyllama.server.router.app import make_router
    from pyllama.server.router.pool import Pool

    ctx = click.get_current_context()

    def entries() -> list[CatalogEntry]:
        with ctx.scope(cleanup=False):
            return router.entries(ctx)

    pool = Pool(entries(), spawner(ctx), router.models_max)
    app = make_router(pool, settings, entries, autoload=router.models_autoload)

    def listens(urls: Sequence[str], stop: Callable[[], None]) -> None:
        _say(f"{len(pool.instances)} models: {' '.join(urls)}", serving)

    serve(app, listening, listens, pool.drain, _leave)
    _leave()


def _log_to(serving: ServeOptions, verbose: bool) -> None:
    """Set up logging: messages on stderr, or JSON lines on stdout."""
    from pyllama.server.http.logs import JsonFormatter

    handler = logging.StreamHandler(sys.stdout if serving.log_jsonl else sys.stderr)
    plain = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if serving.log_jsonl else plain)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    level = logging.INFO if serving.log_jsonl else logging.WARNING
    logging.getLogger("pyllama.server").setLevel(logging.DEBUG if verbose else level)
