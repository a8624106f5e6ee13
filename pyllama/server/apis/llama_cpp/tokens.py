"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...http.sse import long_response, read_json
from ...request.errors import ApiError
from ...request.fields import Fields
from ...request.limits import TO_TOKENIZE, check_size
from ...worker.served import ServedModel


async def tokenize(request: Request, served: ServedModel) -> Response:
    """``POST /tokenize``: the tokens of a text, with their pieces if wanted."""
    body = await read_json(request, served.options)

    def work() -> list[int] | Iterator[dict[str, Any]]:
        fields = Fields(body)
        if not fields.has("content"):
            return []
        check_size("content", body["content"], TO_TOKENIZE)
        tokens = served.tokens(
            body["content"],
            add_special=fields.flag("add_special"),
            parse_special=fields.flag("parse_special", True),
        )
        if not fields.flag("with_pieces"):
            return tokens
        return ({"id": token, "piece": _piece(served, token)} for token in tokens)

    found = await served.prepare(work)
    return await long_response(lambda: {"tokens": found})


async def detokenize(request: Request, served: ServedModel) -> Response:
    """``POST /detokenize``: the text of tokens."""
    fields = Fields(await read_json(request, served.options))
    tokens = fields.get("tokens", [], list)
    n_vocab = served.tokenizer.n_vocab

    def work() -> str:
        for token in tokens:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < n_vocab:
                raise ApiError.invalid(f"Field 'tokens': {token!r:.40} is not a token")
        return served.detokenize(tokens)

    text = await served.prepare(work)
    return await long_response(lambda: {"content": text})


def _piece(served: ServedModel, token: int) -> str | list[int]:
    """The text of a token, or its bytes if they are not UTF-8."""
    data = served.tokenizer.token_to_piece(token, True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
