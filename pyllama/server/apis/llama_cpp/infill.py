"""``/infill``: text between a prefix and a suffix, for editors."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...http.sse import read_json, respond
from ...request.errors import ApiError
from ...request.fields import Fields
from ...worker.served import ServedModel
from ...worker.stream import Stream
from ..openai.completion import CompletionWriter

_ROLES = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}
_SNIPPET = "\n\n--- snippet ---\n\n"  # before a file, if the model has no token for it


async def infill(request: Request, served: ServedModel) -> Response:
    """``POST /infill``."""
    check_infill(served)
    body = await read_json(request, served.options)

    def prepare() -> Stream:
        fields = Fields(body)
        options = served.read(fields, is_own=True)
        return served.submit([infill_prompt(served, fields, options.n_predict)], options)

    return await respond(request, await served.prepare(prepare), CompletionWriter(served))


def check_infill(served: ServedModel) -> None:
    """Raise ApiError (501) for a model without these tokens."""
    if missing := missing_tokens(served):
        raise ApiError.not_supported(f"Infill is not supported by this model: {missing}")


def missing_tokens(served: ServedModel) -> str:
    """Which tokens of an infill prompt the model lacks; empty if none."""
    roles = served.tokenizer.vocab.roles
    return "".join(f"{n} token is missing. " for role, n in _ROLES.items() if role not in roles)


def infill_prompt(served: ServedModel, fields: Fields, n_predict: int) -> list[int]:
    """The tokens of an infill prompt.

        [rep] name [sep] file, extra text ... [sep] file [pre] prefix, prompt [suf] suffix [mid]

    Prefix and suffix take three quarters and one quarter of a batch; extra texts fill the rest of
    the context.

    Raises:
        ApiError: a field is missing or wrong.

    Source: llama.cpp, ``format_prompt_infill``.
    """
    for name in ("input_prefix", "input_suffix"):
        if not fields.has(name):
            raise ApiError.invalid(f'"{name}" is required')

    def encode(text: Any) -> list[int]:
        return served.tokens(text, add_special=False, parse_special=False)

    roles, tokenizer = served.tokenizer.vocab.roles, served.tokenizer
    prefix, suffix = encode(fields.body["input_prefix"]), encode(fields.body["input_suffix"])
    prompt_text = fields.get("prompt", "", str)
    prompt = tokenizer.encode(prompt_text, add_special=False, parse_special=True)
    separator = roles.get("fim_sep")
    extra = [roles["fim_rep"], *encode("myproject\n")] if "fim_rep" in roles else []
    for chunk in fields.get("input_extra", [], list):
        text, name = _extra(chunk)
        if separator is not None:
            extra += [separator, *encode(f"{name}\n")]
        else:
            extra += encode(_SNIPPET)
        extra += encode(text)
    if separator is not None:
        extra += [separator, *encode("filename\n")]
    n_batch = served.engine.context.n_batch
    n_suffix = max(0, n_batch // 4 - (2 + len(prompt)))
    n_prefix = 3 * (n_batch // 4)
    prefix, suffix = prefix[max(0, len(prefix) - n_prefix) :], suffix[:n_suffix]
    n_extra = max(0, served.n_ctx - n_batch - 2 * max(0, n_predict))
    before = [roles["fim_pre"], *prefix, *prompt]
    after = [roles["fim_suf"], *suffix]
    if served.options.spm_infill:
        before, after = after, before
    bos = [tokenizer.bos] if tokenizer.add_bos and tokenizer.bos is not None else []
    used = extra[max(0, len(extra) - n_extra) :] if n_extra else []
    return [*used, *bos, *before, *after, roles["fim_mid"]]


def _extra(chunk: Any) -> tuple[str, str]:
    """Text and file name of an element of ``input_extra``."""
    if not isinstance(chunk, dict) or not isinstance(chunk.get("text"), str):
        raise ApiError.invalid(
            'extra_context chunk must contain a "text" field with a string value'
        )
    name = chunk.get("filename", "tmp")
    if not isinstance(name, str):
        raise ApiError.invalid('extra_context chunk\'s "filename" field must be a string')
    return chunk["text"], name
