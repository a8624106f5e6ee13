"""How many replicas a load needs, from measured times of a step.

    steps = read_steps("bench.jsonl")              # of pyllama-batched-bench --output-format jsonl
    print(plan_table(steps, Load(rate=2.0, n_prompt=512, n_answer=256), utilisation=0.7))

For n texts at once, a step that gives one token to each takes t(n) seconds, and a token of a
prompt p seconds. A replica is busy for n_prompt * p + n_answer * t(n) / n seconds per request:

    requests per second of a replica:  1 / (n_prompt * p + n_answer * t(n) / n)
    replicas:                          ceil(rate / (utilisation * that))

docs/scaling.md derives this, and says what it leaves out. Nothing here imports Ray.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyggml.files import read_regular

from ..errors import BenchFileError

_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class ReplicaTimes:
    """Measured times of one replica.

    Attributes:
        step_s: seconds of a step by the number of texts, each of which gets a token.
        prompt_token_s: seconds of a token of a prompt.
    """

    step_s: Mapping[int, float]
    prompt_token_s: float


@dataclass(frozen=True)
class Load:
    """What clients ask.

    Attributes:
        rate: requests per second.
        n_prompt: tokens of a prompt that no cache has.
        n_answer: tokens of an answer.
    """

    rate: float
    n_prompt: int
    n_answer: int


@dataclass(frozen=True)
class Capacity:
    """Speed of a replica with n texts at once, and the number of replicas for a load.

    Attributes:
        n_texts: texts at once.
        tokens_per_s: of all texts.
        text_tokens_per_s: of one text.
        first_token_s: from an idle slot to the first token, if the prompt shares no step.
        request_s: from an idle slot to the last token.
        requests_per_s: of a replica that is always busy.
        n_replicas: for the load.
    """

    n_texts: int
    tokens_per_s: float
    text_tokens_per_s: float
    first_token_s: float
    request_s: float
    requests_per_s: float
    n_replicas: int


def read_steps(path: str | Path) -> ReplicaTimes:
    """The times in the output of ``pyllama-batched-bench --output-format jsonl``.

    Raises:
        BenchFileError: it has no rows of that command.
        OSError: it cannot be read.
    """
    steps, prompts = dict[int, float](), list[tuple[int, float]]()
    for line in read_regular(path, _MAX_BYTES).splitlines():
        try:
            row = json.loads(line)
            n, n_answer, n_prompt = int(row["pl"]), int(row["tg"]), int(row["pp"])
            prompt_s, answer_s = float(row["t_pp"]), float(row["t_tg"])
        except (ValueError, KeyError, TypeError):
            continue
        if n_answer > 0:
            steps[n] = answer_s / n_answer
        if n_prompt > 0:
            n_tokens = n_prompt * (1 if row.get("is_pp_shared") else n)
            prompts.append((n_tokens, prompt_s))
    if not steps or not prompts:
        raise BenchFileError(
            f"{path}: no rows with pp, tg, pl, t_pp and t_tg; write it with pyllama-batched-bench "
            "--output-format jsonl"
        )
    n_tokens, seconds = max(prompts)  # the longest measurement
    return ReplicaTimes(dict(sorted(steps.items())), seconds / n_tokens)


def capacity(steps: ReplicaTimes, load: Load, n_texts: int, utilisation: float) -> Capacity:
    """The capacity with one of the measured numbers of texts."""
    step_s = steps.step_s[n_texts]
    prompt_s = load.n_prompt * steps.prompt_token_s
    busy_s = prompt_s + load.n_answer * step_s / n_texts
    return Capacity(
        n_texts,
        tokens_per_s=n_texts / step_s,
        text_tokens_per_s=1 / step_s,
        first_token_s=prompt_s + step_s,
        request_s=n_texts * busy_s,
        requests_per_s=1 / busy_s,
        n_replicas=max(1, math.ceil(load.rate * busy_s / utilisation)),
    )


def plan_table(steps: ReplicaTimes, load: Load, utilisation: float) -> str:
    """A Markdown table with a row for each measured number of texts."""
    head = (
        "texts at once", "tokens/s", "tokens/s of a text", "first token, s", "answer, s",
        "requests/s of a replica", "replicas",
    )  # fmt: skip
    rows: list[tuple[Any, ...]] = [head, tuple("---:" for _ in head)]
    for n_texts in steps.step_s:
        found = capacity(steps, load, n_texts, utilisation)
        rows.append(
            (
                found.n_texts,
                f"{found.tokens_per_s:.1f}",
                f"{found.text_tokens_per_s:.1f}",
                f"{found.first_token_s:.2f}",
                f"{found.request_s:.1f}",
                f"{found.requests_per_s:.3f}",
                found.n_replicas,
            )
        )
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    what = (
        f"{load.rate:g} requests/s of {load.n_prompt} + {load.n_answer} tokens, replicas busy for "
        f"{utilisation:.0%} of the time"
    )
    return "\n".join((what, "", *lines)) + "\n"
