"""What sparse inference costs and gains on the model of ``benchmarks.train_relu``.

    python -m benchmarks.sparse_quality [--folder DIR] [--chunks 100] [--quick]

Converts it (F16, Q8_0, Q4_0; with predictors, and as a plain dense file), then for every source and
threshold: perplexity of the held-out text, recall and computed share of neurons, tokens/s against
the dense file in turns. Writes benchmarks/results/sparse_quality.jsonl and the pictures of
docs/sparse.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyggml.dtype import GGMLType
from pyggml.env import user_cache_dir
from pyggml.gguf import GGUFFile, write_gguf
from pyggml.quants import dequantize, quantize
from pyggml.viz.chart import Chart, charts_svg
from pyllama import Batch, Context, Model
from pyllama.bench import cpu_info
from pyllama.convert import Options, convert
from pyllama.perplexity import perplexity
from pyllama.sparsity.collect import collect
from pyllama.sparsity.pictures import stats_svg

ROOT = Path(__file__).parent
RESULTS, PICTURES = ROOT / "results" / "sparse_quality.jsonl", ROOT.parent / "docs" / "pictures"
FOLDER = user_cache_dir("pyllama") / "relu-7m"
N_CTX, BEHIND, GENERATED, ROUNDS = 256, 32, 32, 9
THRESHOLDS = {  # of each source; None: the file's
    "predictor": (-math.inf, -3.0, -2.0, None, -0.5, 0.0, 0.5, 1.0),
    "exact": (0.0,),
    "signs": (-32.0, -16.0, 0.0, 8.0, 16.0),
    "svd=32": (-1.0, -0.5, -0.25, 0.0, 0.25),
    "svd=64": (-1.0, -0.5, -0.25, 0.0, 0.25),
}


def files(folder: Path, outtype: str) -> tuple[Path, Path]:
    """The dense file and PowerInfer's of a type; Q4_0 is made of F16."""
    paths = []
    for name, options in {
        "dense": Options(),
        "sparse": Options(predictor=folder / "predictor"),
    }.items():
        path = folder / f"relu-7m-{outtype}-{name}.gguf"
        if outtype == "q4_0":
            _requantize(folder / f"relu-7m-f16-{name}.gguf", path, GGMLType.Q4_0)
        else:
            convert(folder / "model", path, outtype, options)
        paths.append(path)
    return paths[0], paths[1]


def _requantize(source: Path, path: Path, type: GGMLType) -> None:
    file, tensors = GGUFFile(source), {}
    for name, t in file.tensors.items():
        data, kind = file.tensor_bytes(name), t.type
        if t.n_dims > 1 and t.ne[0] % 32 == 0:
            x = dequantize(data.reshape(t.ne[1], -1), t.type)
            data, kind = quantize(x, type), type
        tensors[name] = (data, kind, t.ne[: t.n_dims])
    write_gguf(path, file.metadata, tensors, magic=file.magic)


def with_threshold(model: Model, threshold: float | None) -> Model:
    """The same weights with another threshold."""
    if threshold is None:
        return model
    model = copy.copy(model)
    model.hparams = replace(model.hparams, sparse_threshold=threshold)
    return model


class Generation:
    """Single tokens behind some others."""

    def __init__(self, model: Model, tokens: list[int]) -> None:
        self.context, self.tokens = Context(model, n_ctx=N_CTX), tokens
        self.run()

    def run(self) -> float:
        """Median seconds of a token."""
        c, times = self.context, []
        c.kv.clear()
        c.decode(Batch(self.tokens[:BEHIND]))
        for token in self.tokens[BEHIND : BEHIND + GENERATED]:
            start = time.perf_counter()
            c.decode_token(token)
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def quality(model: Model, tokens: list[int], n_chunks: int) -> float:
    """Perplexity of the held-out text."""
    context = Context(model, n_ctx=N_CTX)
    *_, last = perplexity(context, tokens, N_CTX, n_chunks)
    return last.ppl


