"""Quality, size and speed of a model in every format: docs/quantization.md.

    python -m benchmarks.quantization F16.gguf --text FILE [--peer PYTHON] [--library libllama.so]
        [--types Q4_0,Q4_K_M]
    python -m benchmarks.quantization              # the page again; measures nothing

Perplexity and Kullback-Leibler divergence from F16 by llama.cpp's method, in chunks of 512; PYTHON
is one that has xllamacpp: then also llama.cpp's perplexity of the same file, and how far its
probabilities are from ours, and from exact ones; and from those of another build of it, given its
library. A line a format in results/quantization.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.bench_model import Ours, cases, head, name
from benchmarks.machine import label, save
from benchmarks.performance_page import DOCS, Line, markdown, newest
from pyllama import Context, Model
from pyllama.errors import ModelError
from pyllama.eval.kl_divergence import kl_divergence
from pyllama.eval.perplexity import perplexity, scored_logits
from pyllama.eval.saved_logits import SavedLogits
from pyllama.file_types import can_write
from pyllama.quantize import FILE_TYPES, QuantizeOptions, find_file_type, quantize_model

Floats = npt.NDArray[np.floating[Any]]
FILE, N_CTX, TESTS = "quantization.jsonl", 512, "pp512,tg64"
_HEAD = """\
# Formats compared

What each block format costs and gives, on one model: size, perplexity, speed, and the distance from
llama.cpp on the same file. Smaller perplexity and KL are better. The TQ formats are for models that
were trained with three values a weight, which this one was not.

| column | meaning |
|---|---|
| perplexity | of the first chunks of 512 tokens of the GNU GPL version 3, by llama.cpp's method |
| KL, same top | mean Kullback-Leibler divergence from F16; how often the likeliest token is F16's |
| pp512, tg64 | tokens per second on 2 threads, of a prompt of 512 tokens and of 64 generated ones |
| llama.cpp | our perplexity over its (its wheel from PyPI), and our divergence from it |
| exact | divergence of the same weights with float32 activations from llama.cpp |
| its builds | divergence of llama.cpp's wheel (AVX2) from llama.cpp built here with AVX-512 |

Both programs round activations to 8 bits, and another order of sums rounds some of them otherwise.
No implementation with its own order can be expected to be closer to llama.cpp than "exact", and its
own builds are as far from each other.

The page is made by `python -m benchmarks.quantization` from the lines in
[benchmarks/results](../benchmarks/results/).
"""


def _types(wanted: str) -> list[str]:
    if wanted:
        return [find_file_type(n).name for n in wanted.split(",")]
    return [n for n, f in FILE_TYPES.items() if f.type is not None and can_write(f.type)]


def _log_probabilities(logits: Floats) -> Floats:
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    found: Floats = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return found


def _peer_logits(
    path: Path, tokens: Path, n_vocab: int, python: str, library: str | None = None
) -> npt.NDArray[np.float32]:
    """llama.cpp's logits, in a file beside the tokens."""
    out = tokens.with_suffix(".library" if library else ".wheel")
    script = Path(__file__).with_name("llama_cpp_logits.py")
    command = [python, "-P", str(script), str(path), str(tokens), str(N_CTX)]
    command += [str(out), *(["--library", library] if library else [])]
    subprocess.run(command, check=True, capture_output=True)
    return np.memmap(out, np.float32, "r").reshape(-1, n_vocab)


