"""``--fim-qwen-1.5b-default`` and its siblings: a model on the hub with options that suit it.

@preset_options
def command(**options): ...                    # the presets are no parameters

A preset sets defaults. Options on the command line or in environment variables override them.

Source: llama.cpp, common/arg.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ..help_pages import stack

_QWEN = "ggml-org/Qwen2.5-Coder-{}-Q8_0-GGUF"
_FILE = "qwen2.5-coder-{}-q8_0.gguf"
_EDITOR: Mapping[str, Any] = {"port": 8012, "n_batch": 1024, "n_ubatch": 1024, "n_ctx": 0}
_DRAFT: Mapping[str, Any] = {
    "hf_repo_draft": _QWEN.format("0.5B"),
    "model_draft": _FILE.format("0.5b"),
}


def _qwen(size: str, draft: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A Qwen 2.5 Coder for an editor."""
    return {
        "hub_repo": _QWEN.format(size),
        "hub_file": _FILE.format(size.lower()),
        **_EDITOR,
        **(draft or {}),
    }


PRESETS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "--fim-qwen-1.5b-default": ("Qwen 2.5 Coder 1.5B", _qwen("1.5B")),
    "--fim-qwen-3b-default": ("Qwen 2.5 Coder 3B", _qwen("3B")),
    "--fim-qwen-7b-default": ("Qwen 2.5 Coder 7B", _qwen("7B")),
    "--fim-qwen-7b-spec": ("Qwen 2.5 Coder 7B, drafted for by 0.5B", _qwen("7B", _DRAFT)),
    "--fim-qwen-14b-spec": ("Qwen 2.5 Coder 14B, drafted for by 0.5B", _qwen("14B", _DRAFT)),
    "--fim-qwen-30b-default": (
        "Qwen 3 Coder 30B A3B Instruct",
        {
            "hub_repo": "ggml-org/Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF",
            "hub_file": "qwen3-coder-30b-a3b-instruct-q8_0.gguf",
            **_EDITOR,
        },
    ),
}
"""What each flag loads, and the defaults that it sets, by the parameters' names."""


def _apply(ctx: click.Context, param: click.Parameter, is_given: bool) -> None:
    if is_given:
        _, defaults = PRESETS[param.opts[0]]
        ctx.default_map = {**defaults, **(ctx.default_map or {})}  # the environment overrides


preset_options = stack(
    *(
        click.option(
            flag,
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_apply,
            help=f"Serve {what}, downloaded once, at port {defaults['port']}.",
        )
        for flag, (what, defaults) in PRESETS.items()
    ),
    section="Presets",
)
