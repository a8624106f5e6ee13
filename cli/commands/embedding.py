r"""``pyllama-embedding``: embeddings of texts and scores of rerankers, as llama-embedding.

    pyllama-embedding -m x.gguf -p "a cat\na dog" --pooling mean
    pyllama-embedding -m x.gguf -f lines.txt --embd-output-format json
    pyllama-embedding -m reranker.gguf -p "what is a cat?\tan animal"

A text is a line of the prompt, or what --embd-separator separates. Texts share batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import Flags, row

from ..loading import load_model, make_context
from ..options.options import ContextOptions, ModelOptions, context_options, model_options
from ..options.overrides import current_overrides
from ..options.prompt import PromptOptions, escape_option, prompt_options
from ..output import note, visible, write
from ..parameters import from_options, parameter_options
from ..tool import Program, ignored_option, version_option

if TYPE_CHECKING:
    from pyllama.embeddings import Floats
    from pyllama.runtime.context import Context
    from pyllama.runtime.model import Model

_CELLS = 8192  # of texts that are evaluated at the same time, if the context's size is not given
_N_SHOWN = 16  # numbers of each of several embeddings


@dataclass(frozen=True, eq=False, repr=False)
class EmbeddingOptions:
    """How texts are separated, embedded and printed."""

    # fmt: off
    pooling: str | None = row(None,
        "Embedding of a text: the mean of its tokens' rows, the first (cls), the last, or all "
        "rows (none). rank: the scores of a reranker.  [default: the model's]",
        Flags("--pooling", choices=("none", "mean", "cls", "last", "rank")))
    attention: str | None = row(None,
        "Whether tokens attend to earlier tokens only, or to all.  [default: the model's]",
        Flags("--attention", choices=("causal", "non-causal")))
    embd_normalize: int = row(2,
        "Normalization. -1: none, 0: 16-bit integers, 1: taxicab, 2: Euclidean, N: p-norm. Scores "
        "are never normalized.", Flags("--embd-normalize", low=-1, high=1000))
    output_format: str = row("",
        "Empty: lines for people. array: [[...],...]. json: as OpenAI's API. json+: json with the "
        "cosine similarities. raw: one embedding per line, separated by spaces.",
        Flags("--embd-output-format", choices=("", "array", "json", "json+", "raw"),
            metavar="FORMAT"))
    separator: str = row("\n", r"Separator of the texts.  [default: \n]",
        Flags("--embd-separator", metavar="STRING"))
    pair_separator: str = row("\t",
        r"Separator of the query and the document in a text for --pooling rank.  [default: \t]",
        Flags("--cls-separator", metavar="STRING"))
    n_parallel: int = row(64, "Maximum number of texts per batch.",
        Flags("-np", "--parallel", low=1, high=256))
    # fmt: on


@click.command("embedding", cls=Program)
@prompt_options
@parameter_options(EmbeddingOptions)
@model_options
@escape_option()
@context_options()
@ignored_option("--embedding", "--embeddings")
@ignored_option("-kvu", "--kv-unified")
@ignored_option("--no-warmup", "--warmup")
@version_option()
def command(**options: Any) -> None:
    """Compute embeddings of texts, or the scores of a reranker.

    With -c 0 the context is as large as the texts need.
    """
    own, text = from_options(EmbeddingOptions, options), from_options(PromptOptions, options).text()
    if text is None:
        raise click.UsageError("give the texts with -p or -f")
    if not own.separator or not own.pair_separator:
        raise click.UsageError("a separator cannot be empty")
    texts = text.split(own.separator)
    sizes = ContextOptions.from_click(options)
    n_seq = min(own.n_parallel, len(texts))
    overrides = current_overrides()
    if own.attention is not None:
        overrides = replace(overrides, causal=own.attention == "causal")
    of_model = ModelOptions.from_click(options)
    model = load_model(of_model, sizes.params(n_seq, overrides=overrides), sizes.n_threads)
    pooling = own.pooling or model.pooling
    tokens = _tokens(model, texts, own.pair_separator if pooling == "rank" else None)
    causal = model.hparams.causal if overrides.causal is None else overrides.causal
    sizes = _with_room(sizes, [len(ids) for ids in tokens], causal)
    context = make_context(model, sizes, n_seq_max=n_seq, overrides=overrides)
    found = _embed(context, tokens, pooling)
    norm = -1 if pooling == "rank" else own.embd_normalize
    from pyllama.embeddings import normalize

    rows = [normalize(one, norm) for one in found]
    if pooling == "none":
        rows = [row for one in rows for row in one]
    form = ".0f" if norm == 0 else ".7f"
    if own.output_format == "raw":
        for row in rows:
            write(" ".join(f"{x:{form}}" for x in row) + "\n")
    elif own.output_format:
        write(_json(rows, form, own.output_format, similar=len(texts) > 1))
    elif pooling == "rank":
        write("".join(_scores(rows, model.classifier_labels)))
    else:
        write("".join(_lines(rows, texts, pooling, "6.0f" if norm == 0 else "9.6f")))


def _tokens(model: Model, texts: list[str], pair_separator: str | None) -> list[list[int]]:
    """The tokens of each text; of a query and a document if it has the separator."""
    from pyllama.embeddings import rerank_tokens

    found = []
    for i, text in enumerate(texts):
        parts = [text] if pair_separator is None else text.split(pair_separator)
        if len(parts) > 2:
            raise click.UsageError(
                f"text {i} has {len(parts)} parts, separated by --cls-separator; want a query and "
                "a document"
            )
        if len(parts) == 2:
            found.append(rerank_tokens(model, *parts))
        else:
            found.append(model.tokenizer.encode(text, add_special=True, parse_special=True))
    return found


def _with_room(sizes: ContextOptions, lengths: list[int], causal: bool) -> ContextOptions:
    """The sizes with a context for all texts, if it is not given; texts are whole if they must."""
    longest = max(lengths)
    if sizes.n_ctx == 0:
        sizes = replace(sizes, n_ctx=max(longest, min(sum(lengths), _CELLS), 1))
    if causal:
        return sizes
    whole = min(max(longest, sizes.n_ubatch), sizes.n_ctx)
    return replace(sizes, n_ubatch=whole, n_batch=max(whole, sizes.n_batch))


def _embed(context: Context, tokens: list[list[int]], pooling: str) -> list[Floats]:
    from pyllama.embeddings import embed_many
    from pyllama.engine import Engine

    if pooling == "rank":
        context.check_classifier()
    longest, n_train = max(map(len, tokens)), context.model.n_ctx_train
    if longest > n_train:
        note(f"a text has {longest} tokens, this model was trained on texts of up to {n_train}")
    roles = context.model.tokenizer.vocab.roles
    ends = {roles.get("eos"), roles.get("sep")}
    if pooling == "last" and any(ids and ids[-1] not in ends for ids in tokens):
        note(
            "texts do not end with EOS or SEP, as models trained with pooling last expect; if this "
            "is one, add --override-kv tokenizer.ggml.add_eos_token=bool:true"
        )
    start = time.perf_counter()
    found = embed_many(Engine(context), tokens, pooling)
    seconds, n = time.perf_counter() - start, sum(map(len, tokens))
    note(
        f"{len(tokens)} texts, {n} tokens, pooling {pooling}, in {seconds:.2f} s, "
        f"{n / seconds:.2f} tokens per second"
    )
    return found


def _lines(rows: list[Floats], texts: list[str], pooling: str, form: str) -> Iterator[str]:
    """llama-embedding's lines, with the similarities of several texts."""
    for i, values in enumerate(rows):
        if pooling == "none":
            first, last = (
                "".join(f"{x:{form}} " for x in part) for part in (values[:3], values[-3:])
            )
            yield f"embedding {i}: {first} ... {last}\n"
        else:
            shown = values if len(rows) == 1 else values[:_N_SHOWN]
            yield f"embedding {i}: " + "".join(f"{x:{form}} " for x in shown) + "\n"
    if pooling == "none" or len(rows) == 1:
        return
    names = [visible(text) for text in texts]
    yield "\ncosine similarity matrix:\n\n" + "".join(f"{name[:6]:>6} " for name in names) + "\n"
    for name, similarities in zip(names, _similarities(rows), strict=True):
        yield "".join(f"{x:6.2f} " for x in similarities) + f"{name[:10]}\n"


