"""Changes of logits by token id: ``logit_bias``, ``ignore_eos``, and ``allowed_token_ids``.

    SamplingParams(logit_bias={42: -math.inf, 7: 1.5}, ignore_eos=True)
    SamplingParams(allowed_token_ids=(9454, 2753))

The first samplers of a chain, on the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pyllama.sampling.candidates import Candidates
from pyllama.sampling.sampler import ChainSetup, Sampler


class LogitBias(Sampler):
    """Adds a constant to some logits; -inf for the tokens that the model file suppresses.

    A logit of -inf stays: a token that a grammar or a processor has banned cannot be forced.

    Source: llama.cpp llama-sampler.cpp, `llama_sampler_logit_bias_apply`.
    """

    label = "logit-bias"
    keeps_all = True
    is_stateless = True

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._tokens = np.fromiter(bias.keys(), np.intp, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self._absolute = np.isinf(self._bias)  # assigned, not added: inf + NaN would be NaN
        self._ids = frozenset(bias)
        self._lowers = bool((self._bias <= 0).all())

    @classmethod
    def create(cls, setup: ChainSetup) -> LogitBias | None:
        bias = dict(setup.params.logit_bias)
        if setup.tokenizer is not None:
            bias.update(dict.fromkeys(setup.tokenizer.vocab.suppress, -np.inf))
        if setup.params.ignore_eos:
            bias.update(dict.fromkeys(setup.eog_ids, -np.inf))
        return cls(bias) if bias else None

    def keeps_argmax_of(self, token: int) -> bool:
        return self._lowers and token not in self._ids

    def apply(self, candidates: Candidates) -> None:
        logits, positions, found = candidates.edit(self._tokens)
        bias, given = self._bias[found], logits[positions]
        biased = np.where(self._absolute[found], bias, given + bias)
        logits[positions] = np.where(given == -np.inf, given, biased)


class AllowedTokens(Sampler):
    """Bans all tokens but some.

    Source: vLLM, `SamplingParams.allowed_token_ids`.
    """

    label = "allowed-tokens"
    keeps_all = True
    is_stateless = True

    def __init__(self, tokens: Sequence[int]) -> None:
        self._ids = frozenset(tokens)
        self._tokens = np.fromiter(self._ids, np.intp, len(self._ids))

    @classmethod
    def create(cls, setup: ChainSetup) -> AllowedTokens | None:
        allowed = setup.params.allowed_token_ids
        return cls(allowed) if allowed is not None else None

    def keeps_argmax_of(self, token: int) -> bool:
        return token in self._ids

    def apply(self, candidates: Candidates) -> None:
        logits, positions, _ = candidates.edit(self._tokens)
        kept = logits[positions]
        logits.fill(-np.inf)
        logits[positions] = kept
