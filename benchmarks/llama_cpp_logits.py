"""Writes llama.cpp's logits over the chunks of a text, as for perplexity, as float32.

    PYTHON -m benchmarks.llama_cpp_logits MODEL.gguf TOKENS.i32 512 OUT.f32    # has xllamacpp
    python -m benchmarks.llama_cpp_logits ... --library PATH/libllama.so       # of a build

TOKENS.i32: int32, whole chunks. OUT.f32: for each chunk the logits behind its second half, the last
token left out: float32[n_chunks * (n_ctx / 2 - 1), n_vocab]. Imports nothing of this project.
Source: llama.cpp, ``llama.h``.
"""

from __future__ import annotations

import argparse
import ctypes
import os
from pathlib import Path
from typing import Any


class Params(ctypes.Structure):
    """Any struct of parameters, with room to spare: versions differ behind the first fields."""

    _fields_ = [("first", ctypes.c_uint32 * 8), ("rest", ctypes.c_ubyte * 1024)]


class Batch(ctypes.Structure):
    """``llama_batch``."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


def library(path: str | None) -> Any:
    if path is None:
        import xllamacpp as xllamacpp  # maps its library, which has llama.cpp's functions

        maps = Path("/proc/self/maps").read_text(encoding="utf-8").split()
        path = next(word for word in maps if "xllamacpp.abi3.so" in word)
    lib = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    pointers = ("model_load_from_file", "init_from_model", "get_logits_ith", "get_memory")
    for name in (*pointers, "model_get_vocab"):
        getattr(lib, f"llama_{name}").restype = ctypes.c_void_p
    for name in ("model", "context"):
        getattr(lib, f"llama_{name}_default_params").restype = Params
    lib.llama_batch_init.restype = Batch
    return lib


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("model", "tokens", "n_ctx", "out"):
        parser.add_argument(name)
    parser.add_argument("--library", help="path of libllama.so")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--ubatch", type=int, help="physical batch size; default: as large as possible"
    )
    args = parser.parse_args()
    n, lib, pointer = int(args.n_ctx), library(args.library), ctypes.c_void_p
    tokens = memoryview(Path(args.tokens).read_bytes()).cast("i")
    lib.llama_backend_init()
    path = ctypes.c_char_p(args.model.encode())
    model = pointer(lib.llama_model_load_from_file(path, lib.llama_model_default_params()))
    params = lib.llama_context_default_params()
    defaults = list(params.first[:3])
    assert defaults[:3] == [512, 2048, 512], f"n_ctx, n_batch, n_ubatch moved: {defaults}"
    params.first[0] = params.first[1] = n
    params.first[2] = args.ubatch or n
    context = pointer(lib.llama_init_from_model(model, params))
    assert model.value and context.value, "llama.cpp does not load it"
    lib.llama_set_n_threads(context, args.threads, args.threads)
    vocab = pointer(lib.llama_model_get_vocab(model))
    n_vocab = lib.llama_vocab_n_tokens(vocab)
    add_bos = ctypes.c_bool.from_buffer(ctypes.c_int(lib.llama_vocab_get_add_bos(vocab))).value
    batch = lib.llama_batch_init(n, 0, 1)
    batch.n_tokens = n
    with Path(args.out).open("wb") as out:
        for start in range(0, len(tokens), n):
            for j in range(n):
                first = j == 0 and add_bos
                batch.token[j] = lib.llama_vocab_bos(vocab) if first else tokens[start + j]
                batch.pos[j], batch.n_seq_id[j], batch.seq_id[j][0] = j, 1, 0
                batch.logits[j] = n // 2 <= j < n - 1
            lib.llama_memory_clear(pointer(lib.llama_get_memory(context)), True)
            if lib.llama_decode(context, batch):
                raise SystemExit("llama_decode failed")
            for j in range(n // 2, n - 1):
                out.write(ctypes.string_at(lib.llama_get_logits_ith(context, j), 4 * n_vocab))
    os._exit(0)  # its own end may wait for threads


if __name__ == "__main__":
    main()
