"""The options of a server of several models, and the list of models that they describe.

    options = from_options(RouterOptions, params)
    if options.is_router: entries = options.entries(ctx)

Source: llama.cpp, ``server_models::load_models``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyllama.parameters import Flags, row

from ..environment import is_on
from ..help_pages import stack
from ..parameters import parameter_options
from .presets import (
    GLOBAL,
    Preset,
    Values,
    arguments,
    given_values,
    read_presets,
    reserved_variables,
    section_text,
    shown_values,
)

if TYPE_CHECKING:
    from pyllama.server.router.catalog import CatalogEntry
    from pyllama.server.router.pool import Spawn
    from pyllama.server.router.process import ChildProcess, Report

_CODE = "from pyllama_cli.commands.serve import command; command()"
_CHILD = (
    "--router-child", "--host", "127.0.0.1", "--port", "0", "--no-ui", "--shutdown-timeout", "1",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class RouterOptions:
    """Which models a router offers."""

    # fmt: off
    models_dir: Path | None = row(None,
        "Offer the models of this folder, each in a process that is started on demand: GGUF files, "
        "and sub-folders with one model.", Flags("--models-dir"))
    models_preset: Path | None = row(None, "INI file with a section of options for each model.",
        Flags("--models-preset"))
    models_max: int = row(4,
        "Models that may be loaded at the same time; the one that was used least recently is "
        "unloaded for another. 0: no limit.", Flags("--models-max"))
    models_autoload: bool = row(True, "Load a model when it is asked for.  [default: on]",
        Flags("--models-autoload/--no-models-autoload"))
    # fmt: on

    @property
    def is_router(self) -> bool:
        """Whether the server is to have several models."""
        return self.models_dir is not None or self.models_preset is not None

    def entries(self, ctx: click.Context) -> list[CatalogEntry]:
        """Look for the models.

        Options of the command line come before those of a model's section, and these before those
        of all models.

        Raises:
            ModelError: the file of presets is wrong, or a section names no model.
            OSError: the folder or the file cannot be read.
        """
        from pyllama.server.router.catalog import find_models

        presets = {GLOBAL: Preset()}
        if self.models_preset is not None:
            presets = read_presets(self.models_preset, ctx.command)
        files = find_models(self.models_dir) if self.models_dir is not None else {}
        common, given = presets.pop(GLOBAL), given_values(ctx)
        found = []
        for name in {**files, **presets}:
            preset = presets.get(name, Preset())
            file = {"model": ("--model", str(files[name]))} if name in files else {}
            values = {**common.values, **file, **preset.values, **given}
            own = {**common.own, **preset.own}
            source = "preset" if name in presets else "models_dir"
            found.append(self._entry(name, values, own, source, ctx.command))
        self._check_startup(found)
        return found

    def _entry(
        self, name: str, values: Values, own: dict[str, str], source: str, command: click.Command
    ) -> CatalogEntry:
        from pyllama.errors import ModelError
        from pyllama.server.router.catalog import STOP_S, CatalogEntry

        where = f"{self.models_preset}, [{name}]"
        if "model" not in values and "hub_repo" not in values:
            raise ModelError(f"{where} names no model: add model = FILE or hf-repo = USER/MODEL")
        try:
            stop_s = max(0, int(own.get("stop-timeout", STOP_S)))
        except ValueError:
            raise ModelError(f"{where}: stop-timeout must be a number of seconds") from None
        try:
            on_startup = is_on("load-on-startup", own.get("load-on-startup", "0"))
        except click.UsageError as error:
            raise ModelError(f"{where}: {error.message}") from None
        shown = shown_values(values, command)
        return CatalogEntry(
            name=name,
            args=arguments(values),
            shown_args=arguments(shown),
            aliases=_words(values, "aliases"),
            tags=_words(values, "tags"),
            source=source,
            preset=section_text(name, shown),
            file=Path(values["model"][-1]) if "model" in values else None,
            stop_s=stop_s,
            on_startup=on_startup,
        )

    def _check_startup(self, entries: list[CatalogEntry]) -> None:
        n = sum(entry.on_startup for entry in entries)
        if 0 < self.models_max < n:
            raise click.UsageError(
                f"{n} models have load-on-startup, but --models-max is {self.models_max}"
            )


def spawner(ctx: click.Context) -> Spawn:
    """Return what starts the process of a model: this program, with the flags of its entry."""
    from pyllama.server.router.process import start

    reserved = set(reserved_variables(ctx.command))
    environment = {name: text for name, text in os.environ.items() if name not in reserved}

    def spawn(entry: CatalogEntry, report: Report) -> Awaitable[ChildProcess]:
        command = (sys.executable, "-P", "-c", _CODE, *entry.args, *_CHILD)
        return start(command, entry.name, environment, report)

    return spawn


def _words(values: Values, name: str) -> tuple[str, ...]:
    text = values.get(name, ("", ""))[-1]
    return tuple(filter(None, (word.strip() for word in text.split(","))))


router_options = stack(
    parameter_options(RouterOptions),
    click.option("--router-child", is_flag=True, hidden=True),
    section="Model",
)
"""``--models-dir``, ``--models-preset`` and what belongs to them."""
