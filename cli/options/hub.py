"""The options that name a model on the Hugging Face hub, for every tool that loads one.

    hub = HubOptions.current()                     # in a command: None without -hf
    path = hub.path(None)

The values are stored in click's context, so commands need no parameters for them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pyllama.parameters import Flags, row

from ..output import progress_bar
from ..parameters import kept_values, parameter_options


@dataclass(frozen=True)
class HubOptions:
    """A model on the Hugging Face hub, as the command line names it."""

    # fmt: off
    hub_repo: str = row("",
        "Hugging Face repository of the model, downloaded once.  [default QUANT: Q4_K_M, else "
        "Q8_0, else the first file]",
        Flags("-hf", "-hfr", "--hf-repo", metavar="USER/MODEL[:QUANT]", default=None))
    hub_file: str | None = row(None, "File in the repository; overrides QUANT.",
        Flags("-hff", "--hf-file", metavar="FILE"))
    hub_token: str | None = row(None, "Hugging Face access token.  [default: HF_TOKEN]",
        Flags("-hft", "--hf-token"))
    hub_offline: bool = row(False, "Use only the local cache, no network.", Flags("--offline"))
    # fmt: on

    @classmethod
    def current(cls) -> HubOptions | None:
        """Return the hub options of this command line, None if it names no model on the hub.

        Raises:
            click.UsageError: -hff without -hf.
        """
        given = kept_values(cls)
        if given.get("hub_repo"):
            return cls(**given)
        if given.get("hub_file"):
            raise click.UsageError(
                "-hff names a file in a repository: give the repository with -hf"
            )
        return None

    @classmethod
    def choose(cls, repo: str) -> None:
        """Let this command load a model on the hub, as ``-hf`` does."""
        kept_values(cls)["hub_repo"] = repo

    @classmethod
    def of_draft(cls, repo: str, file: str | None) -> HubOptions:
        """Return a draft model on the hub, with the token and --offline of this command line."""
        return cls(**{**kept_values(cls), "hub_repo": repo, "hub_file": file})

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

            hub = Hub(token=self.hub_token, offline=self.hub_offline, progress=progress)
            return hub_model(self.hub_repo, self.hub_file, hub)


hub_options = parameter_options(HubOptions, keep=True, section="Model")
"""``-hf``, ``-hff``, ``-hft`` and ``--offline``."""
