"""``pyllama-powerinfer train``: train the predictors of a ReLU model.

    pyllama-powerinfer train -m relu.gguf -f text.txt -o predictors
    pyllama-convert relu-model --predictor predictors --outtype f16

Prints a line per layer. The folder is PowerInfer's. Until all layers are trained they are kept in
FOLDER/unfinished, from which the same command goes on after it was killed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from pyllama.parameters import Flags, row
from pyllama.parameters.loading import MAX_THREADS

from ...loading import load_model
from ...options.options import ModelOptions, model_options
from ...options.prompt import PromptOptions, escape_option, prompt_options
from ...output import note, progress_bar, write_line
from ...parameters import from_options, parameter_options
from ...paths import writable_folder
from ...tool import Program, version_option


@dataclass(frozen=True, eq=False, repr=False)
class TrainOptions:
    """The predictors, the text and the folder."""

    # fmt: off
    output: Path = row(Path("predictors"), "Folder for model_0.pt, ... and config.json.",
        Flags("-o", "--output", callback=writable_folder))
    rank: int = row(64, "Rank of the two matrices.", Flags("--rank", low=1, high=1 << 16))
    recall: float = row(0.98, "Share of the active neurons that predictors select.",
        Flags("--recall", low=0.01, high=0.9999))
    steps: int = row(1000, "Steps of the optimizer for each layer.", Flags("--steps", low=1))
    rate: float = row(2e-3, "Learning rate, which decays to 0.", Flags("-lr", "--learning-rate",
        low=0, metavar="ALPHA"))
    seed: int = row(0, "Seed of the first values and of the order of the tokens.",
        Flags("-s", "--seed", low=0))
    ctx_size: int = row(512,
        "Number of tokens per chunk of the text; each chunk starts with an empty KV cache.",
        Flags("-c", "--ctx-size", low=1))
    threads: int = row(-1, "Threads. -1: min(affinity, cgroup quota, physical cores).",
        Flags("-t", "--threads", low=-1, high=MAX_THREADS))
    # fmt: on


@click.command("train", cls=Program)
@prompt_options
@parameter_options(TrainOptions)
@model_options
@escape_option(default=False)
@version_option()
def command(**options: Any) -> None:
    """Train predictors of the active neurons of a ReLU model on a text."""
    own, text = from_options(TrainOptions, options), from_options(PromptOptions, options).text()
    if text is None:
        raise click.UsageError("give the text with -f or -p")
    n_threads = own.threads if own.threads > 0 else None
    model = load_model(replace(ModelOptions.from_click(options), sparse="off"), n_threads=n_threads)
    tokens = model.tokenizer.encode(text, add_special=True, parse_special=False)
    from pyllama.sparsity.predictors import PredictorFolder, PredictorParams

    params = PredictorParams(own.rank, own.recall, own.steps, rate=own.rate, seed=own.seed)
    folder = PredictorFolder(own.output, model, tokens, params, n_ctx=own.ctx_size)
    if folder.done:
        note(f"{folder.unfinished}: {len(folder.done)} layers are there, the others are trained")
    with progress_bar(f"training predictors on {len(tokens)} tokens") as progress:
        for i, one in enumerate(folder.train(n_threads, progress)):
            write_line(
                f"layer {i}: {one.active:.1%} of the neurons are active, {one.selected:.1%} "
                f"selected, recall {one.recall:.2%}"
            )
    note(f"{own.output}: {len(folder.done)} predictors, for pyllama-convert --predictor")
