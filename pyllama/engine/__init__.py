"""The engine that runs all generation: requests in, events out, one batch per step.

    engine = Engine(Context(model, n_ctx=4096, n_seq_max=8))
    engine.submit(Request(tokens, SamplingParams(temp=0.0), max_tokens=64))
    while engine.has_work:
        for event in engine.step(): print(event.text, end="")

`Engine.run` makes the steps for one request. A `Lease` gives direct control of one sequence.
`generate_beams` searches for the likeliest texts.
docs/engine.md shows a step, a server loop and a drafter.
"""

from ..errors import QueueFull, ReentrantCall
from .beam_search import Beam, BeamSearchParams, generate_beams
from .call_lock import CallLock
from .engine import Engine
from .lease import Lease
from .request import EndReason, Event, Policy, Request, StoppingCriteria, TokenLogprob, Usage
from .text import TextAssembler
from .timings import Timings

__all__ = [
    "Beam",
    "BeamSearchParams",
    "CallLock",
    "EndReason",
    "Engine",
    "Event",
    "Lease",
    "Policy",
    "QueueFull",
    "ReentrantCall",
    "Request",
    "StoppingCriteria",
    "TextAssembler",
    "Timings",
    "TokenLogprob",
    "Usage",
    "generate_beams",
]
