"""Unmasking in NumPy, float64: the likeliest tokens, all logits, no compiled sampler.

texts = unmask(logits_of, prompt, 40, DiffusionParams(eps=0.001), shifted=True)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pyllama.parameters.diffusion import DiffusionParams

from .variants import MASK


def unmask(
    logits_of: Callable[[list[int]], np.ndarray], prompt: list[int], n: int,
    params: DiffusionParams, shifted: bool, top_k: int = 40, top_p: float = 0.95,
) -> list[list[int]]:  # fmt: skip
    """The text after each step, with a temperature of 0; confidence, entropy or margin."""
    x = np.array([*prompt, *[MASK] * (n - len(prompt))])
    length = params.block_length or n - len(prompt)
    n_blocks = n // length if params.block_length else 1
    n_steps, texts = params.steps // n_blocks, []
    for start in range(len(prompt), n, length):
        block = (np.arange(n) >= start) & (np.arange(n) < start + length)
        total = int((block & (x == MASK)).sum())
        for step in range(n_steps):
            masked = np.flatnonzero(block & (x == MASK))
            if not masked.size:
                break
            logits = logits_of(x.tolist()).astype(np.float64)
            if params.cfg_scale:
                empty = np.where(np.arange(n) < len(prompt), MASK, x)
                others = logits_of(empty.tolist()).astype(np.float64)
                logits = others + (params.cfg_scale + 1) * (logits - others)
            if shifted:
                logits = np.concatenate([logits[:1], logits[:-1]])
            found = [_choose(logits[i], params.algorithm, top_k, top_p) for i in masked]
            if params.block_length:
                count = total // n_steps + (step < total % n_steps)
            else:
                now, then = (1 - i / n_steps * (1 - params.eps) for i in (step, step + 1))
                count = int(len(masked) * (1 - then / now + 1e-7))
            if step == n_steps - 1:
                count = len(masked)
            order = sorted(range(len(masked)), key=lambda i: (-found[i][1], i))
            for i in order[:count]:
                x[masked[i]] = found[i][0]
            texts.append(x.tolist())
    return texts


def _choose(logits: np.ndarray, algorithm: int, top_k: int, top_p: float) -> tuple[int, float]:
    ids = np.argsort(-logits, kind="stable")[:top_k]
    p = np.exp(logits[ids] - logits[ids[0]])
    p /= p.sum()
    kept = int((p.cumsum() < top_p).sum()) + 1
    p = p[:kept] / p[:kept].sum()
    margin = p[0] - p[1] if len(p) > 1 else p[0]
    return int(ids[0]), {1: (p * np.log(p + 1e-10)).sum(), 2: margin, 4: p[0]}[algorithm]
