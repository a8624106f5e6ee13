"""Paths of llama-server's, OpenAI's, Anthropic's and Ollama's APIs that are not served.

    for methods, paths, sentence in MISSING: ...

They answer 501 with a sentence, so that a client does not look for a mistake in its address.
``{rest:path}`` is any further part of a path.
"""

from __future__ import annotations

_ANY = ("GET", "POST", "PUT", "PATCH", "DELETE")
_NOT_STORED = "responses and conversations are not stored: send the whole conversation each time"
_NO_FILES = "files are not stored: send texts in the requests themselves"
_NO_BATCHES = "batches are not stored: pyllama-batch answers a file of requests"
_NO_IMAGES = "only text models are served: there are no images, sounds and videos"
_NO_CHANGES = "models are not fetched, made or deleted by requests: choose them when it is started"
_NO_TRAINING = "models are not trained or rated here"
_NO_ACCOUNTS = "there are no accounts: keys are those of --api-key"
_NO_TOOLS = "tools are run by the client: /v1/chat/completions returns their calls"

Missing = tuple[tuple[str, ...], tuple[str, ...], str]


def _family(*names: str) -> tuple[str, ...]:
    """A path with all that is below it."""
    return tuple(path for name in names for path in (f"/v1/{name}", f"/v1/{name}/{{rest:path}}"))


MISSING: tuple[Missing, ...] = (
    # llama-server
    (("GET", "POST"), ("/tools",), _NO_TOOLS),
    (("POST", "DELETE"), ("/models",), _NO_CHANGES),
    (("POST",), ("/models/load", "/models/unload"), "one model is served: see --models-dir"),
    (("GET",), ("/models/sse",), "one model is served: see --models-dir"),
    (
        ("GET", "DELETE"),
        ("/v1/streams", "/v1/stream/{rest:path}"),
        "streams are found by their id alone: /v1/stream?conv_id=ID",
    ),
    (
        ("POST",),
        ("/v1/audio/transcriptions", "/audio/transcriptions"),
        "The current model does not support audio input.",
    ),
    (("POST",), ("/v1/systemone",), "This model is not a decision model"),
    (("POST",), ("/predict",), "Vertex AI's path is not served: use /v1/chat/completions"),
    # OpenAI
    (("GET",), ("/v1/chat/completions",), _NOT_STORED),
    (_ANY, ("/v1/chat/completions/{rest:path}", "/v1/responses/{rest:path}"), _NOT_STORED),
    (_ANY, _family("conversations", "threads", "assistants", "chatkit", "prompts"), _NOT_STORED),
    (("DELETE",), ("/v1/models/{rest:path}",), _NO_CHANGES),
    (_ANY, _family("files", "uploads", "vector_stores", "containers"), _NO_FILES),
    (_ANY, _family("batches"), _NO_BATCHES),
    (_ANY, _family("images", "audio", "videos", "realtime"), _NO_IMAGES),
    (_ANY, _family("fine_tuning", "fine-tunes", "evals", "moderations"), _NO_TRAINING),
    (_ANY, _family("organization", "projects"), _NO_ACCOUNTS),
    (_ANY, _family("skills"), _NO_TOOLS),
    (("POST",), ("/v1/edits", "/v1/engines/{rest:path}"), "use /v1/completions"),
    # Anthropic
    (_ANY, ("/v1/messages/batches", "/v1/messages/batches/{rest:path}"), _NO_BATCHES),
    (("POST",), ("/v1/complete",), "use /v1/messages"),
    # Ollama
    (("POST",), ("/api/pull", "/api/push", "/api/create", "/api/copy"), _NO_CHANGES),
    (("DELETE",), ("/api/delete",), _NO_CHANGES),
    (("GET", "POST"), ("/api/blobs/{rest:path}",), _NO_CHANGES),
    (_ANY, ("/api/me", "/api/signout", "/api/user/{rest:path}"), _NO_ACCOUNTS),
    (("GET",), ("/api/status",), "use /health"),
    (_ANY, ("/api/experimental/{rest:path}",), _NO_TOOLS),
)
"""Methods, paths, and what to do instead."""
