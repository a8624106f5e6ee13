"""What a server is started with: where it listens, whom it serves, which paths it has.

Listening(port=0)                               # of `pyllama.server.http.listener`
ServerOptions(n_predict=256, endpoint_slots=False)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import INT32_MAX, Flags, documented, row
from .generation import GenerationParams

MIB = 1 << 20
_DAYS = 1 << 20  # seconds


@documented
@dataclass(frozen=True)
class Listening:
    """Where and how to listen."""

    # fmt: off
    hosts: tuple[str, ...] = row(("127.0.0.1",),
        "Addresses to listen at; a name that ends with .sock is a Unix socket.",
        Flags("--host", metavar="ADDRESS,..."))
    port: int = row(8080, "Port to listen at. 0: a free one.", Flags("--port", low=0, high=65535))
    reuse_port: bool = row(False, "Let several processes listen at the port.",
        Flags("--reuse-port"))
    ssl_key: Path | None = row(None, "File of a TLS private key, in PEM format.",
        Flags("--ssl-key-file"))
    ssl_cert: Path | None = row(None, "File of its certificate, in PEM format.",
        Flags("--ssl-cert-file"))
    body_s: float = row(60,
        "Seconds within which the body of a request must arrive, and a client must read something "
        "of its response.", Flags("-to", "--timeout", low=1, high=_DAYS))
    header_s: float = row(20, "Seconds within which the headers must arrive.",
        Flags("--header-timeout", low=1, high=_DAYS))
    shutdown_s: int = row(10,
        "Seconds after SIGTERM until the process has ended; running responses get all but the last "
        "half second.", Flags("--shutdown-timeout", low=1, high=_DAYS))
    keep_alive_s: int = row(30, "Seconds that a connection may wait for its next request.")
    max_connections: int = row(4096, "Connections to all addresses; more get a 503.")
    # fmt: on


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class ServingParams(GenerationParams):
    """The options of a server that its requests do not change, and the defaults of those."""

    # fmt: off
    api_keys: tuple[str, ...] = row((), "Keys of which a request must have one.",
        Flags("--api-key", repeated=True, help="Key that requests must have; several are "
        "separated by commas. Repeatable."))
    api_prefix: str = row("", "Path before that of every route.", Flags("--api-prefix"))
    allowed_hosts: tuple[str, ...] | None = row((),
        "Names that the Host header may have besides addresses; '*' or None for any.",
        Flags("--allowed-hosts", metavar="NAME,...", default=None, help="Names that the Host "
        "header may have besides addresses; '*' for any.  [default: none if the server listens on "
        "this machine alone, else any]"))
    cors_origins: str = row("",
        "Origins of other pages that may use the server, separated by commas: https://a.example, "
        "localhost for any port of this machine, '*' for all.  [default: none; localhost with "
        "--tools]", Flags("--cors-origins", default=None))
    cors_methods: str = row("GET, POST, DELETE, OPTIONS", "Methods that such pages may use.",
        Flags("--cors-methods"))
    cors_headers: str = row("*", "Headers that such pages may send.", Flags("--cors-headers"))
    cors_credentials: bool = row(True, "Whether browsers send credentials with it; never for '*'.",
        Flags("--cors-credentials/--no-cors-credentials"))
    cors_proxy: bool = row(False,
        "Forward requests of the page to other servers. Only for trusted users: it can reach what "
        "this machine can.",
        Flags("--ui-mcp-proxy/--no-ui-mcp-proxy", "--webui-mcp-proxy/--no-webui-mcp-proxy"))
    max_body_bytes: int = row(16 * MIB, "Largest body of a request, in MiB.",
        Flags("--max-body-size", low=1, high=_DAYS, default=16, metavar="MIB",
            help="Largest body of a request."))
    ui: bool = row(True, "Serve the web page at /.", Flags("--ui/--no-ui", "--webui/--no-webui"))
    path: Path | None = row(None, "Folder of static files to serve instead of the page.",
        Flags("--path"))
    context_shift: bool = row(False,
        "When the context of a text is full, discard half of it and continue, or stop.",
        Flags("--context-shift/--no-context-shift"))
    aliases: tuple[str, ...] = row((),
        "Names of the model; the first of the alphabet is its id in the API.",
        Flags("-a", "--alias", metavar="NAME,..."))
    tags: tuple[str, ...] = row((), "Tags of the model, for information.",
        Flags("--tags", metavar="TAG,..."))
    endpoint_slots: bool = row(True, "Serve /slots.", Flags("--slots/--no-slots"))
    endpoint_props: bool = row(False, "Accept POST /props.", Flags("--props"))
    endpoint_metrics: bool = row(False, "Serve /metrics in Prometheus' format.", Flags("--metrics"))
    open_health: bool = row(True, "Whether /health needs no key.")
    reranking: bool = row(False, "Serve /rerank.", Flags("--rerank", "--reranking"))
    pooling: str | None = row(None,
        "How an embedding follows from its tokens.  [default: the model's]",
        Flags("--pooling", choices=("none", "mean", "cls", "last", "rank")))
    slot_save_path: Path | None = row(None,
        "Folder for files of slots; without it they cannot be saved.", Flags("--slot-save-path"))
    max_waiting: int | None = row(512,
        "Requests that may wait for a slot: while there are as many, others are refused with 429.",
        Flags("--max-waiting", low=1))
    deadline_s: float | None = row(None, "Time after which a text ends.  [default: none]",
        Flags("--request-timeout", low=1, high=INT32_MAX, metavar="SECONDS"))
    prefill_assistant: bool = row(True,
        "Continue a conversation's last message if it is the assistant's.",
        Flags("--prefill-assistant/--no-prefill-assistant"))
    spm_infill: bool = row(False, "Suffix before prefix in /infill.", Flags("--spm-infill"))
    model_path: str = row("", "File of the model, of which /props tells the name.")
    drafters: tuple[str, ...] = row((), "Names of the drafters, reported in settings.")
    # fmt: on
