"""Embeddings with llama-cpp-python's results, for `Llama.embed` and `Llama.create_embedding`.

    rows, n_tokens = embed(lease, tokens, "mean", normalize=True)
    embedding_response(rows, n_tokens, "x.gguf")["data"][0]["embedding"]

Source: llama-cpp-python, ``Llama.embed``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..embeddings import embed_many
from ..engine import Lease
from ..errors import BatchError, NotSupported
from ..hparams import POOLINGS, HParams

N_TEXTS = 64
"""Texts that are evaluated at the same time."""


def pooling_number(given: int, hparams: HParams) -> int:
    """The pooling type of a context, by llama.cpp's number; -1 is the model's.

    Raises:
        NotSupported: an unknown number.
    """
    if given == -1:
        return hparams.pooling_type
    if given not in range(len(POOLINGS)):
        names = ", ".join(f"{i} ({name})" for i, name in enumerate(POOLINGS))
        raise NotSupported(
            f"Llama: pooling_type={given!r} is not known; want -1 (the model's), {names}"
        )
    return given


def embed(
    lease: Lease, texts: Sequence[Sequence[int]], pooling: str, *, normalize: bool
) -> list[list[float]] | list[list[list[float]]]:
    """The embeddings of texts as lists of floats; with pooling ``none`` one per token.

    The engine's cache is empty before and after.

    Args:
        normalize: whether to divide each by its Euclidean norm.

    Raises:
        As `embed_many`.
    """
    lease.truncate(0)
    lease.engine.drop_prefixes()
    found = embed_many(lease.engine, texts, pooling)
    lease.engine.drop_prefixes()
    lists: list[Any] = []
    for rows in found:
        values = rows.astype(np.float64)
        if normalize:
            norms = np.linalg.norm(values, axis=-1, keepdims=True)
            values /= np.where(norms == 0, 1, norms)
        lists.append(values.tolist())
    return lists


def limited(texts: Sequence[list[int]], n_batch: int, truncate: bool) -> list[list[int]]:
    """Texts of at most ``n_batch`` tokens.

    Raises:
        BatchError: a text has more, and may not be truncated.
    """
    longest = max(map(len, texts), default=0)
    if longest > n_batch and not truncate:
        raise BatchError(f"Requested tokens ({longest}) exceed batch size of {n_batch}")
    return [tokens[:n_batch] for tokens in texts]


def embedding_response(embeddings: Sequence[Any], n_tokens: int, model: str) -> dict[str, Any]:
    """Embeddings in the format of OpenAI's API."""
    data = [
        {"object": "embedding", "embedding": embedding, "index": i}
        for i, embedding in enumerate(embeddings)
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}
