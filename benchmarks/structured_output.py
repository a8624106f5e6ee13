"""Generates documents of JSON schemas with a model; prints a table and appends a result line.

    python -m benchmarks.structured_output MODEL.gguf [--random 100] [--temp 1.2] [--seeds 1]

The schemas are those of ``tests/data/json_schemas`` and random ones with bounded strings and
arrays. Counted are the documents that end within 400 tokens and those that are valid; the speed is
that of the same requests with and without their grammars, which keep no states of an earlier run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from benchmarks import machine
from benchmarks.grammar import schemas
from pyllama import Context, Model
from pyllama.engine import Engine, Request
from pyllama.grammar import Grammar
from pyllama.sampling import SamplingParams

RESULTS = Path(__file__).parent / "results" / "structured_output.jsonl"
PROMPT = "Here is an example of a JSON document:\n\n"
MAX_TOKENS, N_SEQ = 400, 8
CHAINS: dict[str, dict[str, Any]] = {
    "default samplers": {},
    "temperature alone": {"samplers": ("temperature",)},
}


def generated(engine: Engine, requests: list[Request]) -> tuple[list[tuple[str, str, int]], float]:
    """Text, reason of the end and number of tokens of each request; tokens per second."""
    places = {engine.submit(request): i for i, request in enumerate(requests)}
    texts = [""] * len(requests)
    ends: dict[int, tuple[str, int]] = {}
    start = time.perf_counter()
    while engine.has_work:
        for event in engine.step():
            place = places[event.request]
            texts[place] += event.text
            if event.kind == "error":
                ends[place] = str(event.error), 0
            elif event.kind == "end" and event.usage is not None:
                ends[place] = str(event.reason), event.usage.n_generated
    seconds = time.perf_counter() - start
    n = sum(end[1] for end in ends.values())
    return [(text, *ends[i]) for i, text in enumerate(texts)], n / seconds


def judged(schema: Any, text: str) -> str:
    """``valid``, or the first error of a document."""
    judge = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    try:
        error = next(judge.iter_errors(json.loads(text)), None)
    except ValueError as failure:
        return f"{failure}: {text}"
    return "valid" if error is None else f"{error.message}: {text}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--random", type=int, default=100, help="number of random schemas")
    parser.add_argument("--temp", type=float, default=1.2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print the texts that do not end")
    options = parser.parse_args()
    model = Model.load(options.model)
    engine = Engine(Context(model, n_ctx=N_SEQ * 512, n_seq_max=N_SEQ))
    named = schemas(options.random)
    prompt = tuple(model.tokenizer.encode(PROMPT))
    prepared = Grammar.from_json_schema({"type": "string"})  # the vocabulary's trees and kernels
    warm_up = Request(prompt, SamplingParams(seed=options.seed), max_tokens=8, grammar=prepared)
    generated(engine, [warm_up] * (2 * N_SEQ))
    line: dict[str, Any] = {**machine.head(), "model": options.model.name, "schemas": len(named)}
    for chain, given in CHAINS.items():
        grammars = [Grammar.from_json_schema(schema) for schema in named.values()]
        params = [
            SamplingParams(temp=options.temp, seed=options.seed + i, **given)
            for i in range(len(named))
        ]
        results, speed = generated(
            engine,
            [
                Request(prompt, some, max_tokens=MAX_TOKENS, grammar=grammar)
                for some, grammar in zip(params, grammars, strict=True)
            ],
        )
        free, free_speed = generated(
            engine,
            [
                Request(prompt, some, max_tokens=max(1, n), stop_at_eog=False)
                for some, (_, _, n) in zip(params, results, strict=True)
            ],
        )
        del free
        verdicts = []
        for (name, schema), (text, reason, n) in zip(named.items(), results, strict=True):
            verdict = judged(schema, text) if reason == "eog" else reason
            verdicts.append(verdict if verdict in ("valid", "length") else "wrong")
            if verdict not in ("valid", "length") or (options.show and verdict == "length"):
                print(f"{name}: {verdict}, {n} tokens: {text[-200:]!r}")
        counts = Counter(verdicts)
        line[chain] = {
            "ended": round((counts["valid"] + counts["wrong"]) / len(named), 4),
            "wrong": counts["wrong"],
            "tokens": sum(n for _, _, n in results),
            "tokens_per_s": round(speed, 1),
            "tokens_per_s_free": round(free_speed, 1),
        }
        print(f"{chain:20} {line[chain]}", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
