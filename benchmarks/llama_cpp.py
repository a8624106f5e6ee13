"""llama.cpp from pip at the same work: milliseconds of a token and of prompts, as a JSON line.

    PYTHON -m benchmarks.llama_cpp MODEL.gguf 4,8,64,256       # a Python that has xllamacpp

Imports nothing of this project, so that it can have an environment of its own.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

GENERATED, ROUNDS = 24, 3


def main() -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = sys.argv[1], 512, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
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
    token = [timings(16, GENERATED, 0)["predicted_per_token_ms"] for _ in range(ROUNDS)]
    times = {"1": statistics.median(token)}
    for n in map(int, filter(None, sys.argv[2].split(","))):
        found = [timings(n, 1, seed) for seed in range(1, ROUNDS + 1)]
        assert all(t["prompt_n"] == n for t in found), found[0]
        times[str(n)] = statistics.median(t["prompt_ms"] for t in found)
    print("PEER", json.dumps({"version": xllamacpp.__version__, "ms": times}))


if __name__ == "__main__":
    main()
