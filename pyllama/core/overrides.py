"""What a context computes otherwise than its model's file says: rope, and the activation.

    context = Context(model, overrides=Overrides(rope_scaling="yarn", rope_freq_scale=0.25))

A model is shared and never changes; each context has hyperparameters of its own.
Source: llama.cpp, ``llama_context_params`` and how ``llama_context`` reads them.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from ..errors import BatchError
from ..graph.activation import ACTS
from ..hparams import ROPE_SCALINGS, HParams, yarn_problem

_MOST = 1e30
_POSITIVE = ("rope_freq_base", "rope_freq_scale", "yarn_attn_factor", "yarn_beta_fast",
             "yarn_beta_slow")  # fmt: skip


@dataclass(frozen=True)
class Overrides:
    """Values in place of the model's; None is the model's own.

    Attributes:
        rope_scaling: one of ``ROPE_SCALINGS``; ``none`` scales nothing, whatever the rest says.
        rope_freq_base: of layers that see everything; those with a window keep their own.
        rope_freq_scale: positions are multiplied by it: 0.25 for four times the context.
        yarn_orig_ctx: positions that the model was trained with before any scaling.
        yarn_ext_factor: 0 interpolates all pairs, 1 as YaRN does.
        yarn_attn_factor: times the length of rotated queries and keys.
        yarn_beta_fast, yarn_beta_slow: turns within the original context, above which a pair is
            left as it is and below which it is interpolated.
        hidden_act: the activation of the feed-forward part, one of ``ACTS``.
    """

    rope_scaling: str | None = None
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_fast: float | None = None
    yarn_beta_slow: float | None = None
    hidden_act: str | None = None

    def apply(self, hparams: HParams, n_ctx: int) -> HParams:
        """The hyperparameters of a context with ``n_ctx`` tokens for a sequence.

        Raises:
            BatchError: a value that is unknown or out of its range.
        """
        given = {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
        for name, choices in (("rope_scaling", ROPE_SCALINGS), ("hidden_act", ACTS)):
            if given.get(name, choices[0]) not in choices:
                raise BatchError(f"{name} is {given[name]!r}, want one of {', '.join(choices)}")
        for name in _POSITIVE:
            if not 1 / _MOST <= given.get(name, 1.0) <= _MOST:
                raise BatchError(f"{name} is {given[name]}, want {1 / _MOST:g} to {_MOST:g}")
        if not 0 < given.get("yarn_orig_ctx", 1) < 1 << 31:
            raise BatchError(
                f"yarn_orig_ctx is {given['yarn_orig_ctx']}, want 1 to {(1 << 31) - 1}"
            )
        if not math.isfinite(given.get("yarn_ext_factor", 0.0)):
            raise BatchError(f"yarn_ext_factor is {given['yarn_ext_factor']}, want a number")
        if "yarn_orig_ctx" in given:
            given["rope_orig_ctx"] = given.pop("yarn_orig_ctx")
        changed = dataclasses.replace(hparams, **given)
        if changed.rope_scaling == "none":
            changed = dataclasses.replace(changed, rope_freq_scale=1.0)
        if changed.rope_scaling == "longrope":
            changed = dataclasses.replace(changed, rope_long=n_ctx > changed.n_ctx_orig)
        problem = yarn_problem(changed)
        if problem:
            raise BatchError(f"{problem}: this rope cannot be computed; leave one of them out")
        return changed
