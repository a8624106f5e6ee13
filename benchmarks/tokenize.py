"""Measures tokenization speed on one core; prints a table and appends a result line.

    python -m benchmarks.tokenize TEXT CODE MODEL.gguf ...

Give a megabyte or more of English text and of code. Each run starts with nothing remembered; the
best of five counts, in time of this process, so a busy machine does little harm.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from benchmarks import machine
from pyggml.gguf import GGUFFile
from pyllama.tokenizer import Tokenizer, load_tokenizer

RESULTS = Path(__file__).parent / "results" / "tokenize.jsonl"
_CHARS, _RUNS = 1_000_000, 5


def rate(tokenizer: Tokenizer, text: str) -> float:
    """Megabytes of UTF-8 in a second, best of some runs."""
    best = float("inf")
    for _ in range(_RUNS):
        fresh = Tokenizer(tokenizer.vocab)
        fresh.encode("")
        fresh.encode("x")  # builds the tables
        start = time.process_time()
        fresh.encode(text)
        best = min(best, time.process_time() - start)
    return len(text.encode()) / 1e6 / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("code", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    options = parser.parse_args()
    texts = {
        kind: getattr(options, kind).read_bytes().decode("utf-8", "replace")[:_CHARS]
        for kind in ("text", "code")
    }
    rates: dict[str, dict[str, float]] = {}
    for path in options.models:
        with GGUFFile(path) as file:
            tokenizer = load_tokenizer(file.metadata)
        rates[path.stem] = {kind: round(rate(tokenizer, text), 2) for kind, text in texts.items()}
        print(f"{path.stem:30} {rates[path.stem]}", flush=True)
    line = {
        **machine.head(),
        "chars": {kind: len(text) for kind, text in texts.items()},
        "mb_per_s": rates,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
