"""The options that name a model on the Hugging Face hub, for every tool that loads one.

    hub = HubOptions.current()                     # in a command: None without -hf
    path = hub.path(None)

They are kept in click's context, so a command that takes ``-m`` takes them without knowing.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from .output import progress_bar

F = TypeVar("F")
_META = "pyllama.files.hub."


@dataclass(frozen=True)
class HubOptions:
    """A model on the hub."""

    repo: str
    file: str | None = None
    token: str | None = None
    offline: bool = False

    @classmethod
    def current(cls) -> HubOptions | None:
        """What this command line says, None where it names no model on the hub."""
        context = click.get_current_context(silent=True)
        given = {
            key.removeprefix(_META): value
            for key, value in (context.meta if context else {}).items()
            if key.startswith(_META) and value
        }
        if "repo" in given:
            return cls(**given)
        if "file" in given:
            raise click.UsageError(
                "-hff names a file of a repository: give the repository with -hf"
            )
        return None

    def path(self, model: Path | None) -> Path:
        """The model's file, downloaded if need be."""
        if model is not None:
            raise click.UsageError("give the model with -m or with -hf, not both")
        from pyllama.files.hub import Hub, hub_model

        with contextlib.ExitStack() as stack:
            bars: dict[str, Any] = {}

            def progress(file: str, fraction: float) -> None:
                if file not in bars:
                    bars[file] = stack.enter_context(progress_bar(f"fetching {file}"))
                bars[file](fraction)

            hub = Hub(token=self.token, offline=self.offline, progress=progress)
            return hub_model(self.repo, self.file, hub)


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    ctx.meta[f"{_META}{(param.name or '').removeprefix('hub_')}"] = value


def hub_options(function: F) -> F:
    """``-hf``, ``-hff``, ``-hft`` and ``--offline``."""
    options: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (
            ("-hf", "-hfr", "--hf-repo", "hub_repo"),
            {
                "metavar": "USER/MODEL[:QUANT]",
                "help": "A model on the Hugging Face hub, fetched once; without QUANT Q4_K_M, else "
                "Q8_0, else the first.",
            },
        ),
        (("-hff", "--hf-file", "hub_file"), {"help": "Its file, by name.", "metavar": "FILE"}),
        (
            ("-hft", "--hf-token", "hub_token"),
            {"help": "Token for private and gated models.  [default: HF_TOKEN]"},
        ),
        (("--offline", "hub_offline"), {"is_flag": True, "help": "Use the cache, no network."}),
    ]
    for flags, more in reversed(options):
        function = click.option(*flags, expose_value=False, callback=_keep, **more)(function)  # type: ignore[type-var]
    return function
