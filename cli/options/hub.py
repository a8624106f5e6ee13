"""The options that name a model on the Hugging Face hub, for every tool that loads one.

    hub = HubOptions.current()                     # in a command: None without -hf
    path = hub.path(None)

The values are stored in click's context, so commands need no parameters for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ..help_pages import stack
from ..output import progress_bar

_META = "pyllama.hub.hub."


@dataclass(frozen=True)
class HubOptions:
    """A model on the Hugging Face hub, as the command line names it."""

    repo: str
    file: str | None = None
    token: str | None = None
    offline: bool = False

    @classmethod
    def current(cls) -> HubOptions | None:
        """Return the hub options of this command line, None if it names no model on the hub.

        Raises:
            click.UsageError: -hff without -hf.
        """
        given = _given()
        if "repo" in given:
            return cls(**given)
        if "file" in given:
            raise click.UsageError(
                "-hff names a file in a repository: give the repository with -hf"
            )
        return None

    @staticmethod
    def choose(repo: str) -> None:
        """Let this command load a model on the hub, as ``-hf`` does."""
        click.get_current_context().meta[f"{_META}repo"] = repo

    @classmethod
    def of_draft(cls, repo: str, file: str | None) -> HubOptions:
        """Return a draft model on the hub, with the token and --offline of this command line."""
        return cls(**{**_given(), "repo": repo, "file": file})

    def path(self, model: Path | None) -> Path:
        """Return the path of the model's file, downloading it if necessary.

        Args:
            model: the value of -m, which must be None.
        """
        if model is not None:
            raise click.UsageError("give the model with -m or with -hf, not both")
        from pyllama.hub.hub import Hub, hub_model

        with contextlib.ExitStack() as stack:
            bars: dict[str, Any] = {}

            def progress(file: str, fraction: float) -> None:
                if file not in bars:
                    bars[file] = stack.enter_context(progress_bar(f"fetching {file}"))
                bars[file](fraction)

            hub = Hub(token=self.token, offline=self.offline, progress=progress)
            return hub_model(self.repo, self.file, hub)


def _given() -> dict[str, Any]:
    """The hub options of this command line that are given."""
    context = click.get_current_context(silent=True)
    return {
        key.removeprefix(_META): value
        for key, value in (context.meta if context else {}).items()
        if key.startswith(_META) and value
    }


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    ctx.meta[f"{_META}{(param.name or '').removeprefix('hub_')}"] = value


def _option(*flags: str, **more: Any) -> Callable[[Any], Any]:
    return click.option(*flags, expose_value=False, callback=_keep, **more)


hub_options = stack(
    _option(
        "-hf",
        "-hfr",
        "--hf-repo",
        "hub_repo",
        metavar="USER/MODEL[:QUANT]",
        help="Hugging Face repository of the model, downloaded once.  [default QUANT: Q4_K_M, else "
        "Q8_0, else the first file]",
    ),
    _option(
        "-hff",
        "--hf-file",
        "hub_file",
        metavar="FILE",
        help="File in the repository; overrides QUANT.",
    ),
    _option(
        "-hft", "--hf-token", "hub_token", help="Hugging Face access token.  [default: HF_TOKEN]"
    ),
    _option("--offline", "hub_offline", is_flag=True, help="Use only the local cache, no network."),
    section="Model",
)
"""``-hf``, ``-hff``, ``-hft`` and ``--offline``."""
