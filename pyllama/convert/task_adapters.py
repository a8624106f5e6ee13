"""Writes the adapters of a checkpoint's tasks as LoRA files beside its model's file.

    for adapter in task_adapters(checkpoint, config, "jina-bert-v3", arch):
        adapter.write(Path("jina.gguf"))           # lora-retrieval.query-jina.gguf

Of jina-embeddings-v3, whose ``lora_adaptations`` names the tasks; the matrices of all tasks are one
tensor. Names of files and tensors are llama.cpp's.
Source: llama.cpp, ``conversion/bert.py``, ``XLMRobertaModel``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyggml.dtype import GGMLType
from pyggml.files import replacing
from pyggml.gguf import write_gguf

from ..arch import Arch
from ..errors import ModelError
from ..inputs.budget import shown
from ..mapping.rules import Array, Config
from .files.decoded import CheckpointTensor
from .plan import name_finder

log = logging.getLogger(__name__)
_PART = re.compile(r"(.+)\.parametrizations\.weight\.0\.lora_([AB])")
_TASK = re.compile(r"\w[\w.-]{0,63}", re.ASCII)  # is in the name of a file


@dataclass(frozen=True)
class TaskAdapter:
    """An adapter: its task, and the metadata and matrices of its file."""

    task: str
    metadata: Mapping[str, Any]
    matrices: Mapping[str, Array]

    def write(self, path: Path) -> Path:
        """Write the file beside a model's. Raises: GGUFError: it cannot be written."""
        path = path.with_name(f"lora-{self.task}-{path.name}")
        encoded = {
            key: (np.ascontiguousarray(x, np.float32), GGMLType.F32, x.shape[::-1])
            for key, x in self.matrices.items()
        }
        with replacing(path) as temporary:
            write_gguf(temporary, self.metadata, encoded)
        log.info("adapter of the task %s: %s", self.task, path)
        return path


def task_adapters(
    checkpoint: Mapping[str, CheckpointTensor], config: Config, name: str, arch: Arch
) -> list[TaskAdapter]:
    """The adapter of each task; none of other checkpoints.

    Raises:
        ModelError: a task's name is no file's, or a tensor has no matrix for each task.
    """
    tasks, prompts = config.get("lora_adaptations") or [], config.get("task_instructions") or {}
    matrices = _matrices(checkpoint, config, arch, len(tasks)) if tasks else {}
    found = []
    for i, task in enumerate(tasks):
        if not isinstance(task, str) or not _TASK.fullmatch(task):
            raise ModelError(f"config.json: lora_adaptations has {shown(task)}, no file's name")
        metadata = {
            "general.architecture": name,
            "general.type": "adapter",
            "adapter.type": "lora",
            "adapter.lora.alpha": np.float32(config.get("lora_alpha") or 1.0),
            "adapter.lora.task_name": task,
            **({"adapter.lora.prompt_prefix": str(prompts[task])} if task in prompts else {}),
        }
        found.append(TaskAdapter(task, metadata, {k: x[i] for k, x in matrices.items()}))
    return found


def _matrices(
    checkpoint: Mapping[str, CheckpointTensor], config: Config, arch: Arch, n_tasks: int
) -> dict[str, Array]:
    """A and B of all tasks by GGUF's names; those of the pooler are left out."""
    find = name_finder(arch, config)
    found: dict[str, Array] = {}
    for theirs, stored in checkpoint.items():
        match = _PART.fullmatch(theirs)
        if match is None or match[1].endswith("pooler.dense"):
            continue
        ours = find(f"{match[1]}.weight")
        if ours is None or len(stored.shape) != 3 or stored.shape[0] != n_tasks:
            raise ModelError(
                f"{stored.path}: {shown(theirs)} has the shape {list(stored.shape)}, want a "
                f"matrix for each of {n_tasks} tasks"
            )
        x, part = stored.read(), match[2].lower()
        if ours[0] == "token_embd.weight" and part == "b":
            x = x.swapaxes(1, 2)
        if ours[0] == "token_types.weight":  # rows times A times B, not B times A times columns
            part = "ab"[part == "a"]
        found[f"{ours[0]}.lora_{part}"] = x
    return found
