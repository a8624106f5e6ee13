"""Texts of models with recurrent layers: what is read again, drafts, batches, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyllama import Batch, Context, Model
from pyllama.convert import convert
from pyllama.engine import Engine, Request
from pyllama.errors import BatchError
from pyllama.runtime.checkpoints import checkpoint_positions
from pyllama.runtime.state import load_state, save_state
from pyllama.sampling import SamplingParams
from pyllama.tokenizer.special import CONTROL

from ..arch.checkpoints import long_but, write_checkpoint
from .test_drafts import oracle, plain, run

TOKENS = np.random.default_rng(4).integers(20, 500, 300).tolist()
GREEDY = SamplingParams(temp=0.0, ignore_eos=True)
BEGIN = 300  # a control token in these tests


@pytest.fixture(
    scope="module", params=long_but(("mamba2", "lfm2", "qwen35", "rwkv7"), ("mamba2", "lfm2"))
)
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("m")
    path = convert(write_checkpoint(folder / "x", request.param), folder / "x.gguf", "f32")
    model = Model.load(path)
    model.tokenizer.vocab.types[BEGIN] = CONTROL
    return model


def context(model: Model, **options: Any) -> Context:
    return Context(model, **{"n_ctx": 1024, "type_k": GGMLType.F32, **options})


def answer(engine: Engine, tokens: Sequence[int], n: int = 10) -> tuple[list[int], int]:
    """A greedy text, and how many tokens of its prompt were in the cache."""
    events = list(engine.run(Request(list(tokens), GREEDY, max_tokens=n, text=False)))
    return [t for event in events for t in event.tokens], events[-1].usage.n_cached


def fresh(model: Model, tokens: Sequence[int], n: int = 10) -> list[int]:
    return answer(Engine(context(model)), tokens, n)[0]


def test_a_conversation_in_which_each_turn_edits_the_last_message(model: Model) -> None:
    engine, told = Engine(context(model)), [BEGIN, *TOKENS[:20]]
    for turn in range(20):
        message = [BEGIN, *TOKENS[20 + 5 * turn : 32 + 5 * turn]]
        reply, n_cached = answer(engine, told + message)
        assert n_cached == len(told) - 1 or turn == 0  # the reply's last token was never read
        edited = [*message[:4], *TOKENS[-7:]]
        reply, n_cached = answer(engine, told + edited)
        assert n_cached >= len(told)  # only the edited message is read again
        assert reply == fresh(model, told + edited)
        told += [*edited, *reply]


def test_the_same_prompt_again(model: Model) -> None:
    engine = Engine(context(model))
    first = answer(engine, TOKENS[:50])
    assert answer(engine, TOKENS[:50]) == (first[0], 49)


def test_without_checkpoints_all_is_read_again(model: Model) -> None:
    engine = Engine(context(model, n_checkpoints=0))
    answer(engine, TOKENS[:50])
    assert answer(engine, TOKENS[:49]) == (fresh(model, TOKENS[:49]), 0)


@pytest.mark.parametrize("n_texts", [1, 4])
def test_drafts_change_no_token(model: Model, n_texts: int) -> None:
    requests = [
        Request(TOKENS[9 * i : 10 * i + 20], GREEDY, max_tokens=25 + i) for i in range(n_texts)
    ]
    options = {"n_ctx": 512, "n_seq_max": n_texts}
    without = run(context(model, **options), requests)
    for error, width in ((0.0, 1), (0.3, 1), (1.0, 1), (0.3, 2)):
        drafter = oracle(requests, without, error=error, width=width)
        events = run(context(model, **options), requests, drafter)
        assert [plain(one) for one in events] == [plain(one) for one in without]
        assert sum(e.drafted for one in events for e in one) > 0 or error == 1


def test_texts_of_one_batch_have_the_tokens_that_each_has_alone(model: Model) -> None:
    prompts = [TOKENS[i : 3 * i + 7] for i in range(4)]
    requests = [Request(prompt, GREEDY, max_tokens=12) for prompt in prompts]
    events = run(context(model, n_seq_max=4), requests)
    for prompt, one in zip(prompts, events, strict=True):
        assert [t for event in one for t in event.tokens] == fresh(model, prompt, 12)


def test_tokens_of_sequences_in_turns(model: Model) -> None:
    alone = context(model)
    alone.decode(Batch(TOKENS[:6]))
    both = context(model, n_seq_max=2)
    tokens = [t for i in range(6) for t in (TOKENS[i], TOKENS[-i])]
    both.decode(Batch(tokens, seq_id=[0, 1] * 6, logits=[i == 10 for i in range(12)]))
    assert np.array_equal(both.logits, alone.logits)


def test_what_a_state_cannot_forget_is_refused(model: Model) -> None:
    ctx = context(model)
    ctx.decode(Batch(TOKENS[:30], checkpoints=[19]))
    with pytest.raises(BatchError, match=r"cannot go back to position 25.*of position 20"):
        ctx.kv.seq_rm(0, 25)
    with pytest.raises(BatchError, match="cannot forget 3 to 5 alone"):
        ctx.kv.seq_rm(0, 3, 6)
    with pytest.raises(BatchError, match="recurrent layers"):
        ctx.kv.seq_add(0, 0, -1, 1)
    with pytest.raises(BatchError, match="cannot be a tree"):
        ctx.decode(Batch([5, 6, 7], parent=[-1, 0, 0]))
    assert ctx.kv.rewind(0, 25) == 20
    ctx.kv.forget(0, 15)  # as after a decode that failed
    assert ctx.kv.seq_pos_max(0) == -1


def test_states_are_kept_every_so_many_tokens(model: Model) -> None:
    engine = Engine(context(model, checkpoint_every=8))
    reply, _ = answer(engine, TOKENS[:21], 30)
    for n in (46, 30):  # within the reply
        assert answer(engine, [*(TOKENS[:21] + reply)[:n], 5, 6])[1] == n - n % 8
    assert answer(Engine(context(model)), TOKENS[:21], 30)[0] == reply


def test_where_messages_begin(model: Model) -> None:
    vocab = model.tokenizer.vocab
    (end, *_) = vocab.eog
    tokens = [BEGIN, 5, 6, end, BEGIN, BEGIN, 7, 8, BEGIN, 9, end, 10, 11]
    assert checkpoint_positions(tokens, vocab, 9) == [4, 8, 12]
    assert checkpoint_positions(tokens, vocab, 2) == [8, 12]
    assert checkpoint_positions(tokens, vocab, 0) == []


def test_a_saved_state_has_its_checkpoints(model: Model, tmp_path: Path) -> None:
    ctx = context(model)
    ctx.decode(Batch(TOKENS[:30], checkpoints=[9, 19]))
    save_state(ctx, tmp_path / "x", seq=0)
    other = context(model, n_seq_max=2)
    load_state(other, tmp_path / "x", seq=1)
    for one, seq in ((ctx, 0), (other, 1)):
        assert [one.kv.rewind(seq, n) for n in (29, 19)] == [20, 10]
        one.decode(Batch(TOKENS[10:15], seq_id=seq))
    assert np.array_equal(ctx.logits, other.logits)
    fewer = context(model, n_checkpoints=1)
    load_state(fewer, tmp_path / "x", seq=0)
    assert [fewer.kv.resume(0, n) for n in (29, 19)] == [20, 0]  # the older one has no place
