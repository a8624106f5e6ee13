"""How a diffusion language model unmasks a text.

    DiffusionParams(eps=0.001)                      # anywhere, by a schedule over time (Dream)
    DiffusionParams(block_length=32, steps=64)      # block by block (LLaDA)

Immutable; `pyllama.diffusion.unmask` checks values that depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import Flags, documented, row

ALGORITHMS = ("origin", "entropy", "margin", "random", "confidence")


@documented
@dataclass(frozen=True, slots=True)
class DiffusionParams:
    """How many tokens become known in each step, and which.

    Source: llama.cpp common.h, `common_params_diffusion`.
    """

    # fmt: off
    steps: int = row(128, "Number of steps, in each of which the model reads the whole text.",
        Flags("--diffusion-steps", low=1), low=1)
    eps: float = row(0.0,
        "Unmask tokens anywhere, by a schedule over time from 1 to this, such as 0.001. 0: off.",
        Flags("--diffusion-eps", low=0, high=1), low=0, high=1)
    block_length: int = row(0, "Unmask blocks of N tokens from left to right. 0: off.",
        Flags("--diffusion-block-length", low=0), low=0)
    algorithm: int = row(4,
        "Which masked tokens become known first. 0: random ones; others: those with 1: the lowest "
        "entropy, 2: the largest margin between the two likeliest, 3: random numbers, 4: the "
        "likeliest choice.", Flags("--diffusion-algorithm", high=len(ALGORITHMS) - 1),
        low=0, high=len(ALGORITHMS) - 1)
    alg_temp: float = row(0.0,
        "Temperature of that order. 0: exactly the first ones.",
        Flags("--diffusion-alg-temp", low=0), low=0)
    cfg_scale: float = row(0.0,
        "Scale of classifier-free guidance: how much logits move away from those with a masked "
        "prompt. 0: off.", Flags("--diffusion-cfg-scale", low=0), low=0)
    add_gumbel_noise: bool = row(False,
        "Choose tokens by Gumbel noise in place of a draw, if the temperature is above 0.",
        Flags("--diffusion-add-gumbel-noise", is_flag=False, type=bool, metavar="0|1"))
    # fmt: on
