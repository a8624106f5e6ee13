"""Drafts in another vocabulary become tokens of the target with the same text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllama.speculative.draft import Draft, DraftView
from pyllama.speculative.suffix import SuffixDecoding
from pyllama.speculative.translate import Translated, mismatch, translated_bias
from pyllama.tokenizer import Tokenizer, load_tokenizer

from ..tokenizer.vocabularies import DATA, gpt2_metadata, spm, spm_metadata
from .views import Text

LLAMA = load_tokenizer(spm_metadata(DATA / "llama" / "tokenizer.model"))
GPT2 = load_tokenizer(gpt2_metadata(DATA / "gpt2"))
BOTH = [(LLAMA, GPT2), (GPT2, LLAMA)]
TEXT = "The capital of France is Paris, and that of Japan is Tokyo – naïve 日本語 text. " * 4


@dataclass
class Reciter:
    """Proposes the tokens of a text after those that it sees."""

    tokenizer: Tokenizer
    text: str
    seen: list[list[int]] = field(default_factory=list)
    released: list[int] = field(default_factory=list)

    def propose(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        drafts: list[Draft | None] = []
        for view, n in zip(views, max_nodes, strict=True):
            self.seen.append(list(view.tokens))
            pieces = [self.tokenizer.token_to_piece(token) for token in view.tokens]
            known = b"".join(pieces).removeprefix(b" ").decode()
            assert self.text.startswith(known)
            ids = self.tokenizer.encode(self.text, add_special=False)
            size, at = len(known.encode()), 0
            joined = b""
            while len(joined.removeprefix(b" ")) < size:
                joined, at = joined + self.tokenizer.token_to_piece(ids[at]), at + 1
            aligned = len(joined.removeprefix(b" ")) == size
            drafts.append(Draft.chain(ids[at : at + n]) if aligned and ids[at:] else None)
        return drafts

    def accepted(self, view: DraftView, path: Sequence[int]) -> None: ...

    def release(self, view: DraftView) -> None:
        self.released.append(view.id)


@pytest.mark.parametrize(("target", "draft"), BOTH, ids=["llama", "gpt2"])
def test_a_drafter_that_knows_the_text_is_right(target: Tokenizer, draft: Tokenizer) -> None:
    """Nearly always: only the last token of a proposal may be cut otherwise."""
    ids, inner = target.encode(TEXT, add_special=False), Reciter(draft, TEXT)
    drafter = Translated(inner, target, draft)
    n_drafted = n_right = n_last = 0
    for i in range(1, len(ids)):
        made = drafter.propose([Text(ids[:i], 7)], [6])[0]
        if made is not None:
            made.check(target.n_vocab)
            assert made.q is None and len(made) <= 6
            right = [a == b for a, b in zip(made.tokens, ids[i:], strict=False)]
            n_drafted, n_right = n_drafted + len(right[:-1]), n_right + sum(right[:-1])
            n_last += 1
    assert n_drafted > 2 * len(ids) and n_right > 0.97 * n_drafted
    assert n_last > 0.6 * len(ids)
    seen = inner.seen[-1][draft.vocab.begin is not None :]
    assert seen == draft.encode(target.decode(ids[:-1]), add_special=False)
    drafter.release(Text(ids, 7))
    assert inner.released == [7]


@given(st.text(max_size=40), st.data())
@settings(deadline=None, max_examples=60)
def test_proposals_have_the_text_of_the_draft(text: str, data: st.DataObject) -> None:
    """Any text, also with characters that are incomplete, and any proposal."""
    target, draft = data.draw(st.sampled_from(BOTH))
    before = target.encode(text, add_special=False)
    before = before[: data.draw(st.integers(0, len(before)))]
    proposed = draft.encode(data.draw(st.text(min_size=1, max_size=20)), add_special=False)

    class Inner(Reciter):
        def propose(
            self, views: Sequence[DraftView], max_nodes: Sequence[int]
        ) -> list[Draft | None]:
            return [Draft.chain(proposed)] if proposed else [None]

    made = Translated(Inner(draft, ""), target, draft).propose([Text(before or [1])], [99])[0]
    if made is None:
        return
    known = b"".join(map(target.token_to_piece, before))
    said = b"".join(map(draft.token_to_piece, proposed))
    wanted = b"".join(map(target.token_to_piece, made.tokens))
    # up to an incomplete character, which both have
    if not known and target is LLAMA:
        wanted = wanted.removeprefix(b" ")  # the one before a text
    assert any(said[n : n + len(wanted)] == wanted for n in range(4) if known.endswith(said[:n]))


@pytest.mark.parametrize(("target", "draft"), BOTH, ids=["llama", "gpt2"])
def test_a_drafter_learns_texts_that_have_ended(target: Tokenizer, draft: Tokenizer) -> None:
    ids, drafter = target.encode(TEXT), Translated(SuffixDecoding(), target, draft)
    drafter.propose([Text(ids[:10], 0)], [4])
    drafter.release(Text(ids[: len(ids) // 4], 0))  # without the repetitions
    (made,) = drafter.propose([Text(ids[:10], 1)], [6])
    assert made is not None and made.tokens[:-1] == ids[10:][: len(made) - 1] != []


def test_special_tokens_are_translated_by_their_role_or_text() -> None:
    roles = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    target = load_tokenizer(spm_metadata(DATA / "llama" / "tokenizer.model") | roles)
    roles = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}  # other ids
    draft = load_tokenizer(gpt2_metadata(DATA / "gpt2") | roles)
    said = [*draft.encode(" end.", add_special=False), 1, 50]

    class Ends(Reciter):
        def propose(
            self, views: Sequence[DraftView], max_nodes: Sequence[int]
        ) -> list[Draft | None]:
            self.seen.append(list(views[0].tokens))
            return [Draft.chain(said)]

    inner = Ends(draft, "")
    drafter = Translated(inner, target, draft)
    before = [*target.encode("One.", add_special=False), 2, *target.encode("The")]
    made = drafter.propose([Text(before)], [9])[0]
    assert made is not None and made.tokens[-1] == 2
    assert target.decode([*target.encode("The"), *made.tokens[:-1]]) == "The end."
    assert 1 in inner.seen[0]
    text = draft.decode(inner.seen[0], special=True)
    assert text.endswith(("<pad><s>The", "<pad><s> The"))
    shorter = drafter.propose([Text(before[:2])], [2])[0]  # a text that was shifted
    assert shorter is not None and len(shorter) == 2


def test_a_logit_bias_is_translated_by_role_or_text() -> None:
    roles = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    draft = load_tokenizer(gpt2_metadata(DATA / "gpt2") | roles)
    (the,), (same,) = (t.encode(" the", add_special=False)[-1:] for t in (LLAMA, draft))
    assert translated_bias({2: -9.0, the: 2.0, 9999: 1.0}, LLAMA, draft) == {1: -9.0, same: 2.0}
    assert translated_bias({1: -9.0, same: 2.0, 9999: 1.0}, draft, LLAMA) == {2: -9.0, the: 2.0}
    one, larger = (load_tokenizer(spm("ab", *more)) for more in ([], ["cd"]))
    assert translated_bias({5: 1.0, 260: 2.0}, larger, one) == {5: 1.0}
    assert translated_bias({5: 1.0, 259: 2.0}, one, larger) == {5: 1.0, 259: 2.0}


def test_mismatch() -> None:
    assert mismatch(LLAMA, LLAMA) is None
    assert mismatch(LLAMA, GPT2) == "the vocabularies' types differ: llama and gpt2"
    one, other = (load_tokenizer(spm("ab", last)) for last in ("cd", "ce"))
    assert mismatch(one, other) == "token 260 is 'cd' in one vocabulary and 'ce' in the other"
    larger = load_tokenizer(spm("ab", "cd", *(f"x{i}" for i in range(128))))
    assert mismatch(one, larger) is None
    larger = load_tokenizer(spm("ab", "cd", *(f"x{i}" for i in range(129))))
    assert mismatch(one, larger) == "the vocabularies have 261 and 390 tokens"
    begins = [load_tokenizer(spm("ab", add_bos_token=add)) for add in (True, False)]
    assert str(mismatch(*begins)).startswith("the first tokens of a text differ: ")
    ends = [load_tokenizer(spm("ab", add_eos_token=add)) for add in (True, False)]
    assert str(mismatch(*ends)).startswith("the last tokens of a text differ: ")
