"""Loads the model and creates the context that the options describe, with progress on stderr.

    model = load_model(ModelOptions.from_click(options))
    context = make_context(model, ContextOptions.from_click(options))

Without ``-m`` or ``-hf`` the model is the demo model. pyllama is imported inside the functions, so
that ``--help`` and ``--version`` stay fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .hub_options import HubOptions
from .kv_overrides import Value
from .options import ContextOptions, ModelOptions
from .output import note, progress_bar
from .override_options import current_overrides
from .unsupported import NO_GPU

if TYPE_CHECKING:
    from pyllama.core.context import Context
    from pyllama.core.model import Model
    from pyllama.core.overrides import Overrides


def model_path(given: Path | None) -> Path:
    """Return the file given by -m or -hf, or the demo model's; downloads it if necessary."""
    hub = HubOptions.current()
    if hub is not None:
        return hub.path(given)
    if given is not None:
        return given
    from pyllama.files.demo import demo_model_path

    with progress_bar("downloading the demo model (93 MB, once)") as progress:
        return demo_model_path(progress)


def load_model(options: ModelOptions, n_threads: int | None = None) -> Model:
    """Load and return the model that the options describe."""
    return load_file(model_path(options.model), options, n_threads)


def load_file(
    path: Path, options: ModelOptions, n_threads: int | None = None, *, is_draft: bool = False
) -> Model:
    """Load and return the model in a file, in the way that the options describe."""
    from pyllama.core.model import Model

    announce_compiles()
    if options.gpu_layers and options.device in (None, "none"):
        note(f"{'-ngld' if is_draft else '-ngl'} is ignored: {NO_GPU}")
    with progress_bar(f"loading the {'draft ' if is_draft else ''}model") as progress:
        return Model.load(
            path,
            use_mmap=options.use_mmap,
            use_mlock=options.use_mlock,
            repack=not options.no_repack,
            kv_overrides=options.override_kv,
            check_tensors=options.check_tensors,
            sparse=options.sparse,
            sparse_threshold=options.sparse_threshold,
            devices=options.device,
            n_gpu_layers=-1 if options.gpu_layers is None else options.gpu_layers,
            n_threads=n_threads,
            progress=progress,
        )


def load_vocab(given: Path | None, override_kv: Mapping[str, Value] | None = None) -> Model:
    """Load and return a model with hyperparameters and tokenizer, but no weights."""
    path = model_path(given)
    from pyllama.core.model import Model

    return Model.load(path, vocab_only=True, kv_overrides=override_kv)


def make_context(
    model: Model,
    options: ContextOptions,
    *,
    n_seq_max: int = 1,
    unified: bool = True,
    overrides: Overrides | None = None,
) -> Context:
    """Return a context with the sizes and threads of the options, for ``n_seq_max`` sequences.

    Args:
        overrides: None for those of the command line.
    """
    from pyggml.dtype import GGMLType
    from pyllama.core.context import Context

    return Context(
        model,
        n_ctx=options.ctx_size,
        n_batch=options.batch_size,
        n_ubatch=options.ubatch_size,
        n_seq_max=n_seq_max,
        unified=unified,
        swa_full=options.swa_full,
        overrides=current_overrides() if overrides is None else overrides,
        n_threads=options.n_threads,
        n_threads_batch=options.n_threads_batch,
        type_k=GGMLType[options.cache_type_k.upper()],
        type_v=GGMLType[options.cache_type_v.upper()],
    )


def announce_compiles() -> None:
    """Print on stderr the kernels that are compiled; later runs load them from the cache."""
    from pyggml import jit

    names: list[str] = []

    def compiled(name: str) -> None:
        if not names:
            note("first run on this machine: compiling kernels for its CPU, about 30 seconds")
        names.append(name)
        note(f"  {len(names):2d} {name}")

    jit.on_compile = compiled
