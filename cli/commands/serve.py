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
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from ..drafting import Drafting
from ..help_pages import stack
from ..loading import load_model, make_context
from ..options.conversation import json_object
from ..options.grammar import GrammarOptions, grammar_options
from ..options.hub import HubOptions
from ..options.options import (
    INT32_MAX,
    ContextOptions,
    Group,
    ModelOptions,
    Number,
    context_options,
    keys_of,
    model_options,
)
from ..options.prompt import escape_option
from ..options.router import RouterOptions, router_options, spawner
from ..options.sampling import SamplingOptions, sampling_options
from ..options.server_presets import preset_options
from ..options.speculative import SpeculativeOptions, speculative_options
from ..output import note, report
from ..paths import read_text
from ..tool import Program, ignored_option, version_option

if TYPE_CHECKING:
    from pyllama.engine.prefix_store import PrefixStore
    from pyllama.runtime.model import Model
    from pyllama.server.http.listener import Listening
    from pyllama.server.request.options import ServerOptions
    from pyllama.server.router.catalog import CatalogEntry
    from pyllama.server.router.child import RouterLink
    from pyllama.server.worker.served import ServedModel

F = TypeVar("F", bound=Callable[..., Any])
_DEFAULT_SLOTS = 4
_CACHE_MIB = 8192
_MAX_SLOTS = 256
_MISSING = "the server needs more packages: pip install 'pyggml[server]'"


