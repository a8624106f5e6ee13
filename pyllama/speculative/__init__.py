"""Speculative decoding: drafters, exact verification, adaptive draft length.

    engine = Engine(context, speculation=Speculation(PromptLookup()))

    verifier = Verifier(chain)                                  # by hand
    draft = drafter.propose([view], [n])[0]
    verdict = verifier.verify(draft, lambda row: logits[row])

Independent of the engine; `docs/speculation.md` has the rules.
"""

from .draft import Draft, Drafter, Index, IndexDrafter, View
from .length import AcceptRates, DraftLength, Step, StepTimes
from .lookup import NgramSimple, PromptLookup
from .lookup_cache import LookupCache, NgramCache
from .model import ModelDrafter, draft_model, self_draft
from .speculation import Speculation
from .stats import Stats
from .suffix import SuffixDecoding
from .translate import Translated, mismatch
from .verify import Verdict, Verifier

__all__ = [
    "AcceptRates",
    "Draft",
    "DraftLength",
    "Drafter",
    "Index",
    "IndexDrafter",
    "LookupCache",
    "ModelDrafter",
    "NgramCache",
    "NgramSimple",
    "PromptLookup",
    "Speculation",
    "Stats",
    "Step",
    "StepTimes",
    "SuffixDecoding",
    "Translated",
    "Verdict",
    "Verifier",
    "View",
    "draft_model",
    "mismatch",
    "self_draft",
]
