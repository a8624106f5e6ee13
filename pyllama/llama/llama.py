"""The class that scripts know from llama-cpp-python: same arguments, same results.

    llama = Llama("x.gguf", n_ctx=2048, verbose=False)
    llama("The capital of France is", max_tokens=8, temperature=0)["choices"][0]["text"]
    for chunk in llama("Once upon a time", stream=True): ...

One lock per object: a second thread waits for the call that runs, and for one step of a stream or
generator. These may be left, closed or mixed with other calls at will: each restores the context
that it needs. A callback (logits processor, stopping criterion) that calls back raises
`ReentrantCall`; what it raises itself reaches the caller, and the object stays usable.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..compat import check_arguments
from ..engine import Event, Request, StoppingCriteria
from ..engine.call_lock import Steps, locked
from ..engine.logprobs import log_softmax
from ..engine.request import Floats, Ids, Run, check_prompt
from ..errors import BatchError
from ..sampling import (
    RANDOM_SEED,
    Chain,
    LogitsProcessor,
    LogitsProcessorList,
    SamplingParams,
    apply_logits_processors,
)
from .chat import LlamaChat
from .completion import Completion, CompletionChunk, CompletionRequest, CompletionRun

T = TypeVar("T")

__all__ = ["Llama", "LogitsProcessorList", "StoppingCriteriaList"]


class StoppingCriteriaList(list[StoppingCriteria]):
    """A list of criteria that is itself one: whether any of them says stop."""

    def __call__(self, input_ids: Ids, logits: Floats) -> bool:
        return any(criterion(input_ids, logits) for criterion in self)


class Llama(LlamaChat):
    """A model with a context, made for one text at a time.

    Args:
        model_path: GGUF file, or the first part of several.
        vocab_only: tokenizer and metadata only, of any architecture.
        use_mmap: map the file; False reads it into memory.
        use_mlock: keep the weights in RAM.
        kv_overrides: metadata to change or add, by key.
        seed: of all completions that are given none; 0xFFFFFFFF for a new one each time.
        n_ctx: tokens of context; 0 for what the model was trained with.
        n_batch: tokens of a prompt in one decode; n_ubatch: computed at once.
        n_threads, n_threads_batch: for one token and for several; None chooses.
        logits_all: keep the logits of every token in ``scores``.
        swa_full: keep all keys and values of layers that see only a window of tokens.
        last_n_tokens_size: tokens that the repeat penalty looks back on.
        chat_format: name of a chat format, of llama.cpp or llama-cpp-python; None for the model's
            own template.
        sparse, sparse_threshold: which neurons of a ReLU model are computed, see `Model.load`.
        chat_handler: called with ``llama=`` and all arguments instead of `create_chat_completion`.
        verbose: say on stderr what is loaded, reused and how fast; warnings come either way.

    Other arguments are llama-cpp-python's: refused where they would change results, named in a
    warning of `logging` where they would only change speed, see `pyllama.compat`.

    Attributes:
        metadata: the file's, as text, without arrays.

    Raises:
        ModelError (a ValueError): there is no such file, or no model in it.
        NotSupported: an argument that would change results.
        AllocError: not enough memory.

    Source: llama-cpp-python, ``Llama``.
    """

    _last_sample: tuple[SamplingParams, Chain, list[int]] | None = None  # of `sample`

    # --- sampling and generation ----------------------------------------------------------------

    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: Sequence[LogitsProcessor] | LogitsProcessor | None = None,
        grammar: object | None = None,
        idx: int | None = None,
    ) -> int:
        """Choose a token by the logits of the last evaluated one; it is not evaluated.

        Calls with equal arguments go on with one random stream.

        Args:
            idx: position to sample behind instead of the last; needs ``logits_all``.

        Raises:
            BatchError: nothing is evaluated at that position.
        """
        check_arguments("sample", locals())
        params = self._params(
            temp=temp, top_k=top_k, top_p=top_p, min_p=min_p, repeat_penalty=repeat_penalty,
            frequency_penalty=frequency_penalty, presence_penalty=presence_penalty,
        )  # fmt: skip
        with self._lock:
            lease = self._lease
            logits = self._kept.after(lease.n_tokens - 1 if idx is None else idx)
            ids = lease.tokens
            last = self._last_sample
            if last is None or last[0] != params or ids[: len(last[2])] != last[2]:
                last = (params, self._chain(params), [])
            chain = last[1]
            for token in ids[len(last[2]) :]:
                chain.accept(token)
            self._last_sample = (params, chain, ids)
            start_s = time.perf_counter()
            if processors := _as_list(logits_processor):
                logits = apply_logits_processors(processors, np.array(ids, np.intc), logits)
            token = chain.sample(logits)
            self._timings.count_sample(time.perf_counter() - start_s)
            return token

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: Sequence[LogitsProcessor] | LogitsProcessor | None = None,
        stopping_criteria: Sequence[StoppingCriteria] | StoppingCriteria | None = None,
        grammar: object | None = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Continue tokens until the context is full, end-of-generation tokens included.

        What the context holds of ``tokens`` is not evaluated again. Tokens that are sent to the
        generator follow the one it gave.

        Args:
            tokens: what to continue.
            reset: False puts ``tokens`` behind those that the context holds.

        Yields:
            Token ids.

        Raises:
            ContextFull, BatchError: at the first step; the prompt is empty or fills the context.
        """
        check_arguments("generate", locals())
        params = self._params(
            temp=temp, top_k=top_k, top_p=top_p, min_p=min_p, repeat_penalty=repeat_penalty,
            frequency_penalty=frequency_penalty, presence_penalty=presence_penalty,
        )  # fmt: skip
        with self._lock:
            n_held = 0 if reset else self._lease.n_tokens
            check_prompt(len(tokens) + n_held, 0, self._n_ctx, min_room=0)
            request = Request(
                tokens,
                params,
                text=False,
                stop_at_eog=False,
                processors=_as_list(logits_processor),
                criteria=_as_list(stopping_criteria),
                progress=self.verbose,
            )
            run = self._lease.run(request, append=not reset)
        return locked(self._lock, self._tokens(run))

    def _tokens(self, run: Run) -> Steps[int]:
        """The tokens of a run; those that are sent go on to it."""
        sent: Sequence[int] | None = None
        while True:
            try:
                event = run.send(sent)
            except StopIteration:
                return
            self._say_reuse(event)
            sent = (yield event.tokens[0]) if event.tokens else None

    def set_seed(self, seed: int) -> None:
        """Set the seed of what is sampled from now on; 0xFFFFFFFF or -1 for random ones."""
        super().set_seed(seed)
        self._last_sample = None

    def _chain(self, params: SamplingParams) -> Chain:
        return Chain(params, self.n_vocab(), self._model.tokenizer.eog)

    def _params(self, **given: Any) -> SamplingParams:
        return SamplingParams(
            **{"seed": self._seed, **given}, min_keep=1, repeat_last_n=self.last_n_tokens_size
        )

    def _next_seed(self) -> int:
        """Random, or the next of those that follow from the object's seed."""
        return RANDOM_SEED if self._seed == RANDOM_SEED else self._seeds.randrange(RANDOM_SEED)

    # --- completion -----------------------------------------------------------------------------

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = (),
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: Sequence[StoppingCriteria] | StoppingCriteria | None = None,
        logits_processor: Sequence[LogitsProcessor] | LogitsProcessor | None = None,
        grammar: object | None = None,
        logit_bias: Mapping[int, float] | None = None,
    ) -> Completion | Iterator[CompletionChunk]:
        """Continue a text.

        Args:
            prompt: text, in which special tokens count, or token ids.
            max_tokens: at most; None or 0 for as many as fit into the context.
            temperature: 0 is greedy.
            logprobs: likeliest tokens to report for each one; needs ``logits_all``.
            echo: begin with the prompt.
            stop: texts that end it, and are not part of it.
            stream: give chunks as they are made, each under the lock of its own.
            seed: of this completion.
            model: name to report, instead of the path.
            stopping_criteria: called with all ids and the logits; True ends it.
            logits_processor: called with all ids and a copy of the logits, returns new ones.
            logit_bias: added to the logits of these token ids.

        Returns:
            A completion in OpenAI's form, or an iterator of its chunks.

        Raises:
            ContextFull (a ValueError): the prompt leaves no room for a token.
            NotSupported: an argument that would change results.
            ValueError: ``logprobs`` without ``logits_all``.
        """
        check_arguments("create_completion", locals())
        kept = self._kept
        if logprobs is not None and not kept.logits_all:
            raise BatchError(
                "logprobs is not supported for models created with logits_all=False; "
                "create Llama(..., logits_all=True)"
            )
        tokens = self._prompt_tokens(prompt)
        check_prompt(len(tokens), 0, self._n_ctx, min_room=1)
        room = self._n_ctx - len(tokens)
        asked = CompletionRequest(
            prompt=prompt if isinstance(prompt, str) else self.tokenizer().decode(tokens),
            prompt_tokens=tokens,
            echo=echo,
            logprobs=logprobs,
            model=self.model_path if model is None else model,
        )
        params = self._params(
            temp=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repeat_penalty=repeat_penalty,
            frequency_penalty=frequency_penalty, presence_penalty=presence_penalty,
            seed=self._next_seed() if seed is None else seed,
            logit_bias={int(token): float(bias) for token, bias in (logit_bias or {}).items()},
        )  # fmt: skip
        request = Request(
            tokens,
            params,
            max_tokens=min(max_tokens, room) if max_tokens and max_tokens > 0 else room,
            stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
            drop_unfinished=True,
            logprobs=logprobs,
            processors=_as_list(logits_processor),
            criteria=_as_list(stopping_criteria),
            progress=self.verbose,
        )
        run = CompletionRun(asked, self._model.tokenizer, lambda: kept.rows[: len(tokens)])
        if stream:
            return locked(self._lock, self._timed_chunks(run, request))
        with self._lock:
            self._timings.reset()
            result = run.result(self._heard(request))
            self._say_timings()
            return result

    __call__ = create_completion

    @staticmethod
    def logits_to_logprobs(logits: npt.ArrayLike, axis: int = -1) -> Floats:
        """Log-probabilities from logits."""
        return log_softmax(logits, axis)

    def _timed_chunks(self, run: CompletionRun, request: Request) -> Steps[CompletionChunk]:
        self._timings.reset()
        yield from run.chunks(self._heard(request))
        self._say_timings()

    def _heard(self, request: Request) -> Iterator[Event]:
        """The events of a request; what is reused of its prompt is said."""
        for event in self._lease.run(request):
            self._say_reuse(event)
            yield event

    def _prompt_tokens(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, bytes):  # a sequence of integers too
            raise BatchError("the prompt is bytes, want text or token ids; decode() it")
        if not isinstance(prompt, str):
            return list(map(int, prompt))
        tokenizer = self._model.tokenizer
        tokens = tokenizer.encode(prompt, add_special=True, parse_special=True)
        return tokens or ([] if tokenizer.bos is None else [tokenizer.bos])

    def _say_timings(self) -> None:
        if not self._no_perf:
            self._say("\n".join(self._timings.lines()))


def _as_list(given: Sequence[T] | T | None) -> tuple[T, ...]:
    """Callables, for one of them, a list or None."""
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Sequence) else (given,)
