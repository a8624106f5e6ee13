"""``pyllama-batch``: answer all rows of a file, with engines in several processes (Ray Data).

    pyllama-batch prompts.jsonl answers.jsonl -m x.gguf -n 128 --temp 0
    pyllama-batch prompts.parquet answers.parquet --workers 4 -np 16

A run that was ended continues where it was. Needs ``pip install pyggml[cluster]``; docs/scaling.md
has the formats.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import Flags, row

from ..options.options import ContextOptions, context_options, model_options
from ..options.prompt import escape_option
from ..options.sampling import sampling_options, sampling_params
from ..output import note, progress_bar
from ..parameters import from_options, parameter_options
from ..paths import refuse_source
from ..replicas import MISSING, ProcessOptions, n_threads, replica_options
from ..tool import Program, version_option

if TYPE_CHECKING:
    from pyllama.cluster.batch_files import Part, PartFolder, Source
    from pyllama.cluster.options import ReplicaOptions

_MOST_PARTS = 2000  # Ray Data plans each part
_PARTS_PER_WORKER = 4  # at least, so that all have work until the end


@dataclass(frozen=True, eq=False, repr=False)
class BatchOptions(ProcessOptions):
    """Which rows are answered, and by how many processes."""

    # fmt: off
    workers: int = row(1, "Number of processes with an engine.",
        Flags("--workers", low=1, high=10_000))
    predict: int = row(-1,
        "Maximum tokens of an answer, unless a row says it. -1: until the context is full.",
        Flags("-n", "--predict", "--n-predict", low=-1))
    limit: int | None = row(None, "Answer only the first N rows.", Flags("--limit", low=1))
    part_rows: int | None = row(None,
        "Rows of a part: what is computed again after an interruption.  [default: by the number "
        "of rows]", Flags("--part-rows", low=1, high=1 << 20))
    restart: bool = row(False, "Delete the output and the finished parts first.",
        Flags("--restart"))
    # fmt: on


@click.command("batch", cls=Program)
@click.argument("input", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@parameter_options(BatchOptions)
@model_options
@escape_option()
@context_options(adapters=False)
@sampling_options
@version_option()
def command(input: Path, output: Path, **options: Any) -> None:
    """Answer each row of INPUT, JSON lines or parquet, by a row of OUTPUT in the same order."""
    try:
        from pyllama.cluster.batch_files import PartFolder, scan
        from pyllama.cluster.session import ray_session
        from pyllama.server.request.options import ServerOptions
    except ModuleNotFoundError as error:
        raise click.UsageError(f"{MISSING} ({error.name} is missing)") from None

    own, params = from_options(BatchOptions, options), sampling_params(options)
    threads = n_threads(ContextOptions.from_click(options), own.workers)
    server = ServerOptions(sampling=params, n_predict=own.predict, max_waiting=None)
    replica = replica_options(options, own.n_parallel, threads, server)
    source = scan(str(input.resolve()), own.limit)
    folder = PartFolder(output, _key(source, replica, own.predict))
    refuse_source(output, input, *map(Path, replica.models.values()))
    if output.exists() and not folder.begun and not own.restart:
        raise click.UsageError(f"{output} exists; --restart replaces it")
    with folder.locked():
        if own.restart:
            folder.restart()
        todo = folder.unfinished(source, _part_rows(source.n_rows, own))
        if todo:
            n_done = source.n_rows - sum(part.n_rows for part in todo)
            if n_done:
                note(f"continuing: {n_done} of {source.n_rows} rows are done")
            n_cpus = max(os.cpu_count() or 1, own.workers * threads)
            with ray_session(own.address, n_cpus):
                _run(todo, source, folder, replica, own.workers, params.seed)
        folder.finish(source)


def _run(
    todo: list[Part],
    source: Source,
    folder: PartFolder,
    replica: ReplicaOptions,
    n_workers: int,
    seed: int,
) -> None:
    """Compute the parts and write each as soon as it is complete."""
    from pyllama.cluster.batch import run_parts

    n_left = sum(part.n_rows for part in todo)
    done = run_parts(todo, source.path, replica, n_workers, seed if seed >= 0 else None)
    assert isinstance(done, Iterator)
    with progress_bar("answering") as progress, closing(done):  # type: ignore[type-var]
        for part, lines in done:
            folder.write(part, lines)
            n_left -= part.n_rows
            progress(1 - n_left / source.n_rows)


def _key(source: Source, replica: ReplicaOptions, predict: int) -> dict[str, str]:
    """What the output depends on, by names that a user knows."""
    (path,) = replica.models.values()
    model = os.stat(path)
    threads = ("n_threads", "n_threads_batch")
    sizes = {k: v for k, v in replica.context.items() if k not in threads}
    return {
        "input": f"{source.digest} {source.n_rows}",
        "model (-m)": f"{Path(path).name} {model.st_size} {model.st_mtime_ns}",
        "--predict": str(predict),
        "context option": repr(sizes),
        "sampling option": repr(replica.server.sampling),
        "model option": repr(replica.loading),
    }


def _part_rows(n_rows: int, own: BatchOptions) -> int:
    """Rows of a part: enough to keep the slots busy, and not too many parts."""
    if own.part_rows:
        return own.part_rows
    n_slots, n_workers = own.n_parallel, own.workers
    fair = -(-n_rows // (_PARTS_PER_WORKER * n_workers))
    return max(min(8 * n_slots, fair), 2 * n_slots, -(-n_rows // _MOST_PARTS))
