"""Drafters by name, and the parameters of speculative decoding.

    DRAFTERS["ngram-mod"].numbers["n-match"].default        # 24, of --spec-ngram-mod-n-match

A drafter has an entry here, and a file in ``pyllama/speculative``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from . import Flags, row
from .loading import CACHE_TYPES, MAX_THREADS

MAX_DRAFT = 1024  # tokens of a draft, llama.cpp's limit of its m-grams
DRAFT_MAX = 16  # default; the adaptive length drafts fewer where fewer pay
DRAFT_MODEL = "draft-simple"
"""llama.cpp's name of a draft model."""
DRAFT_EAGLE3 = "draft-eagle3"
"""llama.cpp's name of an EAGLE-3 head, a file of its own."""
DRAFT_MTP = "draft-mtp"
"""llama.cpp's name of the model's own multi-token prediction."""
DRAFT_DFLASH = "draft-dflash"
"""llama.cpp's name of a DFlash head, a file of its own."""
DRAFT_DSPARK = "draft-dspark"
"""llama.cpp's name of a DSpark head, a DFlash head whose tokens depend on each other."""
HEADS = (DRAFT_EAGLE3, DRAFT_MTP, DRAFT_DFLASH, DRAFT_DSPARK)
HEAD_FILES = (DRAFT_EAGLE3, DRAFT_DFLASH, DRAFT_DSPARK)
"""Heads that are always files of their own."""


class DraftNumber(NamedTuple):
    """An argument of a drafter's constructor that has a flag."""

    argument: str
    default: int
    low: int
    help: str


class DrafterRow(NamedTuple):
    """A drafter.

    Attributes:
        home: module and constructor in ``pyllama/speculative``; "" for a draft model or a head.
        numbers: by the end of the flag ``--spec-NAME-...``.
        options: arguments that are attributes of the tools' options, by their names there.
    """

    home: str
    numbers: Mapping[str, DraftNumber] = {}
    options: Mapping[str, str] = {}


_SIZES = {
    "size-n": DraftNumber("n", 12, 1, "length of the n-gram to look for."),
    "size-m": DraftNumber("m", 48, 1, "maximum length of a draft."),
}
_HITS = {
    "min-hits": DraftNumber("min_hits", 1, 1, "uses of an n-gram from which on it is drafted.")
}
DRAFTERS: Mapping[str, DrafterRow] = {
    "ngram-simple": DrafterRow("lookup:NgramSimple", _SIZES),
    "ngram-map-k": DrafterRow("ngram_map:NgramMapK", _SIZES),
    "ngram-map-k4v": DrafterRow("ngram_map:NgramMapK4V", _SIZES | _HITS),
    "ngram-mod": DrafterRow(
        "ngram_mod:NgramMod",
        {
            "n-match": DraftNumber("n_match", 24, 1, "length of the n-gram to look for."),
            "n-min": DraftNumber(
                "n_min", 48, 0, "minimum length of a draft, before --draft-max cuts it."
            ),
            "n-max": DraftNumber("n_max", 64, 0, "maximum length of a draft."),
        },
    ),
    "ngram-cache": DrafterRow("lookup_cache:ngram_cache", options={"n_draft": "max_draft"}),
    "prompt-lookup": DrafterRow("lookup:PromptLookup", options={"num_pred_tokens": "draft_max"}),
    "suffix": DrafterRow("suffix:SuffixDecoding", options={"is_tree": "is_tree"}),
    DRAFT_MODEL: DrafterRow(""),
    DRAFT_EAGLE3: DrafterRow(""),
    DRAFT_MTP: DrafterRow(""),
    DRAFT_DFLASH: DrafterRow(""),
    DRAFT_DSPARK: DrafterRow(""),
}
"""The drafters, in the order in which they are asked, as in llama.cpp."""


