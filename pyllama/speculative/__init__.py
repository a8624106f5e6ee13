"""Speculative decoding: drafters, exact verification, adaptive draft length.

    engine = Engine(context, speculation=Speculation(PromptLookup()))

    verifier = Verifier(chain)                                  # by hand
    draft = drafter.propose([view], [n])[0]
    verdict = verifier.verify(draft, lambda row: logits[row])

Independent of the engine; `docs/speculation.md` has the rules.
"""

from .block import BlockDrafter, head_drafter
from .draft import Draft, Drafter, DraftView, Index, IndexDrafter
from .first_of import FirstOf
from .heads import HeadDrafter
from .length import AcceptRates, DraftLength, Step, StepTimes
from .lookup import NgramSimple, PromptLookup
from .lookup_cache import LookupCache, NgramCache
from .model import ModelDrafter, draft_model, self_draft
from .names import DRAFTERS, drafter_by_name
from .ngram_map import NgramMapK, NgramMapK4V
from .ngram_mod import NgramMod
from .speculation import Speculation
from .stats import Stats
from .suffix import SuffixDecoding
from .translate import Translated, mismatch
from .verify import Verdict, Verifier

__all__ = [
    "DRAFTERS",
    "AcceptRates",
    "BlockDrafter",
    "Draft",
    "DraftLength",
    "DraftView",
    "Drafter",
    "FirstOf",
    "HeadDrafter",
    "Index",
    "IndexDrafter",
    "LookupCache",
    "ModelDrafter",
    "NgramCache",
    "NgramMapK",
    "NgramMapK4V",
    "NgramMod",
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
    "draft_model",
    "drafter_by_name",
    "head_drafter",
    "mismatch",
    "self_draft",
]
