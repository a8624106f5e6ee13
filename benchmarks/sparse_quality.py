"""Measures quality and speed of sparse inference on the model of ``benchmarks.train_relu``.

    python -m benchmarks.sparse_quality quality [--chunks 100]    # minutes, on any machine
    python -m benchmarks.sparse_quality speed                     # seconds, on an idle one
    python -m benchmarks.sparse_quality draw                      # the pictures of docs/sparse.md

Converts it (F16, Q8_0, Q4_0; with predictors, and as a plain dense file), then for every source and
threshold: perplexity of the held-out text, recall and computed share of neurons; tokens/s against
the dense file in turns. Lines go to benchmarks/results/sparse_quality.jsonl.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import machine
from pyggml.dtype import GGMLType
from pyggml.env import user_cache_dir
from pyggml.gguf import GGUFFile, write_gguf
from pyggml.quants import dequantize, quantize
from pyggml.viz.chart import Chart, charts_svg
from pyllama import Batch, Context, Model
from pyllama.convert import ConvertOptions, convert
from pyllama.eval.perplexity import perplexity
from pyllama.sparsity.collect import collect
from pyllama.sparsity.pictures import stats_svg

ROOT = Path(__file__).parent
RESULTS, PICTURES = ROOT / "results" / "sparse_quality.jsonl", ROOT.parent / "docs" / "pictures"
FOLDER = user_cache_dir("pyllama") / "relu-7m"
N_CTX, BEHIND, GENERATED, ROUNDS = 256, 32, 32, 9
THRESHOLDS = {  # of each source; None: the file's
    "predictor": (-math.inf, -3.0, -2.0, None, -0.5, 0.0, 0.5, 1.0),
    "cross": (-3.0, -2.0, None, -0.5, 0.0),
    "exact": (0.0,),
    "signs": (-32.0, -16.0, 0.0, 8.0, 16.0),
    "svd=32": (-1.0, -0.5, -0.25, 0.0, 0.25),
    "svd=64": (-1.0, -0.5, -0.25, 0.0, 0.25),
}


def files(folder: Path, outtype: str) -> tuple[Path, Path]:
    """The dense file and PowerInfer's of a type; Q4_0 is made of F16."""
    paths = []
    if outtype == "q4_0":
        files(folder, "f16")
    for name, options in {
        "dense": ConvertOptions(),
        "sparse": ConvertOptions(predictor=folder / "predictor"),
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
    return model.with_hparams(replace(model.hparams, sparse_threshold=threshold))


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


def quality_of(model: Model, tokens: list[int], n_chunks: int) -> dict[str, Any]:
    """Perplexity of the held-out text; the shares of neurons that are active, computed, found."""
    context = Context(model, n_ctx=N_CTX)
    *_, last = perplexity(context, tokens, N_CTX, n_chunks)
    line = {"ppl": last.ppl}
    if model.hparams.sparse:
        stats = collect(model, tokens, n_ctx=N_CTX, n_chunks=max(1, n_chunks // 4))
        line["active"] = float(stats.density.mean())
        if math.isfinite(stats.recall.mean()):
            line["computed"] = float(stats.predicted.mean())
            line["recall"] = float((stats.recall * stats.density).sum() / stats.density.sum())
    return line


def models_of(folder: Path, outtype: str, few: bool) -> Iterator[tuple[str, str, Model]]:
    """Source, threshold and model, dense first; ``few``: the file's threshold, and exact."""
    dense, sparse = files(folder, outtype)
    yield "dense", "", Model.load(dense, sparse="off")
    for source, thresholds in THRESHOLDS.items():
        if few and source not in ("predictor", "exact"):
            continue
        model = Model.load(sparse if source in ("predictor", "cross") else dense, sparse=source)
        for threshold in thresholds:
            if not few or threshold is None or source == "exact":
                one = with_threshold(model, threshold)
                yield source, f"{one.hparams.sparse_threshold:g}", one


def text_of(folder: Path, model: Model) -> list[int]:
    """The held-out tokens."""
    text = (folder / "model" / "held-out.txt").read_text(encoding="utf-8")
    return model.tokenizer.encode(text, add_special=True, parse_special=False)


def quality(folder: Path, outtype: str, few: bool, n_chunks: int) -> Iterator[dict[str, Any]]:
    """A line for each source and threshold."""
    dense = 0.0
    for source, threshold, model in models_of(folder, outtype, few):
        line = quality_of(model, text_of(folder, model), n_chunks)
        dense = dense or line["ppl"]
        yield (
            {"source": source, "threshold": threshold}
            | line
            | {
                "ppl_change": line["ppl"] / dense - 1,
                "chunks": n_chunks,
            }
        )


def speed(folder: Path, outtype: str, few: bool) -> Iterator[dict[str, Any]]:
    """A line for each source and threshold; all run in turns."""
    runs = {
        (source, threshold): Generation(model, text_of(folder, model))
        for source, threshold, model in models_of(folder, outtype, few)
    }
    rounds = [{key: one.run() for key, one in runs.items()} for _ in range(ROUNDS)]
    for source, threshold in runs:
        key = source, threshold
        yield {
            "source": source,
            "threshold": threshold,
            "tokens_per_s": 1 / statistics.median(times[key] for times in rounds),
            "dense_over_this": statistics.median(t["dense", ""] / t[key] for t in rounds),
            "threads": runs[key].context.n_threads,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("quality", "speed", "draw"))
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--types", default="f16,q8_0,q4_0")
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    if args.part == "draw":
        return draw(args.folder)
    lines = []
    for i, outtype in enumerate(args.types.split(",")):
        if args.part == "quality":
            found = quality(args.folder, outtype, i > 0, args.chunks)
        else:
            found = speed(args.folder, outtype, i > 0)
        for line in found:
            head = machine.head() | {"part": args.part, "type": outtype}
            print(json.dumps({"type": outtype} | line), flush=True)
            lines.append(head | line)
    if not args.no_save:
        with RESULTS.open("a") as f:
            f.writelines(json.dumps(line) + "\n" for line in lines)


def draw(folder: Path) -> None:
    """Perplexity against speed and against computed neurons (F16), and the model's statistics."""
    last: dict[tuple[str, str, str], dict[str, Any]] = {}
    for text in RESULTS.read_text().splitlines():
        line = json.loads(text)
        last.setdefault((line["type"], line["source"], line["threshold"]), {}).update(line)
    speeds = Chart("Perplexity against speed", "dense time / time", "change of perplexity",
                   percent=True)  # fmt: skip
    shares = Chart("Perplexity against computed neurons", "% of neurons", "change of perplexity",
                   percent=True)  # fmt: skip
    for source in THRESHOLDS:
        mine = [x for key, x in last.items() if key[:2] == ("f16", source)]
        mine = [x for x in mine if abs(x["ppl_change"]) < 0.3]
        mine.sort(key=lambda x: x.get("computed", x["active"]))
        change = [x["ppl_change"] for x in mine]
        speeds.line([x["dense_over_this"] for x in mine], change, source)
        shares.line([100 * x.get("computed", x["active"]) for x in mine], change, source)
    charts_svg([speeds, shares], PICTURES / "sparse-quality.svg",
               title="A trained ReLU model of 7 M parameters, F16, held-out text")  # fmt: skip
    model = Model.load(folder / "relu-7m-f16-sparse.gguf")
    stats = collect(model, text_of(folder, model), n_ctx=N_CTX, n_chunks=100)
    stats_svg(stats, PICTURES / "sparse-stats.svg")


if __name__ == "__main__":
    main()
