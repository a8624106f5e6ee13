"""Drafts of a model: the target's text does not change, and what a text gets drafted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.errors import Aborted, ComputeError
from pyggml.sched import Schedule
from pyllama import Batch, Context, Model
from pyllama.convert import convert
from pyllama.errors import BatchError, DraftError, ModelError
from pyllama.runtime.overrides import Overrides
from pyllama.sampling import Chain, SamplingParams
from pyllama.speculative.draft import Draft, Drafter
from pyllama.speculative.model import LIKELIEST, ModelDrafter, draft_model, self_draft
from pyllama.speculative.translate import Translated
from pyllama.speculative.verify import Verifier
from pyllama.tokenizer import load_tokenizer

from ...tiers import only, some
from ..arch.checkpoints import write_checkpoint
from ..conftest import Make
from ..models import Spec, random_weights, write_model
from ..sparsity.files import sparse_file
from ..tokenizer.vocabularies import spm
from .test_verify import CASES, LOGITS, N_SAMPLES, N_TOKENS, N_VOCAB, Kept, expected, p_value
from .test_verify import context as last_two
from .views import Text, drafted

GREEDY = SamplingParams(temp=0.0)
TOKENS = np.random.default_rng(26).integers(3, 261, 4000).tolist()
PROMPTS = [TOKENS[:3], TOKENS[10:50], TOKENS[60:61], TOKENS[70:340]]
OPEN = {"p_min": 0.0, "p_split": 0.01}


@dataclass
class Counts:
    """Drafted and accepted tokens, and the target's decodes."""

    drafted: int = 0
    accepted: int = 0
    steps: int = 0


def plain(target: Context, prompt: list[int], n: int, params: SamplingParams) -> list[int]:
    """The target's own text."""
    chain, tokens = Chain(params, target.hparams.n_vocab), list(prompt)
    chain.accept_prompt(prompt)
    target.kv.clear()
    target.decode(Batch(tokens))
    for _ in range(n):
        tokens.append(chain.sample(target.logits_ith(0)))
        chain.accept(tokens[-1])
        target.decode_token(tokens[-1])
    return tokens[len(prompt) :]


def speculated(
    target: Context,
    drafter: Drafter,
    prompts: list[list[int]],
    n: int,
    params: SamplingParams = GREEDY,
    max_nodes: int = 6,
) -> tuple[list[list[int]], Counts]:
    """The texts with drafts: of all texts at once, verified one by one."""
    counts, texts = Counts(), [Text(list(prompt), i) for i, prompt in enumerate(prompts)]
    verifiers = [Verifier(Chain(params, target.hparams.n_vocab)) for _ in prompts]
    target.kv.clear()
    for text, verifier in zip(texts, verifiers, strict=True):
        verifier.chain.accept_prompt(text.tokens)
        if text.tokens[:-1]:
            target.decode(Batch(text.tokens[:-1], seq_id=text.id, logits="none"))
    going = texts
    while going := [t for t in going if len(t.tokens) < len(prompts[t.id]) + n]:
        for text, draft in zip(
            going, drafter.propose(going, [max_nodes] * len(going)), strict=True
        ):
            tokens, parent = [] if draft is None else draft.tokens, [-1]
            if draft is not None:
                draft.check(target.hparams.n_vocab)
                assert 0 < len(draft) <= max_nodes
                parent += [i + 1 for i in draft.parent]
            batch = Batch([text.tokens[-1], *tokens], seq_id=text.id, logits="all", parent=parent)
            target.decode(batch)
            verdict = verifiers[text.id].verify(draft, target.logits.__getitem__)
            target.kv.commit_tree(text.id, [0, *(node + 1 for node in verdict.path)])
            text.tokens += verdict.tokens
            drafter.accepted(text, verdict.path)
            counts.drafted += len(tokens)
            counts.accepted += len(verdict.path)
            counts.steps += 1
    for text in texts:
        drafter.release(text)
    return [t.tokens[len(prompts[t.id]) : len(prompts[t.id]) + n] for t in texts], counts


