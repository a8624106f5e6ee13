"""``pyllama-cli``: complete a prompt or chat with a model, like llama.cpp's llama-completion.

    pyllama-cli -m x.gguf                                        # a conversation
    pyllama-cli -hf user/model:Q4_K_M -sys "Be brief."
    pyllama-cli -m x.gguf -p "The capital of France is" -n 24 --temp 0 -no-cnv
    pyllama-cli -m x.gguf -st -f question.txt > answer.txt       # one reply
    pyllama-cli -m x.gguf -p "Water is wet: " --grammar 'root ::= "yes" | "no"'

Prompt and generated text are streamed to stdout; timings in llama.cpp's format go to stderr.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ..conversation import converse, note_cache
from ..drafting import Drafting, write_event
from ..loading import load_model, make_context
from ..options.conversation import ConversationOptions, conversation_options
from ..options.grammar import GrammarOptions, grammar_options
from ..options.options import ContextOptions, ModelOptions, context_options, model_options
from ..options.prompt import PromptOptions, escape_option, prompt_options
from ..options.run import FILL, RunOptions, run_options
from ..options.sampling import sampling_options, sampling_params
from ..options.speculative import SpeculativeOptions, speculative_options
from ..output import note, wants_color, write_raw
from ..parameters import from_options
from ..tool import Program, version_option

if TYPE_CHECKING:
    from pyllama.engine import Engine, Lease, Request
    from pyllama.engine.prompt_file import PromptFile
    from pyllama.grammar import Grammar
    from pyllama.runtime.context import Context
    from pyllama.sampling import SamplingParams


@click.command("completion", cls=Program)
@prompt_options
@run_options
@conversation_options
@model_options
@escape_option()
@context_options()
@sampling_options
@grammar_options
@speculative_options()
@version_option()
def command(**options: Any) -> None:
    """Complete a prompt, or chat with a model."""
    generate(options)


def generate(options: Mapping[str, Any]) -> None:
    """Complete a prompt or chat, as the values of the command's options say."""
    start = time.perf_counter()
    run = from_options(RunOptions, options)
    prompt = from_options(PromptOptions, options).text() or ""
    params = sampling_params(options)
    grammar = from_options(GrammarOptions, options).parse()
    sizes = ContextOptions.from_click(options)
    talk = from_options(ConversationOptions, options)
    of_model = ModelOptions.from_click(options)
    drafts = SpeculativeOptions.from_click(options)
    from pyllama.sampling import Mt19937

    seeded = replace(params, seed=Mt19937(params.seed).seed)  # a random one is printed
    with Drafting(drafts, of_model, sizes, seeded) as drafting:
        model = load_model(of_model, sizes.params(), sizes.n_threads, drafting.reserved)
        mode = talk.mode(model.tokenizer.chat_template is not None)
        tokens: list[int] = []
        if mode == "complete":
            tokens = model.tokenizer.encode(prompt, add_special=True, parse_special=True)
            if not tokens:
                raise click.UsageError("the prompt is empty: give one with -p or -f")
        context = make_context(model, sizes)
        from pyllama.engine import Engine, Timings

        speculation = drafting.speculation(context)
        timings = Timings(load_ms=1e3 * (time.perf_counter() - start))
        engine = Engine(context, timings=timings, speculation=speculation)
        try:
            if mode == "complete":
                _complete(engine, tokens, seeded, grammar, run, talk)
            else:
                converse(engine, mode, talk, params, prompt, grammar=grammar)
        finally:  # also after Ctrl-C
            if run.perf and timings.n_prompt_eval + timings.n_eval:
                drafting.write_stats()


def _complete(
    engine: Engine,
    tokens: list[int],
    params: SamplingParams,
    grammar: Grammar | None,
    run: RunOptions,
    talk: ConversationOptions,
) -> None:
    """Print the prompt, its completion and the timings."""
    from pyllama.engine import Lease, Request

    timings, context = engine.timings, engine.context
    if run.verbose:
        _describe(context, params, run.predict)
    try:
        n_keep = None if run.predict == FILL else talk.n_keep(tokens, context.model.tokenizer)
        request = Request(
            tokens,
            replace(params, include_stop_str_in_output=True),
            max_tokens=run.predict if run.predict >= 0 else None,
            stop=tuple(filter(None, run.reverse_prompt)),
            special=run.special,
            grammar=grammar,
            n_keep=n_keep,
        )
        _stream(Lease(engine), request, run)
    finally:  # also after Ctrl-C
        if run.perf and timings.n_prompt_eval + timings.n_eval:
            for line in timings.lines():
                note(line)


def _stream(lease: Lease, request: Request, run: RunOptions) -> None:
    """Print the prompt and the generated text, token by token."""
    from pyllama.engine import TextAssembler
    from pyllama.engine.request import check_prompt

    tokens = list(request.tokens)
    check_prompt(len(tokens), 0, lease.context.n_ctx_seq)
    cache = _load_prompt(lease, tokens, run)
    events = lease.run(request)
    if run.display_prompt:  # after run(), which raises for an invalid request
        shown = TextAssembler(lease.context.model.tokenizer, special=run.special)
        write_raw("".join(map(shown.push, tokens)) + shown.flush())
    n_generated, reason, color = 0, None, wants_color(run.color)
    for event in events:
        if event.tokens and not n_generated and cache is not None and not run.prompt_cache_ro:
            cache.save(lease)  # only the prompt has been evaluated so far
        n_generated += len(event.tokens)
        reason = event.reason
        write_event(event, color=color)
    write_raw(" [end of text]\n" if reason == "eog" else "\n")
    writes = run.prompt_cache_all and not run.prompt_cache_ro
    if cache is not None and writes and not lease.n_forgotten:
        cache.save(lease)


def _load_prompt(lease: Lease, tokens: list[int], run: RunOptions) -> PromptFile | None:
    """Return the prompt cache, None without one; its common prefix with the prompt is restored."""
    if run.prompt_cache is None:
        return None
    from pyllama.engine.prompt_file import PromptFile

    cache = PromptFile(run.prompt_cache)
    cache.load(lease)
    note_cache(cache, lease.keep(tokens), len(tokens))
    return cache


def _describe(context: Context, params: SamplingParams, n_predict: int) -> None:
    from pyllama.sampling import Chain

    model = context.model
    note(f"model: {model.desc}, {model.size_bytes / 2**20:.2f} MiB, {model.n_params / 1e6:.2f} M")
    note(
        f"system_info: n_threads = {context.n_threads} "
        f"(n_threads_batch = {context.n_threads_batch})"
    )
    note(f"sampler seed: {params.seed}")
    note("sampler params:")
    for line in params.describe().splitlines():
        note(line)
    tokenizer = model.tokenizer
    chain = Chain(params, model.hparams.n_vocab, tokenizer.eog, tokenizer=tokenizer)
    note(f"sampler chain: {chain.describe()}")
    note(f"generate: n_ctx = {context.n_ctx}, n_batch = {context.n_batch}, n_predict = {n_predict}")
