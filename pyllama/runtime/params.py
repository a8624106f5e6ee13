"""Sizes of a context: how many tokens and sequences, and where and in which types their cache is.

    params = ContextParams(n_ctx=4096, n_seq_max=4).resolve(model.hparams)
    params.n_ctx, params.n_ubatch                  # as the context will have them
    memory = params.memory(hparams, layer_buft)

`Context` is created with them. `runtime.offload` plans with them before any weight is
loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyggml.dtype import GGMLType
from pyggml.ops.attention.attention import KV_TYPES
from pyggml.tensor import BufferType

from ..errors import BatchError
from ..hparams import HParams
from ..kv.memory import Memory
from ..kv.reduction import check_model, check_sizes
from ..kv.states import ON_HOST, StatePlaces
from ..kv.table import MAX_POSITION
from ..parameters import documented, row
from ..parameters.loading import CACHE_TYPES, ContextSizes
from .overrides import Overrides

_MAX_SEQ = 256


@documented
@dataclass(frozen=True)
class ContextParams(ContextSizes):
    """What a context is created with."""

    n_seq_max: int = row(1, "Number of sequences, at most 256.", low=1, high=_MAX_SEQ)
    unified: bool = row(
        True, "Whether sequences share the cells; otherwise each has n_ctx / n_seq_max of them."
    )
    overrides: Overrides = row(Overrides(), "Hyperparameters that replace the model's.")

    def __post_init__(self) -> None:
        for name in ("type_k", "type_v"):
            given = getattr(self, name)
            if isinstance(given, str):
                object.__setattr__(self, name, _cache_type(name, given))

    @property
    def n_ctx_seq(self) -> int:
        """Cells that one sequence may use."""
        return self.n_ctx if self.unified else self.n_ctx // self.n_seq_max

    def resolve(self, hparams: HParams) -> ContextParams:
        """The sizes that a context of a model gets. Raises: BatchError: a value is illegal."""
        for name in ("n_batch", "n_ubatch", "n_seq_max"):
            if getattr(self, name) < 1:
                raise BatchError(f"{name} is {getattr(self, name)}, want at least 1")
        if self.n_seq_max > _MAX_SEQ:
            raise BatchError(f"n_seq_max is {self.n_seq_max}, want at most {_MAX_SEQ}")
        if self.n_ctx < 0:
            raise BatchError(f"n_ctx is {self.n_ctx}, want 0 (as trained) or more")
        for name, type in (("type_k", self.type_k), ("type_v", self.type_v)):
            if type not in KV_TYPES:
                want = ", ".join(t.name for t in KV_TYPES)
                raise BatchError(f"{name} is {GGMLType(type).name}, want one of {want}")
        if self.kv_keep:
            check_sizes(self.kv_keep, self.kv_window)
        n_ctx = self.n_ctx or hparams.n_ctx_train
        if hparams.n_positions:
            n_ctx = min(n_ctx, hparams.n_positions * self.n_seq_max)
        n_batch = min(self.n_batch, n_ctx)
        n_ubatch = min(self.n_ubatch, n_batch)
        resolved = replace(self, n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_ubatch)
        if not resolved.n_ctx_seq:
            raise BatchError(
                f"n_ctx is {self.n_ctx}, want {self.n_seq_max} or more: each sequence has its own "
                "cells"
            )
        most = self.kv_keep + self.kv_keep // 4
        if self.kv_keep and most >= resolved.n_ctx_seq:
            raise BatchError(
                f"kv_keep is {self.kv_keep}: a sequence is reduced when it has a quarter more, "
                f"{most}, but it may have {resolved.n_ctx_seq} cells: use a smaller `kv_keep` or a "
                "larger `n_ctx`"
            )
        return resolved

    def memory(
        self,
        hparams: HParams,
        layer_buft: Callable[[int], BufferType],
        states: StatePlaces = ON_HOST,
    ) -> Memory:
        """The caches for these sizes, after ``resolve``.

        Raises:
            AllocError, BatchError: as `Memory`, or sequences of the model cannot be reduced.
        """
        if self.kv_keep:
            check_model(hparams)
        return Memory(
            hparams, self.n_ctx, self.n_seq_max, self.type_k, self.type_v,
            n_ubatch=self.n_ubatch, swa_full=self.swa_full, unified=self.unified,
            n_checkpoints=self.n_checkpoints, checkpoint_every=self.checkpoint_every,
            layer_buft=layer_buft, states=states, kv_keep=self.kv_keep,
            kv_window=self.kv_window,
        )  # fmt: skip


def _cache_type(name: str, given: str) -> GGMLType:
    if given not in CACHE_TYPES:
        raise BatchError(f"{name} is {given}, want one of {', '.join(CACHE_TYPES)}")
    return GGMLType[given.upper()]


def last_position(hparams: HParams) -> int:
    """The largest position of a token."""
    return hparams.n_positions - 1 if hparams.n_positions else MAX_POSITION
