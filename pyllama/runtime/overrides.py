"""Hyperparameters that a context overrides: rope scaling, activation, attention and others.

    context = Context(model, overrides=Overrides(rope_scaling="yarn", rope_freq_scale=0.25))
    draft = Context(model, overrides=Overrides(sparse_threshold=0.5, n_layer=20))

A model is shared and immutable; each context has its own hyperparameters. So a context can draft
for another one of the same model: it reads the same weights, but fewer of them.
Source: llama.cpp, ``llama_context_params`` and the constructor of ``llama_context``.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from ..activation import ACTS
from ..errors import BatchError
from ..hparams import PREDICTING, ROPE_SCALINGS, HParams
from ..hparams_reader import yarn_problem
from ..parameters import documented
from ..parameters.loading import OverrideParams

_MIN_FLOAT, _MAX_FLOAT = 1e-30, 1e30
_POSITIVE = ("rope_freq_base", "rope_freq_scale", "yarn_attn_factor", "yarn_beta_fast",
             "yarn_beta_slow")  # fmt: skip


@documented
@dataclass(frozen=True)
class Overrides(OverrideParams):
    """Values that replace the model's; None keeps the model's."""

    def apply(self, hparams: HParams, n_ctx: int) -> HParams:
        """The hyperparameters of a context with ``n_ctx`` tokens per sequence.

        Raises:
            BatchError: a value is unknown or out of its range.
        """
        given = {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
        for name, choices in (("rope_scaling", ROPE_SCALINGS), ("hidden_act", ACTS)):
            if given.get(name, choices[0]) not in choices:
                raise BatchError(f"{name} is {given[name]!r}, want one of {', '.join(choices)}")
        for name in _POSITIVE:
            if not _MIN_FLOAT <= given.get(name, 1.0) <= _MAX_FLOAT:
                raise BatchError(f"{name} is {given[name]}, want {_MIN_FLOAT:g} to {_MAX_FLOAT:g}")
        if not 0 < given.get("yarn_orig_ctx", 1) < 1 << 31:
            raise BatchError(
                f"yarn_orig_ctx is {given['yarn_orig_ctx']}, want 1 to {(1 << 31) - 1}"
            )
        if not math.isfinite(given.get("yarn_ext_factor", 0.0)):
            raise BatchError(f"yarn_ext_factor is {given['yarn_ext_factor']}, want a number")
        if not 1 <= given.get("n_layer", 1) <= hparams.n_layer:
            raise BatchError(f"n_layer is {given['n_layer']}, want 1 to {hparams.n_layer}")
        if "yarn_orig_ctx" in given:
            given["rope_orig_ctx"] = given.pop("yarn_orig_ctx")
        changed = dataclasses.replace(hparams, **given)
        if self.sparse_threshold is not None:
            changed = _with_threshold(changed, self.sparse_threshold)
        if changed.rope_scaling == "none":
            changed = dataclasses.replace(changed, rope_freq_scale=1.0)
        if changed.rope_scaling == "longrope":
            changed = dataclasses.replace(changed, rope_long=n_ctx > changed.n_ctx_orig)
        if changed.encoder and changed.causal:
            raise BatchError(f"{changed.arch} is an encoder: its attention cannot be causal")
        if changed.diffusion and changed.causal:
            raise BatchError(f"{changed.arch} is a diffusion model: its attention cannot be causal")
        if changed.has_encoder and not changed.causal:
            raise BatchError(f"{changed.arch}: the decoder's attention must be causal")
        if changed.states and not changed.causal:
            raise BatchError("this model has recurrent layers: attention must be causal")
        problem = yarn_problem(changed)
        if problem:
            raise BatchError(f"{problem}: this rope cannot be computed; leave one out")
        return changed


def _with_threshold(hparams: HParams, threshold: float) -> HParams:
    """``hparams`` with another sparse threshold. Raises: BatchError."""
    if math.isnan(threshold):
        raise BatchError("sparse_threshold is nan, want a number, inf or -inf")
    if not hparams.predicted:
        raise BatchError(
            f"sparse_threshold is {threshold}, but no layer of this context has predicted scores: "
            f"load the model with sparse={', '.join(PREDICTING)}"
        )
    with np.errstate(over="ignore"):
        return dataclasses.replace(hparams, sparse_threshold=float(np.float32(threshold)))
