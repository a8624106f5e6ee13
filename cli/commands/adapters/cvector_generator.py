"""``pyllama-cvector-generator``: make a control vector of pairs of prompts, as llama.cpp does.

pyllama-cvector-generator -m x.gguf  # of positive.txt and negative.txt
pyllama-cvector-generator -m x.gguf --method mean -o v.gguf
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from pyllama.parameters import Flags, row

from ...loading import load_model, make_context
from ...options.options import ContextOptions, ModelOptions, context_options, model_options
from ...options.prompt import process_escapes
from ...output import note, progress_bar, write_line
from ...parameters import from_options, parameter_options
from ...paths import MAX_TEXT_BYTES, refuse_source, writable
from ...tool import Program, ignored_option, version_option


@dataclass(frozen=True, eq=False, repr=False)
class ControlVectorFlags:
    """The prompts, and how their differences become a direction."""

    # fmt: off
    positive_file: Path = row(Path("positive.txt"), "Prompts with the trait, one a line.",
        Flags("--positive-file"))
    negative_file: Path = row(Path("negative.txt"),
        "Their counterparts without the trait, in the same order. Escapes such as \\n are "
        "processed in both files.",
        Flags("--negative-file"))
    method: str = row("pca", "pca: the first principal component of the differences; mean: their "
        "mean.", Flags("--method", choices=("pca", "mean")))
    pca_iter: int = row(1000, "Maximum number of iterations of PCA.", Flags("--pca-iter", low=1))
    pca_batch: int = row(100, "Changes nothing, but --pca-iter must be a multiple of it.",
        Flags("--pca-batch", low=1))
    output: Path = row(Path("control_vector.gguf"), "Output file.",
        Flags("-o", "--output", "--output-file", callback=writable))
    # fmt: on


@click.command("cvector-generator", cls=Program)
@parameter_options(ControlVectorFlags)
@model_options
@context_options(n_ctx=0)
@ignored_option("--no-warmup", "--warmup")
@version_option()
def command(**options: Any) -> None:
    """Make a control vector: the direction in which pairs of prompts differ, in each layer."""
    own = from_options(ControlVectorFlags, options)
    if own.pca_iter % own.pca_batch:
        raise click.UsageError("--pca-iter must be a multiple of --pca-batch")
    refuse_source(own.output, options["model"], own.positive_file, own.negative_file)
    positive = _prompts(own.positive_file, "--positive-file")
    negative = _prompts(own.negative_file, "--negative-file")
    from pyllama.eval.control_vector import (
        differences,
        mean_direction,
        principal_direction,
        tokenize_pairs,
        write_control_vector,
    )

    sizes = ContextOptions.from_click(options)
    model = load_model(ModelOptions.from_click(options), sizes.params(), sizes.n_threads)
    pairs = tokenize_pairs(model.tokenizer, positive, negative)
    context = make_context(model, sizes)
    note(f"cvector: {len(pairs)} pairs, {2 * sum(len(a) for a, _ in pairs)} tokens")
    found: list[list[Any]] = []  # by pair and layer: [tokens, n_embd]
    with progress_bar("evaluating prompts") as progress:
        for rows in differences(context, pairs):
            found.append(rows)
            progress(len(found) / len(pairs))
    import numpy as np

    direction: Any = mean_direction
    if own.method == "pca":
        direction = partial(principal_direction, n_iterations=own.pca_iter)
    directions: list[Any] = []
    with progress_bar("computing directions") as progress:
        for parts in zip(*found, strict=True):
            directions.append(direction(np.concatenate(parts)))
            progress(len(directions) / len(found[0]))
    write_control_vector(own.output, model.hparams.arch, directions)
    write_line(f"{own.output}: {len(directions)} directions")


def _prompts(path: Path, flag: str) -> list[str]:
    """The lines of a file that are not empty, with their escapes processed.

    Raises:
        click.UsageError: there is no such file; names the flag that it is given with.
        OSError: it cannot be read.
    """
    from pyggml.files import read_input
    from pyllama.inputs.text import utf8

    try:
        data = read_input(path, MAX_TEXT_BYTES)
    except FileNotFoundError:
        raise click.UsageError(
            f"{path}: no such file; give a text file with one prompt a line with {flag} FILE"
        ) from None
    return [
        process_escapes(line).decode("utf-8", "replace") for line in utf8(data).split(b"\n") if line
    ]
