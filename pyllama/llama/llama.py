"""The class `Llama` of llama-cpp-python: same arguments, same results.

    llama = Llama("x.gguf", n_ctx=2048, verbose=False)
    llama("The capital of France is", max_tokens=8, temperature=0)["choices"][0]["text"]
    for chunk in llama("Once upon a time", stream=True): ...

One lock per object: a second thread waits for the running call, or for one step of a stream or
generator. Streams and generators may be abandoned, closed or interleaved with other calls; each
restores the context that it needs. A callback (logits processor, stopping criterion) that calls the
object gets `ReentrantCall`. Exceptions of callbacks propagate, and the object stays usable.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy.typing as npt

from pyggml.host import default_threads

from ..chat.formats import DEFAULT, LLAMA_CPP_PYTHON_FORMATS, ChatFormats
from ..chat.turn import TurnOptions, legacy_tools
from ..engine import CallLock, Engine, Event, Lease, Request, StoppingCriteria, Timings
from ..engine.call_lock import Steps, locked
from ..engine.logprobs import log_softmax
from ..engine.request import Floats, Ids, Run, check_prompt
from ..errors import BatchError, GrammarError, ModelError, NotSupported
from ..grammar import Grammar
from ..hparams import POOLINGS
from ..parameters import from_arguments
from ..parameters.sampling import sampling_fields
from ..runtime.adapters import load_lora
from ..runtime.context import Context
from ..runtime.model import LoadOptions, Model
from ..runtime.params import ContextParams
from ..sampling import (
    RANDOM_SEED,
    Chain,
    LogitsProcessor,
    LogitsProcessorList,
    SamplingParams,
    chain_for,
)
from ..speculative import Speculation
from .arguments import cache_type, check_arguments, overrides_of, warn_of_unknown
from .arguments import split_mode as split_mode_name
from .cache import BaseLlamaCache, longest_token_prefix
from .chat import ChatResults
from .chat_handlers import FormatHandler, Handler, find_handler
from .completion import CompletionRequest, CompletionRun
from .draft import check_draft_model, speculation_for
from .embedding import N_TEXTS, embed, embedding_response, limited, pooling_number
from .infill import infill_tokens
from .internals import LlamaContext, LlamaModel, context_params, model_params
from .sampler import StepSampler
from .state import LlamaState, Scores, copy_state, restore_llama_state
from .tokenizer import BaseLlamaTokenizer, LlamaTokenizer

if TYPE_CHECKING:
    from .types import Completion, CompletionChunk

T = TypeVar("T")
_DEFAULTS = SamplingParams()  # its values are the defaults of arguments

# arguments of `create_chat_completion` that llama-cpp-python's handlers do not know
_OWN_CHAT_OPTIONS = (
    "parallel_tool_calls", "reasoning_format", "reasoning_budget", "chat_template_kwargs",
    "sampling",
)  # fmt: skip

__all__ = ["Llama", "LogitsProcessorList", "StoppingCriteriaList"]


class StoppingCriteriaList(list[StoppingCriteria]):
    """A list of criteria that is itself a criterion: whether any of them is true."""

    def __call__(self, input_ids: Ids, logits: Floats) -> bool:
        return any(criterion(input_ids, logits) for criterion in self)


class Llama:
    """A model with a context for one text at a time.

    Args:
        model_path: GGUF file, or the first part of a split model.
        n_gpu_layers: layers on GPUs, counted from the end with the output as one; -1 for all.
        split_mode: 1 divides the layers among all GPUs, 0 uses ``main_gpu`` only.
        tensor_split: proportions of the layers on each GPU; None for those of free memory.
        offload_kqv: keep keys and values on the GPU of their layer.
        vocab_only: load only tokenizer and metadata, of any architecture.
        use_mmap: map the file; False reads it into memory.
        use_mlock: pin the weights in RAM.
        kv_overrides: metadata to change or add, by key.
        seed: default seed of completions; 0xFFFFFFFF for a random one each time.
        n_ctx: tokens of context; 0 for the context length of training.
        n_batch: maximum prompt tokens per decode.
        n_ubatch: maximum tokens per graph.
        n_threads, n_threads_batch: threads for one token and for batches; None for the default.
        logits_all: store the logits of every token in ``scores``.
        embedding: allow `embed` and `create_embedding`; texts can be generated too.
        pooling_type: how embeddings are pooled: none (0), mean (1), cls (2), last (3) or rank (4);
            -1 as the model says.
        attention_type: 0 for causal attention, 1 for attention to later tokens too, -1 as the model
            says.
        swa_full: keep all keys and values of sliding-window layers.
        last_n_tokens_size: number of last tokens for the penalties.
        chat_format: name of a chat format of llama.cpp or llama-cpp-python, or of a registered
            handler (see `pyllama.llama.chat_handlers`); None for the model's own template.
        sparse, sparse_threshold: sparse inference of ReLU models, see `Model.load`.
        moe_cache_mib: size of a cache of experts, which are read when they are needed.
        ctx_checkpoints, checkpoint_every_n_tokens: how many checkpoints a text has, and how often,
            of models with recurrent layers or sliding windows.
        kv_keep, kv_window: tokens that each head keeps of a text in the cache, and of these the
            last ones; 0 keeps all. Experimental, see `docs/sequences.md`.
        chat_handler: called with ``llama=`` and all arguments instead of `create_chat_completion`.
        draft_model: proposes tokens, which saves time and changes no text: a function of token ids
            such as `LlamaPromptLookupDecoding`, a GGUF file, a `Model`, a `Drafter`, a
            `Speculation`, or names of drafters, see `pyllama.llama.draft`.
        tokenizer: tokenizes and detokenizes in place of the model's own, with its token ids;
            generated text is made by the model's own.
        spm_infill: put the suffix of an infill before its prefix.
        verbose: print load, reuse and timings to stderr; warnings are logged in any case.

    Other arguments of llama-cpp-python are refused if they would change results, and logged as a
    warning if they would only change speed, see `pyllama.llama.arguments`. Unknown arguments, such
    as those that llama-cpp-python has removed, are ignored with one warning.

    An object can be pickled and copied: that loads the model again, with an empty context.

    Attributes:
        metadata: metadata of the file as text, without arrays.
        tokenizer_: the tokenizer of `tokenize` and `detokenize`.
        cache: states of earlier prompts, see `set_cache`.
        n_batch, n_threads, n_threads_batch: maximum tokens per decode, and threads.
        model_params, context_params: the constructor's arguments by llama.cpp's names, to read.

    Raises:
        ModelError (a ValueError): there is no such file, or it is not a supported model.
        NotSupported: an argument that would change results.
        DraftError (a ValueError): no such draft model, or one that cannot draft.
        AllocError: not enough memory.

    Source: llama-cpp-python, ``Llama``.
    """

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
        tokenizer: BaseLlamaTokenizer | None = None,
        type_k: int | None = None,
        type_v: int | None = None,
        spm_infill: bool = False,
        sparse: str = "auto",
        sparse_threshold: float | None = None,
        moe_cache_mib: float = 0.0,
        ctx_checkpoints: int = 32,
        checkpoint_every_n_tokens: int = 8192,
        kv_keep: int = 0,
        kv_window: int = 64,
        verbose: bool = True,
        **kwargs: Any,
    ) -> None:
        given = {k: v for k, v in locals().items() if k not in ("self", "kwargs", "__class__")}
        self._given = {**given, "model_path": os.fspath(model_path)}
        self._lock = CallLock("this Llama object", self._recover)
        self._held: Scores | None = None
        self._drafting = ExitStack()  # closes what was opened for drafts
        check_arguments("Llama", given)
        warn_of_unknown("Llama", kwargs, given)
        check_draft_model(draft_model)
        types = cache_type("type_k", type_k), cache_type("type_v", type_v)
        changed = overrides_of(given)
        self.model_path = os.fspath(model_path)
        if not os.path.exists(model_path):
            raise ModelError(f"Model path does not exist: {self.model_path}")
        start_s = time.perf_counter()
        sizes = {"type_k": types[0], "type_v": types[1], "swa_full": bool(swa_full)}
        params = ContextParams(
            **from_arguments(ContextParams, given) | sizes,
            n_seq_max=1 + min(n_batch, N_TEXTS) if embedding else 1,
            overrides=changed,
        )
        devices = {
            "n_gpu_layers": n_gpu_layers or 0,
            "split_mode": split_mode_name(split_mode),
            "main_gpu": main_gpu or 0,
            "tensor_split": () if tensor_split is None else (*map(float, tensor_split),),
        }
        options = LoadOptions(**from_arguments(LoadOptions, given) | devices, params=params)
        model = Model.load(model_path, options)
        self._model = LlamaModel(model)
        self.tokenizer_ = self.tokenizer() if tokenizer is None else tokenizer
        self._chat_formats = ChatFormats(model, LLAMA_CPP_PYTHON_FORMATS)
        self.chat_format, self.chat_handler = chat_format, chat_handler
        if chat_format is not None and find_handler(chat_format) is None:
            self._chat_formats.check(chat_format)
        elif chat_format is None and chat_handler is None:
            self.chat_format = DEFAULT if self._chat_formats.has_own else "llama-2"
        self._timings = Timings()
        self._n_ctx = n_ctx or model.n_ctx_train
        self.n_threads = n_threads or default_threads()
        self.n_threads_batch = n_threads_batch or self.n_threads
        lease = None
        if not vocab_only:
            context = Context(model, params)
            if lora_path is not None:
                lora = load_lora(lora_path, model)
                context.set_adapters([lora], {lora: lora_scale})
            speculation, self._drafting = speculation_for(draft_model, context)
            lease = Lease(Engine(context, timings=self._timings, speculation=speculation))
            self._held = Scores(lease, logits_all=logits_all)
            self._n_ctx = context.n_ctx
            self.n_threads, self.n_threads_batch = context.n_threads, context.n_threads_batch
        self._ctx = LlamaContext(
            lease,
            self._lock,
            model,
            0 if vocab_only else pooling_number(pooling_type, model.hparams),
        )
        self._timings.load_ms = 1e3 * (time.perf_counter() - start_s)
        self.n_batch = min(n_batch, self._n_ctx)
        self.verbose, self._no_perf = verbose, no_perf
        self._draft_model = draft_model
        self.cache: BaseLlamaCache | None = None
        self.last_n_tokens_size, self.spm_infill = last_n_tokens_size, spm_infill
        self.metadata = self._model.metadata()
        self.model_params = model_params(given)
        sizes = {"n_ctx": self._n_ctx, "n_batch": self.n_batch}
        threads = {"n_threads": self.n_threads, "n_threads_batch": self.n_threads_batch}
        self.context_params = context_params({**given, **sizes, **threads})
        self.set_seed(seed)
        self._say(f"{model.desc}, {model.size_bytes / 2**20:.2f} MiB: {model_path}")

    def __getstate__(self) -> dict[str, Any]:
        now = ("verbose", "chat_format", "chat_handler", "draft_model", "last_n_tokens_size")
        return {**self._given, "seed": self._seed, **{name: getattr(self, name) for name in now}}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        additional_files: Sequence[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """Load a model from the Hugging Face hub or its local cache; needs the extra ``hf``.

        Args:
            repo_id: ``user/model``, or ``user/model:QUANT``.
            filename: name or pattern of the GGUF file, such as ``*Q4_K_M.gguf``; None for the
                default choice.
            additional_files: names or patterns of further files to download, of one file each.
                All parts of a split model are downloaded in any case.
            local_dir: folder for the files in place of the cache.
            local_dir_use_symlinks: has no effect, as in huggingface_hub since 0.23.
            cache_dir: folder of the cache; None for the hub's default.
            options: arguments of the constructor.

        Raises:
            HubError: see `pyllama.hub.hub.hub_model`.
        """
        from ..hub.hub import Hub, hub_files, hub_model  # imported late: takes 3 ms

        cache, local = (None if given is None else Path(given) for given in (cache_dir, local_dir))
        hub = Hub(cache_dir=cache, local_dir=local)
        path = hub_model(repo_id, filename, hub)
        hub_files(repo_id, additional_files or (), hub)
        return cls(os.fspath(path), **options)

    # --- the model ------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        """The model."""
        return self._model.model

    @property
    def ctx(self) -> object | None:
        """The context; with ``vocab_only`` the model in its place, None after `close`."""
        return self._ctx.ctx

    # there are no architectures yet whose cache cannot be cut at any token
    _is_recurrent = _is_hybrid = False

    @property
    def context(self) -> Context:
        """The context. Raises: ModelError, if there is none."""
        return self._lease.context

    @property
    def draft_model(self) -> object | None:
        """What drafts tokens: the argument of the constructor, until another is assigned."""
        return self._draft_model

    @draft_model.setter
    def draft_model(self, given: object | None) -> None:
        check_draft_model(given)
        with self._lock.mutex:
            engine = self._lease.engine
            speculation, opened = speculation_for(given, engine.context)
            if engine.speculation is not None:
                engine.speculation.release_all()
            engine.speculation, self._draft_model = speculation, given
            self._drafting.close()
            self._drafting = opened

    @property
    def speculation(self) -> Speculation | None:
        """How tokens are drafted, with statistics; None for no drafts."""
        return None if self._held is None else self._held.lease.engine.speculation

    @property
    def _scores_kept(self) -> Scores:
        if self._held is None:
            raise ModelError(
                f"{self.model_path}: there is no context: the model was loaded with "
                "vocab_only=True, or is closed"
            )
        return self._held

    @property
    def _lease(self) -> Lease:
        return self._scores_kept.lease

    def n_ctx(self) -> int:
        """Tokens of context."""
        return self._n_ctx

    def n_embd(self) -> int:
        """Width of an embedding."""
        return self.model.n_embd

    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self.model.tokenizer.n_vocab

    def pooling_type(self) -> int:
        """How embeddings are pooled: none (0), mean (1), cls (2), last (3) or rank (4)."""
        return self._ctx.pooling_type()

    def token_bos(self) -> int:
        """Beginning-of-text token, -1 if there is none."""
        return self.tokenizer().token("bos")

    def token_eos(self) -> int:
        """End-of-text token, -1 if there is none."""
        return self.tokenizer().token("eos")

    def token_nl(self) -> int:
        """Newline token, -1 if there is none."""
        return self.tokenizer().token_nl()

    def tokenizer(self) -> LlamaTokenizer:
        """The model's own tokenizer, with llama-cpp-python's methods."""
        return LlamaTokenizer(self.model.tokenizer)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of UTF-8 text; see `LlamaTokenizer.tokenize`."""
        return self.tokenizer_.tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: Iterable[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Bytes of tokens; see `LlamaTokenizer.detokenize`."""
        return self.tokenizer_.detokenize(list(tokens), prev_tokens, special)

    def set_cache(self, cache: BaseLlamaCache | None) -> None:
        """Set a cache of states: each completion loads one from it, and saves one in it.

        Without it, the common prefix with the last prompt is reused in any case. None for no cache.
        """
        self.cache = cache

    def set_seed(self, seed: int) -> None:
        """Set the seed of further sampling; 0xFFFFFFFF or -1 for random seeds."""
        self._seed = seed & RANDOM_SEED
        self._sampler = StepSampler(self._chain)

    def _recover(self) -> None:
        """Reset the engine in a child process that was forked during a call."""
        if self._held is not None:
            self._held.lease.engine.recover()

    def close(self) -> None:
        """Free model and context; the tokenizer still works."""
        with self._lock.mutex:
            held, self._held = self._held, None
            if held is not None:
                held.lease.on_logits(None)  # breaks the reference cycle, to free the cache
                held.lease.context.close()
            self._ctx.close()
            self._drafting.close()
            self.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # partly constructed, or interpreter shutdown
            self.close()

    # --- evaluation -----------------------------------------------------------------------------

    @property
    def n_tokens(self) -> int:
        """Number of tokens in the cache; assign a lower one to remove the last tokens."""
        return self._lease.n_tokens

    @n_tokens.setter
    def n_tokens(self, value: int) -> None:
        with self._lock.mutex:
            held = self._lease.n_tokens
            if not 0 <= value <= held:
                raise BatchError(
                    f"n_tokens = {value}: {held} tokens are evaluated, want 0 to {held}"
                )
            self._lease.n_tokens = value

    @property
    def input_ids(self) -> Ids:
        """Token ids int32[n_ctx], of which the first ``n_tokens`` are valid."""
        return self._lease.ids

    @property
    def scores(self) -> Floats:
        """The logits of each token, float32[n_ctx, n_vocab].

        With ``logits_all`` all rows below ``n_tokens`` are valid; else the last one, and the last
        of each `eval`. The system commits memory for written rows only.

        Raises:
            AllocError: the address space cannot be reserved.
        """
        return self._scores_kept.rows

    @property
    def eval_tokens(self) -> deque[int]:
        """The tokens in the cache, as a copy."""
        return deque(self._input_ids.tolist(), maxlen=self._n_ctx)

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The logits of the tokens in the cache, as a copy; without ``logits_all`` the last."""
        if self._scores_kept.logits_all:
            return deque(self._scores.tolist(), maxlen=self._n_ctx)
        return deque(self._scores[-1:].tolist(), maxlen=1)

    @property
    def _input_ids(self) -> Ids:
        return self.input_ids[: self.n_tokens]

    @property
    def _scores(self) -> Floats:
        return self.scores[: self.n_tokens]

    def reset(self) -> None:
        """Remove all tokens."""
        with self._lock.mutex:
            self._lease.n_tokens = 0

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens after those in the cache.

        Raises:
            ContextFull: the tokens do not fit; nothing has changed.
            BatchError: an unknown token.
            Aborted: the decode was stopped; ``n_tokens`` counts the finished batches.
        """
        with self._lock.mutex:
            self._lease.evaluate(list(map(int, tokens)))
            _ = self._scores_kept.rows  # stores the last row

    def save_state(self) -> LlamaState:
        """A copy of tokens, logits and cache, for `load_state`."""
        with self._lock.mutex:
            return copy_state(self._scores_kept, self._seed)

    def load_state(self, state: LlamaState) -> None:
        """Restore a state from `save_state` of this or another object with the same model.

        Raises:
            StateError: the state is of another model or cache type, damaged, or too large. Nothing
                has changed.
        """
        with self._lock.mutex:
            restore_llama_state(self._scores_kept, state)
            self.set_seed(state.seed)

    # --- sampling and generation ----------------------------------------------------------------

    def sample(
        self,
        top_k: int = _DEFAULTS.top_k,
        top_p: float = _DEFAULTS.top_p,
        min_p: float = _DEFAULTS.min_p,
        typical_p: float = _DEFAULTS.typical_p,
        temp: float = _DEFAULTS.temp,
        repeat_penalty: float = _DEFAULTS.repeat_penalty,
        frequency_penalty: float = _DEFAULTS.frequency_penalty,
        presence_penalty: float = _DEFAULTS.presence_penalty,
        tfs_z: float = 1.0,
        mirostat_mode: int = _DEFAULTS.mirostat,
        mirostat_eta: float = _DEFAULTS.mirostat_eta,
        mirostat_tau: float = _DEFAULTS.mirostat_tau,
        penalize_nl: bool = True,
        logits_processor: Sequence[LogitsProcessor] | LogitsProcessor | None = None,
        grammar: Grammar | None = None,
        idx: int | None = None,
    ) -> int:
        """Sample a token from the logits of the last evaluated one, without evaluating it.

        Consecutive calls with equal arguments continue one random stream.

        Args:
            idx: position of the logits instead of the last; needs ``logits_all``.

        Raises:
            BatchError: nothing is evaluated at that position.
        """
        given = locals()
        check_arguments("sample", given)
        with self._lock.mutex:
            params = self._params(given)
            lease = self._lease
            logits = self._scores_kept.after(lease.n_tokens - 1 if idx is None else idx)
            start_s = time.perf_counter()
            token = self._sampler.sample(
                params, lease.tokens, logits, _as_list(logits_processor), grammar
            )
            self._timings.count_sample(time.perf_counter() - start_s)
            return token

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = _DEFAULTS.top_k,
        top_p: float = _DEFAULTS.top_p,
        min_p: float = _DEFAULTS.min_p,
        typical_p: float = _DEFAULTS.typical_p,
        temp: float = _DEFAULTS.temp,
        repeat_penalty: float = _DEFAULTS.repeat_penalty,
        reset: bool = True,
        frequency_penalty: float = _DEFAULTS.frequency_penalty,
        presence_penalty: float = _DEFAULTS.presence_penalty,
        tfs_z: float = 1.0,
        mirostat_mode: int = _DEFAULTS.mirostat,
        mirostat_tau: float = _DEFAULTS.mirostat_tau,
        mirostat_eta: float = _DEFAULTS.mirostat_eta,
        penalize_nl: bool = True,
        logits_processor: Sequence[LogitsProcessor] | LogitsProcessor | None = None,
        stopping_criteria: Sequence[StoppingCriteria] | StoppingCriteria | None = None,
        grammar: Grammar | None = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Continue tokens until the context is full, also after end-of-generation tokens.

        The common prefix of ``tokens`` and the cache is reused. Tokens sent to the generator are
        appended after the last one it yielded.

        Args:
            tokens: the prompt.
            reset: False appends ``tokens`` to those in the cache.

        Yields:
            Token ids.

        Raises:
            ContextFull, BatchError: at the first step; the prompt is empty or fills the context.
        """
        given = locals()
        check_arguments("generate", given)
        with self._lock.mutex:
            params = self._params(given)
            n_held = 0 if reset else self._lease.n_tokens
            check_prompt(len(tokens) + n_held, 0, self._n_ctx, min_room=0)
            request = Request(
                tokens,
                params,
                text=False,
                stop_at_eog=False,
                processors=_as_list(logits_processor),
                criteria=_as_list(stopping_criteria),
                grammar=grammar,
                progress=self.verbose,
            )
            run = self._lease.run(request, append=not reset)
        return locked(self._lock, self._tokens(run))

    def _tokens(self, run: Run) -> Steps[int]:
        """The tokens of a run; forwards tokens sent to the generator."""
        sent: Sequence[int] | None = None
        while True:
            try:
                event = run.send(sent)
            except StopIteration:
                return
            self._say_reuse(event)
            sent = (yield event.tokens[0]) if event.tokens else None

    def _chain(self, params: SamplingParams, grammar: Grammar | None = None) -> Chain:
        return chain_for(params, self.n_vocab(), self.model.tokenizer, grammar)

    def _params(self, given: Mapping[str, Any], **more: Any) -> SamplingParams:
        """The parameters for a method's arguments."""
        return SamplingParams(
            **{"seed": self._seed, **from_arguments(SamplingParams, given), **more},
            min_keep=1,
            repeat_last_n=self.last_n_tokens_size,
        )

    def _next_seed(self, given: int | None) -> int:
        """The seed of a completion, from which that of the next one is derived.

        Source: llama-cpp-python, ``Llama._create_completion``; but a random seed stays random.
        """
        if given is not None:
            self._seed = given & RANDOM_SEED
        elif self._seed != RANDOM_SEED:
            self._seed = random.Random(self._seed).randint(0, 2**32) & RANDOM_SEED
        return self._seed

    # --- completion -----------------------------------------------------------------------------

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = _DEFAULTS.temp,
        top_p: float = _DEFAULTS.top_p,
        min_p: float = _DEFAULTS.min_p,
        typical_p: float = _DEFAULTS.typical_p,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = (),
        frequency_penalty: float = _DEFAULTS.frequency_penalty,
        presence_penalty: float = _DEFAULTS.presence_penalty,
        repeat_penalty: float = _DEFAULTS.repeat_penalty,
        top_k: int = _DEFAULTS.top_k,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = _DEFAULTS.mirostat,
        mirostat_tau: float = _DEFAULTS.mirostat_tau,
        mirostat_eta: float = _DEFAULTS.mirostat_eta,
        model: str | None = None,
        stopping_criteria: Sequence[StoppingCriteria] | StoppingCriteria | None = None,
        logits_processor: Sequence[LogitsProcessor] | LogitsProcessor | None = None,
        grammar: Grammar | None = None,
        logit_bias: Mapping[int, float] | None = None,
        n: int = 1,
        best_of: int | None = None,
        special: bool | frozenset[int] = False,
        sampling: Mapping[str, Any] | None = None,
    ) -> Completion | Iterator[CompletionChunk]:
        """Continue a text.

        Args:
            prompt: text, in which special tokens are parsed, or token ids.
            suffix: text after the gap that the completion fills, for models with tokens for that
                (infill); for others it is only appended to the text.
            max_tokens: maximum number of tokens; None or 0 until the context is full.
            temperature: 0 is greedy.
            logprobs: number of likeliest tokens to report; needs ``logits_all``.
            echo: begin the text with the prompt.
            stop: stop strings, which are not part of the text.
            stream: return an iterator, which holds the lock only while a chunk is computed; seed
                and cache are read at the first one.
            seed: seed of this completion, and of those after it.
            model: name to report, instead of the path.
            stopping_criteria: called with all ids and the logits; True ends the text.
            logits_processor: called with all ids and a copy of the logits; returns new logits.
            grammar: what the text must match, see `LlamaGrammar`.
            logit_bias: added to the logits of these token ids.
            n: number of texts, ``choices`` of the result; they are generated one after the other.
            best_of: number of texts to generate, of which the ``n`` likeliest are returned, best
                first; a stream then begins when the last of them has ended.
            special: include the text of special tokens: of all, or of these ids.
            sampling: fields of `SamplingParams` by name, which replace those of the arguments.

        Returns:
            A completion in OpenAI's format, or an iterator of its chunks.

        Raises:
            ContextFull (a ValueError): the prompt leaves no room for a token.
            NotSupported: an argument that would change results.
            ValueError: ``logprobs`` without ``logits_all``.
        """
        given = locals()
        check_arguments("create_completion", given)
        kept = self._scores_kept  # raises an error for a model without weights
        if logprobs is not None and not kept.logits_all:
            raise BatchError(
                "logprobs is not supported for models created with logits_all=False; "
                "create Llama(..., logits_all=True)"
            )
        filled = None if suffix is None else self._infill(prompt, suffix)
        tokens = self._prompt_tokens(prompt) if filled is None else filled
        check_prompt(len(tokens), 0, self._n_ctx, min_room=1)
        room = self._n_ctx - len(tokens)
        result_format = CompletionRequest(
            prompt=prompt if isinstance(prompt, str) else self.tokenizer().decode(tokens),
            prompt_tokens=tokens,
            echo=echo,
            logprobs=logprobs,
            model=self.model_path if model is None else model,
            suffix=suffix or "" if filled is None else "",
        )
        bias = {int(token): float(value) for token, value in (logit_bias or {}).items()}
        params = self._params(
            given | {"logit_bias": bias}, prompt_logprobs=logprobs if echo else None
        )
        own = sampling_fields(sampling)
        request = Request(
            tokens,
            replace(params, **own),
            max_tokens=min(max_tokens, room) if max_tokens and max_tokens > 0 else room,
            stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
            special=special,
            drop_unfinished=True,
            processors=_as_list(logits_processor),
            criteria=_as_list(stopping_criteria),
            grammar=grammar,
            progress=self.verbose,
        )
        run = CompletionRun(result_format, self.model.tokenizer)
        if stream:
            return locked(self._lock, self._chunks(run, request, seed, own.get("seed")))
        with self._lock.mutex:
            result = run.result(self._events(self._begin(request, seed, own.get("seed"))))
            self._end()
            return result

    __call__ = create_completion

    longest_token_prefix = staticmethod(longest_token_prefix)

    @staticmethod
    def logits_to_logprobs(logits: npt.ArrayLike, axis: int = -1) -> Floats:
        """Log-probabilities from logits."""
        return log_softmax(logits, axis)

    def _chunks(
        self, run: CompletionRun, request: Request, seed: int | None, own_seed: int | None
    ) -> Steps[CompletionChunk]:
        yield from run.chunks(self._events(self._begin(request, seed, own_seed)))
        self._end()

    def _begin(self, request: Request, seed: int | None, own_seed: int | None) -> Request:
        """Begin a completion, with the lock held; returns its request with its seed.

        Args:
            seed: of this completion and those after it; None for the next one.
            own_seed: of this completion only.
        """
        self._timings.reset()
        drawn = self._next_seed(seed)
        self._load_cached(request.tokens)
        used = drawn if own_seed is None else own_seed
        return replace(request, sampling=replace(request.sampling, seed=used))

    def _end(self) -> None:
        """End a completion, with the lock held."""
        self._say_timings()
        if self.cache is not None:
            state = copy_state(self._scores_kept, self._seed)
            self.cache[state.input_ids[: state.n_tokens].tolist()] = state
            self._say("Llama: state saved in the cache")

    def _load_cached(self, tokens: Sequence[int]) -> None:
        """Load the state of the cache that has more of a prompt than the context has."""
        if self.cache is None:
            return
        try:
            state = self.cache[tokens]
        except KeyError:
            return self._say("Llama: cache miss")
        found = longest_token_prefix(state.input_ids[: state.n_tokens].tolist(), tokens)
        if found > longest_token_prefix(self._input_ids.tolist(), tokens):
            seed = self._seed  # that of this completion is drawn already
            with self._lock.lent():
                self.load_state(state)  # the public one, which programs replace
            self._seed = seed
            self._say("Llama: cache hit")

    def _infill(self, prompt: str | Sequence[int], suffix: str) -> list[int] | None:
        before = prompt if isinstance(prompt, str) else list(map(int, prompt))
        return infill_tokens(self.model.tokenizer, before, suffix, suffix_first=self.spm_infill)

    def _events(self, request: Request) -> Iterator[Event]:
        """The events of a request; prints the reuse of its prompt."""
        for event in self._lease.run(request):
            self._say_reuse(event)
            yield event

    def _prompt_tokens(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, bytes):  # bytes are a sequence of integers too
            raise BatchError("the prompt is bytes, want text or token ids; decode() it")
        if not isinstance(prompt, str):
            return list(map(int, prompt))
        tokenizer = self.model.tokenizer
        if isinstance(self.tokenizer_, LlamaTokenizer):
            tokens = tokenizer.encode(prompt, add_special=True, parse_special=True)
        else:
            tokens = self.tokenize(prompt.encode(), add_bos=False, special=True)
            begin = tokenizer.vocab.begin
            tokens = tokens if begin is None or tokens[:1] == [begin] else [begin, *tokens]
        return tokens or ([] if tokenizer.bos is None else [tokenizer.bos])

    def _say_timings(self) -> None:
        if not self._no_perf:
            self._say("\n".join(self._timings.lines()))

    # --- conversations --------------------------------------------------------------------------

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        functions: Sequence[Mapping[str, Any]] | None = None,
        function_call: str | Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        temperature: float = 0.2,
        top_p: float = _DEFAULTS.top_p,
        top_k: int = _DEFAULTS.top_k,
        min_p: float = _DEFAULTS.min_p,
        typical_p: float = _DEFAULTS.typical_p,
        stream: bool = False,
        stop: str | Sequence[str] | None = (),
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = _DEFAULTS.presence_penalty,
        frequency_penalty: float = _DEFAULTS.frequency_penalty,
        repeat_penalty: float = _DEFAULTS.repeat_penalty,
        tfs_z: float = 1.0,
        mirostat_mode: int = _DEFAULTS.mirostat,
        mirostat_tau: float = _DEFAULTS.mirostat_tau,
        mirostat_eta: float = _DEFAULTS.mirostat_eta,
        model: str | None = None,
        logits_processor: Sequence[LogitsProcessor] | LogitsProcessor | None = None,
        grammar: Grammar | None = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        parallel_tool_calls: bool | None = None,
        reasoning_format: str = "auto",
        reasoning_budget: int = -1,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """Generate a reply to a conversation in the model's chat format.

        The common prefix with the cache is reused.

        Args:
            messages: dictionaries with ``role`` and ``content``, with ``tool_calls`` of earlier
                replies and their results.
            tools: functions that the model may call, in OpenAI's format.
            tool_choice: ``none``, ``auto`` (the default), ``required``, or a function. A grammar
                holds calls to their schemas.
            functions, function_call: OpenAI's old names; the result has a ``function_call`` too.
            response_format: ``{"type": "json_object"}``, with a ``schema`` if any, or
                ``{"type": "json_schema", "json_schema": {"schema": ...}}``.
            max_tokens: maximum number of tokens; None or 0 until the context is full.
            logprobs: report log-probabilities; needs ``logits_all``.
            top_logprobs: number of likeliest tokens to report.
            parallel_tool_calls: whether a reply may have several calls; None if the template can
                write several.
            reasoning_format: ``none`` leaves the reasoning in the content, ``auto`` and
                ``deepseek`` move it to ``reasoning_content``, ``deepseek-legacy`` copies it.
            reasoning_budget: maximum tokens of the reasoning; 0 for none, -1 for no limit.
            chat_template_kwargs: variables of the template, such as ``enable_thinking``.

        Other arguments are those of `create_completion`.

        Returns:
            A ``chat.completion``, or an iterator of ``chat.completion.chunk``.

        Raises:
            TemplateError (a ValueError): the template is invalid or rejects the messages.
            ContextFull (a ValueError): the conversation leaves no room for a token.
            SchemaError (a ValueError): a schema is invalid, or cannot be a grammar.
        """
        options = {k: v for k, v in locals().items() if k != "self"}
        handler = self.chat_handler or find_handler(self.chat_format)
        if handler is not None:
            defaults = _chat_defaults()
            for name in _OWN_CHAT_OPTIONS:
                if options[name] == defaults[name]:
                    del options[name]
            return handler(llama=self, **options)  # type: ignore[no-any-return]
        return self._reply(self.chat_format, options)

    def _reply(
        self, chat_format: str | None, options: dict[str, Any]
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """`create_chat_completion` in a format, without a handler."""
        functions, function_call, tools, tool_choice = (
            options.pop(name) for name in ("functions", "function_call", "tools", "tool_choice")
        )
        if functions is not None or function_call is not None:
            tools, tool_choice = legacy_tools(functions, function_call)
        turn = self._chat_formats.get(chat_format, tools=bool(tools)).turn(
            options.pop("messages"),
            TurnOptions(
                tools, tool_choice, options.pop("parallel_tool_calls"),
                options.pop("response_format"), options.pop("reasoning_format"),
                options.pop("chat_template_kwargs") or {},
            ),
        )  # fmt: skip
        if turn.grammar is not None and options["grammar"] is not None:
            raise GrammarError("a grammar cannot be combined with tools or a response_format")
        top_logprobs, stop = options.pop("top_logprobs"), options["stop"]
        stops = [stop] if isinstance(stop, str) else list(stop or ())
        options["stop"] = [*stops, *turn.prompt.stop]
        options["logprobs"] = (top_logprobs or 0) if options["logprobs"] else None
        if turn.grammar is not None:
            options["grammar"] = turn.grammar.compile()
        options["special"] = turn.shown
        options["sampling"] = {
            **turn.budget(options.pop("reasoning_budget"), self.model.tokenizer),
            **sampling_fields(options["sampling"]),
        }
        made: Any = self.create_completion(turn.prompt.tokens, **options)
        results = ChatResults(turn, functions is not None)
        return results.chunks(made) if options["stream"] else results.completion(made)

    def _reply_in(self, chat_format: str, options: Mapping[str, Any]) -> Any:
        """`create_chat_completion` in a format; unknown options are variables of its template."""
        given = _chat_defaults()
        variables = {name: value for name, value in options.items() if name not in given}
        given.update((name, value) for name, value in options.items() if name in given)
        given["chat_template_kwargs"] = {**variables, **(given["chat_template_kwargs"] or {})}
        return self._reply(chat_format, given)

    @property
    def _chat_handlers(self) -> dict[str, Handler]:
        """Handlers of the model's own templates, by name."""
        return {name: FormatHandler(name) for name in self._chat_formats.own}

    def create_chat_completion_openai_v1(self, *args: Any, **options: Any) -> Any:
        """`create_chat_completion` with objects of the package openai as results.

        Returns:
            A ``ChatCompletion``, or with ``stream`` an iterator of ``ChatCompletionChunk``.

        Raises:
            ImportError: the package is not installed.
        """
        try:
            types = import_module("openai.types.chat")
        except ImportError:
            raise ImportError(
                "create_chat_completion_openai_v1 needs the package openai: pip install openai"
            ) from None
        made: Any = self.create_chat_completion(*args, **options)
        if options.get("stream"):
            return (types.ChatCompletionChunk(**chunk) for chunk in made)
        return types.ChatCompletion(**made)

    # --- embeddings -----------------------------------------------------------------------------

    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """Compute embeddings of texts; removes all tokens from the cache.

        Args:
            input: one text or several, which share batches.
            normalize: divide each embedding by its Euclidean norm.
            truncate: leave out what follows the first ``n_batch`` tokens of a text; False raises
                an error for such a text.
            return_count: return the number of tokens too.

        Returns:
            The embedding of the text, or a list of those of several. An embedding is a list of
            floats; without pooling (``pooling_type`` 0, the default of most models) a list for
            each token, of a reranker (``pooling_type`` 4) its scores.

        Raises:
            NotSupported (a RuntimeError): the object was created without ``embedding=True``.
            BatchError (a ValueError): a text has no tokens, or too many.
            ModelError (a ValueError): a reranker without classification head.
        """
        _ = self._lease  # raises an error for a model without weights
        if not self._given["embedding"]:
            raise NotSupported(
                "Llama model must be created with embedding=True to call this method"
            )
        texts = [input] if isinstance(input, str) else input
        with self._lock.mutex:
            self._timings.reset()
            tokens = [self.tokenize(text.encode("utf-8")) for text in texts]
            tokens = limited(tokens, self.n_batch, truncate)
            pooling = POOLINGS[self.pooling_type()]
            made = embed(self._lease, tokens, pooling, normalize=normalize)
            self._say_timings()
        found = made[0] if isinstance(input, str) else made
        return (found, sum(map(len, tokens))) if return_count else found

    def create_embedding(self, input: str | list[str], model: str | None = None) -> dict[str, Any]:
        """Compute embeddings of texts, in the format of OpenAI's API; see `embed`.

        Args:
            input: one text or several.
            model: name to report, instead of the path.
        """
        texts = input if isinstance(input, list) else [input]
        made, n_tokens = self.embed(texts, return_count=True)
        return embedding_response(made, n_tokens, self.model_path if model is None else model)

    # --- messages on stderr ---------------------------------------------------------------------

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


def _chat_defaults() -> dict[str, Any]:
    """The arguments of `Llama.create_chat_completion` with their defaults."""
    parameters = inspect.signature(Llama.create_chat_completion).parameters
    return {name: parameter.default for name, parameter in parameters.items() if name != "self"}


def _as_list(given: Sequence[T] | T | None) -> tuple[T, ...]:
    """A tuple from one object, a sequence or None."""
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Sequence) else (given,)
