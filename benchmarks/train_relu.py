"""Trains a small LLaMA with ReLU gates and its predictors, as a Hugging Face folder.

    python -m benchmarks.train_relu [--folder DIR]    # ~/.cache/pyllama/relu-7m: model, predictor

400 steps take four minutes on two cores of an AMD EPYC (Zen 4). Needs safetensors
(``pip install 'pyggml[bench]'``). A run that was stopped goes on at its last checkpoint, or layer
of the predictors; one that is complete does nothing. Text, order and initial weights come from the
seed, so the same versions give the same bits.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.llama_graph import Array, random_weights
from benchmarks.relu.folder import write_folder
from benchmarks.relu.model import SIZES, ReluTrainer, config, hugging_face
from benchmarks.relu.text import documents, tokenizer
from pyggml.env import user_cache_dir
from pyggml.opt import load_checkpoint, save_checkpoint
from pyllama import Model
from pyllama.convert import ConvertOptions, convert
from pyllama.sparsity.predictors import PredictorFolder, PredictorParams

FOLDER = user_cache_dir("pyllama") / "relu-7m"
SEED, STEPS = 0, 400
EVERY, SAVE = 10, 50  # steps between two lines, two checkpoints
N_FITTED = 98_304  # tokens for predictors


def token_ids(folder: Path) -> tuple[Array, Array]:
    """Trained on and held out: each text after its <s>. Writes ``held-out.txt`` for perplexity."""
    kept = folder / "tokens.npz"
    if kept.exists():
        with np.load(kept) as file:
            return file["train"], file["held_out"]
    train, held_out = documents()
    spm = tokenizer(folder / "tokenizer.model", train)
    (folder / "held-out.txt").write_text("\n\n".join(held_out), encoding="utf-8")
    both = []
    for texts in (train, held_out):
        ids = [i for text in spm.encode(texts) for i in (spm.bos_id(), *text)]
        both.append(np.asarray(ids, np.int64))
    np.savez(kept, train=both[0], held_out=both[1])
    return both[0], both[1]


def windows(ids: Array, rng: np.random.Generator, n: int, context: int) -> Array:
    """Random stretches of the text: [n, context + 1]."""
    at = rng.integers(0, len(ids) - context - 1, n)
    stretches: Array = ids[at[:, None] + np.arange(context + 1)]
    return stretches


def train(folder: Path, steps: int, n_threads: int) -> ReluTrainer:
    """The trained model; prints a line every few steps."""
    ids, held_out = token_ids(folder)
    print(f"{len(ids)} tokens, held out {len(held_out)}")
    s, start = SIZES, time.perf_counter()
    test = windows(held_out, np.random.default_rng(SEED), 2 * s.n_batch, s.n_ctx)
    run = ReluTrainer(s, random_weights(s, SEED, tied=True), steps, n_threads)
    checkpoint = folder / "checkpoint.gguf"
    if checkpoint.exists():
        load_checkpoint(checkpoint, run)
    while run.step < steps:
        rng = np.random.default_rng((SEED, run.step))
        loss, density = run.run_step(windows(ids, rng, s.n_batch, s.n_ctx))
        if run.step % EVERY == 0:
            layers = " ".join(f"{d:.2f}" for d in density)
            weights = " ".join(f"{w:.0e}" for w in run.penalties.numpy())
            print(f"{run.step:5} loss {loss:.3f}, open {layers}, penalties {weights}, "
                  f"{time.perf_counter() - start:.0f} s", flush=True)  # fmt: skip
        if run.step % SAVE == 0 or run.step == steps:
            save_checkpoint(checkpoint, run)
        if run.step % (2 * SAVE) == 0:
            print(f"      held out {run.mean_loss(test):.3f}", flush=True)
    return run


def fit_predictors(
    folder: Path, ids: Array, output: Path, params: PredictorParams, n_threads: int
) -> None:
    """Train predictors as ``pyllama-powerinfer train`` does; prints a line for each layer."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "dense.gguf"
        convert(folder, path, "f32", ConvertOptions())
        model = Model.load(path, sparse="off")
        found = PredictorFolder(output, model, ids[:N_FITTED].tolist(), params, n_ctx=SIZES.n_ctx)
        for i, one in enumerate(found.train(n_threads)):
            print(f"predictor {i}: open {one.active:.3f}, active {one.selected:.3f}, "
                  f"recall {one.recall:.4f}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rank", type=int, default=64, help="rank of the predictors")
    parser.add_argument(
        "--recall", type=float, default=0.98, help="minimum recall of the predictors"
    )
    args = parser.parse_args()
    folder = args.folder / "model"
    folder.mkdir(parents=True, exist_ok=True)
    run = train(folder, args.steps, args.threads)
    write_folder(hugging_face(run.arrays()), config(SIZES), folder)
    if not (args.folder / "predictor" / "config.json").exists():
        ids, _ = token_ids(folder)
        params = PredictorParams(args.rank, args.recall)
        fit_predictors(folder, ids, args.folder / "predictor", params, args.threads)


if __name__ == "__main__":
    main()
