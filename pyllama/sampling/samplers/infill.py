"""Infill: for filling a gap in a text, prefers to end it, and joins tokens with a common beginning.

    SamplingParams(samplers=("top_k", "infill"))

After a top-k or top-p.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pyllama.errors import SamplingError
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.float_math import sum_of
from pyllama.sampling.sampler import ChainSetup, Sampler
from pyllama.sampling.top import Floats

LEAST = np.float32(0.2)  # probability of a token of text, at first


class Infill(Sampler):
    """Keeps end tokens if they are likely; else joins tokens of which one begins with the other.

    Args:
        piece: bytes of a token.
        eog_ids: tokens that end a generation.
        end: the one that is taken if no token of text is likely.

    Source: llama.cpp llama-sampler.cpp, `llama_sampler_infill_apply`.
    """

    label = "infill"
    is_stateless = True

    def __init__(self, piece: Callable[[int], bytes], eog_ids: tuple[int, ...], end: int) -> None:
        self._piece, self._end = piece, end
        self._eog_ids = np.array(eog_ids, np.int32)

    @classmethod
    def create(cls, setup: ChainSetup) -> Infill:
        tokenizer = setup.tokenizer
        if tokenizer is None:
            raise SamplingError("the sampler infill needs a tokenizer")
        end = tokenizer.eos if tokenizer.eot is None else tokenizer.eot
        if end is None:
            raise SamplingError("the sampler infill needs a vocabulary with an EOT or EOS token")
        return cls(tokenizer.token_to_piece, setup.eog_ids, end)

    def apply(self, candidates: Candidates) -> None:
        candidates.keep_top(len(candidates))
        probs, ends = candidates.probs(), np.isin(candidates.ids, self._eog_ids)
        if 3 * sum_of(probs[ends]) * len(candidates) > sum_of(probs[~ends]):
            candidates.keep(ends)
            return
        logits = candidates.writable()
        self._join(candidates.ids.tolist(), logits, probs)
        kept = (probs >= LEAST) | ends
        n_text = int(np.count_nonzero(kept & ~ends))
        if n_text == 0:
            candidates.replace(self._end)
            return
        probs /= sum_of(probs[kept])
        candidates.keep(kept & ((probs >= np.float32(1 / (n_text + 1))) | ends))
        candidates.sorted = False  # an end token may have been joined to another one

    def _join(self, ids: list[int], logits: Floats, probs: Floats) -> None:
        """Move the probability of the less likely of two tokens with a common beginning."""
        pieces = [self._piece(token) for token in ids]
        positions: dict[bytes, list[int]] = {}
        for i, piece in enumerate(pieces):
            positions.setdefault(piece, []).append(i)
        pairs = (
            (i, j)
            for j, piece in enumerate(pieces)
            for n in range(1, len(piece) + 1)
            for i in positions.get(piece[:n], ())
            if i != j
        )
        for i, j in sorted(pairs):
            if logits[i] > -np.inf and logits[j] > -np.inf:
                kept, gone = (j, i) if probs[j] > probs[i] else (i, j)
                probs[kept] += probs[gone]
                logits[gone], probs[gone] = -np.inf, 0
