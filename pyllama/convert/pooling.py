"""How a folder of sentence-transformers pools a text's rows into its embedding.

pooling_keys(folder)                               # {"pooling_type": 3}; {} for another folder

Source: llama.cpp, ``convert_hf_to_gguf.py``, ``_try_set_pooling_type``.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from ..errors import ModelError
from ..hparams import POOLINGS
from ..inputs.budget import shown
from .files.folder import Folder

log = logging.getLogger(__name__)
_MODES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}


def pooling_keys(folder: Folder) -> dict[str, Any]:
    """Return the key of the pooling that modules.json names; {} without that file or a pooling.

    Raises:
        ModelError: a file is damaged, or the pooling is not supported.
    """
    modules = folder.json_objects("modules.json")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if "Dense" in kinds:
        log.warning(
            "%s: its dense layers after the pooling are not converted: embeddings lack them",
            folder.path,
        )
    if "Pooling" not in kinds:
        return {}
    name = modules[kinds.index("Pooling")].get("path")
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise ModelError(
            f"{folder.path / 'modules.json'}: path {shown(name)} of the pooling is no folder's name"
        )
    config = folder.json(f"{name}/config.json")
    found = next((mode for flag, mode in _FLAGS.items() if config.get(flag) is True), None)
    if found is None:
        given = config.get("pooling_mode")
        found = _MODES.get(given) if isinstance(given, str) else None
    if found is None:
        raise ModelError(
            f"{folder.path / name / 'config.json'}: the pooling is none of {', '.join(_MODES)}: it "
            "is not supported"
        )
    return {"pooling_type": POOLINGS.index(found)}
