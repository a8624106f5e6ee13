"""Embeddings of texts, their similarities, and the scores of a reranker.

    engine = Engine(Context(model, n_ctx=2048, n_seq_max=16))
    found = embed_many(engine, [tokenize("a cat"), tokenize("a dog")], "mean")
    cosine_similarity(*found)
    scores = rerank(engine, "what is a cat?", ["a cat is an animal", "Paris"])

Texts share batches, and their embeddings do not depend on that. See docs/embeddings.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .engine import Engine, Event, Request
from .errors import BatchError
from .runtime.model import Model

Floats = npt.NDArray[np.float32]
_RERANK_TEMPLATE = "tokenizer.chat_template.rerank"
_ADD_SEP = "tokenizer.ggml.add_sep_token"
_MAX_INT16 = 32760.0  # the largest value of a vector that is normalized for integers


def embed_many(engine: Engine, texts: Sequence[Sequence[int]], pooling: str) -> list[Floats]:
    """The embeddings of texts in order, evaluated in common batches.

    Makes the steps of the engine. Events of its other requests only reach those with a sink.

    Args:
        texts: token ids of each text.
        pooling: one of ``POOLINGS``, see `Request`.

    Returns:
        For each text float32[n_embd]; with ``none`` [n_tokens, n_embd], with ``rank`` [n_cls_out].

    Raises:
        BatchError, ContextFull, ModelError: as `Engine.submit`, before any text is evaluated.
        Aborted, ComputeError: as `Engine.step`.
    """
    found: dict[int, Floats] = {}
    errors: list[Exception] = []
    open_numbers: set[int] = set()
    waiting = iter(enumerate(texts))

    def submit(n: int) -> None:
        for i, tokens in itertools.islice(waiting, n):

            def receive(event: Event, i: int = i) -> None:
                if event.embedding is not None:
                    found[i] = event.embedding
                elif event.error is not None:
                    errors.append(event.error)
                if event.kind in ("end", "error"):
                    open_numbers.discard(event.request)

            open_numbers.add(engine.submit(Request(tokens, pooling=pooling), receive))

    for i, tokens in enumerate(texts):
        try:
            engine.check(Request(tokens, pooling=pooling))
        except ValueError as error:
            raise type(error)(f"text {i}: {error}") from None
    context = engine.context
    n_queued = 2 * context.kv.n_seq_max if context.hparams.causal else context.n_ubatch
    try:
        submit(n_queued)
        while open_numbers:
            engine.step()
            for failure in errors:
                raise failure
            submit(n_queued - len(open_numbers))
    finally:
        for number in open_numbers:
            engine.abort(number)
    return [found[i] for i in range(len(texts))]


def rerank(engine: Engine, query: str, documents: Sequence[str]) -> list[float]:
    """How well each document answers the query: the first output of the classification head.

    Raises:
        ModelError: the model has no classification head.
        BatchError, ContextFull: a text is empty or too long.
    """
    model = engine.context.model
    texts = [rerank_tokens(model, query, document) for document in documents]
    return [float(scores[0]) for scores in embed_many(engine, texts, "rank")]


def rerank_tokens(model: Model, query: str, document: str) -> list[int]:
    """The tokens of a query and a document for a reranker.

    The model's ``rerank`` template is used; without one they are [BOS] query [EOS] [SEP] document
    [EOS], with those special tokens that the tokenizer adds to texts.

    Source: llama.cpp, ``format_prompt_rerank``.
    """
    tokenizer, template = model.tokenizer, model.metadata.get(_RERANK_TEMPLATE)
    if isinstance(template, str):
        parts = template.split("{query}")  # replaced at once: a query may contain "{document}"
        text = query.join(part.replace("{document}", document) for part in parts)
        return tokenizer.encode(text, add_special=False, parse_special=True)
    roles = tokenizer.vocab.roles
    sep, eos = roles.get("sep"), tokenizer.eos
    begin = _present(tokenizer.bos if tokenizer.add_bos else None)
    end = _present((sep if eos is None else eos) if tokenizer.add_eos else None)
    between = end + _present(sep if model.metadata.get(_ADD_SEP) else None)
    first, second = (tokenizer.encode(text, add_special=False) for text in (query, document))
    return begin + first + between + second + end


def normalize(embedding: Floats, p: int = 2) -> Floats:
    """An embedding scaled to a norm of 1; zeros stay.

    Args:
        embedding: float32[..., n_embd].
        p: -1 leaves it as it is, 0 scales to integers of 16 bits, else the p-norm: 1 is the
            sum of absolute values, 2 the Euclidean norm.

    Raises:
        BatchError: ``p`` is below -1.

    Source: llama.cpp, ``common_embd_normalize``.
    """
    if p < -1:
        raise BatchError(f"normalization by p = {p}, want -1 (none), 0 (16-bit integers) or more")
    if p == -1:
        return embedding
    values = np.abs(embedding.astype(np.float64))
    largest = values.max(axis=-1, keepdims=True, initial=0.0)
    if p == 0:
        norm = largest / _MAX_INT16
    else:  # powers of values up to 1 neither overflow nor all vanish
        with np.errstate(invalid="ignore"):
            norm = largest * ((values / largest) ** p).sum(axis=-1, keepdims=True) ** (1 / p)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(norm > 0, 1 / norm, 0).astype(np.float32)
    return embedding * scale


def cosine_similarity(a: Floats, b: Floats) -> float:
    """The cosine of the angle between two embeddings; 1 of two zero vectors, 0 of one.

    Source: llama.cpp, ``common_embd_similarity_cos``.
    """
    x, y = a.astype(np.float64), b.astype(np.float64)
    squares = float(x @ x), float(y @ y)
    if not all(squares):
        return float(squares[0] == squares[1])
    return float(x @ y) / math.sqrt(squares[0] * squares[1])


def _present(token: int | None) -> list[int]:
    return [] if token is None else [token]
