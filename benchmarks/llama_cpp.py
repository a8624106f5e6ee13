"""Measures llama.cpp from pip: milliseconds per token and per prompt, as a JSON line.

    PYTHON -m benchmarks.llama_cpp MODEL.gguf 4,8,64,256       # a Python that has xllamacpp
    PYTHON -m benchmarks.llama_cpp MODEL.gguf 512 --generated 64 --threads 1 --rounds 2

Imports nothing of this project, so that it can have an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any


def main() -> None:
    import xllamacpp

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("prompts", help="prompt lengths, separated by commas")
    parser.add_argument("--generated", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    prompts = [int(n) for n in args.prompts.split(",") if n]
    params = xllamacpp.CommonParams()
    params.model.path, params.n_parallel = args.model, 1
    params.n_ctx = max(512, 64 + args.generated, 8 + max(prompts, default=0))
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    server = xllamacpp.Server(params)

    def timings(n_prompt: int, n_generated: int, seed: int) -> dict[str, Any]:
        prompt = [(7919 * (i + seed)) % 250 + 260 for i in range(n_prompt)]
        answer = server.handle_completions(
            {"prompt": prompt, "max_tokens": n_generated, "temperature": 0,
             "cache_prompt": False, "ignore_eos": True}
        )  # fmt: skip
        answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
        found: dict[str, Any] = answer["timings"]
        return found

    timings(16, 4, 0)
    token = [timings(16, args.generated, 0)["predicted_per_token_ms"] for _ in range(args.rounds)]
    times = {"1": statistics.median(token)}
    for n in prompts:
        found = [timings(n, 1, seed) for seed in range(1, args.rounds + 1)]
        assert all(t["prompt_n"] == n for t in found), found[0]
        times[str(n)] = statistics.median(t["prompt_ms"] for t in found)
    print("PEER", json.dumps({"version": xllamacpp.__version__, "ms": times}))


if __name__ == "__main__":
    main()