def _apart(a: Floats, b: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Of rows of log probabilities: divergences, and whether the likeliest token is the same."""
    return (np.exp(a) * (a - b)).sum(-1), a.argmax(-1) == b.argmax(-1)


def _beside_peer(
    context: Context, exact: Context, chunks: npt.NDArray[np.int32], path: Path, python: str,
    library: str | None,
) -> dict[str, float]:  # fmt: skip
    """llama.cpp's perplexity of a file, and how far its probabilities are from ours.

    And from those of ``exact``, which has the file's weights in float32.
    """
    with tempfile.TemporaryDirectory() as folder:
        tokens, n_vocab = Path(folder, "tokens.i32"), context.model.hparams.n_vocab
        chunks.tofile(tokens)
        theirs = _peer_logits(path, tokens, n_vocab, python)
        others = theirs
        if library:
            others = _peer_logits(path, tokens, n_vocab, python=sys.executable, library=library)
        at, losses = 0, []
        apart: dict[str, list[tuple[Floats, npt.NDArray[np.bool_]]]] = defaultdict(list)
        for chunk in chunks:
            of_both = (scored_logits(c, chunk) for c in (context, exact))
            for (logits, targets), (best, _) in zip(*of_both, strict=True):
                n = len(targets)
                a, b = _log_probabilities(theirs[at : at + n]), _log_probabilities(logits)
                apart["peer"].append(_apart(a, b))
                apart["exact"].append(_apart(a, _log_probabilities(best)))
                if library:
                    apart["builds"].append(_apart(a, _log_probabilities(others[at : at + n])))
                losses.append((-a[np.arange(n), targets], -b[np.arange(n), targets]))
                at += n
    their_loss, our_loss = (np.concatenate(x).mean() for x in zip(*losses, strict=True))
    found = {"peer_ppl": float(np.exp(their_loss))}
    found["ppl_over_peer"] = float(np.exp(our_loss - their_loss))
    for who, parts in apart.items():
        divergence, same = (np.concatenate(x).mean() for x in zip(*parts, strict=True))
        found |= {f"{who}_kld": float(divergence), f"{who}_same_top": float(same)}
    return found


@contextmanager
def _exact(path: Path) -> Iterator[Context]:
    """A file's weights in float32, so that nothing is rounded to 8 bits."""
    with tempfile.TemporaryDirectory() as folder:
        floats = Path(folder, "exact.gguf")
        quantize_model(path, floats, find_file_type("F32"), QuantizeOptions(allow_requantize=True))
        model = Model.load(floats, n_threads=2)
        try:
            with closing(Context(model, n_ctx=N_CTX, n_threads=2)) as context:
                yield context
        finally:
            model.close()


def _speeds(model: Model, rounds: int) -> dict[str, float]:
    if not rounds:
        return {}
    tests = cases(TESTS)
    ours = Ours(model, 2, tests)
    try:
        turns = [[ours.speed(case) for case in tests] for _ in range(rounds)]
    finally:
        ours.context.close()
    return {
        name(case): statistics.median(t)
        for case, t in zip(tests, zip(*turns, strict=True), strict=True)
    }


def _measure(
    path: Path, chunks: npt.NDArray[np.int32], base: Path, args: argparse.Namespace
) -> Line:
    model = Model.load(path, n_threads=2)
    try:
        with closing(Context(model, n_ctx=N_CTX, n_threads=2)) as context:
            line: Line = {"ppl": 0.0}
            if base.exists():
                *_, last = kl_divergence(context, SavedLogits(base))
                line["ppl"], line["kld"] = last.ppl.value, last.mean_kld.value
                line["same_top"] = last.top_agreement.value
            else:
                for found in perplexity(context, chunks.ravel().tolist(), N_CTX, logits_file=base):
                    line["ppl"] = found.ppl
            if args.peer:
                with _exact(path) as exact:
                    line |= _beside_peer(context, exact, chunks, path, args.peer, args.library)
        return head(model, 2) | line | _speeds(model, args.rounds)
    finally:
        model.close()


def page(lines: list[Line]) -> str:
    """The page of the results."""

    def rows() -> Iterable[list[str]]:
        for r in sorted(lines, key=lambda r: r["bits_per_weight"], reverse=True):
            peer = [f"{r['ppl_over_peer']:.4f}" if "peer_ppl" in r else ""]
            for who in ("peer", "exact", "builds"):
                found = f"{who}_kld" in r
                peer.append(f"{r[f'{who}_kld']:.1e}" if found else "")
                peer.append(f"{r[f'{who}_same_top']:.1%}" if found else "")
            own = f"{r['kld']:.5f}" if "kld" in r else "", f"{r.get('same_top', 1):.1%}"
            yield [
                r["type"], f"{r['file_bytes'] / 1e6:.1f}", f"{r['bits_per_weight']:.2f}",
                f"{r['ppl']:.4f}", *own,
                *(f"{r[t]:.0f}" if t in r else "" for t in TESTS.split(",")),
                *peer,
            ]  # fmt: skip

    table = markdown(
        "file type | MB | bits per weight | perplexity | KL | same top | pp512 | tg64"
        " | llama.cpp: perplexity | KL | same top | exact: KL | same top"
        " | its builds: KL | same top",
        rows(),
    )
    cpus = dict.fromkeys(label(r) for r in lines)
    return f"{_HEAD}Measured on {', '.join(cpus)}.\n\n{table}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", nargs="?", type=Path, help="the F16 model")
    parser.add_argument("--text", type=Path, default=Path("/usr/share/common-licenses/GPL-3"))
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--types", default="")
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument(
        "--library", metavar="LIBLLAMA", help="library of another build, with --peer"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds of the speed test; 0: only quality"
    )
    args = parser.parse_args()
    if args.source:
        with tempfile.TemporaryDirectory() as folder:
            _run(args, Path(folder))
    (DOCS / "quantization.md").write_text(page(newest(FILE, "type")), encoding="utf-8")


def _run(args: argparse.Namespace, folder: Path) -> None:
    model = Model.load(args.source, vocab_only=True)
    tokens = model.tokenizer.encode(args.text.read_text(encoding="utf-8"))
    model.close()
    n_chunks = min(args.chunks, len(tokens) // N_CTX)
    chunks = np.array(tokens[: n_chunks * N_CTX], np.int32).reshape(-1, N_CTX)
    base, out = folder / "f16.logits", folder / "quantized.gguf"
    for type in ["F16", *(t for t in _types(args.types) if t != "F16")]:
        try:
            plan = quantize_model(args.source, out, find_file_type(type), QuantizeOptions())
        except ModelError as e:  # it wants an importance matrix
            print(e)
            continue
        line = {"type": type, "chunks": len(chunks), "file_bytes": out.stat().st_size}
        line["bits_per_weight"] = 8 * plan.nbytes / plan.n_elements
        save(_measure(out, chunks, base, args) | line, FILE)
        out.unlink()


if __name__ == "__main__":
    main()
