"""The module ``llama_cpp.llama``: the class `Llama` and what it takes and returns."""

from __future__ import annotations

import numpy as np

from ...engine import StoppingCriteria
from ...engine.request import Floats, Ids
from ...llama.cache import BaseLlamaCache, LlamaCache, LlamaDiskCache, LlamaRAMCache
from ...llama.draft import LlamaDraftModel
from ...llama.grammar import LlamaGrammar
from ...llama.llama import Llama, LogitsProcessorList, StoppingCriteriaList
from ...llama.state import LlamaState
from ...llama.tokenizer import BaseLlamaTokenizer, LlamaTokenizer
from ...sampling import LogitsProcessor

__all__ = [
    "BaseLlamaCache",
    "BaseLlamaTokenizer",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaDraftModel",
    "LlamaGrammar",
    "LlamaRAMCache",
    "LlamaState",
    "LlamaTokenizer",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
]


class MinTokensLogitsProcessor:
    """A logits processor that forbids the end of a text before it has some tokens.

    Args:
        min_tokens: number of generated tokens before the end.
        token_eos: the token that ends a text.
    """

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens, self.token_eos = min_tokens, token_eos
        self.prompt_tokens: int | None = None  # of the text, known at the first call

    def __call__(self, input_ids: Ids, scores: Floats) -> Floats:
        """The logits, with that of the last token at minus infinity while it is forbidden."""
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores
