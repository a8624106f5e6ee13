"""Measures what ``--kv-keep`` costs and gives: perplexity, recall in long texts, time of a token.

    python -m benchmarks.kv_reduction perplexity [--chunks 8]     # minutes, on any machine
    python -m benchmarks.kv_reduction recall [--trials 3]         # minutes, on any machine
    python -m benchmarks.kv_reduction speed                       # a minute, on an idle one

With the demo model. *perplexity*: of docs/, in chunks of 2,048 tokens whose second half is scored
in batches of 32. *recall*: a sentence with a number at ten depths of 1,800 tokens of docs/, and a
question after it; the share of right numbers, greedy. *speed*: a token at depth 8,192, with and
without reduction, in turns. Each is measured with all tokens, with a window only (the first tokens
and the last ones), and with important tokens beside a window. Lines go to
benchmarks/results/kv_reduction.jsonl.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import machine
from pyllama import Batch, Context, Model
from pyllama.eval.perplexity import perplexity
from pyllama.hub.demo import demo_model_path
from pyllama.kv.reduction import N_SINKS

ROOT = Path(__file__).parent
RESULTS = ROOT / "results" / "kv_reduction.jsonl"
N_CTX, BATCH, WINDOW = 2048, 32, 64
SHARES = (0.1, 0.2, 0.5)
N_TEXT, DEPTHS = 1800, 10
THINGS = ("lighthouse", "library", "railway station", "bakery", "museum", "harbour")
DEPTH, GENERATED, ROUNDS = 8192, 48, 5


def text() -> str:
    """The pages of docs/, one after another."""
    return "\n\n".join(page.read_text() for page in sorted((ROOT.parent / "docs").glob("*.md")))


def sizes(share: float, method: str, n: int) -> dict[str, int]:
    """The parameters of a context for texts of ``n`` tokens."""
    n_keep = int(n * share)
    if method == "all":
        return {}
    return {
        "kv_keep": n_keep,
        "kv_window": n_keep - N_SINKS - 1 if method == "window" else min(WINDOW, n_keep // 2),
    }


def cases(n: int) -> Iterator[tuple[str, float, dict[str, int]]]:
    """Method, budget as a share of ``n`` tokens, and parameters of the context."""
    yield "all", 1.0, {}
    for share in SHARES:
        for method in ("window", "important"):
            yield method, share, sizes(share, method, n)


def measure_perplexity(model: Model, n_chunks: int) -> Iterator[dict[str, Any]]:
    """Perplexity of each case; the second half of a chunk is scored."""
    tokens = model.tokenizer.encode(text(), add_special=True, parse_special=False)
    for method, share, params in cases(N_CTX):
        context = Context(model, n_ctx=N_CTX, n_batch=BATCH, **params)
        *_, result = perplexity(context, tokens, N_CTX, n_chunks)
        yield {
            "method": method, "share": share, **params, "n_ctx": N_CTX, "chunks": result.chunk,
            "ppl": result.ppl, "error": result.error,
        }  # fmt: skip


def hidden_number(model: Model, rng: random.Random, depth: float) -> tuple[list[int], str, str]:
    """Tokens of a text with a number in it, the question, and the number.

    Args:
        depth: 0: at the beginning, 1: at the end.
    """
    encode = model.tokenizer.encode
    tokens = encode(text(), add_special=False, parse_special=False)
    start = rng.randrange(len(tokens) - N_TEXT)
    filler, at = tokens[start : start + N_TEXT], int(depth * (N_TEXT - 1))
    thing, number = rng.choice(THINGS), str(rng.randrange(10000, 100000))
    hidden = encode(f"\nThe secret number of the {thing} is {number}.\n", add_special=False)
    question = (
        f"\n\nQuestion: What is the secret number of the {thing}?\n"
        f"Answer: The secret number of the {thing} is"
    )
    return [*filler[:at], *hidden, *filler[at:]], question, number


def answer(context: Context, seq: int, n: int) -> str:
    """Continue a sequence greedily, by one more token than are returned."""
    out = []
    for _ in range(n):
        out.append(context.argmax_ith(-1))
        context.decode_token(out[-1], seq)
    return context.model.tokenizer.decode(out)


def ask(
    context: Context, tokens: list[int], question: list[int], params: dict[str, int], *, late: bool
) -> str:
    """The answer to a question about the text in sequence 0.

    Args:
        params: sizes of the reduction; empty: none.
        late: reduce the text before the question is known.
    """
    reduction = context.kv.reduction
    assert reduction is not None
    reduction.n_keep, reduction.window = params.get("kv_keep", 0), params.get("kv_window", 0)
    reduction.limit = reduction.n_keep * 5 // 4 or sys.maxsize
    context.kv.seq_rm(1)
    n = len(tokens) - reduction.n_queries  # a sequence is reduced by queries of its own
    context.kv.seq_cp(0, 1, 0, n)
    if late:
        context.decode(Batch(tokens[n:], seq_id=1))
        context.decode(Batch(question, seq_id=1))
    else:
        context.decode(Batch(tokens[n:] + question, seq_id=1))
    return answer(context, 1, 7)


def measure_recall(model: Model, n_trials: int) -> Iterator[dict[str, Any]]:
    """The share of numbers found, when the prompt ends with the question, and when it comes later.

    In the second case the text is reduced before the question is known.
    """
    sizes = {"kv_keep": N_TEXT, "kv_window": WINDOW}
    context = Context(model, n_ctx=3 * N_CTX, n_seq_max=2, **sizes)
    found: Counter[tuple[str, float, bool]] = Counter()
    n = n_trials * DEPTHS
    for trial in range(n):
        rng = random.Random(trial)
        tokens, text, number = hidden_number(model, rng, trial % DEPTHS / (DEPTHS - 1))
        question = model.tokenizer.encode(text, add_special=False)
        context.kv.clear()
        context.decode(Batch(tokens, logits="none"))
        for method, share, params in cases(N_TEXT):
            for late in (False, True):
                reply = ask(context, tokens, question, params, late=late)
                found[method, share, late] += number in reply
        print(f"{trial + 1} of {n} texts", list(found.values()), file=sys.stderr, flush=True)
    for method, share, params in cases(N_TEXT):
        for late in (False, True):
            yield {
                "method": method, "share": share, **params, "n_text": N_TEXT, "trials": n,
                "question": "after the reduction" if late else "in the prompt",
                "recall": found[method, share, late] / n,
            }  # fmt: skip


def measure_speed(model: Model) -> Iterator[dict[str, Any]]:
    """Milliseconds of a token after ``DEPTH`` tokens, reductions included, in turns."""
    encoded = model.tokenizer.encode(text(), add_special=False, parse_special=False)
    tokens = encoded[:DEPTH]
    contexts, times = {}, {}
    for method, share in (("all", 1.0), ("important", 0.2)):
        params = sizes(share, method, DEPTH)
        context = Context(model, n_ctx=DEPTH + ROUNDS * GENERATED + 64, **params)
        start = time.perf_counter()
        for i in range(0, DEPTH, context.n_batch):
            context.decode(Batch(tokens[i : i + context.n_batch]))
        prompt_s = time.perf_counter() - start
        context.decode_token(tokens[-1])  # reduces, and compiles what is new
        contexts[method] = context, {"share": share, **params, "prompt_s": prompt_s}
        times[method] = []
    for _ in range(ROUNDS):
        for method, (context, _) in contexts.items():
            start = time.perf_counter()
            for _ in range(GENERATED):
                context.decode_token(context.argmax_ith(-1))
            times[method].append((time.perf_counter() - start) / GENERATED * 1e3)
    (reduced, _), full = contexts["important"], contexts["all"][0]
    reduction = reduced.kv.reduction
    assert reduction is not None
    extra = reduction.limit + 1 - reduced.kv.length(0)  # until the next reduction
    for _ in range(extra):
        reduced.decode_token(reduced.argmax_ith(-1))
    start = time.perf_counter()
    reduced.decode_token(reduced.argmax_ith(-1))
    reducing_ms = (time.perf_counter() - start) * 1e3
    for method, (context, fields) in contexts.items():
        token_ms = statistics.median(times[method])
        line = {"method": method, "depth": DEPTH, **fields, "token_ms": token_ms}
        if context is not full:
            line |= {"reducing_ms": reducing_ms, "every": reduction.limit + 1 - reduction.n_keep}
        yield line


def main() -> None:
    """Measure one part and append its lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("perplexity", "recall", "speed"))
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--trials", type=int, default=3)
    args = parser.parse_args()
    model = Model.load(demo_model_path())
    lines = {
        "perplexity": lambda: measure_perplexity(model, args.chunks),
        "recall": lambda: measure_recall(model, args.trials),
        "speed": lambda: measure_speed(model),
    }[args.part]()
    for line in lines:
        whole = {**machine.head(threads=Context(model, n_ctx=64).n_threads), "part": args.part}
        whole |= {key: round(x, 4) if isinstance(x, float) else x for key, x in line.items()}
        print(json.dumps({"part": args.part, **line}), flush=True)
        with RESULTS.open("a") as file:
            file.write(json.dumps(whole) + "\n")


if __name__ == "__main__":
    main()
