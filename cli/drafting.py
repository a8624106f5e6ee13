"""Makes the drafter of a command, colours its tokens, prints its statistics and saves its cache.

    with Drafting(options, model_options, params) as drafting:   # loads the draft model
        model = load_model(model_options)
        context = make_context(model, sizes)
        engine = Engine(context, speculation=drafting.speculation(context))
        ...
        drafting.write_stats()
    # the dynamic lookup cache is saved

A draft model is loaded before the target, so that a wrong file is found at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters.drafting import DRAFT_EAGLE3, DRAFT_MODEL, DRAFT_MTP, DRAFTERS, HEADS

from .flags import in_flags
from .loading import load_draft, make_context, model_path
from .options.hub import HubOptions
from .options.options import ContextOptions, ModelOptions, OffloadOptions
from .options.speculative import SpeculativeOptions
from .output import note, write_raw

if TYPE_CHECKING:
    from pyllama.engine import Event
    from pyllama.runtime.context import Context
    from pyllama.runtime.devices import Reserved
    from pyllama.runtime.model import Model
    from pyllama.runtime.params import ContextParams
    from pyllama.sampling import SamplingParams
    from pyllama.speculative import Drafter, NgramCache
    from pyllama.speculative.speculation import Speculation
    from pyllama.speculative.stats import Stats

_CYAN = "\x1b[36m"  # llama.cpp's colour of the first branch


class Drafting:
    """What drafts the texts of a command.

    Args:
        options: the options of speculative decoding.
        model: options of the target; a draft model is loaded in the same way.
        sizes: options of the target's context, with the draft's number of threads by default.
        params: the target's sampling.
        n_seq_max, unified: of the target's context.

    Attributes:
        reserved: memory of GPUs that a draft model needs, for the plan of the target.
        max_draft: maximum number of drafted tokens of a step.
        cache_s: time of reading lookup caches.
        stats: counters of the drafts; None without drafts.

    Raises:
        ModelError, GGUFError, OSError: the draft model cannot be loaded.
    """

    def __init__(
        self,
        options: SpeculativeOptions,
        model: ModelOptions,
        sizes: ContextOptions,
        params: SamplingParams,
        n_seq_max: int = 1,
        unified: bool = True,
    ) -> None:
        from pyllama.runtime.overrides import Overrides

        self._options, self._sizes, self._params = options, sizes, params
        self._dynamic: NgramCache | None = None
        self._speculation: Speculation | None = None
        self.max_draft, self.cache_s = options.max_draft, 0.0
        self.stats: Stats | None = None
        self.reserved: tuple[Reserved, ...] = ()
        self._draft: Model | None = None
        if DRAFT_MODEL in options.types and options.has_model:
            own = replace(
                model,
                kv_overrides={},
                moe_cache_mib=0.0,
                sparse="auto",
                sparse_threshold=None,
                offload=_draft_offload(options, model.offload),
            )
            path, target = _draft_path(options), sizes.params(n_seq_max, unified)
            sizes = self._draft_sizes(_target_n_ctx(model, target) if _is_planned(own) else 0)
            needed = sizes.params(n_seq_max, unified, Overrides())
            self._draft, self.reserved = load_draft(path, own, needed, sizes.n_threads)

    def __enter__(self) -> Drafting:
        return self

    def __exit__(self, *error: object) -> None:
        path = self._options.lookup_cache_dynamic
        if self._speculation is not None and self._dynamic is not None and path is not None:
            self._speculation.release_all()  # the text that Ctrl-C or an error has ended
            self._dynamic.save(path)

    def speculation(self, context: Context) -> Speculation | None:
        """Return what the engine of the target's context needs, None without drafts.

        Raises:
            DraftError, OSError: a lookup cache is damaged, of another vocabulary, or missing.
            click.UsageError: the model cannot draft for itself in this way.
        """
        names = self._options.types
        if not names:
            return None
        from pyllama.speculative.names import drafter_by_name
        from pyllama.speculative.speculation import Speculation
        from pyllama.speculative.stats import Stats

        of_types: dict[str, dict[str, Any]] = {
            name: {
                argument: value
                for argument, option in DRAFTERS[name].options.items()
                if (value := getattr(self._options, option)) is not None
            }
            | dict(self._options.ngram.get(name, {}))
            for name in names
        }
        if "ngram-cache" in names:
            n_vocab = context.model.tokenizer.n_vocab
            caches, self.cache_s = load_lookup_caches(self._options, n_vocab)
            self._dynamic = caches["dynamic"]
            of_types["ngram-cache"] |= caches
        models: dict[str, Callable[[], Drafter]] = {
            DRAFT_MODEL: lambda: self._model_drafter(context),
            **{name: partial(self._head, context, name) for name in HEADS},
        }
        drafter = drafter_by_name(names, of_types, models)
        assert drafter is not None
        self.stats = Stats(",".join(names))
        self._speculation = Speculation(
            drafter,
            max_draft=self.max_draft,
            min_draft=self._options.draft_min,
            adaptive=self._options.adaptive_draft,
            stats=self.stats,
        )
        return self._speculation

    def write_stats(self, n_predict: int | None = None) -> None:
        """Print the statistics of the drafts on stderr, if there were any."""
        if self.stats is not None:
            note("")
            for line in self.stats.lines(self.max_draft, n_predict):
                note(line)

    def _model_drafter(self, context: Context) -> Drafter:
        if self._draft is None:
            return self._self_draft(context)
        return self._model(self._draft, context)

    def _head(self, context: Context, name: str) -> Drafter:
        from pyllama.runtime.heads import dflash_head, eagle3_head, mtp_head
        from pyllama.speculative.block import head_drafter

        options, kv = self._options, context.kv
        sizes = self._draft_sizes(context.n_ctx)
        path = _draft_path(options) if options.has_model else None
        if name == DRAFT_MTP:
            head = mtp_head(context.model, path)
        else:
            assert path is not None  # SpeculativeOptions
            load = eagle3_head if name == DRAFT_EAGLE3 else dflash_head
            head = load(context.model, path)
        return head_drafter(
            context,
            head,
            self._sampling(self._params.logit_bias),
            width=options.draft_branches,
            p_min=options.draft_p_min,
            p_split=options.draft_p_split,
            params=sizes.params(kv.n_seq_max, kv.unified),
        )

    def _model(self, draft: Model, context: Context) -> Drafter:
        from pyggml.errors import PyggmlError
        from pyllama.runtime.overrides import Overrides
        from pyllama.speculative.model import draft_model
        from pyllama.speculative.translate import translated_bias

        sizes = self._draft_sizes(context.n_ctx)
        kv, target, options = context.kv, context.model.tokenizer, self._options
        bias = translated_bias(self._params.logit_bias, target, draft.tokenizer)
        try:
            own = make_context(
                draft,
                sizes,
                n_seq_max=kv.n_seq_max,
                unified=kv.unified,
                overrides=Overrides(),  # those of the command line are the target's
                is_draft=True,
            )
            return draft_model(
                target,
                own,
                self._sampling(bias),
                width=options.draft_branches,
                p_min=options.draft_p_min,
                p_split=options.draft_p_split,
            )
        except PyggmlError as error:
            message = in_flags(str(error)).replace("--ctx-size", "--ctx-size-draft")
            raise click.ClickException(f"draft model {draft.path}: {message}") from None

    def _draft_sizes(self, n_ctx: int) -> ContextOptions:
        """The options of a draft model's context; ``n_ctx`` of the target's, if known."""
        options = self._options
        sizes = replace(
            self._sizes,
            n_ctx=options.ctx_size_draft or n_ctx or self._sizes.n_ctx,
            type_k=options.cache_type_k_draft,
            type_v=options.cache_type_v_draft,
        )
        if (n := options.threads_draft) > 0:
            sizes = replace(sizes, n_threads=n, n_threads_batch=n)
        if options.threads_batch_draft > 0:
            sizes = replace(sizes, n_threads_batch=options.threads_batch_draft)
        return sizes

    def _self_draft(self, context: Context) -> Drafter:
        from pyllama.errors import BatchError
        from pyllama.speculative.model import self_draft

        options = self._options
        try:
            return self_draft(
                context,
                self._sampling(self._params.logit_bias),
                threshold=options.self_draft_threshold,
                n_layer=options.self_draft_layers,
                width=options.draft_branches,
                p_min=options.draft_p_min,
                p_split=options.draft_p_split,
            )
        except BatchError as error:
            raise click.UsageError(f"the model cannot draft for itself: {error}") from None

    def _sampling(self, bias: Mapping[int, float]) -> SamplingParams:
        """The sampling of a draft model, with a logit bias in its tokens."""
        from pyllama.speculative.model import LIKELIEST

        if not self._options.is_sampled:
            return LIKELIEST
        return replace(self._params, logit_bias=bias, **self._options.sampling)


def load_lookup_caches(
    options: SpeculativeOptions, n_vocab: int
) -> tuple[dict[str, NgramCache], float]:
    """Return the static and the dynamic cache by these names, and the seconds of reading them.

    Raises:
        DraftError: a cache is damaged, or of another vocabulary.
        OSError: it cannot be read; the dynamic one need not exist yet.
    """
    from pyllama.speculative.lookup_cache import NgramCache

    start = time.perf_counter()
    static, dynamic = options.lookup_cache_static, options.lookup_cache_dynamic
    found = {"static": NgramCache(), "dynamic": NgramCache()}
    if static is not None:
        found["static"] = NgramCache.load(static, n_vocab)
    if dynamic is not None and dynamic.exists():
        found["dynamic"] = NgramCache.load(dynamic, n_vocab)
    return found, time.perf_counter() - start


def write_event(event: Event, *, color: bool) -> None:
    """Write the text of an event to stdout, of an accepted drafted token in another colour.

    Text of a token after a stop string is written too, as llama.cpp does.
    """
    text = event.text + event.rest
    write_raw(drafted_text(text) if color and event.drafted else text)


def drafted_text(text: str, after: str = "\x1b[0m") -> str:
    """Return the text of an accepted drafted token in its colour; ``after`` ends the colour."""
    return f"{_CYAN}{text}{after}" if text else ""


def _draft_offload(options: SpeculativeOptions, target: OffloadOptions) -> OffloadOptions:
    """The devices of a draft model, within the target's memory budget."""
    from pyggml.backend.registry import HOST_BACKENDS, available

    device, budget = options.device_draft or target.devices, target.vram_budget
    if len(budget) > 1 and device is not None:  # of other devices, in order
        every = ",".join(name for name in available() if name not in HOST_BACKENDS)
        names = [name.strip().lower() for name in (target.devices or every).split(",")]
        of_name = dict(zip(names, budget, strict=False))
        budget = tuple(of_name.get(name.strip().lower(), 0.0) for name in device.split(","))
    return OffloadOptions(
        devices=device,
        n_gpu_layers=options.gpu_layers_draft,
        vram_budget=budget,
        dry_run=target.dry_run,
    )


def _is_planned(model: ModelOptions) -> bool:
    """Whether memory is planned: there is a GPU, or the plan is asked for."""
    from pyggml.backend.registry import HOST_BACKENDS, available

    return model.offload.dry_run or any(name not in HOST_BACKENDS for name in available())


def _target_n_ctx(model: ModelOptions, params: ContextParams) -> int:
    """The cells of the target's context, which a draft's context has too by default."""
    if params.n_ctx:
        return params.n_ctx
    from pyllama.runtime.model import Model

    header = Model.load(model_path(model.model), vocab_only=True, kv_overrides=model.kv_overrides)
    return params.resolve(header.hparams).n_ctx


def _draft_path(options: SpeculativeOptions) -> Path:
    """The file of the draft model; downloads it if necessary."""
    if options.hf_repo_draft is not None:
        file = None if options.model_draft is None else str(options.model_draft)
        return HubOptions.of_draft(options.hf_repo_draft, file).path(None)
    assert options.model_draft is not None
    return options.model_draft
