"""What a `Llama` has below its methods in llama-cpp-python: ``_model``, ``_ctx`` and parameters.

    llama._model.token_get_text(5), llama._model.add_bos_token()
    llama._ctx.kv_cache_clear()
    llama.context_params.n_ctx

These are views of `Llama.model` and `Llama.context`, with the methods that programs use and `Llama`
does not have itself. Parameters are to read; to assign them has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..engine import CallLock, Lease
from ..runtime.model import Model
from .embedding import N_TEXTS
from .tokenizer import LlamaTokenizer

_MMAP, _MLOCK = 1, 2  # bits of llama.cpp's load_mode
_ALL_LAYERS = 0x7FFFFFFF


class LlamaModel:
    """A model with llama-cpp-python's methods.

    Attributes:
        model: the model.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._tokenizer = LlamaTokenizer(model.tokenizer)

    def n_ctx_train(self) -> int:
        """Context length of training."""
        return self.model.n_ctx_train

    def n_params(self) -> int:
        """Number of weights."""
        return self.model.n_params

    def size(self) -> int:
        """Size of the weights in bytes."""
        return self.model.size_bytes

    def desc(self) -> str:
        """Architecture, size and type."""
        return self.model.desc

    def metadata(self) -> dict[str, str]:
        """Metadata as llama.cpp prints it, without arrays.

        Source: llama.cpp, ``gguf_kv_to_str``.
        """
        text = {}
        for key, value in self.model.metadata.items():
            if isinstance(value, str):
                text[key] = value
            elif isinstance(value, (bool, np.bool_)):
                text[key] = "true" if value else "false"
            elif isinstance(value, (int, np.integer)):
                text[key] = str(value)
            elif isinstance(value, (float, np.floating)):
                text[key] = f"{value:f}"
        return text

    def token_get_text(self, token: int) -> str:
        """Text of a token in the vocabulary."""
        return self.model.tokenizer.vocab.tokens[token]

    def token_eot(self) -> int:
        """End-of-turn token, -1 if there is none."""
        return self._tokenizer.token("eot")

    def token_prefix(self) -> int:
        """Token before the first part of an infill, -1 if there is none."""
        return self._tokenizer.token("fim_pre")

    def token_middle(self) -> int:
        """Token before the generated part of an infill, -1 if there is none."""
        return self._tokenizer.token("fim_mid")

    def token_suffix(self) -> int:
        """Token before the last part of an infill, -1 if there is none."""
        return self._tokenizer.token("fim_suf")

    def add_bos_token(self) -> bool:
        """Whether texts begin with BOS."""
        return self.model.tokenizer.add_bos

    def add_eos_token(self) -> bool:
        """Whether texts end with EOS."""
        return self.model.tokenizer.add_eos

    def tokenize(self, text: bytes, add_bos: bool, special: bool) -> list[int]:
        """Token ids of UTF-8 text."""
        return self._tokenizer.tokenize(text, add_bos, special)

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> bytes:
        """Bytes of tokens."""
        return self._tokenizer.detokenize(list(tokens), special=special)


class LlamaContext:
    """A context with llama-cpp-python's methods.

    Args:
        lease: the sequence of the context; None for a model without weights.
        lock: held while the cache changes.
        model: stands for the context if there is none.
        pooling_type: how embeddings are pooled, by llama.cpp's number.

    Attributes:
        ctx: the context, None after `close`.
    """

    def __init__(
        self, lease: Lease | None, lock: CallLock, model: Model, pooling_type: int
    ) -> None:
        self._lease, self._lock, self._pooling_type = lease, lock, pooling_type
        self.ctx: object | None = model if lease is None else lease.context

    def close(self) -> None:
        """Release the context; the `Llama` closes it."""
        self._lease = self.ctx = None

    def pooling_type(self) -> int:
        """How embeddings are pooled, by llama.cpp's number."""
        return self._pooling_type

    def kv_cache_clear(self) -> None:
        """Remove all tokens."""
        self.kv_cache_seq_rm(-1, 0, -1)

    def kv_cache_seq_rm(self, seq_id: int, p0: int, p1: int) -> bool:
        """Remove the tokens from position ``p0``, if the sequence is 0 or any (negative).

        Returns:
            False if others after them would stay, which is not possible here.
        """
        if self._lease is None:
            return False
        if seq_id > 0:  # there is one sequence, so this one has no tokens
            return True
        with self._lock.mutex:
            if 0 <= p1 < self._lease.n_tokens:
                return False
            self._lease.n_tokens = max(p0, 0)
        return True


def model_params(given: Mapping[str, Any]) -> SimpleNamespace:
    """The constructor's arguments of the model, with the names of ``llama_model_params``."""
    names = ("split_mode", "main_gpu", "tensor_split", "vocab_only", "kv_overrides")
    layers = given["n_gpu_layers"]
    return SimpleNamespace(
        **{name: given[name] for name in names},
        n_gpu_layers=_ALL_LAYERS if layers == -1 else layers,
        load_mode=_MMAP * bool(given["use_mmap"]) + _MLOCK * bool(given["use_mlock"]),
    )


def context_params(given: Mapping[str, Any]) -> SimpleNamespace:
    """The constructor's arguments of the context, with the names of ``llama_context_params``."""
    names = (
        "n_ctx", "n_batch", "n_threads", "n_threads_batch", "rope_scaling_type", "pooling_type",
        "attention_type", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor",
        "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx", "offload_kqv",
        "op_offload", "swa_full", "type_k", "type_v", "no_perf",
    )  # fmt: skip
    return SimpleNamespace(
        **{name: given[name] for name in names},
        n_ubatch=min(given["n_ubatch"], given["n_batch"]),
        n_seq_max=min(given["n_batch"], N_TEXTS) if given["embedding"] else 1,
        embeddings=given["embedding"],
        flash_attn_type=int(given["flash_attn"]),
    )
