"""Errors as llama.cpp's server reports them, and in the forms of Anthropic's and Ollama's APIs.

    raise ApiError.invalid('"prompt" is required')
    error_of(ContextFull("...")).body()            # {"error": {"code": 400, "type": ..., ...}}
    error.body("/v1/messages")                     # {"type": "error", "error": {...}}
    error.body("/api/chat")                        # {"error": "..."}

The only place that maps pyllama's errors to status codes.
"""

from __future__ import annotations

from typing import Any

from pyggml.errors import PyggmlError

from ...errors import (
    BatchError,
    ContextFull,
    EngineDead,
    GrammarError,
    QueueFull,
    SamplingError,
    StateError,
    TemplateError,
    TokenizerError,
)
from .paths import without_folders

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",
    502: "server_error",
    503: "unavailable_error",
}
_ANTHROPICS = {  # the names of kinds that differ there
    413: "request_too_large",
    500: "api_error",
    501: "api_error",
    502: "api_error",
    503: "overloaded_error",
}
_BAD_REQUEST = (
    BatchError, GrammarError, SamplingError, StateError, TemplateError, TokenizerError,
)  # fmt: skip


class ApiError(Exception):
    """An error with a status code.

    Args:
        status: the HTTP status code.
        message: one or two sentences for the user of the API.
        type: llama.cpp's name of the kind; None for that of the status.
        more: further fields of the body.
        headers: headers of the response.

    Source: llama.cpp, ``format_error_response``.
    """

    def __init__(
        self,
        status: int,
        message: str,
        type: str | None = None,
        more: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}
        self.type = type or _TYPES.get(status, "server_error")
        self.more = more or {}

    @classmethod
    def invalid(cls, message: str) -> ApiError:
        """A bad request (400)."""
        return cls(400, message)

    @classmethod
    def not_supported(cls, message: str) -> ApiError:
        """A function that is switched off, or that the model lacks (501)."""
        return cls(501, message)

    @property
    def fields(self) -> dict[str, Any]:
        """The error object of a body."""
        return {"code": self.status, "message": self.message, "type": self.type, **self.more}

    def body(self, path: str = "") -> dict[str, Any]:
        """The body of the response at a path, in the form of the API that has this path.

        Args:
            path: that of the request, without the server's prefix.
        """
        if path.startswith("/api/"):  # Ollama's clients show the value as it is
            return {"error": self.message}
        if path.startswith("/v1/messages"):
            kind = _ANTHROPICS.get(self.status, self.type)
            return {"type": "error", "error": {**self.fields, "type": kind}}
        return {"error": self.fields}


def error_of(error: BaseException) -> ApiError:
    """The error to report for an exception."""
    if isinstance(error, ApiError):
        return error
    message = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ContextFull):
        return ApiError(500, f"Context size has been exceeded: {message}")
    if isinstance(error, QueueFull):
        return ApiError(429, message, headers={"Retry-After": "1"})
    if isinstance(error, _BAD_REQUEST):
        return ApiError.invalid(message)
    if isinstance(error, PyggmlError):
        return ApiError(503 if isinstance(error, EngineDead) else 500, without_folders(message))
    return ApiError(500, f"internal error: {type(error).__name__}")


def shutting_down() -> ApiError:
    """The error for a request to a server that ends."""
    return ApiError(503, "the server is shutting down", headers={"Retry-After": "5"})


def prompt_too_long(
    n_prompt: int, n_ctx: int, *, at_least: bool = False, is_batch: bool = False
) -> ApiError:
    """The error for a prompt that does not fit into a slot.

    Args:
        at_least: it has more tokens.
        is_batch: ``n_ctx`` is the physical batch size, for a model that reads texts as a whole.
    """
    n_tokens = f"at least {n_prompt}" if at_least else n_prompt
    size = "physical batch size (--ubatch-size, " if is_batch else "available context size ("
    return ApiError(
        400,
        f"request ({n_tokens} tokens) exceeds the {size}{n_ctx} tokens), try increasing it",
        "exceed_context_size_error",
        {"n_prompt_tokens": n_prompt, "n_ctx": n_ctx},
    )