def all_idle(drafter: Any) -> bool:
    """Whether each sequence waits for a text, and has the cells of the tokens that it holds."""
    own = getattr(drafter, "inner", drafter)
    kv, idle = own.context.kv, own._idle
    return len(idle) == kv.n_seq_max and all(kv.length(seq) == len(held) for seq, held in idle)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model that has the target's output layer, so that it is often right."""
    spec = Spec(n_ctx=2048, n_layer=3)
    weights, blocks = random_weights(spec), random_weights(spec, 1)
    weights |= {name: x for name, x in blocks.items() if name.startswith("blk.2")}
    return Model.load(write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, weights))


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temp=0.8, seed=5)], ids=["greedy", "t"])
@pytest.mark.parametrize("width", some([1, 2, 3, 4], 2))
@pytest.mark.parametrize("which", only(["same", "other"], ["other"]))
def test_point_masses_do_not_change_the_text(
    which: str, width: int, params: SamplingParams, make: Make, other: Model
) -> None:
    target = make(n_ctx=1024, n_seq_max=4)
    context = Context(target.model if which == "same" else other, n_ctx=1024, n_seq_max=4)
    tokenizer = target.model.tokenizer
    drafter = draft_model(tokenizer, context, width=width, p_min=0.0, p_split=0.01)
    wanted = [plain(target, prompt, 40, params) for prompt in PROMPTS]
    found, counts = speculated(target, drafter, PROMPTS, 40, params)
    assert found == wanted and 0 < counts.accepted <= counts.drafted
    if which == "same" and params is GREEDY:
        assert counts.accepted == counts.drafted if width == 1 else counts.steps < 4 * 40 / 2.5
    assert all_idle(drafter)


@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_drafts_of_another_vocabulary(temp: float, tmp_path: Path) -> None:
    spec = Spec(n_ctx=512, n_vocab=260)
    vocabulary = spm("▁", add_space_prefix=False)
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec), metadata=vocabulary)
    target = Context(Model.load(path), n_ctx=512, n_seq_max=2)
    spec = Spec(n_ctx=512, n_vocab=512)
    path = write_model(tmp_path / "y.gguf", spec, random_weights(spec, 2))
    context = Context(Model.load(path), n_ctx=512, n_seq_max=2)
    printable = range(3 + 32, 3 + 127)
    params = SamplingParams(temp=temp, seed=2, allowed_token_ids=tuple(printable))
    sampling = SamplingParams(temp=0.0, allowed_token_ids=tuple(range(259, 512)))
    tokenizer = target.model.tokenizer
    drafter = draft_model(tokenizer, context, sampling, width=3, p_min=0.0)
    assert isinstance(drafter, Translated)
    prompts = [tokenizer.encode(text) for text in ("The capital of France is", "One, two")]
    wanted = [plain(target, prompt, 40, params) for prompt in prompts]
    found, counts = speculated(target, drafter, prompts, 40, params)
    assert found == wanted and counts.drafted > 40
    assert all_idle(drafter)


def shape(draft: Draft | None) -> tuple[list[int], list[int]] | None:
    """Tokens and parents."""
    return None if draft is None else (draft.tokens, draft.parent)


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # of the drafter, and of its context
    "chains": ({}, {}),
    "stops": ({"p_min": 0.02}, {"n_batch": 7}),
    "trees": ({"width": 3}, {}),
    "wide trees, small batches": ({"width": 8, "p_split": 0.0}, {"n_batch": 16, "n_ubatch": 9}),
    "own cells": ({"width": 2}, {"unified": False}),
    "penalties": (
        {"width": 2, "sampling": SamplingParams(temp=0.0, repeat_penalty=1.5, top_k=20)},
        {},
    ),
    "chains with penalties": ({"sampling": SamplingParams(temp=0.0, presence_penalty=0.5)}, {}),
}


