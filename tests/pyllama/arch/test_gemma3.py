"""The scale of attention scores of Gemma 3 27B, which its files do not contain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyggml.gguf import GGUFFile, write_gguf
from pyllama import Batch, Context, Model
from pyllama.convert import convert

from .checkpoints import write_checkpoint


@pytest.mark.long
def test_the_scale_of_27b(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    convert(write_checkpoint(tmp_path / "gemma3", "gemma3"), path, "f32")
    file = GGUFFile(path)
    tensors = {}
    for name, info in file.tensors.items():
        data = file.tensor_bytes(name), info.type, info.ne[: info.n_dims]
        if name.startswith("blk.0."):  # 62 times the first layer
            tensors |= {name.replace("0", str(i), 1): data for i in range(62)}
        elif not name.startswith("blk."):
            tensors[name] = data
    rows = []
    for scale in (None, (64 / 4) ** -0.5):  # columns of a head, were heads not larger
        keys = {**file.metadata, "gemma3.block_count": 62}
        keys.pop("gemma3.attention.scale")
        if scale is not None:
            keys["gemma3.attention.scale"] = np.float32(scale)
        write_gguf(path.with_name(f"{scale}.gguf"), keys, tensors)
        context = Context(Model.load(path.with_name(f"{scale}.gguf")), n_ctx=32)
        context.decode(Batch(list(range(5, 13)), logits="all"))
        rows.append(context.logits.copy())
    assert np.abs(rows[0] - rows[1]).max() < 0.02 * rows[1].std()
