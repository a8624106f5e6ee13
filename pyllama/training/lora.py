"""The trained matrices of a LoRA adapter, and its file.

    params = LoraParams(rank=16, target=("attn", "ffn"))
    pairs = new_pairs(model, params, backend, seed=0)
    write_lora("adapter.gguf", model, params, pairs)   # for --lora

A has uniform random values, B is 0, so that training starts from the base.
Source: Hu et al. 2021, "LoRA"; PEFT, ``LoraLayer.reset_lora_parameters``; llama.cpp's format.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.interface import Backend
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.gguf import write_gguf

from ..errors import ModelError
from ..runtime.loader import adaptable_tensors
from ..runtime.model import Model
from .graph import LoraPair


@dataclass(frozen=True)
class LoraParams:
    """The shape of an adapter.

    Args:
        rank: number of rows of A and of columns of B.
        alpha: changes are multiplied by ``alpha / rank``; 0: twice the rank.
        target: names of matrices in layers (``attn_q``), or their first words (``attn``).
    """

    rank: int = 16
    alpha: float = 0.0
    target: tuple[str, ...] = ("attn", "ffn")

    @property
    def factor(self) -> float:
        """``alpha``, or its default, twice the rank."""
        return self.alpha or 2.0 * self.rank


def new_pairs(model: Model, params: LoraParams, backend: Backend, seed: int) -> dict[str, LoraPair]:
    """New matrices for each target, in memory of the backend, as parameters.

    Raises:
        ModelError: a target is no matrix of this model, there is none, or no rank.
        AllocError: no memory.
    """
    if params.rank < 1 or not params.target:
        raise ModelError(
            f"rank is {params.rank}, target {params.target}: an adapter needs a rank of at least 1 "
            "and names of matrices such as attn_q"
        )
    sizes = adaptable_tensors(model.arch, model.hparams, model.weights)
    names: list[str] = []
    for target in params.target:
        found = [name for name, ne in sizes.items() if ne[2] == 1 and _matches(name, target)]
        if not found:
            parts = sorted({name.split(".")[2] for name in sizes if name.startswith("blk.")})
            raise ModelError(
                f"no matrix of this {model.hparams.arch} model is called {target!r}; there are: "
                f"{', '.join(parts)}"
            )
        names += found
    ctx, pairs = Context(no_alloc=True), dict[str, LoraPair]()
    for name in dict.fromkeys(names):
        n_in, n_out = sizes[name][:2]
        a = ctx.new_tensor_2d(GGMLType.F32, n_in, params.rank)
        b = ctx.new_tensor_2d(GGMLType.F32, params.rank, n_out)
        a, b = a.set_name(f"{name}.lora_a"), b.set_name(f"{name}.lora_b")
        pairs[name] = LoraPair(a.set_param(), b.set_param(), params.factor / params.rank)
    alloc_ctx_tensors(ctx, backend.buffer_type())
    rng = np.random.default_rng(seed)
    for pair in pairs.values():
        bound = pair.a.ne[0] ** -0.5
        pair.a.set(rng.uniform(-bound, bound, pair.a.shape).astype(np.float32))
    return pairs


def _matches(name: str, target: str) -> bool:
    """Whether a target names a matrix; routers of experts need their full names."""
    layer, _, part = name.removesuffix(".weight").rpartition(".")
    if not layer.startswith("blk.") or not name.endswith(".weight"):
        return False
    return part == target or (part.startswith(f"{target}_") and "_inp" not in part)


def write_lora(
    path: str | os.PathLike[str], model: Model, params: LoraParams, pairs: Mapping[str, LoraPair]
) -> None:
    """Write the adapter, atomically. Raises: GGUFError: the file cannot be written."""
    metadata = {
        "general.architecture": model.hparams.arch,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": np.float32(params.factor),
    }
    if name := model.metadata.get("general.name"):
        metadata["general.base_model.count"] = np.uint32(1)
        metadata["general.base_model.0.name"] = name
    tensors = {t.name: t.numpy(squeeze=False)[0, 0] for pair in pairs.values() for t in pair[:2]}
    write_gguf(path, metadata, tensors)
