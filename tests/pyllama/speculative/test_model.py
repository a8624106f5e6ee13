"""Drafts of a model: the target's text does not change, and what a text gets drafted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pyllama import Batch, Context, Model
from pyllama.sampling import Chain, SamplingParams
from pyllama.speculative.draft import Drafter
from pyllama.speculative.model import draft_model
from pyllama.speculative.translate import Translated
from pyllama.speculative.verify import Verifier

from ..conftest import Make
from ..models import Spec, random_weights, write_model
from ..tokenizer.vocabularies import spm
from .views import Text

GREEDY = SamplingParams(temp=0.0)
TOKENS = np.random.default_rng(26).integers(3, 261, 4000).tolist()
PROMPTS = [TOKENS[:3], TOKENS[10:50], TOKENS[60:61], TOKENS[70:340]]
DRAWN = SamplingParams(temp=1.0, top_k=5, seed=3, samplers=("top_k", "temperature"))


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


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model that has the target's output layer, so that it is often right."""
    spec = Spec(n_ctx=2048, n_layer=3)
    weights, blocks = random_weights(spec), random_weights(spec, 1)
    weights |= {name: x for name, x in blocks.items() if name.startswith("blk.2")}
    return Model.load(write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, weights))


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temp=0.8, seed=5)], ids=["greedy", "t"])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("which", ["same", "other"])
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
    assert context.kv.n_used == 0


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
    assert context.kv.n_used == 0
