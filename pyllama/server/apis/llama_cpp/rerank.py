"""``/rerank``: how well documents answer a query, in Jina's and in TEI's format."""

from __future__ import annotations

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from ....embeddings import rerank_tokens
from ...http.sse import JsonResponse, finished, read_json
from ...request.errors import ApiError
from ...request.fields import Fields
from ...worker.preparing import check_wanted
from ...worker.served import ServedModel, check_number
from ...worker.stream import Stream
from ..openai.embedding import Embedded, submit, usage


async def rerank(request: Request, served: ServedModel) -> Response:
    """``POST /v1/rerank``: with ``documents`` in Jina's format, with ``texts`` in TEI's.

    Source: llama.cpp, ``format_response_rerank``.
    """
    if not served.options.reranking:
        raise ApiError.not_supported(
            "This server does not support reranking. Start it with `--reranking`"
        )
    fields = Fields(await read_json(request, served.options))
    query, is_tei = fields.get("query", "", str), "texts" in fields.body
    if not fields.has("query"):
        raise ApiError.invalid('"query" must be provided')
    documents = fields.texts("documents") or fields.texts("texts") or ()
    if not documents or any(isinstance(fields.body.get(n), str) for n in ("documents", "texts")):
        raise ApiError.invalid('"documents" must be a non-empty string array')
    check_number("documents", len(documents))
    top_n = fields.whole("top_n", len(documents), low=0)

    def prepare() -> tuple[Stream, list[Embedded]]:
        prompts = []
        served.check_length(query)
        for document in documents:
            check_wanted()
            served.check_length(document)
            prompts.append(rerank_tokens(served.model, query, document))
            served.check(prompts[-1])  # before the others are tokenized
        return submit(served, prompts, served.options.pooling or "rank")

    stream, texts = await served.prepare(prepare)
    await finished(request, stream)
    label = "score" if is_tei else "relevance_score"
    scored = [(float(np.ravel(text.vector)[0]), text.index) for text in texts]
    scored.sort(key=lambda pair: (-pair[0], pair[1]))
    results = [{"index": index, label: score} for score, index in scored[:top_n]]
    if not is_tei:
        model = fields.get("model", served.name, str)
        body = {"model": model, "object": "list", "usage": usage(texts), "results": results}
        return JsonResponse(body)
    if fields.flag("return_text"):
        return JsonResponse([{**one, "text": documents[int(one["index"])]} for one in results])
    return JsonResponse(results)
