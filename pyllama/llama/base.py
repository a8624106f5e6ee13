"""The part of `Llama` that needs no sampling: loading, tokenizing, evaluating.

    llama = LlamaBase("x.gguf", n_ctx=2048, verbose=False)
    llama.eval(llama.tokenize(b"Hello"))
    llama.scores[llama.n_tokens - 1]               # logits after the last token

Threads take turns by one lock per object; what only reads the vocabulary needs none.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np

from ..chat.formats import DEFAULT, ChatFormats
from ..compat import NotSupported, cache_type, check_arguments, overrides
from ..core.context import Context
from ..core.model import Model
from ..engine import CallLock, Engine, Event, Lease, Timings
from ..engine.request import Floats, Ids
from ..errors import BatchError, ModelError
from ..sampling import RANDOM_SEED
from .state import LlamaState, Scores, put_state, take_state
from .tokenizer import LlamaTokenizer


class LlamaBase:
    """See `Llama`, whose constructor and low-level methods these are."""

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_gpu_layers: int | None = 0,
        split_mode: int = 1,
        main_gpu: int = 0,
        tensor_split: Sequence[float] | None = None,
        vocab_only: bool = False,
        use_mmap: bool = True,
        use_mlock: bool = False,
        kv_overrides: Mapping[str, bool | int | float | str] | None = None,
        seed: int = RANDOM_SEED,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        rope_scaling_type: int | None = -1,
        pooling_type: int = -1,
        attention_type: int = -1,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        yarn_ext_factor: float = -1.0,
        yarn_attn_factor: float = 1.0,
        yarn_beta_fast: float = 32.0,
        yarn_beta_slow: float = 1.0,
        yarn_orig_ctx: int = 0,
        logits_all: bool = False,
        embedding: bool = False,
        offload_kqv: bool = True,
        flash_attn: bool = False,
        op_offload: bool | None = None,
        swa_full: bool | None = None,
        no_perf: bool = False,
        last_n_tokens_size: int = 64,
        lora_base: str | None = None,
        lora_scale: float = 1.0,
        lora_path: str | None = None,
        numa: bool | int = False,
        chat_format: str | None = None,
        chat_handler: Callable[..., Any] | None = None,
        draft_model: object | None = None,
        tokenizer: object | None = None,
        type_k: int | None = None,
        type_v: int | None = None,
        spm_infill: bool = False,
        sparse: str = "auto",
        sparse_threshold: float | None = None,
        verbose: bool = True,
    ) -> None:
        self._lock = CallLock("this Llama object", self._recover)
        self._held: Scores | None = None
        check_arguments("Llama", locals())
        types = cache_type("type_k", type_k), cache_type("type_v", type_v)
        changed = overrides(locals())
        self.model_path = os.fspath(model_path)
        if not os.path.exists(model_path):
            raise ModelError(f"Model path does not exist: {self.model_path}")
        start_s = time.perf_counter()
        self._model = Model.load(
            model_path,
            use_mmap=use_mmap,
            use_mlock=use_mlock,
            vocab_only=vocab_only,
            kv_overrides=kv_overrides,
            sparse=sparse,
            sparse_threshold=sparse_threshold,
        )
        self._chat_formats = ChatFormats(self._model)
        self.chat_format, self.chat_handler = chat_format, chat_handler
        if chat_format is not None:
            self._chat_formats.check(chat_format)
        elif chat_handler is None:
            self.chat_format = DEFAULT if self._chat_formats.has_own else "llama-2"
        self._timings = Timings()
        self._n_ctx = n_ctx or self._model.n_ctx_train
        if not vocab_only:
            context = Context(
                self._model,
                n_ctx=n_ctx,
                n_batch=n_batch,
                n_ubatch=n_ubatch,
                n_threads=n_threads,
                n_threads_batch=n_threads_batch,
                type_k=types[0],
                type_v=types[1],
                swa_full=bool(swa_full),
                overrides=changed,
            )
            lease = Engine(context, timings=self._timings).lease()
            self._held = Scores(lease, logits_all=logits_all)
            self._n_ctx = context.n_ctx
        self._timings.load_ms = 1e3 * (time.perf_counter() - start_s)
        self.n_batch = min(n_batch, self._n_ctx)
        self.verbose, self._no_perf = verbose, no_perf
        self.last_n_tokens_size = last_n_tokens_size
        self.metadata = _as_text(self._model.metadata)
        self.set_seed(seed)
        self._say(f"{self._model.desc}, {self._model.size_bytes / 2**20:.2f} MiB: {model_path}")

    # --- the model ------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        """The model beneath."""
        return self._model

    @property
    def context(self) -> Context:
        """The context beneath."""
        return self._lease.context

    @property
    def _kept(self) -> Scores:
        if self._held is None:
            raise ModelError(
                f"{self.model_path}: there is nothing to evaluate with: loaded with "
                "vocab_only=True, or closed"
            )
        return self._held

    @property
    def _lease(self) -> Lease:
        return self._kept.lease

    def n_ctx(self) -> int:
        """Tokens of context."""
        return self._n_ctx

    def n_embd(self) -> int:
        """Width of an embedding."""
        return self._model.n_embd

    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self._model.tokenizer.n_vocab

    def token_bos(self) -> int:
        """Beginning-of-text token, -1 where there is none."""
        return self.tokenizer().token("bos")

    def token_eos(self) -> int:
        """End-of-text token, -1 where there is none."""
        return self.tokenizer().token("eos")

    def token_nl(self) -> int:
        """Newline token, -1 where there is none."""
        return self.tokenizer().token_nl()

    def tokenizer(self) -> LlamaTokenizer:
        """The tokenizer, with llama-cpp-python's methods."""
        return LlamaTokenizer(self._model.tokenizer)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of UTF-8 text; see `LlamaTokenizer.tokenize`."""
        return self.tokenizer().tokenize(text, add_bos, special)

    def detokenize(
        self,
        tokens: Iterable[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """Bytes of tokens; see `LlamaTokenizer.detokenize`."""
        return self.tokenizer().detokenize(tokens, prev_tokens, special)

    def set_seed(self, seed: int) -> None:
        """Set the seed of what is sampled from now on; 0xFFFFFFFF or -1 for random ones."""
        self._seed = seed & RANDOM_SEED
        self._seeds = random.Random(self._seed)

    def _recover(self) -> None:
        """In a child that was forked during a call: tokens are evaluated again."""
        if self._held is not None:
            self._held.lease.engine.recover()

    def close(self) -> None:
        """Free model and context; the tokenizer still works."""
        with self._lock:
            held, self._held = self._held, None
            if held is not None:
                held.lease.on_logits(None)  # no cycle keeps the cache's memory
                held.lease.context.close()
            self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # half made, or at the end of the process
            self.close()

    # --- evaluation -----------------------------------------------------------------------------

    @property
    def n_tokens(self) -> int:
        """Tokens that the context holds; lower it to forget the last ones. Raises: BatchError."""
        return self._lease.n_tokens

    @n_tokens.setter
    def n_tokens(self, value: int) -> None:
        held = self._lease.n_tokens
        if not 0 <= value <= held:
            raise BatchError(f"n_tokens = {value}: {held} tokens are evaluated, want 0 to {held}")
        self._lease.n_tokens = value

    @property
    def input_ids(self) -> Ids:
        """int32[n_ctx], of which the first ``n_tokens`` count."""
        return self._lease.ids

    @property
    def scores(self) -> Floats:
        """float32[n_ctx, n_vocab]: the logits after each token.

        With ``logits_all`` all rows below ``n_tokens`` are filled; else the last one, and the last
        of each `eval`. Memory is taken for filled rows only.

        Raises:
            AllocError: so large an array cannot even be reserved.
        """
        return self._kept.rows

    @property
    def _input_ids(self) -> Ids:
        return self.input_ids[: self.n_tokens]

    @property
    def _scores(self) -> Floats:
        return self.scores[: self.n_tokens]

    def reset(self) -> None:
        """Forget all tokens."""
        with self._lock:
            self._lease.n_tokens = 0

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens behind those that the context holds.

        Raises:
            ContextFull: they do not fit; nothing has changed then.
            BatchError: an unknown token.
            Aborted: it was stopped; what was finished counts in ``n_tokens``.
        """
        with self._lock:
            self._lease.evaluate(list(map(int, tokens)))
            _ = self._kept.rows  # keeps the last row

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """A model from the Hugging Face hub, downloaded if need be; needs the extra ``hf``.

        Args:
            repo_id: ``user/model``, or ``user/model:QUANT``.
            filename: name of the GGUF file, or a pattern such as ``*Q4_K_M.gguf``; None chooses.
            cache_dir: another cache.
            options: the constructor's.

        Raises:
            HubError: see `pyllama.files.hub.hub_model`.
        """
        from ..files.hub import Hub, hub_model  # few need it: 3 ms of every start

        hub = Hub(cache_dir=None if cache_dir is None else Path(cache_dir))
        return cls(hub_model(repo_id, filename, hub), **options)

    def embed(self, *args: object, **options: object) -> NoReturn:
        """Not possible yet. Raises: NotSupported."""
        raise NotSupported("Llama: embeddings are not supported yet; llama-cpp-python has them")

    create_embedding = embed

    def set_cache(self, cache: object | None) -> None:
        """Nothing but None is possible yet. Raises: NotSupported."""
        if cache is not None:
            raise NotSupported(
                "Llama: a cache of states is not supported yet; leave it out: what a prompt has "
                "in common with the last one is used again in any case"
            )

    def save_state(self) -> LlamaState:
        """A copy of tokens, logits and cache, for `load_state`."""
        with self._lock:
            return take_state(self._kept, self._seed)

    def load_state(self, state: LlamaState) -> None:
        """Go on where `save_state` was called, on this or another object with the same model.

        Raises:
            StateError: of another model or cache type, damaged, or more than this context takes.
                Nothing has changed then.
        """
        with self._lock:
            put_state(self._kept, state)
            self.set_seed(state.seed)

    def _say(self, text: str) -> None:
        if self.verbose:
            print(text, file=sys.stderr)

    def _say_reuse(self, event: Event) -> None:
        usage = event.usage if event.kind == "progress" else None
        if usage is not None and usage.n_cached == usage.n_computed > 0:
            rest = usage.n_prompt + usage.n_generated - usage.n_cached
            self._say(
                f"Llama.generate: {usage.n_cached} prefix-match hit, remaining {rest} prompt "
                "tokens to eval"
            )


def _as_text(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Metadata as llama.cpp prints it; arrays are left out.

    Source: llama.cpp, ``gguf_kv_to_str``.
    """
    text = {}
    for key, value in metadata.items():
        if isinstance(value, str):
            text[key] = value
        elif isinstance(value, (bool, np.bool_)):
            text[key] = "true" if value else "false"
        elif isinstance(value, (int, np.integer)):
            text[key] = str(value)
        elif isinstance(value, (float, np.floating)):
            text[key] = f"{value:f}"
    return text
