"""``pyllama-gguf hash``: hashes of the weights, in llama-gguf-hash's format.

pyllama-gguf hash x.gguf > x.manifest
pyllama-gguf hash --check x.manifest x.gguf
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...output import FAILED, note, progress_bar, visible, write_line
from ...tool import Tool, version_option
from .files import gguf_argument

if TYPE_CHECKING:
    from pyllama.gguf_tools.digest import Digest


@click.command("hash", cls=Tool)
@gguf_argument()
@click.option("--xxh64", is_flag=True, help="Hash by XXH64: fast, no protection from forgery.")
@click.option("--sha1", is_flag=True, help="Hash by SHA-1.")
@click.option("--sha256", is_flag=True, help="Hash by SHA-256; the default.")
@click.option("--all", "all_kinds", is_flag=True, help="Hash by all of these.")
@click.option("--uuid", is_flag=True, help="A version 5 UUID of all tensors.")
@click.option("--no-layer", is_flag=True, help="Only of all tensors, not of each.")
@click.option("-c", "--check", "manifest", type=click.Path(path_type=Path), metavar="FILE",
              help="Compare with hashes that were printed before.")  # fmt: skip
@version_option()
def command(
    model: Path,
    all_kinds: bool,
    no_layer: bool,
    manifest: Path | None,
    **chosen: bool,
) -> None:
    """Print hashes of each tensor of MODEL and of all. Exit code 1 where --check finds another."""
    from pyggml.gguf import GGUFFile
    from pyllama.gguf_tools.digest import KINDS, digests, read_manifest

    wanted = {} if manifest is None else read_manifest(manifest, model)
    kinds = [k for k in KINDS if chosen[k] or (all_kinds and k != "uuid")]
    if not kinds:  # the strongest that the list has
        have = {kind for kind, _ in wanted}
        kinds = [next(k for k in ("sha256", "sha1", "xxh64", "uuid") if not wanted or k in have)]
    n_good = n_bad = 0
    with GGUFFile(model) as file, progress_bar(f"hashing {model}") as progress:
        for found in digests(file, kinds, layers=not no_layer, progress=progress):
            verdict = _verdict(found, wanted)
            n_good, n_bad = n_good + (verdict == "Ok"), n_bad + (verdict == "Mismatch")
            where = f"{model}:{found.name}" if found.name else f"{model}"
            ending = f"  -  {verdict}" if manifest is not None else ""
            write_line(f"{found.kind:8}  {found.digest}  {where}{ending}")
    if manifest is not None and (n_bad or not n_good):
        note(f"error: {model}: {n_bad} hashes differ from {manifest}, {n_good} are the same")
        raise click.exceptions.Exit(FAILED)


def _verdict(found: Digest, wanted: dict[tuple[str, str | None], str]) -> str:
    shown = None if found.name is None else visible(found.name, keep="\t")  # as it is printed
    digest = wanted.get((found.kind, found.name)) or wanted.get((found.kind, shown))
    if digest is None:
        return "Not Found"
    return "Ok" if digest == found.digest else "Mismatch"
