"""Measures ik_llama.cpp from pip: tokens per second of a test, as a JSON line.

    PYTHON ik_llama_cpp.py MODEL.gguf --prompt 512               # a Python with ik-llama-cpp-python
    PYTHON ik_llama_cpp.py MODEL.gguf --generated 64 --depth 4096 --repack

Imports nothing of this project, so that it can have an environment of its own. As in llama-bench,
the test's tokens follow ``--depth`` others, after a warm-up.
"""

from __future__ import annotations

import argparse
import json
import time


def main() -> None:
    import ik_llama_cpp._ctypes_api as api
    from ik_llama_cpp import _internals

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--prompt", type=int, default=0)
    parser.add_argument("--generated", type=int, default=0)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repack", action="store_true", help="repack weights when loading")
    args = parser.parse_args()
    api.llama_backend_init()
    model_params = api.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model_params.repack_tensors = args.repack
    model_params.use_mmap = not args.repack
    model = api.llama_model_load_from_file(args.model.encode(), model_params)
    if not model:
        raise SystemExit(f"{args.model}: ik_llama.cpp cannot load it")
    params = api.llama_context_default_params()
    n = args.depth + args.prompt + args.generated
    params.n_ctx = params.n_batch = max(512, n + 64)
    params.n_threads = params.n_threads_batch = args.threads
    params.flash_attn = True
    context = api.llama_init_from_model(model, params)
    if not context:
        raise SystemExit(f"{args.model}: ik_llama.cpp has no context for it")

    def run(n_tokens: int, position: int) -> None:
        tokens = [(7919 * i) % 250 + 260 for i in range(n_tokens)]
        batch = _internals.make_batch_range(tokens, pos_start=position)
        if n_tokens and api.llama_decode(context, batch):
            raise SystemExit("llama_decode failed")
        api.llama_batch_free(batch)

    run(max(1, min(args.prompt, 512)), 0)
    api.llama_kv_cache_clear(context)
    if args.depth:
        run(args.depth, 0)
    start = time.perf_counter()
    if args.prompt:
        run(args.prompt, args.depth)
    for i in range(args.generated):
        run(1, args.depth + args.prompt + i)
    seconds = time.perf_counter() - start
    print("PEER", json.dumps({"ts": (args.prompt + args.generated) / seconds}))


if __name__ == "__main__":
    main()
