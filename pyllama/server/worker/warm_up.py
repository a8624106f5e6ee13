"""Compiling before a server is ready, and after it: what requests need.

    warm_up(served)                                # before: an ordinary request compiles nothing
    compile_rest()                                 # after it, in a thread: grammars, rare samplers
    raise loading()                                # 503, with the progress
    progress_fields()                              # {"compiling": {"n": 12, "of": 61, ...}}

A machine compiles once, later starts load what is in the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyggml.compiler.jit import functions_of
from pyggml.compiler.progress import progress

from ...runtime.decode_graph import GraphSize, bucket
from ...sampling import SamplingParams, chain_for
from ..request.errors import ApiError
from .served import ServedModel

_FEW = 8  # tokens: for each number up to this, matmuls may have a kernel of their own
_MANY = 32


def warm_up(served: ServedModel) -> None:
    """Compile the kernels of an ordinary request: prompts, batches of all slots, samplers.

    The context has compiled those of its largest graph and of one token. Where nothing was missing
    since the process began, the samplers are loaded, and no graph is built.
    """
    context, options = served.engine.context, served.options
    if context.hparams.causal:
        logits = np.linspace(0, -20, context.hparams.n_vocab, dtype=np.float32)
        for params in (options.sampling, SamplingParams()):
            chain_for(params, len(logits), served.tokenizer).sample(logits)
    if options.grammar is not None:
        compile_rest()
    if progress.counts()[1]:
        context.compile_for(_sizes(served))


def _sizes(served: ServedModel) -> list[GraphSize]:
    """Sizes of graphs whose kernels are all that a request needs."""
    context, speculation = served.engine.context, served.engine.speculation
    found: list[GraphSize] = []
    if context.hparams.causal:
        drafted = [] if speculation is None else speculation.sizes(1)
        numbers = {*range(2, _FEW + 1), *map(bucket, drafted)}
        found = [GraphSize(_MANY, 1), *(GraphSize(n, n) for n in sorted(numbers))]
    if context.hparams.has_encoder:
        found += [GraphSize(n, 0, n, encodes=True) for n in (1, _FEW, _MANY)]
    elif served.options.pooling is not None:
        found += [GraphSize(n, int(not context.hparams.encoder), n) for n in (1, _FEW, _MANY)]
    return [size for size in found if size.n_tokens <= context.n_ubatch]


def compile_rest() -> None:
    """Compile the functions that are missing of all that Python may call, such as grammars'.

    One after the other, so that a request that needs one does not wait for the others. What is in
    the cache is not loaded: that would only slow down the first requests.
    """
    for function in functions_of("pyllama"):
        if not function.is_kept():
            _ = function.machine_code


def loading() -> ApiError:
    """The error while a model is loaded (503); it tells of kernels that are compiled."""
    now = progress.now()
    if not now.is_running:
        return ApiError(503, "Loading model")
    return ApiError(503, f"Loading model: {now}", more=progress_fields())


def progress_fields() -> dict[str, Any]:
    """What ``/health`` tells of compiling; nothing while nothing is compiled."""
    now = progress.now()
    if not now.is_running:
        return {}
    times = {"elapsed_s": now.elapsed_s, "expected_s": now.expected_s}
    rounded = {name: None if t is None else round(t, 1) for name, t in times.items()}
    return {"compiling": {"n": now.n, "of": now.of, **rounded}}
