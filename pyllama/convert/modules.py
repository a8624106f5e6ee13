"""Reads modules.json of a sentence-transformers folder: the model's folder, pooling, dense layers.

    model_folder(folder).json("config.json")       # 0_Transformer/config.json in old folders
    pooling_keys(folder)                           # {"pooling_type": 3}; {} for another folder
    dense_tensors(folder)                          # dense_2.weight and so on; [] without

Source: llama.cpp, ``convert_hf_to_gguf.py``, ``_try_set_pooling_type``, ``EmbeddingGemma``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from ..errors import ModelError
from ..hparams import POOLINGS
from ..inputs.budget import shown
from .files.checkpoint import read_checkpoint
from .files.folder import Folder
from .plan import ConvertedTensor

log = logging.getLogger(__name__)
_MODES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_MAX_DENSE = 2  # layers
_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}


def model_folder(folder: Folder) -> Folder:
    """Return the folder with config.json: this one, or its subfolder that modules.json names.

    Raises: ModelError: a file is damaged.
    """
    if folder.has("config.json") or not folder.has("modules.json"):
        return folder
    names = _paths(folder, "Transformer")
    return Folder(folder.path / names[0], folder.budget) if names else folder


def pooling_keys(folder: Folder) -> dict[str, Any]:
    """Return the key of the pooling that modules.json names; {} without that file or a pooling.

    Raises:
        ModelError: a file is damaged, or the pooling is not supported.
    """
    names = _paths(folder, "Pooling")
    if not names:
        return {}
    name = names[0]
    config = folder.json(f"{name}/config.json")
    flags = [key for key, x in config.items() if key.startswith("pooling_mode_") and x is True]
    found = _FLAGS.get(flags[0]) if len(flags) == 1 else None  # of several, it is all in a row
    if not flags:
        given = config.get("pooling_mode")
        found = _MODES.get(given) if isinstance(given, str) else None
    if found is None:
        raise ModelError(
            f"{folder.path / name / 'config.json'}: the pooling is none of {', '.join(_MODES)}: it "
            "is not supported"
        )
    return {"pooling_type": POOLINGS.index(found)}


def dense_tensors(folder: Folder) -> list[ConvertedTensor]:
    """Return the weights and biases of the dense layers after the pooling.

    Layers that cannot be computed are left out, all together, with a warning.

    Raises:
        ModelError: a file is damaged, or a layer has no matrix.
    """
    names = _paths(folder, "Dense")
    kinds = {str(x.get("type", "")).rpartition(".")[2] for x in folder.json_objects("modules.json")}
    if others := kinds - {"Transformer", "Pooling", "Dense", "Normalize", "Dropout"}:
        log.warning(
            "%s: its module %s is not converted: embeddings lack it",
            folder.path, shown(min(others)),
        )  # fmt: skip
    acts = [
        str(folder.json(f"{name}/config.json").get("activation_function", "Tanh")) for name in names
    ]
    linear = all(act.rpartition(".")[2] in ("Identity", "None") for act in acts)
    if not linear or len(names) > _MAX_DENSE:
        log.warning(
            "%s: its dense layers after the pooling are not converted: embeddings lack them",
            folder.path,
        )
        return []
    found = []
    for number, name in enumerate(names, 2):  # the first one comes after two other modules
        where = folder.path / name
        tensors = read_checkpoint(Folder(where, folder.budget))
        if {*tensors} - {"linear.bias"} != {"linear.weight"}:
            raise ModelError(f"{where}: a dense layer has linear.weight, here: {shown([*tensors])}")
        for theirs, stored in tensors.items():
            if len(stored.shape) != (2 if theirs == "linear.weight" else 1):
                raise ModelError(f"{where}: {theirs} has the shape {list(stored.shape)}")
            ours = theirs.replace("linear", f"dense_{number}")
            found.append(ConvertedTensor(ours, stored.shape, (stored.read,), stored.dtypes))
    return found


def dense_keys(tensors: list[ConvertedTensor]) -> Mapping[str, int]:
    """Return the keys of the dense layers' sizes."""
    keys = {}
    for one in tensors:
        layer, _, end = one.name.partition(".")
        if end == "weight":
            keys[f"{layer}_feat_in"], keys[f"{layer}_feat_out"] = one.shape[1], one.shape[0]
    return keys


def _paths(folder: Folder, kind: str) -> list[str]:
    """Return the folders of the modules of a kind. Raises: ModelError."""
    found = []
    for module in folder.json_objects("modules.json"):
        if str(module.get("type", "")).rpartition(".")[2] != kind:
            continue
        name = module.get("path")
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
            raise ModelError(
                f"{folder.path / 'modules.json'}: path {shown(name)} of the {kind.lower()} is no "
                "folder's name"
            )
        found.append(name)
    return found
