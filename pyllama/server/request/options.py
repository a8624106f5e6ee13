"""What a server is started with.

ServerOptions(n_parallel=4, endpoint_slots=True)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import PyllamaError
from ...grammar import Grammar
from ...sampling import SamplingParams

MIB = 1 << 20


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server, with llama-server's meanings and defaults.

    Attributes:
        sampling: defaults of requests.
        n_predict: maximum tokens per text; negative until the context is full.
        n_keep: leading tokens that a context shift keeps, -1 for all of the prompt.
        context_shift: whether a text goes on when its context is full.
        stop: stop strings of requests without any.
        grammar: grammar of requests without one.
        cache_prompt: whether requests reuse prompts in the cache.
        aliases: names of the model; the alphabetically first is its id. Empty for its file name.
        tags: reported for the model, no more.
        model_path: file of the model, of which ``/props`` tells the name.
        chat_template: name or source of the chat template; None for the model's own.
        template_values: variables of the template.
        reasoning_format: see `pyllama.chat.reasoning`.
        reasoning_budget, reasoning_message: maximum tokens of reasoning, and the text before its
            forced end.
        prefill_assistant: whether a conversation that ends with the assistant's message is
            continued.
        endpoint_slots, endpoint_props, endpoint_metrics: whether these may be asked.
        slot_save_path: folder of slot files; None for none.
        api_keys: one of which a request must have; none for no check. None may be empty.
        open_health: whether ``/health`` needs no key.
        api_prefix: path before all routes.
        ui: whether the page is served; from the folder ``path`` if given.
        cors_origins: origins of other pages that may use the server, separated by commas:
            ``https://a.example``, ``localhost`` for any port of this machine, ``*`` for all; empty
            for the server's own page alone.
        cors_methods, cors_headers: what such pages may send.
        cors_credentials: whether browsers send credentials with it; never to ``*``.
        cors_proxy: whether ``/cors-proxy`` forwards requests of the page.
        allowed_hosts: names that ``Host`` may have beside addresses and localhost; None for any.
        max_body_bytes: of a request.
        sse_ping_s: seconds of silence after which a stream gets a comment; -1 for never.
        max_waiting: requests that may wait for a slot; while there are as many, others are
            refused. None for no limit.
        deadline_s: seconds after which a request ends; None for no limit.
        pooling: how embeddings are computed, one of ``POOLINGS``; None for no embeddings.
        reranking: whether documents are scored.
        spm_infill: suffix before prefix in ``/infill``.
        drafters: names of the drafters of speculative decoding, reported in settings.
        verbose: report ``__verbose`` objects.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    n_predict: int = -1
    n_keep: int = 0
    context_shift: bool = False
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    cache_prompt: bool = True
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    model_path: str = ""
    chat_template: str | None = None
    template_values: Mapping[str, Any] = field(default_factory=dict)
    reasoning_format: str = "auto"
    reasoning_budget: int = -1
    reasoning_message: str = ""
    prefill_assistant: bool = True
    endpoint_slots: bool = True
    endpoint_props: bool = False
    endpoint_metrics: bool = False
    slot_save_path: Path | None = None
    api_keys: tuple[str, ...] = ()
    open_health: bool = True
    api_prefix: str = ""
    ui: bool = True
    path: Path | None = None
    cors_origins: str = ""
    cors_methods: str = "GET, POST, DELETE, OPTIONS"
    cors_headers: str = "*"
    cors_credentials: bool = True
    cors_proxy: bool = False
    allowed_hosts: tuple[str, ...] | None = ()
    max_body_bytes: int = 16 * MIB
    sse_ping_s: int = 30
    max_waiting: int | None = 512
    deadline_s: float | None = None
    pooling: str | None = None
    reranking: bool = False
    spm_infill: bool = False
    drafters: tuple[str, ...] = ()
    verbose: bool = False

    def __post_init__(self) -> None:
        if not all(self.api_keys):
            raise PyllamaError("api_keys has an empty key, which every request would have")