@dataclass(frozen=True)
class NetworkOptions(Group):
    """Where the server listens, and whom it serves."""

    host: str
    port: int
    reuse_port: bool
    ssl_key_file: Path | None
    ssl_cert_file: Path | None
    timeout: int
    header_timeout: int
    shutdown_timeout: int
    max_body_size: int
    api_key: tuple[str, ...]
    api_key_file: Path | None
    api_prefix: str
    allowed_hosts: str | None
    cors_origins: str | None
    cors_methods: str
    cors_headers: str
    cors_credentials: bool
    ui_mcp_proxy: bool
    tools: str | None
    ui: bool
    path: Path | None

    def listening(self) -> Listening:
        """Return where and how to listen."""
        from pyllama.server.http.listener import Listening

        if (self.ssl_key_file is None) != (self.ssl_cert_file is None):
            raise click.UsageError("give both --ssl-key-file and --ssl-cert-file, or neither")
        return Listening(
            hosts=self.hosts,
            port=self.port,
            ssl_key=self.ssl_key_file,
            ssl_cert=self.ssl_cert_file,
            header_s=self.header_timeout,
            body_s=self.timeout,
            shutdown_s=self.shutdown_timeout,
            reuse_port=self.reuse_port,
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses to listen at."""
        return tuple(filter(None, (host.strip() for host in self.host.split(","))))

    def names(self) -> tuple[str, ...] | None:
        """Return the names that ``Host`` may have; None for any.

        A server of this machine alone is protected from pages whose name resolves to it.
        """
        if self.allowed_hosts is not None:
            names = tuple(name.strip().lower() for name in self.allowed_hosts.split(","))
            return None if "*" in names else names
        local = ("127.0.0.1", "localhost", "::1")
        return () if all(host in local or host.endswith(".sock") for host in self.hosts) else None

    def keys(self) -> tuple[str, ...]:
        """Return the API keys of the flags and the file.

        Raises:
            click.UsageError: a key is empty, which would let everybody in, or the file has none.
        """
        keys = [key for given in self.api_key for key in keys_of("--api-key", given)]
        if self.api_key_file is not None:
            lines = [line.strip() for line in read_text(self.api_key_file).splitlines()]
            if not any(lines):
                raise click.UsageError(f"--api-key-file: {self.api_key_file} has no key in it")
            keys += filter(None, lines)
        return tuple(keys)

    def origins(self) -> str:
        """Return the allowed origins of other pages; with tools those of this machine."""
        return self.cors_origins or ("localhost" if self.tools else "")


def _switch(flags: str, name: str, default: bool | None, help: str) -> Callable[[F], F]:
    return click.option(flags, name, default=default, help=help)


def _text(flag: str, default: str | None, help: str, **more: Any) -> Callable[[F], F]:
    return click.option(flag, default=default, help=help, **more)


def _seconds(flag: str, default: int, help: str) -> Callable[[F], F]:
    kind = Number(1, 1 << 20)
    return click.option(flag, type=kind, default=default, show_default=True, help=help)


def _file(flag: str, help: str) -> Callable[[F], F]:
    return click.option(flag, type=click.Path(path_type=Path), help=help)


network_options = stack(
    click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        metavar="ADDRESS,...",
        help="Addresses to listen at; a name that ends with .sock is a Unix socket.",
    ),
    click.option("--port", type=Number(0, 65535), default=8080, show_default=True,
                 help="Port to listen at. 0: a free one."),
    click.option("--reuse-port", is_flag=True, help="Let several processes listen at the port."),
    _file("--ssl-key-file", "File of a TLS private key, in PEM format."),
    _file("--ssl-cert-file", "File of its certificate, in PEM format."),
    click.option("-to", "--timeout", type=Number(1, 1 << 20), default=60, show_default=True,
                 help="Seconds within which the body of a request must arrive, and a client must "
                 "read something of its response."),
    _seconds("--header-timeout", 20, "Seconds within which the headers must arrive."),
    _seconds("--shutdown-timeout", 10, "Seconds after SIGTERM until the process has ended; running "
             "responses get all but the last 0.75."),
    click.option("--max-body-size", type=Number(1, 1 << 20), default=16, show_default=True,
                 metavar="MIB", help="Largest body of a request."),
    click.option("--api-key", multiple=True, help="Key that requests must have; several are "
                 "separated by commas. Repeatable."),
    _file("--api-key-file", "File with a key in each line."),
    _text("--api-prefix", "", "Path before that of every route."),
    _text("--allowed-hosts", None, "Names that the Host header may have besides addresses; '*' for "
          "any.  [default: none if the server listens on this machine alone, else any]",
          metavar="NAME,..."),
    _text("--cors-origins", None, "Origins of other pages that may use the server, separated by "
          "commas: https://a.example, localhost for any port of this machine, '*' for all.  "
          "[default: none; localhost with --tools]"),
    click.option("--cors-methods", default="GET, POST, DELETE, OPTIONS", show_default=True,
                 help="Methods that such pages may use."),
    click.option("--cors-headers", default="*", show_default=True,
                 help="Headers that such pages may send."),
    _switch("--cors-credentials/--no-cors-credentials", "cors_credentials", True,
            "Whether browsers send credentials with it; never for '*'."),
    click.option("--ui-mcp-proxy/--no-ui-mcp-proxy", "--webui-mcp-proxy/--no-webui-mcp-proxy",
                 "ui_mcp_proxy", default=False, help="Forward requests of the page to other "
                 "servers. Only for trusted users: it can reach what this machine can."),
    _text("--tools", None, "llama.cpp's built-in tools are not run; the flag only sets "
          "--cors-origins to localhost."),
    click.option("--ui/--no-ui", "--webui/--no-webui", "ui", default=True, show_default="on",
                 help="Serve the web page at /."),
    _file("--path", "Folder of static files to serve instead of the page."),
)  # fmt: skip


@dataclass(frozen=True)
class ServeOptions(Group):
    """What the server does with requests."""

    parallel: int
    kv_unified: bool | None
    predict: int
    keep: int
    context_shift: bool
    reverse_prompt: tuple[str, ...]
    cache_prompt: bool
    embedding: bool
    rerank: bool
    pooling: str | None
    cache_ram: int | None
    cache_idle_slots: bool | None
    alias: str
    tags: str
    slots: bool
    props: bool
    metrics: bool
    slot_save_path: Path | None
    sse_ping_interval: int
    max_waiting: int
    request_timeout: int | None
    sleep_idle_seconds: int
    prefill_assistant: bool
    spm_infill: bool
    warmup: bool
    verbose: bool
    log_jsonl: bool
    chat_template: str | None
    chat_template_file: Path | None
    chat_template_kwargs: Mapping[str, Any]
    reasoning: str
    reasoning_format: str
    reasoning_budget: int
    reasoning_budget_message: str

    @property
    def n_slots(self) -> int:
        """Number of sequences."""
        return self.parallel if self.parallel > 0 else _DEFAULT_SLOTS

    @property
    def is_unified(self) -> bool:
        """Whether the sequences share all cells; by default unless their number is given."""
        return self.parallel < 0 if self.kv_unified is None else self.kv_unified

    def how_pooled(self, model: Model) -> str | None:
        """Return the pooling; None for no embeddings.

        A model without a classification head does not rank: as in llama.cpp, the scores are then
        numbers without a meaning.
        """
        if not (self.embedding or self.rerank or self.pooling == "rank"):
            return None
        pooling = "rank" if self.rerank else self.pooling or model.pooling
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

    def template(self) -> str | None:
        """Return the name or source of the chat template; None for the model's own."""
        if self.chat_template_file is None:
            return self.chat_template
        if self.chat_template is not None:
            raise click.UsageError("give --chat-template as text or as a file, not both")
        return read_text(self.chat_template_file)

    def template_values(self) -> dict[str, Any]:
        """Return the variables for the chat template."""
        on = {} if self.reasoning == "auto" else {"enable_thinking": self.reasoning == "on"}
        return {**on, **self.chat_template_kwargs}


def _sleep_s(ctx: click.Context, param: click.Parameter, value: int) -> int:
    if value == 0:
        raise click.BadParameter("cannot be 0; -1 means never")
    return value


serve_options = stack(
    click.option("-np", "--parallel", type=Number(-1, _MAX_SLOTS), default=-1, show_default=True,
                 help="Number of slots: texts generated at the same time. -1: 4, --kv-unified."),
    click.option("-kvu/-no-kvu", "--kv-unified/--no-kv-unified", "kv_unified", default=None,
                 help="Share one KV cache among all slots, or give each an equal part.  "
                 "[default: on unless -np is given]"),
    ignored_option("-cb", "--cont-batching"),
    click.option("-n", "--predict", "--n-predict", type=Number(-1, INT32_MAX), default=-1,
                 show_default=True, help="Default of n_predict: maximum tokens of a text. -1: "
                 "until the context is full."),
    click.option("--keep", type=Number(-1, INT32_MAX), default=0, show_default=True,
                 help="Default of n_keep: tokens that a context shift keeps. -1: the prompt."),
    _switch("--context-shift/--no-context-shift", "context_shift", False,
            "When the context of a text is full, discard half of it and continue, or stop."),
    click.option("-r", "--reverse-prompt", multiple=True,
                 help="Default stop string. Repeatable."),
    _switch("--cache-prompt/--no-cache-prompt", "cache_prompt", True,
            "Default of cache_prompt: reuse prompts in the cache."),
    click.option("-a", "--alias", default="", metavar="NAME,...",
                 help="Names of the model; the first of the alphabet is its id in the API."),
    _text("--tags", "", "Tags of the model, for information.", metavar="TAG,..."),
    _switch("--slots/--no-slots", "slots", True, "Serve /slots."),
    click.option("--props", is_flag=True, help="Accept POST /props."),
    click.option("--metrics", is_flag=True, help="Serve /metrics in Prometheus' format."),
    click.option("-cram", "--cache-ram", type=Number(-1, 1 << 24), metavar="MIB",
                 help="Memory for prompts that no slot holds any more. 0: none, -1: no limit.  "
                 "[default: 8192, or a quarter of the machine's if that is less]"),
    _switch("--cache-idle-slots/--no-cache-idle-slots", "cache_idle_slots", None,
            "Move the prompts of idle slots there when another text begins; else only those that "
            "would be lost.  [default: on if -cram is given]"),
    click.option("--embedding", "--embeddings", "embedding", is_flag=True,
                 help="Serve /embeddings and /v1/embeddings."),
    click.option("--rerank", "--reranking", "rerank", is_flag=True, help="Serve /rerank."),
    click.option("--pooling", type=click.Choice(["none", "mean", "cls", "last", "rank"]),
                 help="How an embedding follows from its tokens.  [default: the model's]"),
    _file("--slot-save-path", "Folder for files of slots; without it they cannot be saved."),
    click.option("--sse-ping-interval", type=Number(-1, 1 << 20), default=30, show_default=True,
                 help="Seconds of silence after which a stream gets a comment. -1: never."),
    click.option("--max-waiting", type=Number(1, INT32_MAX), default=512, show_default=True,
                 help="Requests that may wait for a slot: while there are as many, others are "
                 "refused with 429."),
    click.option("--request-timeout", type=Number(1, INT32_MAX), metavar="SECONDS",
                 help="Time after which a text ends.  [default: none]"),
    click.option("--sleep-idle-seconds", type=Number(-1, INT32_MAX), default=-1,
                 show_default=True, metavar="SECONDS", callback=_sleep_s,
                 help="Free the model after this time without requests; the next one loads it "
                 "again. -1: never."),
    _switch("--prefill-assistant/--no-prefill-assistant", "prefill_assistant", True,
            "Continue a conversation's last message if it is the assistant's."),
    click.option("--spm-infill", is_flag=True, help="Suffix before prefix in /infill."),
    click.option("-v", "--verbose", "--log-verbose", is_flag=True,
                 help="Log requests, and report prompts and settings in responses."),
    _switch("--log-jsonl/--no-log-jsonl", "log_jsonl", False,
            "Log requests and errors on stdout, as one JSON object a line."),
    click.option("--chat-template", metavar="NAME|JINJA", help="Chat template: a name of "
                 "llama.cpp's (chatml, llama3, gemma, ...) or Jinja text."),
    _file("--chat-template-file", "File that contains the chat template."),
    click.option("--chat-template-kwargs", metavar="JSON", callback=json_object,
                 help='Variables for the chat template, such as {"enable_thinking": false}.'),
    click.option("-rea", "--reasoning", type=click.Choice(["on", "off", "auto"]), default="auto",
                 show_default=True, help="Whether the model reasons before it replies, if its chat "
                 "template has the choice."),
    click.option("--reasoning-format",
                 type=click.Choice(["none", "auto", "deepseek", "deepseek-legacy"]),
                 default="auto", show_default=True,
                 help="none leaves the reasoning in the content, the others report it apart."),
    click.option("--reasoning-budget", type=Number(-1, INT32_MAX), default=-1, show_default=True,
                 help="Maximum number of tokens of the reasoning. -1: no limit, 0: none."),
    click.option("--reasoning-budget-message", metavar="TEXT", default="",
                 help="Text before the end of the reasoning when its budget is spent."),
    ignored_option("--jinja"),
    ignored_option("--no-jinja", why="chat templates are always run as Jinja"),
    _switch("--warmup/--no-warmup", "warmup", True,
            "Compile what an ordinary request needs before the server says that it is ready, and "
            "the rest after that. Later starts load it."),
    ignored_option("--log-disable"),
    ignored_option("-bs", "--backend-sampling", why="the CPU samples"),
    ignored_option("--cache-reuse", takes_value=True,
                   why="prompts are reused up to their first difference"),
    ignored_option("-sps", "--slot-prompt-similarity", takes_value=True,
                   why="a request gets the slot that shares most of its prompt"),
    ignored_option("--threads-http", takes_value=True, why="one thread serves all connections"),
)  # fmt: skip


@click.command("serve", cls=Program)
@network_options
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

    serving, network = ServeOptions.from_click(options), NetworkOptions.from_click(options)
    listening = network.listening()
    params = SamplingOptions.from_click(options).params()
    sizes, loading = ContextOptions.from_click(options), ModelOptions.from_click(options)
    grammar = GrammarOptions.from_click(options).parse()
    _log_to(serving)
    drafts = SpeculativeOptions.from_click(options)
    settings = _server_options(serving, network, params, grammar)
    router = RouterOptions.from_click(options)
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
            drafting = resources.enter_context(
                Drafting(drafts, loading, sizes, params, n_slots, unified)
            )
            cells = sizes.params(n_slots, unified)
            model = load_model(loading, cells, sizes.n_threads, drafting.reserved)
            context = make_context(model, sizes, n_seq_max=n_slots, unified=unified)
            engine = Engine(
                context,
                speculation=drafting.speculation(context),
                prefixes=serving.prefixes(),
            )
            own_options = replace(
                settings,
                model_path=str(model.path),
                pooling=serving.how_pooled(model),
                drafters=tuple(drafts.types),
            )
            served = ServedModel(engine, own_options)
            served.chat_format()  # a wrong template is found now
            if serving.warmup:
                warm_up(served)
            served.resources = resources.pop_all()
            # a full collection stops all threads; it need not look at what stays
            gc.collect()
            gc.freeze()
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


def _log_to(serving: ServeOptions) -> None:
    """Set up logging: messages on stderr, or JSON lines on stdout."""
    from pyllama.server.http.logs import JsonFormatter

    handler = logging.StreamHandler(sys.stdout if serving.log_jsonl else sys.stderr)
    plain = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if serving.log_jsonl else plain)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    level = logging.INFO if serving.log_jsonl else logging.WARNING
    logging.getLogger("pyllama.server").setLevel(logging.DEBUG if serving.verbose else level)


