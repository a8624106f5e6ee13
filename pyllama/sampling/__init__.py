"""Samples token ids from logits, with llama.cpp's samplers, order, defaults and random numbers.

    chain = Chain(SamplingParams(temp=0.7, seed=42), n_vocab=logits.size)
    token = chain.sample(logits)
    chain.accept(token)

A chain belongs to one generation: it has a random stream and a history. Not thread-safe.
"""

from pyllama.errors import SamplingError
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.chain import SAMPLERS, Chain
from pyllama.sampling.dist import Distribution
from pyllama.sampling.logits_processor import (
    LogitsProcessor,
    LogitsProcessorList,
    apply_logits_processors,
)
from pyllama.sampling.params import RANDOM_SEED, SamplingParams
from pyllama.sampling.rng import Mt19937
from pyllama.sampling.sampler import ChainSetup, Sampler

__all__ = [
    "RANDOM_SEED",
    "SAMPLERS",
    "Candidates",
    "Chain",
    "ChainSetup",
    "Distribution",
    "LogitsProcessor",
    "LogitsProcessorList",
    "Mt19937",
    "Sampler",
    "SamplingError",
    "SamplingParams",
    "apply_logits_processors",
]
