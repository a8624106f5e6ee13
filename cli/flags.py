"""Translates parameter names in the library's messages to the flags of the tools.

    in_flags("use `repack=False` or a larger `n_ctx`")   # "use --no-repack or a larger --ctx-size"

The library puts a parameter between backquotes, alone or with a value. Other text between
backquotes is left unchanged.
"""

from __future__ import annotations

import re

from pyllama.parameters import rows
from pyllama.parameters.loading import ContextSizes, DeviceParams, FileParams

FLAGS = {
    name: row.flags[0].names[-1]
    for table in (FileParams, DeviceParams, ContextSizes)
    for name, row in rows(table).items()
    if row.flags and row.kind != "bool"
} | {
    "chat_format": "--chat-template",
    "given": "--gpu-index",
    "hidden_act": "--act",
    "imatrix": "--imatrix",
    "lora": "--lora-rank",
    "lora_path": "--lora",
    "model_path": "--model",
    "n_depth": "--n-depth",
    "n_gen": "--n-gen",
    "n_keep": "--keep",
    "n_prompt": "--n-prompt",
    "n_seq_max": "--parallel",
    "outtype": "--outtype",
    "predictor": "--predictor",
    "save_logits": "--save-all-logits",
    "target_model": "--target-model-dir",
    "token": "--hf-token",
    "transpose_down": "--transpose-down",
    "val_split": "--val-split",
}
SETTINGS = {  # parameter values that a flag without an argument stands for
    "allow_requantize=True": "--allow-requantize",
    "mmap=False": "--no-mmap",
    "n_keep=None": "--no-context-shift",
    "offline=True": "--offline",
    "predictor=None": "--dense",
    "recompute=True": "--recompute-layers",
    "repack=False": "--no-repack",
    "reset=True": "--reset-gpu-index",
    "swa_full=True": "--swa-full",
}
PARAMETER = re.compile(r"(?<!`)`([a-z_]+)(?:=([^`]*))?`(?!`)")


def in_flags(message: str) -> str:
    """Return a message of the library with parameters replaced by flags."""
    return PARAMETER.sub(_flag, message)


def _flag(match: re.Match[str]) -> str:
    name, value = match.groups()
    setting = SETTINGS.get(f"{name}={value}")
    if setting is not None or name not in FLAGS:
        return setting or match[0]
    return FLAGS[name] if value is None else f"{FLAGS[name]} {value.strip(chr(39))}"