@dataclass(frozen=True, init=False, eq=False, repr=False)
class DraftParams:
    """What drafts, how much, and how a draft model samples."""

    # fmt: off
    model_draft: Path | None = row(None,
        "GGUF file of a draft model, of any vocabulary; with --spec-type draft-eagle3, "
        "draft-dflash or draft-dspark, of the head; with draft-mtp, of the layer of multi-token "
        "prediction, where the model's file lacks it, or of Gemma 4's assistant.",
        Flags("-md", "--model-draft", "--spec-draft-model"))
    hf_repo_draft: str | None = row(None,
        "Hugging Face repository of the draft model; -md then names a file in it.",
        Flags("-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf", metavar="USER/MODEL[:QUANT]"))
    self_draft_threshold: float | None = row(None,
        "The model drafts for itself, with this --sparse-threshold: fewer neurons.",
        Flags("--self-draft-threshold", metavar="X"))
    self_draft_layers: int | None = row(None,
        "The model drafts for itself, with its first N layers only.",
        Flags("--self-draft-layers", low=1))
    draft_p_split: float = row(0.1,
        "Minimum probability, in the draft model, of a token that begins another branch.",
        Flags("--draft-p-split", "--spec-draft-p-split", low=0, high=1))
    draft_p_min: float = row(0.0,
        "Stop drafting where the draft model's likeliest token is less probable.",
        Flags("--draft-p-min", "--spec-draft-p-min", low=0, high=1))
    draft_sampling: str | None = row(None,
        "How a draft model drafts. greedy: its likeliest tokens; the text is then that without "
        "drafts, seed for seed. probabilistic: it samples, and rejection sampling keeps the "
        "distribution of the text.  [default: greedy, or probabilistic with --draft-temp, "
        "--draft-top-k, --draft-top-p, --draft-min-p or --draft-seed]",
        Flags("--draft-sampling", "--spec-draft-sampling", choices=("greedy", "probabilistic")))
    draft_temp: float | None = row(None, "Temperature of the draft model.  [default: --temp]",
        Flags("--draft-temp", low=0))
    draft_top_k: int | None = row(None,
        "Top-k sampling of the draft model. 0: off.  [default: --top-k]", Flags("--draft-top-k"))
    draft_top_p: float | None = row(None,
        "Top-p sampling of the draft model. 1: off.  [default: --top-p]",
        Flags("--draft-top-p", low=0, high=1))
    draft_min_p: float | None = row(None,
        "Min-p sampling of the draft model. 0: off.  [default: --min-p]",
        Flags("--draft-min-p", low=0, high=1))
    draft_seed: int | None = row(None,
        "RNG seed of the draft model. -1: random.  [default: from --seed]",
        Flags("--draft-seed", low=-1), high=2**32 - 1)
    ctx_size_draft: int = row(0, "Size of the draft model's context. 0: the size of the model's.",
        Flags("-cd", "--ctx-size-draft"))
    threads_draft: int = row(-1, "Threads of the draft model. -1: same as -t.",
        Flags("-td", "--threads-draft", "--spec-draft-threads", low=-1, high=MAX_THREADS))
    threads_batch_draft: int = row(-1, "Threads of the draft model for prompts. -1: same as -td.",
        Flags("-tbd", "--threads-batch-draft", "--spec-draft-threads-batch", low=-1,
            high=MAX_THREADS))
    cache_type_k_draft: str = row("f16", "KV cache type for K of the draft model.",
        Flags("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k", choices=CACHE_TYPES,
            metavar="TYPE"))
    cache_type_v_draft: str = row("f16", "KV cache type for V of the draft model.",
        Flags("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v", choices=CACHE_TYPES,
            metavar="TYPE"))
    device_draft: str | None = row(None, "Devices of the draft model.  [default: --device]",
        Flags("-devd", "--device-draft", "--spec-draft-device", metavar="DEV,..."))
    gpu_layers_draft: int | Literal["auto"] | None = row(None,
        "Layers of the draft model to offload: a number, auto or all.  [default: auto]",
        Flags("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"))
    draft_branches: int = row(1,
        "Number of branches of a draft. Above 1, a draft model and suffix draft trees.",
        Flags("--draft-branches", low=1, high=64))
    lookup: bool = row(False,
        "Draft what followed the last tokens earlier in the text; same as --spec-type "
        "prompt-lookup.", Flags("--lookup"))
    spec_type: tuple[str, ...] = row((),
        "Drafters, of which the first that finds anything drafts: "
            f"{', '.join(DRAFTERS)}.  [default: draft-simple with a draft model, else none]",
        Flags("--spec-type", metavar="TYPE,...", default="none"))
    spec_default: bool = row(False, "Same as --spec-type ngram-mod.", Flags("--spec-default"))
    lookup_cache_static: Path | None = row(None,
        "Lookup cache of a corpus (see pyllama-lookup-create); it is only read.",
        Flags("-lcs", "--lookup-cache-static"))
    lookup_cache_dynamic: Path | None = row(None,
        "Lookup cache of earlier texts: read if it exists, updated at the end.",
        Flags("-lcd", "--lookup-cache-dynamic"))
    draft_max: int | None = row(None,
        "Maximum number of drafted tokens per step; 0: no drafts.  [default: "
            f"{DRAFT_MAX}, or more if a --spec-ngram-* maximum is larger]",
        Flags("--draft-max", "--draft", "--draft-n", "--spec-draft-n-max", high=MAX_DRAFT))
    draft_min: int = row(0, "Minimum number of drafted tokens; shorter drafts are not used.",
        Flags("--draft-min", "--draft-n-min", "--spec-draft-n-min", high=MAX_DRAFT))
    adaptive_draft: bool = row(True,
        "Draft as many tokens as pay, by measured times and accept rates, or always as many as "
        "`draft_max`.", Flags("--adaptive-draft/--no-adaptive-draft"))
    # fmt: on
    ngram: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
