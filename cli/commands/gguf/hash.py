"""``pyllama-gguf hash``: print hashes of the weights in llama-gguf-hash's format.

pyllama-gguf hash x.gguf > x.manifest
pyllama-gguf hash --check x.manifest x.gguf
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...output import FAILED, note, progress_bar, visible, write_line
from ...tool import Program, version_option
from .files import gguf_argument

if TYPE_CHECKING:
    from pyllama.gguf_tools.digest import Digest


@click.command("hash", cls=Program)
@gguf_argument()
@click.option("--xxh64", is_flag=True, help="Use XXH64: fast, not cryptographic.")
@click.option("--sha1", is_flag=True, help="Use SHA-1.")
@click.option("--sha256", is_flag=True, help="Use SHA-256. This is the default.")
@click.option("--all", "all_kinds", is_flag=True, help="Use all of these.")
@click.option("--uuid", is_flag=True, help="Print a version 5 UUID of the whole model.")
@click.option("--no-layer", is_flag=True, help="Only hash the whole model, not each tensor.")
@click.option("-c", "--check", "manifest", type=click.Path(path_type=Path), metavar="FILE",
              help="Verify against a manifest: the saved output of this command.")  # fmt: skip
@version_option()
def command(
    model: Path, all_kinds: bool, no_layer: bool, manifest: Path | None, **chosen: bool
) -> None:
    """Print the hash of each tensor of MODEL and of the whole. Exit code 1 if --check fails."""
    from pyggml.gguf import GGUFFile
    from pyllama.gguf_tools.digest import KINDS, digests, read_manifest

    expected = {} if manifest is None else read_manifest(manifest, model)
    kinds = [k for k in KINDS if chosen[k] or (all_kinds and k != "uuid")]
    if not kinds:  # the strongest one in the manifest
        have = {kind for kind, _ in expected}
        kinds = [next(k for k in ("sha256", "sha1", "xxh64", "uuid") if not expected or k in have)]
    n_good = n_bad = 0
    with GGUFFile(model) as file, progress_bar(f"hashing {model}") as progress:
        for found in digests(file, kinds, layers=not no_layer, progress=progress):
            verdict = _verdict(found, expected)
            n_good, n_bad = n_good + (verdict == "Ok"), n_bad + (verdict == "Mismatch")
            where = f"{model}:{found.name}" if found.name else f"{model}"
            ending = f"  -  {verdict}" if manifest is not None else ""
            write_line(f"{found.kind:8}  {found.digest}  {where}{ending}")
    if manifest is not None and (n_bad or not n_good):
        note(f"error: {model}: {n_bad} hashes differ from {manifest}, {n_good} match")
        raise click.exceptions.Exit(FAILED)


def _verdict(found: Digest, expected: dict[tuple[str, str | None], str]) -> str:
    shown = None if found.name is None else visible(found.name, keep="\t")  # as it was printed
    digest = expected.get((found.kind, found.name)) or expected.get((found.kind, shown))
    if digest is None:
        return "Not Found"
    return "Ok" if digest == found.digest else "Mismatch"
