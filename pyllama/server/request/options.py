"""What a server is started with.

ServerOptions(endpoint_slots=True, sampling=SamplingParams(temp=0))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import PyllamaError
from ...grammar import Grammar
from ...parameters import documented
from ...parameters.sampling import SamplingParams
from ...parameters.serving import ServingParams


@documented
@dataclass(frozen=True, kw_only=True)
class ServerOptions(ServingParams):
    """Options of a server, with llama-server's meanings and defaults.

    Attributes:
        sampling: sampling of requests that do not say it themselves.
        grammar: grammar of requests without one.
        chat_template: name or source of the chat template; None for the model's own.
        template_values: variables of the chat template.
        reasoning_budget, reasoning_message: maximum tokens of reasoning, and the text before its
            forced end.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    grammar: Grammar | None = None
    chat_template: str | None = None
    reasoning_budget: int = -1
    reasoning_message: str = ""
    template_values: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(self.api_keys):
            raise PyllamaError("api_keys has an empty key, which every request would have")