@pytest.mark.parametrize("name", some([*OPTIONS, "windows"], 3))
def test_several_texts_get_the_drafts_of_each_alone(
    name: str, make: Make, request: pytest.FixtureRequest
) -> None:
    """Whatever tokens they get or lose, also in the middle or all of them."""
    given, sizes = OPTIONS.get(name, ({"width": 2}, {"n_ubatch": 64}))
    new = request.getfixturevalue("windowed") if name == "windows" else make
    several = ModelDrafter(new(n_ctx=2400, n_seq_max=4, **sizes), **{**OPEN, **given})
    fresh = new(n_ctx=600, **{**sizes, "unified": True})
    random = np.random.default_rng(1)
    texts = [Text(TOKENS[100 * i : 100 * i + n], i) for i, n in enumerate((5, 90, 1, 300))]
    n_nodes = 0
    for _ in range(16):
        views = [text for text in texts if random.random() < 0.8]
        sizes_of_drafts = [int(random.integers(0, 8)) for _ in views]
        drafts = several.propose(views, sizes_of_drafts)
        for view, draft, n in zip(views, drafts, sizes_of_drafts, strict=True):
            alone = ModelDrafter(fresh, **{**OPEN, **given}).propose([view], [n])[0]
            assert shape(draft) == shape(alone) and (n == 0) == (draft is None)
            accepted = []
            if draft is not None:
                draft.check(261)
                n_nodes += len(draft)
                path = draft.path(int(random.integers(-1, len(draft))))
                accepted = [draft.tokens[node] for node in path]
            view.tokens += [*accepted, int(random.integers(3, 261))]
        text = texts[random.integers(4)]
        what, n = random.integers(5), len(text.tokens)
        if what == 0:
            del text.tokens[n // 3 : n // 2]
        elif what == 1:
            text.tokens = TOKENS[n : n + int(random.integers(1, 200))]
        elif what == 2:
            several.release(text)
    assert n_nodes > 100
    for text in texts:
        several.release(text)
    assert all_idle(several)


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("recurrent")
    return Model.load(convert(write_checkpoint(folder / "x", "mamba2"), folder / "x.gguf", "f32"))


def test_a_recurrent_model_drafts_chains(recurrent: Model) -> None:
    narrow, wide = (ModelDrafter(Context(recurrent, n_ctx=64), width=n, **OPEN) for n in (1, 3))
    assert drafted(wide, TOKENS[:9], 5) == drafted(narrow, TOKENS[:9], 5)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("error", [Aborted, ComputeError])
@pytest.mark.parametrize("is_recurrent", [False, True])
def test_a_failed_decode(
    error: type[Exception], width: int, is_recurrent: bool, model: Model, recurrent: Model,
    monkeypatch: pytest.MonkeyPatch, caplog: Any,
) -> None:  # fmt: skip
    """An abort is passed on; other errors end the drafts. Nothing is out of step afterwards."""
    texts, run = [Text(TOKENS[:40], 0), Text(TOKENS[50:53], 1)], Schedule.run
    chosen = recurrent if is_recurrent else model
    context, left = Context(chosen, n_ctx=256, n_seq_max=2, n_batch=16, n_threads=2), [0]

    def counted(schedule: Schedule) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise error("stopped")
        run(schedule)

    monkeypatch.setattr(Schedule, "run", counted)
    drafter, left[0] = ModelDrafter(context, width=width, **OPEN), 0
    wanted = [shape(draft) for draft in drafter.propose(texts, [5, 5])]
    n_runs = -left[0]
    assert n_runs > 3
    for i in range(1, n_runs + 1):
        drafter, left[0] = ModelDrafter(context, width=width, **OPEN), i
        if error is Aborted:
            with pytest.raises(Aborted):
                drafter.propose(texts, [5, 5])
        else:
            for draft, whole in zip(drafter.propose(texts, [5, 5]), wanted, strict=True):
                assert whole is not None
                assert draft is None or draft.tokens == whole[0][: len(draft)]
            assert "no draft: stopped" in caplog.text
            caplog.clear()
        assert [shape(draft) for draft in drafter.propose(texts, [5, 5])] == wanted


@pytest.mark.parametrize("unified", [True, False])
def test_texts_that_do_not_fit_get_no_drafts(unified: bool, make: Make) -> None:
    n_ctx = 64 if unified else 64 * 3
    drafter = ModelDrafter(make(n_ctx=n_ctx, n_seq_max=3, unified=unified), **OPEN)
    kv = drafter.context.kv
    long = [Text(TOKENS[:n], i) for i, n in enumerate((64, 65))]
    assert len(drafter.propose(long[:1], [9])[0] or ()) == 1 and kv.n_used == 64
    assert drafter.propose(long[1:], [9]) == [None]
    drafter.release(long[0])
    drafter.release(long[1])
    texts = [Text(TOKENS[i : i + 25], i) for i in range(4)]
    found = [draft is not None for draft in drafter.propose(texts, [4] * 4)]
    assert found == [True, True, not unified, False]  # cells are shared, and three sequences
    if unified:
        texts[0].tokens += TOKENS[40:53]  # 38 and 25: one cell is free
        drafts = drafter.propose(texts[:2], [30] * 2)
        assert [len(draft or ()) for draft in drafts] == [2, 1] and kv.n_used == 64
        texts[1].tokens += TOKENS[60:62]
        found = [draft is not None for draft in drafter.propose(texts[:2], [30] * 2)]
        assert found == [True, False] and kv.n_used == 64
    drafter.release(texts[0])
    drafter.release(texts[1])
    assert len(drafter.propose(texts[2:], [4] * 2)[0] or ()) == 4
    texts[2].tokens += TOKENS[:99]
    assert drafter.propose(texts[2:3], [4]) == [None]
    del texts[2].tokens[2:-9]
    assert len(drafter.propose(texts[2:3], [4])[0] or ()) == 4


def test_tokens_that_only_one_vocabulary_has(make: Make) -> None:
    """Ids beyond those of the target are not drafted; texts with unknown ids get no draft."""
    drafter = ModelDrafter(make(), **OPEN, n_vocab=150)
    tokens = TOKENS[:2]
    tokens = [token % 150 for token in tokens]
    found = [drafted(drafter, [*tokens, i], 8) for i in range(40)]
    assert all(len(x) == 8 and max(x) < 150 for x in found)
    assert drafter.propose([Text([*tokens, 150]), Text([-1], 1)], [4, 4]) == [None, None]
    assert drafter.propose([Text([], 1), Text(tokens, 1)], [4, 0]) == [None, None]


@pytest.mark.parametrize("width", [1, 3])
def test_distributions_are_those_of_the_drafts_own_chain(width: int, make: Make) -> None:
    params = SamplingParams(seed=3, temp=1.5, top_k=12, repeat_penalty=1.8, presence_penalty=0.3)
    drafter, single = ModelDrafter(make(n_ctx=128), params, width=width, **OPEN), make(n_ctx=128)
    text = Text(TOKENS[:20])
    n_nodes = 0
    for _ in range(6):
        draft = drafter.propose([text], [8])[0]
        assert draft is not None and draft.q is not None
        draft.check(261)
        n_nodes += len(draft)
        for parent in {*draft.parent}:
            chain = Chain(params, 261)
            path = [draft.tokens[node] for node in draft.path(parent)]
            chain.accept_prompt([*text.tokens, *path])
            single.kv.clear()
            single.decode(Batch([*text.tokens, *path]))
            q = chain.distribution(single.logits_ith(0))
            children = [i for i, other in enumerate(draft.parent) if other == parent]
            assert q is not None and len(children) <= width
            for node in children:
                assert draft.q[node] is draft.q[children[0]]
                assert q.probs[q.ids == draft.tokens[node]][0] > 0
            assert np.array_equal(draft.q[children[0]].ids, q.ids)
            assert np.array_equal(draft.q[children[0]].probs, q.probs)
        text.tokens += [draft.tokens[0], TOKENS[n_nodes]]
    assert n_nodes == 48


def sampled(
    case: str, make: Make, n: int = N_SAMPLES, cut: float = 0.0, **options: Any
) -> dict[Any, int]:
    """How often each text of three tokens was made; ``cut`` as llama.cpp's ``p_min``."""
    params = SamplingParams(seed=7, **CASES[case][2])
    drafter = ModelDrafter(make(n_threads=1), params, n_vocab=N_VOCAB, **options)
    chain, counts, n_drafted = Kept(case), {}, 0
    verifier = Verifier(chain)
    for _ in range(n):
        chain.text = ()
        while len(chain.text) < N_TOKENS:
            start = chain.text
            draft = drafter.propose([Text([0, *start])], [2 + 2 * (options["width"] > 1)])[0]
            if draft is not None and cut and draft.q is not None:
                found = zip(draft.tokens, draft.q, strict=True)
                is_kept = [q.probs[q.ids == token][0] >= cut for token, q in found]
                draft = draft.first([*is_kept, False].index(False))
            texts = [start]
            if draft is not None:
                n_drafted += len(draft)
                nodes = range(len(draft))
                texts += [(*start, *(draft.tokens[i] for i in draft.path(node))) for node in nodes]
            verdict = verifier.verify(
                draft,
                lambda i, texts=texts: LOGITS[last_two(texts[i])],
                lambda _: len(chain.text) == N_TOKENS,
            )
            assert chain.text == (*start, *verdict.tokens)
        counts[chain.text] = counts.get(chain.text, 0) + 1
    assert n_drafted > n
    return counts


@pytest.mark.long
@pytest.mark.parametrize(("case", "width"), [("grammar", 1), ("narrow draft, penalties", 3)])
def test_texts_have_the_targets_distribution(case: str, width: int, make: Make) -> None:
    found = sampled(case, make, width=width, p_min=0.45, p_split=0.2)
    assert p_value(found, expected(case)) > 1e-3


@pytest.mark.long
def test_a_threshold_on_the_drawn_token_is_found_to_be_wrong(make: Make) -> None:
    case = "narrow draft, penalties"
    assert p_value(sampled(case, make, 5000, 0.3, width=1, p_min=0.0), expected(case)) < 1e-6


def test_a_context_drafts_for_another_one_of_its_model(make: Make) -> None:
    target = make(n_ctx=1024, n_seq_max=4, overrides=Overrides(rope_freq_base=500.0))
    wanted = [plain(target, prompt, 24, GREEDY) for prompt in PROMPTS]
    whole, first = self_draft(target, **OPEN), self_draft(target, n_layer=2, **OPEN)
    assert whole.context.kv.size_bytes == target.kv.size_bytes == first.context.kv.size_bytes * 1.5
    for drafter in (whole, first):
        found, counts = speculated(target, drafter, PROMPTS, 24)
        assert found == wanted
        assert (counts.accepted == counts.drafted) == (drafter is whole)
    with pytest.raises(BatchError, match="no layer of this context has predicted scores"):
        self_draft(target, threshold=0.5)


def test_a_sparse_model_drafts_with_a_higher_threshold(tmp_path: Path) -> None:
    model = Model.load(sparse_file(tmp_path, "llama_relu"))
    target = Context(model, n_ctx=128, n_seq_max=2)
    n_vocab, own = model.hparams.n_vocab, model.hparams.sparse_threshold
    prompts = [[token % n_vocab for token in prompt[:30]] for prompt in PROMPTS[:2]]
    wanted = [plain(target, prompt, 24, GREEDY) for prompt in prompts]
    accepted = []
    for threshold in (None, own, own + 0.5):
        found, counts = speculated(
            target, self_draft(target, threshold=threshold, **OPEN), prompts, 24
        )
        assert found == wanted
        accepted.append(counts.accepted / counts.drafted)
    assert accepted[0] == accepted[1] == 1 > accepted[2]


def test_settings_that_cannot_be(make: Make) -> None:
    context = make()
    for options, message in (
        ({"width": 0}, "width is 0, want 1 to 64"),
        ({"p_min": 1.5}, "p_min is 1.5, want 0 to 1"),
        ({"p_split": float("nan")}, "p_split is nan, want 0 to 1"),
    ):
        with pytest.raises(DraftError, match=message):
            ModelDrafter(context, **options)
    context.hparams = replace(context.hparams, causal=False)
    with pytest.raises(ModelError, match="tokens attend to later ones: this model cannot draft"):
        ModelDrafter(context)


@pytest.mark.parametrize("params", [{"mirostat": 2}, {"samplers": ("adaptive_p",)}], ids=str)
def test_chains_without_a_distribution_draft_their_samples(
    params: dict[str, Any], make: Make
) -> None:
    drafter = ModelDrafter(make(), SamplingParams(seed=1, **params), width=3)
    draft = drafter.propose([Text(TOKENS[:9])], [5])[0]
    assert draft is not None and draft.q is None and draft.is_chain and len(draft) == 5


def test_end_tokens_that_the_target_lacks(tmp_path: Path) -> None:
    spec = Spec()
    ends = {"tokenizer.ggml.eos_token_id": 260}
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec), metadata=ends)
    context, target = Context(Model.load(path), n_ctx=64), load_tokenizer(spm())
    for sampling in (LIKELIEST, SamplingParams(seed=1, ignore_eos=True)):
        drafter = draft_model(target, context, sampling)
        (draft,) = drafter.propose([Text(TOKENS[:9])], [5])
        assert draft is not None and max(draft.tokens) < target.n_vocab == 259


def test_a_new_text_uses_the_tokens_of_one_that_has_ended(make: Make) -> None:
    context = make(n_ctx=512, n_seq_max=2)
    drafter, held = ModelDrafter(context, **OPEN), list[int]()
    decode = context.decode

    def counted(batch: Batch) -> None:
        held.append(context.kv.n_used)
        decode(batch)
        assert context.kv.n_used == held[-1] + len(batch.tokens)

    context.decode = counted  # type: ignore[method-assign]
    first, second = Text(TOKENS[:100], 0), Text(TOKENS[:150], 1)
    drafter.propose([first], [1])
    assert held[0] == 0 and context.kv.n_used == 100
    drafter.release(first)
    held.clear()
    (found,) = drafter.propose([second], [3])
    assert held[0] == 100 and min(held) == 100
    (alone,) = ModelDrafter(make(n_ctx=512), **OPEN).propose([second], [3])
    assert found is not None and alone is not None and found.tokens == alone.tokens
    drafter.release(second)
    long = Text(TOKENS[200:700], 2)  # needs all cells
    assert drafter.propose([long], [3])[0] is not None and context.kv.n_used <= 512
