"""Translates parameter names in the library's messages to the flags of the tools.

    in_flags("use `repack=False` or a larger `n_ctx`")   # "use --no-repack or a larger --ctx-size"

The library puts a parameter between backquotes, alone or with a value. Other text between
backquotes is left unchanged.
"""

from __future__ import annotations

import re

FLAGS = {
    "chat_format": "--chat-template",
    "given": "--gpu-index",
    "hidden_act": "--act",
    "imatrix": "--imatrix",
    "main_gpu": "--main-gpu",
    "model_path": "--model",
    "n_batch": "--batch-size",
    "n_ctx": "--ctx-size",
    "n_depth": "--n-depth",
    "n_gen": "--n-gen",
    "n_gpu_layers": "--n-gpu-layers",
    "n_keep": "--keep",
    "n_prompt": "--n-prompt",
    "n_seq_max": "--parallel",
    "n_threads": "--threads",
    "n_ubatch": "--ubatch-size",
    "outtype": "--outtype",
    "override_tensor": "--override-tensor",
    "save_logits": "--save-all-logits",
    "sparse": "--sparse",
    "split_mode": "--split-mode",
    "tensor_split": "--tensor-split",
    "token": "--hf-token",
    "type_k": "--cache-type-k",
    "type_v": "--cache-type-v",
    "vram_budget": "--vram-budget",
}
SETTINGS = {  # parameter values that a flag without an argument stands for
    "allow_requantize=True": "--allow-requantize",
    "mmap=False": "--no-mmap",
    "n_keep=None": "--no-context-shift",
    "offline=True": "--offline",
    "predictor=None": "--dense",
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
