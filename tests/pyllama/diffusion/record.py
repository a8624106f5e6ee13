"""Record transformers' logits of tiny diffusion language models, in tests/data/diffusion.

    LLAMA_CPP_SOURCES=DIR python -m tests.pyllama.diffusion.record [NAME...]

Needs torch, transformers and llama.cpp's converter, which the tests do not. A file has ``shapes``
(JSON), ``scale``, ``tokens`` int32[40], ``logits`` float32[10, 512] of every fourth token, in
float32 with eager attention, and ``gguf`` (JSON): the keys and tensors that llama.cpp's converter
makes of the checkpoint. Tokens are those with the clearest choice of experts among 60 texts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from ..arch import llama_cpp
from ..arch.checkpoints import DATA, EVERY, N_VOCAB
from ..arch.record import (
    N_TOKENS,
    SPREAD,
    compute_logits,
    load_model,
    routing_margin,
    save_config,
)
from .checkpoints import ARCH, write_with
from .variants import REFERENCE


@torch.no_grad()
def record(name: str, folder: Path) -> None:
    config = REFERENCE[name]
    shapes, scale = save_config(config, folder), 1.0
    draws = [np.random.default_rng(i).integers(4, N_VOCAB, N_TOKENS).tolist() for i in range(60)]
    for _ in range(20):  # the embedding's own size may matter too
        model = load_model(config, folder, shapes, scale)
        scale *= (SPREAD / float(compute_logits(model, draws[0]).std())) ** 0.7
    scale = float(np.float32(scale))
    model = load_model(config, folder, shapes, scale)
    tokens = max(draws, key=lambda tokens: routing_margin(model, tokens, config))
    logits = compute_logits(model, tokens)
    path = write_with(folder / "checkpoint", name, shapes, scale)
    converted = llama_cpp.convert(path, folder / "x.gguf")
    np.savez_compressed(
        DATA / "diffusion" / f"{name}.npz",
        shapes=json.dumps(shapes),
        scale=np.float32(scale),
        tokens=np.array(tokens, np.int32),
        logits=logits[::EVERY],
        gguf=json.dumps(llama_cpp.described(converted)),
    )
    print(f"{name}: {len(shapes)} tensors, std {logits.std():.3f}, scale {scale:.3f}")


if __name__ == "__main__":
    for name in sys.argv[1:] or ARCH:
        with TemporaryDirectory() as directory:
            record(name, Path(directory))