def _server_options(
    serving: ServeOptions, network: NetworkOptions, params: Any, grammar: Any
) -> ServerOptions:
    """The options of the server, without those that depend on the model."""
    from pyllama.server.request.options import MIB, ServerOptions

    folder = serving.slot_save_path
    if folder is not None and not folder.is_dir():
        raise click.UsageError(f"--slot-save-path: {folder} is not a folder")
    if network.path is not None and not network.path.is_dir():
        raise click.UsageError(f"--path: {network.path} is not a folder")
    return ServerOptions(
        sampling=params,
        n_predict=serving.predict,
        n_keep=serving.keep,
        context_shift=serving.context_shift,
        stop=tuple(filter(None, serving.reverse_prompt)),
        grammar=grammar,
        cache_prompt=serving.cache_prompt,
        aliases=_words(serving.alias),
        tags=_words(serving.tags),
        chat_template=serving.template(),
        template_values=serving.template_values(),
        reasoning_format=serving.reasoning_format,
        reasoning_budget=serving.reasoning_budget,
        reasoning_message=serving.reasoning_budget_message,
        prefill_assistant=serving.prefill_assistant,
        endpoint_slots=serving.slots,
        endpoint_props=serving.props,
        endpoint_metrics=serving.metrics,
        slot_save_path=folder,
        api_keys=network.keys(),
        api_prefix=network.api_prefix.rstrip("/"),
        ui=network.ui,
        path=network.path,
        cors_origins=network.origins(),
        cors_methods=network.cors_methods,
        cors_headers=network.cors_headers,
        cors_credentials=network.cors_credentials,
        cors_proxy=network.ui_mcp_proxy,
        allowed_hosts=network.names(),
        max_body_bytes=network.max_body_size * MIB,
        sse_ping_s=serving.sse_ping_interval,
        max_waiting=serving.max_waiting,
        deadline_s=serving.request_timeout,
        reranking=serving.rerank or serving.pooling == "rank",
        spm_infill=serving.spm_infill,
        verbose=serving.verbose,
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (word.strip() for word in text.split(","))))
