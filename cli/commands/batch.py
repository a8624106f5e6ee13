"""``pyllama-batch``: answer all rows of a file, with engines in several processes (Ray Data).

    pyllama-batch prompts.jsonl answers.jsonl -m x.gguf -n 128 --temp 0
    pyllama-batch prompts.parquet answers.parquet --workers 4 -np 16

A run that was ended continues where it was. Needs ``pip install pyggml[cluster]``; docs/scaling.md
has the formats.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options.options import ContextOptions, context_options, model_options
from ..options.parameters import INT32_MAX, Number
from ..options.prompt import escape_option
from ..options.sampling import sampling_options, sampling_params
from ..output import note, progress_bar
from ..replicas import MISSING, address_option, n_threads, parallel_option, replica_options
from ..tool import Program, version_option

if TYPE_CHECKING:
    from pyllama.cluster.batch_files import Part, PartFolder, Source
    from pyllama.cluster.options import ReplicaOptions

_MOST_PARTS = 2000  # Ray Data plans each part
_PARTS_PER_WORKER = 4  # at least, so that all have work until the end


@click.command("batch", cls=Program)
@click.argument("input", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@parallel_option
@click.option("--workers", type=Number(1, 10_000), default=1, help="Number of processes with an "
              "engine.")  # fmt: skip
@click.option("-n", "--predict", "--n-predict", type=Number(-1, INT32_MAX), default=-1,
              help="Maximum tokens of an answer, unless a row says it. -1: until the context is "
              "full.")  # fmt: skip
@click.option("--limit", type=Number(1, INT32_MAX), help="Answer only the first N rows.")
@click.option("--part-rows", type=Number(1, 1 << 20), help="Rows of a part: what is computed "
              "again after an interruption.  [default: by the number of rows]")  # fmt: skip
@click.option("--restart", is_flag=True, help="Delete the output and the finished parts first.")
@address_option
@model_options
@escape_option()
@context_options()
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

    params = sampling_params(options)
    threads = n_threads(ContextOptions.from_click(options), options["workers"])
    server = ServerOptions(sampling=params, n_predict=options["predict"], max_waiting=None)
    replica = replica_options(options, options["n_parallel"], threads, server)
    source = scan(str(input.resolve()), options["limit"])
    folder = PartFolder(output, _key(source, replica, options))
    if output.exists() and not folder.begun and not options["restart"]:
        raise click.UsageError(f"{output} exists; --restart replaces it")
    with folder.locked():
        if options["restart"]:
            folder.restart()
        todo = folder.unfinished(source, _part_rows(source.n_rows, options))
        if todo:
            n_done = source.n_rows - sum(part.n_rows for part in todo)
            if n_done:
                note(f"continuing: {n_done} of {source.n_rows} rows are done")
            n_cpus = max(os.cpu_count() or 1, options["workers"] * threads)
            with ray_session(options["address"], n_cpus):
                _run(todo, source, folder, replica, options)
        folder.finish(source)


def _run(
    todo: list[Part],
    source: Source,
    folder: PartFolder,
    replica: ReplicaOptions,
    options: Mapping[str, Any],
) -> None:
    """Compute the parts and write each as soon as it is complete."""
    from pyllama.cluster.batch import run_parts

    seed = options["seed"] if options["seed"] >= 0 else None
    n_left = sum(part.n_rows for part in todo)
    done = run_parts(todo, source.path, replica, options["workers"], seed)
    assert isinstance(done, Iterator)
    with progress_bar("answering") as progress, closing(done):  # type: ignore[type-var]
        for part, lines in done:
            folder.write(part, lines)
            n_left -= part.n_rows
            progress(1 - n_left / source.n_rows)


def _key(source: Source, replica: ReplicaOptions, options: Mapping[str, Any]) -> dict[str, str]:
    """What the output depends on, by names that a user knows."""
    (path,) = replica.models.values()
    model = os.stat(path)
    threads = ("n_threads", "n_threads_batch")
    sizes = {k: v for k, v in replica.context.items() if k not in threads}
    return {
        "input": f"{source.digest} {source.n_rows}",
        "model (-m)": f"{Path(path).name} {model.st_size} {model.st_mtime_ns}",
        "--predict": str(options["predict"]),
        "context option": repr(sizes),
        "sampling option": repr(replica.server.sampling),
        "model option": repr(replica.loading),
    }


def _part_rows(n_rows: int, options: Mapping[str, Any]) -> int:
    """Rows of a part: enough to keep the slots busy, and not too many parts."""
    if options["part_rows"]:
        return int(options["part_rows"])
    n_slots, n_workers = options["n_parallel"], options["workers"]
    fair = -(-n_rows // (_PARTS_PER_WORKER * n_workers))
    return int(max(min(8 * n_slots, fair), 2 * n_slots, -(-n_rows // _MOST_PARTS)))
