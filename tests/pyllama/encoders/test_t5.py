"""T5 with its decoder against transformers: logits, greedy tokens, equal bits.

``test_encoders.py`` has the tests of all encoders, with T5's encoder among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyllama import Batch, Context, Model
from pyllama.engine import Engine, Request
from pyllama.engine.generate import generate, run_many
from pyllama.errors import BatchError, ContextFull, StateError
from pyllama.kv.memory import HiddenReads
from pyllama.runtime.overrides import Overrides
from pyllama.runtime.state import load_state, save_state
from pyllama.sampling import SamplingParams
from pyllama.speculative import Draft, DraftView, Speculation

from ..arch.checkpoints import EVERY, conversions
from .checkpoints import parts, recorded, write_checkpoint
from .variants import GENERATING, VARIANTS

F32, GREEDY = GGMLType.F32, SamplingParams(temp=0.0)
N_GREEDY = 16


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes a variant's checkpoint once, and each conversion of it once."""
    return conversions(tmp_path_factory.mktemp("checkpoints"), write_checkpoint)


@pytest.fixture(scope="module")
def model(folders: Any) -> Model:
    return Model.load(folders("t5"))


def texts_of(name: str) -> list[list[int]]:
    return [x.tolist() for x in parts(recorded(name), "tokens")]


def decoded(context: Context, tokens: list[int], seq: int = 0) -> np.ndarray:
    """The logits of a decoder's tokens after its start, all at once."""
    start = context.hparams.own["decoder_start"]
    context.decode(Batch([start, *tokens], seq_id=seq, logits="all"))
    return context.logits.copy()


def greedy(engine: Engine, text: list[int], n: int = N_GREEDY, **fields: Any) -> list[int]:
    """The tokens that an engine generates for a text."""
    request = Request(text, GREEDY, max_tokens=n, stop_at_eog=False, **fields)
    return [t for event in engine.run(request) for t in event.tokens]


@pytest.mark.parametrize("name", VARIANTS["t5"])
def test_the_decoder_s_logits_and_greedy_tokens(folders: Any, name: str) -> None:
    record, texts = recorded(name), texts_of(name)
    context = Context(Model.load(folders(name)), n_ctx=512, n_seq_max=1, type_k=F32, type_v=F32)
    for i, (text, tokens) in enumerate(zip(texts, record["greedy"], strict=True)):
        context.kv.clear()
        context.encode([text], seq_ids=[0])
        logits = decoded(context, tokens[:-1].tolist())
        assert logits.argmax(1).tolist() == tokens.tolist()
        for wanted in record["logits"][i : i + 1]:
            assert np.abs(logits[::EVERY] - wanted).max() < 1e-4
        made = generate(context, text, GREEDY, n_predict=N_GREEDY)
        n = [*tokens, 1].index(1) + 1  # up to </s>
        assert list(made) == tokens[:n].tolist()


@pytest.mark.parametrize("name", GENERATING)
def test_the_same_bits_anyhow(folders: Any, name: str) -> None:
    """Alone or among others, whole or token by token, with any threads, from any cells."""
    model, texts = Model.load(folders(name, "q8_0")), texts_of(name)[:4]
    tokens = recorded(name)["greedy"][0, :7].tolist()
    alone = []
    for text in texts:
        context = Context(model, n_ctx=512, n_threads=1)
        context.encode([text], seq_ids=[0])
        alone.append(decoded(context, tokens))
    for options in ({"n_threads": 2}, {"n_ubatch": max(map(len, texts))}, {"unified": False}):
        context = Context(model, n_ctx=1024, n_seq_max=4, **options)
        context.encode(texts[::-1], seq_ids=[3, 2, 1, 0])
        start = context.hparams.own["decoder_start"]
        got = [[] for _ in texts]
        for token in (start, *tokens):
            context.decode(Batch([token] * 4, seq_id=[0, 1, 2, 3], logits="all"))
            for rows, row in zip(got, context.logits, strict=True):
                rows.append(row.copy())
        for rows, wanted in zip(got, alone, strict=True):
            assert np.array_equal(rows, wanted)


def test_copied_and_cut_sequences(model: Model) -> None:
    context = Context(model, n_ctx=256, n_seq_max=2)
    (text,), tokens = texts_of("t5")[:1], [5, 6, 7, 8]
    context.encode([text], seq_ids=[0])
    wanted = decoded(context, tokens)
    n = len(text)
    with pytest.raises(BatchError, match="an encoded text is copied as a whole"):
        context.kv.seq_cp(0, 1, 0, n - 1)
    context.kv.seq_cp(0, 1, 0, n + 2)
    context.decode(Batch(tokens[1:], seq_id=1, logits="all"))
    assert np.array_equal(context.logits, wanted[2:])
    assert context.kv.rewind(1, n) == n and context.kv.resume(0, n - 1) == 0
    assert np.array_equal(decoded(context, tokens, seq=1), wanted)
    assert context.kv.rewind(1, n - 1) == 0 and context.kv.length(1) == 0
    with pytest.raises(BatchError, match="sequence 1 has no encoded text"):
        context.decode(Batch([0], seq_id=1))
    with pytest.raises(BatchError, match="sequence 0 is not empty"):
        context.encode([text], seq_ids=[0])
    with pytest.raises(BatchError, match="no context shift"):
        context.kv.seq_add(0, n, -1, 1)


