"""Generates the page of architectures: checkpoints, positions and verified variants.

    python -m tests.pyllama.arch.table > docs/architectures.md

Made from the architectures' files, ``variants/`` and the list of what llama.cpp could run.
"""

from __future__ import annotations

import sys

from pyllama.arch import Arch, arch_names, get_arch

from ..diffusion import variants as diffusion
from ..encoders import variants as encoders
from .variants import LLAMA_CPP, SHAPES, VARIANTS

_HEAD = """\
# Architectures

Made by `python -m tests.pyllama.arch.table > docs/architectures.md`.

The name is that of `general.architecture`. A variant is a tiny checkpoint with random weights,
biases and norms; the tests convert each and compare it with what transformers recorded in float32:
logits within 0.0001 (their standard deviation is 1.5), the same 16 greedy tokens, and the keys and
tensors that llama.cpp's converter writes; the same bits for any threads, batches and layout of
weights; F16 and Q8_0 within 2 % of squared error. `*`: llama.cpp runs our file of it and chooses
the same tokens. `†`: transformers lacks the model, so llama.cpp is the reference, with the file
that its own converter makes: the same 32 greedy tokens, the logarithms of all probabilities within
0.002. Encoders are compared with transformers from text on: hidden states and scores within 0.0001,
pooled vectors with a cosine over 0.999999; `*`: llama.cpp gives the same vectors. Of diffusion
language models the logits of all tokens are compared with transformers' model without causality,
within 0.0001; `*`: llama.cpp's logits unmask the same text. The head
`eagle3`, which has no variants, is compared with its formulas in float64, `gemma4-assistant` and
`dflash` with what transformers recorded, logits within 0.0001.
[Adding one](add-a-model.md) is one file.
"""
_LEFT_OUT = """\
## Left out

Of llama.cpp's architectures these do not run here yet:

- of the draft heads `dflash`: those with a selector (DFlash 2), DSpark's of Gemma 4 and
  DeepSeek-V4;
- sounds and images: `clip` `pockettts` `qwen3tts` `wavtokenizer-dec`;
- other kinds of caches (compressed or looped): `clef`;
- `graniteswitch`: a layer of attention over control tokens, with a cache of its own whose rows
  follow from token ids, chooses each token's adapters, which are matrices in the file;
- `k2-horizon` (experts for values): neither transformers nor llama.cpp as the tests have them.
"""


def _positions(arch: Arch) -> str:
    """The kind of position encoding."""
    found = []
    if arch.HPARAMS.get("n_rot") != 0:
        found.append("rope, halves" if arch.HPARAMS.get("rope_neox") else "rope, neighbours")
    if "max_alibi_bias" in arch.HPARAMS:
        found.append("ALiBi")
    if any(name.startswith("position_embd") for name in arch.TENSORS):
        found.append("learned")
    return " or ".join(found)


def _proof(variant: str) -> str:
    unmasking = {name for of_arch in diffusion.VARIANTS.values() for name in of_arch}
    same = variant in (*LLAMA_CPP, *encoders.LLAMA_CPP, *encoders.GENERATING, *unmasking)
    return "†" if variant in SHAPES else "*" if same else ""


def _row(name: str) -> str:
    arch = get_arch(name)
    summary = (arch.__doc__ or "").split("\n", 1)[0].rstrip(".")
    head, _, what = summary.partition(": ")
    others = {**encoders.VARIANTS, **diffusion.VARIANTS}
    cells = [
        f"`{name}`",
        f"{head}: {what}",
        " ".join(f"`{model}`" for model in arch.CONVERT.models),
        _positions(arch),
        " ".join(f"`{v}`{_proof(v)}" for v in sorted(VARIANTS.get(name) or others.get(name, ()))),
    ]
    return "| " + " | ".join(cells) + " |"


def _table() -> str:
    """The table of the page."""
    head = ["architecture", "what it is", "config.json names", "positions", "variants checked"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(_row(name) for name in arch_names())]) + "\n"


def page() -> str:
    """The text of docs/architectures.md."""
    return f"{_HEAD}\n{_table()}\n{_LEFT_OUT}"


if __name__ == "__main__":
    sys.stdout.write(page())
