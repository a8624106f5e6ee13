"""Samples token ids from logits, with llama.cpp's samplers, order, defaults and random numbers.

    chain = Chain(SamplingParams(temp=0.7, seed=42), n_vocab=logits.size)
    token = chain.sample(logits)
    chain.accept(token)

A chain belongs to one generation: it has random streams and a history. Not thread-safe.
"""

from pyllama.errors import SamplingError
from pyllama.parameters.sampling import (
    DEFAULT_SAMPLERS,
    LETTERS,
    RANDOM_SEED,
    SamplingParams,
    sampling_fields,
)
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.chain import SAMPLERS, Chain, sampler_name
from pyllama.sampling.constrained import ConstrainedChain, chain_for
from pyllama.sampling.logits_processor import (
    LogitsProcessor,
    LogitsProcessorList,
    apply_logits_processors,
)
from pyllama.sampling.rng import Mt19937
from pyllama.sampling.sampler import ChainSetup, Sampler
from pyllama.sampling.samplers.dist import Distribution

__all__ = [
    "DEFAULT_SAMPLERS",
    "LETTERS",
    "RANDOM_SEED",
    "SAMPLERS",
    "Candidates",
    "Chain",
    "ChainSetup",
    "ConstrainedChain",
    "Distribution",
    "LogitsProcessor",
    "LogitsProcessorList",
    "Mt19937",
    "Sampler",
    "SamplingError",
    "SamplingParams",
    "apply_logits_processors",
    "chain_for",
    "sampler_name",
    "sampling_fields",
]
