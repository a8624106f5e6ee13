"""``pyllama-gguf new``: copy a file with changed metadata.

pyllama-gguf new x.gguf y.gguf --general-name "Mine"
pyllama-gguf new x.gguf y.gguf --chat-template-file chat.jinja
pyllama-gguf new x.gguf y.gguf --set llama.rope.freq_base=f32:1e6
pyllama-gguf new x.gguf y.gguf --remove-metadata general.url
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...output import note, progress_bar
from ...tool import Program, version_option
from .files import confirm, gguf_argument

if TYPE_CHECKING:
    from pyggml.gguf import GGUFFile

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_MAX_TEMPLATE_BYTES = 64 << 20  # of a template file or a tokenizer_config.json
_MAX_VALUES = 4 << 20
_SIMPLE = {
    "general_name": "general.name",
    "general_description": "general.description",
    "pre_tokenizer": "tokenizer.ggml.pre",
}


def _settings(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    from pyllama.gguf_tools.edit import parse_setting

    try:
        return dict(parse_setting(value) for value in values)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("new", cls=Program)
@gguf_argument("source")
@gguf_argument("output")
@click.option("--general-name", help="Set general.name.")
@click.option("--general-description", help="Set general.description.")
@click.option("--chat-template", help="Set the chat template, or a JSON list of named templates.")
@click.option("--chat-template-config", type=_FILE,
              help="Set the chat template of this tokenizer_config.json.")  # fmt: skip
@click.option("--chat-template-file", type=_FILE, help="Set the chat template in this Jinja file.")
@click.option("--pre-tokenizer", help="Set tokenizer.ggml.pre.")
@click.option("--remove-metadata", multiple=True, metavar="KEY", help="Remove KEY. Repeatable.")
@click.option("--special-token", multiple=True, nargs=2, metavar="NAME TEXT",
              help="Set a special token (bos, eos, ...) by its text. Repeatable.")  # fmt: skip
@click.option("--special-token-by-id", multiple=True, type=(str, int), metavar="NAME ID",
              help="Set a special token by its id. Repeatable.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="KEY=TYPE:VALUE", callback=_settings,
              help="Set any key. TYPE is u8 ... u64, i8 ... i64, f32, f64, bool or str; [TYPE] for "
              "a JSON array. Repeatable.")  # fmt: skip
@click.option("--force", is_flag=True, help="Do not ask for confirmation.")
@click.option("--verbose", is_flag=True, help="Print the changes.")
@version_option()
def command(source: Path, output: Path, force: bool, verbose: bool, **options: Any) -> None:
    """Copy SOURCE to OUTPUT with changed metadata."""
    from pyggml.gguf import GGUFFile, copy_gguf, whole_metadata

    with GGUFFile(source) as file:
        old = whole_metadata(file)
        metadata = _changed(file, old, options)
        if verbose:
            _say_changes(old, metadata)
        if not force and any(key in old for key in options["remove_metadata"]):
            confirm("Removing metadata can make the new file unusable.")
        if not force and output.exists():
            confirm(f"{output} exists and will be overwritten.")
        with progress_bar(f"writing {output}") as progress:
            copy_gguf(file, output, metadata, progress=progress)


def _changed(file: GGUFFile, old: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of the copy."""
    import numpy as np

    from pyllama.gguf_tools import edit

    metadata = dict(old)
    for key in options["remove_metadata"]:
        if metadata.pop(key, None) is None:
            note(f"{key} cannot be removed: the file does not have it")
    template = _template(options)
    if template is not None:
        edit.set_chat_template(metadata, template)
    for name, key in _SIMPLE.items():
        if options[name] is not None:
            metadata[key] = options[name]
    for name, text in options["special_token"]:
        ids = edit.token_ids(file, text)
        if len(ids) > 1:
            note(f"{len(ids)} tokens are {text!r}, using the first: {', '.join(map(str, ids))}")
        metadata[edit.special_token_key(name)] = np.uint32(ids[0])
    for name, id in options["special_token_by_id"]:
        edit.check_token_id(file, id)
        metadata[edit.special_token_key(name)] = np.uint32(id)
    metadata |= options["settings"]
    return metadata


def _template(options: dict[str, Any]) -> Any:
    """Return the chat template of the options: text, a list of named templates, or None."""
    found: Any = None
    if options["chat_template"] is not None:
        found = options["chat_template"]
        if found.startswith("["):
            found = _json(found, "--chat-template")
    if options["chat_template_config"] is not None:
        path = options["chat_template_config"]
        config = _json(_text(path), str(path))
        found = config.get("chat_template") if isinstance(config, dict) else None
        if found is None:
            raise click.UsageError(f"{path} has no chat_template")
    if options["chat_template_file"] is not None:
        found = _text(options["chat_template_file"])
    return found


def _text(path: Path) -> str:
    from pyllama.inputs.text import read_text

    try:
        return read_text(path, _MAX_TEMPLATE_BYTES, "strict")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path} is not UTF-8: {error}") from None


def _json(text: str, where: str) -> Any:
    from pyllama.inputs.bounded_json import parse_json

    try:
        return parse_json(text.encode("utf-8", "surrogateescape"), _MAX_VALUES)
    except ValueError as error:
        raise click.UsageError(f"{where} is not JSON: {error}") from None


def _say_changes(old: dict[str, Any], new: dict[str, Any]) -> None:
    for key in [*old, *(key for key in new if key not in old)]:
        if key not in new:
            note(f"removed {key}")
        elif key not in old:
            note(f"added {key} = {new[key]!s:.80}")
        elif new[key] is not old[key]:
            note(f"changed {key}: {old[key]!s:.80} -> {new[key]!s:.80}")
