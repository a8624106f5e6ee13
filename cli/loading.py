"""Loads the model and creates the context that the options describe, with progress on stderr.

    sizes = ContextOptions.from_click(options)
    model = load_model(ModelOptions.from_click(options), sizes.params(), sizes.n_threads)
    context = make_context(model, sizes)

Without ``-m`` or ``-hf`` the model is the demo model. pyllama is imported inside the functions, so
that ``--help`` and ``--version`` stay fast.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import rows
from pyllama.parameters.loading import FileParams

from .offload import PlannedOffload, planned_offload
from .options.adapters import apply_adapters
from .options.hub import HubOptions
from .options.kv_overrides import Value
from .options.options import ContextOptions, ModelOptions
from .output import note, progress_bar, write_line

if TYPE_CHECKING:
    from pyllama.runtime.context import Context
    from pyllama.runtime.devices import Reserved
    from pyllama.runtime.model import Model
    from pyllama.runtime.overrides import Overrides
    from pyllama.runtime.params import ContextParams


_REPORT_S = 2.0  # between two lines about compiling


def model_path(given: Path | None) -> Path:
    """Return the file given by -m or -hf, or the demo model's; downloads it if necessary."""
    hub = HubOptions.current()
    if hub is not None:
        return hub.path(given)
    if given is not None:
        return given
    from pyllama.hub.demo import demo_model_path

    with progress_bar("downloading the demo model (93 MB, once)") as progress:
        return demo_model_path(progress)


def load_model(
    options: ModelOptions,
    params: ContextParams | None = None,
    n_threads: int | None = None,
    reserved: Sequence[Reserved] = (),
) -> Model:
    """Load and return the model that the options describe; with --dry-run print its plan and exit.

    Args:
        params: sizes of its context, for what fits onto a GPU; None for the defaults.
        reserved: memory of GPUs that a draft model needs.
    """
    path, header = model_path(options.model), _header(options)
    planned = planned_offload(path, options, params, header, reserved)
    if options.offload.dry_run:
        for line in planned.lines:
            write_line(line)
        click.get_current_context().exit()
    return _load(path, options, planned, n_threads, "loading the model")


def load_draft(
    path: Path, options: ModelOptions, params: ContextParams, n_threads: int | None = None
) -> tuple[Model | None, tuple[Reserved, ...]]:
    """Load a draft model, and return it with the memory of GPUs that its target must leave to it.

    With --dry-run it is not loaded: its plan is printed.
    """
    planned = planned_offload(path, options, params, _header(options), is_draft=True)
    if options.offload.dry_run:
        for line in ("draft model", *planned.lines, "", "model"):
            write_line(line)
        return None, planned.reserved(is_loaded=False)
    model = _load(path, options, planned, n_threads, "loading the draft model")
    return model, planned.reserved(is_loaded=True)


def _header(options: ModelOptions) -> dict[str, Any]:
    """The fields of `LoadOptions` that change metadata and hyperparameters."""
    names = ("kv_overrides", "sparse", "sparse_threshold")
    return {name: getattr(options, name) for name in names}


def _load(
    path: Path, options: ModelOptions, planned: PlannedOffload, n_threads: int | None, label: str
) -> Model:
    from pyllama.runtime.model import LoadOptions, Model

    announce_compiles()
    fields = {name: getattr(options, name) for name in rows(FileParams)}
    how = LoadOptions(**fields, n_threads=n_threads, **planned.arguments)
    with progress_bar(label) as progress:
        return Model.load(path, how, progress=progress)


def load_vocab(given: Path | None, kv_overrides: Mapping[str, Value] | None = None) -> Model:
    """Load and return a model with hyperparameters and tokenizer, but no weights."""
    path = model_path(given)
    from pyllama.runtime.model import Model

    return Model.load(path, vocab_only=True, kv_overrides=kv_overrides or {})


def make_context(
    model: Model,
    options: ContextOptions,
    *,
    n_seq_max: int = 1,
    unified: bool = True,
    overrides: Overrides | None = None,
    is_draft: bool = False,
    apply_loras: bool = True,
) -> Context:
    """Return a context with the sizes and threads of the options, for ``n_seq_max`` sequences.

    Args:
        overrides: None for those of the command line.
        is_draft: it is a draft model's, which has no adapters.
        apply_loras: see `apply_adapters`.
    """
    from pyllama.runtime.context import Context

    context = Context(model, options.params(n_seq_max, unified, overrides))
    if not is_draft:
        apply_adapters(context, apply_loras=apply_loras)
    return context


def announce_compiles() -> None:
    """Print on stderr how far compiling has come; later runs load kernels from the cache."""
    from pyggml.compiler import jit
    from pyggml.compiler.progress import progress

    next_s = 0.0

    def compiled(name: str) -> None:
        nonlocal next_s
        now_s = time.monotonic()
        if now_s >= next_s:
            if not next_s:
                note("first use on this machine: kernels are compiled for its CPU, and kept")
            next_s = now_s + _REPORT_S
            note(f"{progress.now()}: {name}")

    jit.on_compile = compiled
