"""Optimizers and learning rates.

    AdamW(alpha=3e-4, wd=0.1, schedule=warmup_cosine(100, 2000))

A schedule is a function of the step (from 0 on) that gives a factor on ``alpha``.
Source: ggml-opt, ``ggml_opt_optimizer_params`` (names and defaults).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..ops.op import OpBuilders
from ..ops.training.optimizer import ADAMW_PARAMS, SGD_PARAMS
from ..tensor import Tensor

Schedule = Callable[[int], float]


class Optimizer(Protocol):
    """A rule that updates parameters by their gradients.

    Attributes:
        name: in checkpoints; moments: names of the state tensors of each parameter.
        n_params: how many numbers a step reads, such as the learning rate.
    """

    @property
    def name(self) -> str: ...

    @property
    def moments(self) -> tuple[str, ...]: ...

    @property
    def n_params(self) -> int: ...

    def build(
        self, ops: OpBuilders, w: Tensor, grad: Tensor, moments: list[Tensor], params: Tensor
    ) -> Tensor:
        """The node of a parameter's step."""
        ...

    def values(self, step: int) -> list[float]:
        """The ``n_params`` numbers of step ``step``, counted from 0."""
        ...


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay.

    Args:
        alpha: learning rate; beta1, beta2: decay of the moments; eps; wd: weight decay.
        schedule: a factor on ``alpha`` for each step.
        decay_1d: whether parameters of one dimension, such as gains and biases, decay too.
    """

    alpha: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    wd: float = 0.0
    schedule: Schedule | None = None
    decay_1d: bool = True
    name = "adamw"
    moments = ("m", "v")

    @property
    def n_params(self) -> int:
        """``ADAMW_PARAMS``, and again for parameters that do not decay."""
        return len(ADAMW_PARAMS) * (1 if self.decay_1d else 2)

    def build(
        self, ops: OpBuilders, w: Tensor, grad: Tensor, moments: list[Tensor], params: Tensor
    ) -> Tensor:
        """An OPT_STEP_ADAMW."""
        if not self.decay_1d:
            n = len(ADAMW_PARAMS)
            first = n if w.n_dims == 1 else 0
            params = ops.view(params, ne=(n, 1, 1, 1), nb=params.nb, offset=first * params.nb[0])
        node: Tensor = ops.opt_step_adamw(w, grad, *moments, params)
        return node

    def values(self, step: int) -> list[float]:
        """``n_params`` numbers."""
        alpha = _scheduled(self.alpha, self.schedule, step)
        unbiased = [1 / (1 - beta ** (step + 1)) for beta in (self.beta1, self.beta2)]
        decays = (self.wd,) if self.decay_1d else (self.wd, 0.0)
        return [
            x for wd in decays for x in (alpha, self.beta1, self.beta2, self.eps, wd, *unbiased)
        ]


@dataclass(frozen=True)
class SGD:
    """Gradient descent: ``alpha`` and ``wd`` as in ``AdamW``."""

    alpha: float = 1e-3
    wd: float = 0.0
    schedule: Schedule | None = None
    name = "sgd"
    moments = ()
    n_params = len(SGD_PARAMS)

    def build(
        self, ops: OpBuilders, w: Tensor, grad: Tensor, moments: list[Tensor], params: Tensor
    ) -> Tensor:
        """An OPT_STEP_SGD."""
        node: Tensor = ops.opt_step_sgd(w, grad, params)
        return node

    def values(self, step: int) -> list[float]:
        """``SGD_PARAMS``."""
        return [_scheduled(self.alpha, self.schedule, step), self.wd]


def _scheduled(alpha: float, schedule: Schedule | None, step: int) -> float:
    return alpha if schedule is None else alpha * schedule(step)


def warmup_cosine(n_warmup: int, n_steps: int, least: float = 0.1) -> Schedule:
    """Linear warm-up to 1 over ``n_warmup`` steps, then cosine decay to ``least`` at ``n_steps``.

    Source: Loshchilov and Hutter, "SGDR", equation 5, without restarts.
    """

    def factor(step: int) -> float:
        if step < n_warmup:
            return (step + 1) / n_warmup
        done = min(1.0, (step - n_warmup) / max(1, n_steps - n_warmup))
        return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * done))

    return factor
