"""What llama.cpp drafts and accepts, compared with a drafter of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyllama import Context
from pyllama.engine import Engine, Request
from pyllama.sampling import SamplingParams
from pyllama.speculative import Drafter, Speculation

MAX_DRAFT = 3  # of both


def check_counts(server: Any, target: Context, drafter: Drafter, prompts: Sequence[str]) -> None:
    """Compare the numbers of drafted and of accepted tokens in 32 greedy ones after each prompt.

    Args:
        server: of llama.cpp, with the same model and head.
    """
    for prompt in prompts:
        speculation = Speculation(drafter, MAX_DRAFT, adaptive=False)
        ends = dict.fromkeys(target.model.tokenizer.eog, -np.inf)
        request = Request(prompt, SamplingParams(temp=0.0, logit_bias=ends), max_tokens=32)
        engine = Engine(target, speculation=speculation)
        assert sum(len(event.tokens) for event in engine.run(request)) == 32
        reply = server.handle_completions(
            {"prompt": prompt, "n_predict": 32, "temperature": 0, "ignore_eos": True}
        )
        timings, stats = reply["timings"], speculation.stats
        assert timings["draft_n"] == stats.n_drafted
        assert timings["draft_n_accepted"] == stats.n_accept
