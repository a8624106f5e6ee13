"""Windows of texts and of conversations: tokens, positions, labels, and who attends to whom."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pyllama import Model
from pyllama.chat.formats import LLAMA_CPP_FORMATS, ChatFormat, ChatFormats
from pyllama.errors import ModelError, TemplateError
from pyllama.training import Example, chat_examples, chat_windows, read_chats, text_windows
from pyllama.training.graph import causal_mask

THINKING = (  # writes the reasoning of the last answer alone
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}(hm)"
    "{% endif %}{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def chatml(model: Model) -> ChatFormat:
    return ChatFormats(model, LLAMA_CPP_FORMATS).get("chatml")


def chat(*contents: str, **last: object) -> dict[str, object]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    messages[-1] |= last
    return {"messages": messages}


def test_windows_of_a_text_overlap_and_those_held_out_do_not() -> None:
    train, held_out = text_windows(range(100), 8, val_split=0.25)
    assert held_out is not None
    assert train.data[:, 0, 0].tolist() == list(range(0, 67, 4))
    assert train.labels is not None and (train.labels == train.data[:, 0] + 1).all()
    assert (train.data[:, 1] == np.arange(8)).all()
    assert held_out.data[:, 0, 0].tolist() == [75, 83, 91]
    assert text_windows(range(100), 8, val_split=0)[1] is None
    with pytest.raises(ModelError, match="17 tokens; windows of 8 tokens need at least 18"):
        text_windows(range(17), 8)


def test_answers_are_learned_with_their_end(model: Model, chatml: ChatFormat) -> None:
    (one,) = chat_examples(chatml, chat("Hi", "Ho", "A", "B"))
    texts = [
        model.tokenizer.decode([int(t) for t in one.tokens[one.learned == is_answer]], special=True)
        for is_answer in (True, False)
    ]
    assert texts[0].replace("\n", "|") == "Ho<|im_end|>|B<|im_end|>|"
    assert texts[1].count("<|im_start|>assistant") == 2
    prompt = chatml.prompt(chat("Hi")["messages"]).tokens
    assert one.tokens[: len(prompt)].tolist() == prompt
    assert not one.learned[: len(prompt)].any() and one.learned[len(prompt)]
    (last,) = chat_examples(chatml, chat("Hi", "Ho", "A", "B", weight=0))
    assert last.learned.sum() < one.learned.sum()
    assert chat_examples(chatml, chat("Hi")) == []


def test_a_template_that_rewrites_history_gives_a_text_for_each_answer(model: Model) -> None:
    format = ChatFormats(model, LLAMA_CPP_FORMATS).get(THINKING)
    found = chat_examples(format, chat("Hi", "Ho", "A", "B"))
    decode = model.tokenizer.decode
    answers = [decode([int(t) for t in one.tokens[one.learned]]) for one in found]
    assert [text.strip() for text in answers] == ["(hm)Ho</>", "(hm)B</>"]
    changed = THINKING.replace("<assistant>", "<bot>")
    with pytest.raises(TemplateError, match=r"messages\[1\]"):
        chat_examples(ChatFormats(model, LLAMA_CPP_FORMATS).get(changed), chat("Hi", "Ho"))


def example(first: int, n: int, n_learned: int) -> list[Example]:
    learned = np.arange(n) >= n - n_learned
    return [Example(np.arange(first, first + n, dtype=np.int32), learned)]


def test_short_texts_share_a_window(caplog: pytest.LogCaptureFixture) -> None:
    texts = [example(10, 5, 2), example(30, 9, 9), example(50, 4, 3), example(70, 12, 1)]
    train, held_out = chat_windows(texts, 8, val_split=0)
    assert held_out is None and train.labels is not None
    assert train.data[0].tolist() == [[10, 11, 12, 13, 50, 51, 52, 0], [0, 1, 2, 3, 0, 1, 2, 0]]
    assert train.labels[0].tolist() == [-1, -1, 13, 14, 51, 52, 53, -1]
    assert train.labels[1].tolist() == list(range(31, 39))
    assert len(train) == 2 and "1 of 4 texts are longer than 8 tokens" in caplog.text
    train, held_out = chat_windows(texts[:3], 8, val_split=0.3)
    assert held_out is not None and len(train) + len(held_out) in (2, 3)
    with pytest.raises(ModelError, match="nothing to learn"):
        chat_windows(texts[3:], 8, val_split=0)


def test_a_text_goes_into_the_fullest_window_with_room() -> None:
    texts = [example(0, 4, 1), example(0, 7, 1), example(50, 3, 1), example(90, 6, 1)]
    train, _ = chat_windows(texts, 8, val_split=0)
    assert train.data[:, 0].tolist() == [
        [0, 1, 2, 90, 91, 92, 93, 94],
        [0, 1, 2, 3, 4, 5, 50, 51],
    ]


def test_it_is_said_which_conversations_are_missing() -> None:
    with pytest.raises(
        ModelError, match=r"1 conversations, of which 1 are held out: .* `val_split`"
    ):
        chat_windows([example(0, 5, 2)], 8)
    long = [example(0, 20, 1)]
    with pytest.raises(ModelError, match="nothing to evaluate"):
        chat_windows([*long, *([example(0, 5, 2)] * 3)], 8, val_split=0.2, seed=_seed_of_first(4))


def _seed_of_first(n: int) -> int:
    """A seed with which the first of n conversations is held out."""
    return next(s for s in range(99) if np.random.default_rng(s).permutation(n)[0] == 0)


def test_masks_follow_from_positions(model: Model) -> None:
    mask = causal_mask(np.array([0, 1, 2, 0, 1, 0]), 0, model.hparams)
    rows = ["".join("x" if x == 0 else "." for x in row) for row in mask]
    assert rows == ["x.....", "xx....", "xxx...", "...x..", "...xx.", ".....x"]
    window = causal_mask(np.array([0, 1, 2, 3, 0, 1]), 2, model.hparams)
    rows = ["".join("x" if x == 0 else "." for x in row) for row in window]
    assert rows == ["x.....", "xx....", ".xx...", "..xx..", "....x.", "....xx"]


def test_files_of_conversations(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps(chat("a", "b")) + "\n\n" + json.dumps(chat("c", "d")) + "\n")
    assert [len(one["messages"]) for one in read_chats(path)] == [2, 2]
    for text, message in (
        ("", "no conversations"),
        ('{"messages": 3}', 'line 1: want {"messages"'),
        ("{}\n", "line 1: want"),
        (json.dumps(chat("a", "b")) + "\n{", "line 2: not JSON"),
    ):
        path.write_text(text)
        with pytest.raises(ModelError, match=message):
            read_chats(path)