def test_saved_states(model: Model, tmp_path: Path) -> None:
    own = model.hparams.own  # a state is of a model with the same ``repr``, in any process
    assert [*own] == sorted(own)
    context, tokens = Context(model, n_ctx=256, n_seq_max=2), [5, 6, 7, 8]
    text, other = texts_of("t5")[:2]
    context.encode([other, text], seq_ids=[0, 1])
    wanted = decoded(context, tokens, seq=1)
    save_state(context, tmp_path / "all")
    save_state(context, tmp_path / "one", seq=1)
    loaded = Context(model, n_ctx=128, n_seq_max=2)
    load_state(loaded, tmp_path / "one", seq=0)
    assert loaded.kv.encoded(0) == len(text)
    loaded.kv.rewind(0, len(text))
    assert np.array_equal(decoded(loaded, tokens), wanted)
    load_state(loaded, tmp_path / "all")
    assert [loaded.kv.encoded(s) for s in (0, 1)] == [len(other), len(text)]
    data = (tmp_path / "one").read_bytes().replace(b'"encoded"', b'"ecnoded"')
    (tmp_path / "two").write_bytes(data)
    with pytest.raises(StateError):
        load_state(loaded, tmp_path / "two", seq=0)


def test_an_engine_reuses_whole_texts_only(model: Model) -> None:
    record, texts = recorded("t5"), texts_of("t5")
    engine = Engine(Context(model, n_ctx=512, n_seq_max=2))
    wanted = record["greedy"].tolist()
    for i in (0, 1, 0, 4, 0):
        assert greedy(engine, texts[i]) == wanted[i]
    request = Request(texts[0], GREEDY, max_tokens=4, stop_at_eog=False)
    end = [event.usage for event in engine.run(request)][-1]
    assert end is not None and (end.n_prompt, end.n_cached) == (len(texts[0]), len(texts[0]))
    longer = [*texts[0], 0, *wanted[0]]  # begins with all that the cache has
    fresh = greedy(Engine(Context(model, n_ctx=512)), longer)
    assert greedy(engine, longer) == fresh
    assert greedy(engine, texts[0][:5]) == greedy(Engine(Context(model, n_ctx=512)), texts[0][:5])


def test_several_texts_at_once(model: Model) -> None:
    texts, wanted = texts_of("t5"), recorded("t5")["greedy"].tolist()
    for options in ({}, {"n_ubatch": max(map(len, texts))}, {"n_ctx": 400}):
        context = Context(model, **{"n_ctx": 1024, "n_seq_max": 4, **options})
        found: dict[int, list[int]] = {i: [] for i in range(len(texts))}
        for i, event in run_many(context, texts, GREEDY, n_predict=N_GREEDY, text=False):
            found[i] += event.tokens
        for tokens, all_tokens in zip(found.values(), wanted, strict=True):
            assert tokens == all_tokens[: [*all_tokens, 1].index(1) + 1]


def test_several_choices_share_the_encoded_text(model: Model) -> None:
    text, context = texts_of("t5")[0], Context(model, n_ctx=256, n_seq_max=3)
    engine = Engine(context)
    params = SamplingParams(temp=0.0, n=3)
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for event in engine.run(Request(text, params, max_tokens=8, stop_at_eog=False)):
        found[event.choice] += event.tokens
    assert all(tokens == recorded("t5")["greedy"][0, :8].tolist() for tokens in found.values())
    assert context.kv.n_used < 2 * len(text) + 3 * 8


class _Knows:
    """Drafts trees of the right token and a wrong one, for texts that follow a start token."""

    def __init__(self, texts: list[list[int]]) -> None:
        self.texts, self.n_tokens = texts, 0

    def propose(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        found: list[Draft | None] = []
        for view, n in zip(views, max_nodes, strict=True):
            made = view.tokens[len(view.tokens) - view.tokens[::-1].index(0) :]
            text = next(text for text in self.texts if text[: len(made)] == list(made))
            rest = text[len(made) :][: n // 2]
            self.n_tokens += len(rest)
            pairs = [(token, parent) for i, right in enumerate(rest)
                     for token, parent in ((3, 2 * i - 1), (right, 2 * i - 1))]  # fmt: skip
            found.append(Draft(*map(list, zip(*pairs, strict=True))) if pairs else None)
        return found

    def accepted(self, view: DraftView, path: Sequence[int]) -> None:
        """Nothing to do."""

    def release(self, view: DraftView) -> None:
        """Nothing to do."""


def test_drafts_change_no_token(model: Model) -> None:
    texts, wanted = texts_of("t5")[:3], recorded("t5")["greedy"][:3].tolist()
    drafter = _Knows(wanted)
    speculation = Speculation(drafter, max_draft=6, adaptive=False)
    engine = Engine(Context(model, n_ctx=512, n_seq_max=3), speculation=speculation)
    found: dict[int, list[int]] = {}
    for text in texts:
        engine.submit(Request(text, GREEDY, max_tokens=N_GREEDY, stop_at_eog=False))
    while engine.has_work:
        for event in engine.step():
            found.setdefault(event.request, []).extend(event.tokens)
    assert [*found.values()] == wanted and drafter.n_tokens


def test_one_clear_line_for_what_cannot_be(model: Model) -> None:
    engine = Engine(Context(model, n_ctx=128, n_ubatch=64))
    for error, line, tokens, fields in (
        (BatchError, "no tokens to continue", [], {}),
        (BatchError, "must fit into one ubatch of 64", [3] * 65, {}),
        (ContextFull, "use `n_ctx=129` or more", [3] * 127, {}),
        (BatchError, "no context shift", [3], {"n_keep": 1}),
        (BatchError, "have no probabilities", [3], {"sampling": SamplingParams(prompt_logprobs=1)}),
    ):
        with pytest.raises(error, match=line):
            engine.submit(Request(tokens, **fields))
    with pytest.raises(BatchError, match="the decoder's attention must be causal"):
        Context(model, overrides=Overrides(causal=False))
    with pytest.raises(BatchError, match="heads draft for decoders only"):
        engine.context.keep_hidden(HiddenReads(("l_out-0",)))