def measured(model: Model, dense: Generation, tokens: list[int], n_chunks: int) -> dict[str, Any]:
    """Perplexity, speed, and who foresaw what."""
    mine = Generation(model, tokens)
    pairs = [(dense.run(), mine.run()) for _ in range(ROUNDS)]
    line = {
        "ppl": quality(model, tokens, n_chunks),
        "tokens_per_s": 1 / statistics.median(b for _, b in pairs),
        "dense_over_this": statistics.median(a / b for a, b in pairs),
    }
    if model.hparams.sparse:
        stats = collect(model, tokens, n_ctx=N_CTX, n_chunks=max(1, n_chunks // 4))
        line["active"] = float(stats.density.mean())
        if not math.isnan(stats.recall.mean()):
            line["computed"] = float(stats.predicted.mean())
            line["recall"] = float((stats.recall * stats.density).sum() / stats.density.sum())
    return line


def lines_of(folder: Path, outtype: str, n_chunks: int, quick: bool) -> Iterator[dict[str, Any]]:
    """A line for each source and threshold."""
    dense_path, sparse_path = files(folder, outtype)
    dense = Model.load(dense_path, sparse="off")
    text = (folder / "model" / "held-out.txt").read_text(encoding="utf-8")
    tokens = dense.tokenizer.encode(text, add_special=True, parse_special=False)
    reference = Generation(dense, tokens)
    whole = measured(dense, reference, tokens, n_chunks)
    yield {"source": "dense", "threshold": None} | whole
    for source, thresholds in THRESHOLDS.items():
        if quick and source not in ("predictor", "exact"):
            continue
        path = sparse_path if source == "predictor" else dense_path
        model = Model.load(path, sparse=source)
        for threshold in thresholds if not quick else thresholds[3:4] or thresholds[:1]:
            one = with_threshold(model, threshold)
            line = measured(one, reference, tokens, n_chunks)
            line["ppl_change"] = line["ppl"] / whole["ppl"] - 1
            known = one.hparams.sparse_threshold
            yield {"source": source, "threshold": known if math.isfinite(known) else str(known),
                   "from_file": threshold is None} | line  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--types", default="f16,q8_0,q4_0")
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    lines = []
    for i, outtype in enumerate(args.types.split(",")):
        for line in lines_of(args.folder, outtype, args.chunks, quick=i > 0):
            head = {"time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "cpu": cpu_info(),
                    "threads": 2, "chunks": args.chunks, "type": outtype}  # fmt: skip
            print(json.dumps({"type": outtype} | line), flush=True)
            lines.append(head | line)
    if not args.no_save:
        with RESULTS.open("a") as f:
            f.writelines(json.dumps(line) + "\n" for line in lines)
        draw(lines, args.folder)


def draw(lines: list[dict[str, Any]], folder: Path) -> None:
    """Perplexity against speed and against computed neurons, and the model's statistics."""
    speed = Chart("Perplexity against speed", "dense time / time", "change of perplexity",
                  percent=True)  # fmt: skip
    share = Chart("Perplexity against computed neurons", "% of neurons", "change of perplexity",
                  percent=True)  # fmt: skip
    for source in THRESHOLDS:
        mine = [x for x in lines if x["source"] == source and x["type"] == lines[0]["type"]]
        mine = [x for x in mine if x["ppl_change"] < 0.5]
        mine.sort(key=lambda x: x.get("computed", x["active"]))
        change = [x["ppl_change"] for x in mine]
        speed.line([x["dense_over_this"] for x in mine], change, source)
        share.line([100 * x.get("computed", x["active"]) for x in mine], change, source)
    charts_svg([speed, share], PICTURES / "sparse-quality.svg",
               title="A trained ReLU model of 7 M parameters, held-out text")  # fmt: skip
    model = Model.load(folder / "relu-7m-f16-sparse.gguf")
    text = (folder / "model" / "held-out.txt").read_text(encoding="utf-8")
    tokens = model.tokenizer.encode(text, add_special=True, parse_special=False)
    stats_svg(collect(model, tokens, n_ctx=N_CTX, n_chunks=100), PICTURES / "sparse-stats.svg")


if __name__ == "__main__":
    main()