def _scores(rows: list[Floats], labels: list[str]) -> Iterator[str]:
    for i, values in enumerate(rows):
        for score, label in zip(values, labels, strict=True):
            name = f" [{visible(label)}]" if len(labels) > 1 else ""
            yield f"rerank score {i}: {score:8.3f}{name}\n"


def _json(rows: list[Floats], form: str, output_format: str, similar: bool) -> str:
    """The embeddings as JSON, in llama-embedding's layout; ``similar``: json+ compares them."""
    arrays = ["[" + ",".join(f"{x:{form}}" for x in row) + "]" for row in rows]
    if output_format == "array":
        return "[" + ",".join(arrays) + "]\n"
    data = ",\n".join(
        f'    {{\n      "object": "embedding",\n      "index": {i},\n      "embedding": {array}\n'
        "    }"
        for i, array in enumerate(arrays)
    )
    text = f'{{\n  "object": "list",\n  "data": [\n{data}\n  ]'
    if output_format == "json+" and similar:
        lines = (
            "    [" + ", ".join(f"{x:6.2f}" for x in line) + " ]" for line in _similarities(rows)
        )
        text += ',\n  "cosineSimilarity": [\n' + ",\n".join(lines) + "\n  ]"
    return text + "\n}\n"


def _similarities(rows: list[Floats]) -> list[list[float]]:
    from pyllama.embeddings import cosine_similarity

    return [[cosine_similarity(a, b) for b in rows] for a in rows]
