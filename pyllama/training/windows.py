"""Windows of tokens with the tokens to predict, made of texts or of conversations.

    train, held_out = text_windows(tokens, n_ctx=512, val_split=0.05)
    chats = read_chats("chats.jsonl")
    examples = [chat_examples(format, chat) for chat in chats]
    train, held_out = chat_windows(examples, n_ctx=512, val_split=0.05)

A window is int32 [2, n_ctx], tokens and positions, with labels int32 [n_ctx]: the token that
follows, or -1 where nothing is learned. A window may have several texts, each from position 0 on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyggml.files import read_input
from pyggml.opt import Dataset

from ..chat.formats import ChatFormat
from ..errors import ModelError, TemplateError
from ..inputs.bounded_json import parse_json
from ..inputs.text import utf8

log = logging.getLogger(__name__)
Ids = npt.NDArray[np.int32]
Chat = Mapping[str, Any]  # with messages in OpenAI's format, and perhaps tools
_MAX_BYTES = 1 << 30  # of a file of conversations
_MAX_VALUES = 1 << 20  # of a conversation


class Example(NamedTuple):
    """The tokens of a text, and which of them the model learns to write.

    Shape:
        tokens int32 [n], learned bool [n]
    """

    tokens: Ids
    learned: npt.NDArray[np.bool_]


def text_windows(
    tokens: Sequence[int], n_ctx: int, val_split: float = 0.05, seed: int = 0
) -> tuple[Dataset, Dataset | None]:
    """Windows of a text to train on, and of its end to evaluate.

    Those to train on begin every ``n_ctx / 2`` tokens, those to evaluate do not overlap.

    Args:
        val_split: fraction of the text to evaluate; 0: none, and the second result is None.
        seed: of the order in which windows are visited.

    Raises:
        ModelError: a part of the text is shorter than a window.

    Source: llama.cpp, ``common_opt_dataset_init``.
    """
    ids = np.asarray(tokens, np.int32)
    n_val = max(round(len(ids) * val_split), n_ctx + 1) if val_split > 0 else 0
    n_train = len(ids) - n_val
    if n_train < n_ctx + 1:
        raise ModelError(
            f"the text has {len(ids)} tokens; windows of {n_ctx} tokens need at least "
            f"{n_ctx + 1 + n_val}: use a longer text or a smaller `n_ctx`"
        )
    train = _cut(ids[:n_train], n_ctx, max(1, n_ctx // 2), seed)
    return train, _cut(ids[n_train:], n_ctx, n_ctx, seed) if n_val else None


def _cut(ids: Ids, n_ctx: int, stride: int, seed: int) -> Dataset:
    starts = np.arange(0, len(ids) - n_ctx, stride)
    places = starts[:, None] + np.arange(n_ctx)
    positions = np.broadcast_to(np.arange(n_ctx, dtype=np.int32), places.shape)
    return Dataset(np.stack([ids[places], positions], 1), ids[places + 1], seed)


def read_chats(path: str | os.PathLike[str]) -> list[Chat]:
    """The conversations of a JSON Lines file in OpenAI's format for fine-tuning.

    Raises:
        ModelError: the file has none, or a line is no object with messages.
        OSError: it cannot be read, or is too large.
    """
    chats: list[Chat] = []
    for number, line in enumerate(utf8(read_input(path, _MAX_BYTES)).splitlines(), 1):
        if not line.strip():
            continue
        try:
            chat = parse_json(line, _MAX_VALUES)
        except ValueError as error:
            raise ModelError(f"{path}, line {number}: not JSON: {error!s:.100}") from None
        messages = chat.get("messages") if isinstance(chat, dict) else None
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise ModelError(
                f'{path}, line {number}: want {{"messages": [{{"role": ..., "content": ...}}]}}'
            )
        chats.append(chat)
    if not chats:
        raise ModelError(f"{path}: the file has no conversations")
    return chats


def chat_examples(format: ChatFormat, chat: Chat) -> list[Example]:
    """Write a conversation as texts, of which the assistant's answers are learned.

    All answers are in one text if the template only appends turns. If it rewrites earlier turns
    (without their reasoning), each answer has a text of its own, after its prompt. An answer with
    ``weight`` 0 is not learned.

    Raises:
        TemplateError: the template rejects the messages, or an answer does not follow its prompt.
    """
    messages, values = chat["messages"], {}
    if chat.get("tools"):
        values["tools"] = chat["tools"]
    found: list[Example] = []
    text, answers = "", list[tuple[int, int]]()
    for i, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        prompt = format.prompt(messages[:i], **values).text
        whole = format.prompt(messages[: i + 1], add_generation_prompt=False, **values).text
        if not whole.startswith(prompt):
            raise TemplateError(
                f"messages[{i}]: the chat template writes this answer in another way than after a "
                "prompt, so that it cannot be learned"
            )
        if not prompt.startswith(text):
            found += _example(format, text, answers)
            answers = []
        text = whole
        if message.get("weight", 1) != 0:
            answers.append((len(prompt), len(whole)))
    return found + _example(format, text, answers)


def _example(format: ChatFormat, text: str, answers: Sequence[tuple[int, int]]) -> list[Example]:
    """The example of a text, in a list; an empty list without answers.

    The first learned token of an answer is the first in which the tokens of the whole text and of
    the text before the answer differ.

    Args:
        answers: first character and end of each.
    """
    if not answers:
        return []
    tokens = format.encode(text)
    learned = np.zeros(len(tokens), np.bool_)
    for answer in answers:
        first, end = (_n_common(tokens, format.encode(text[:at])) for at in answer)
        learned[first:end] = True
    return [Example(np.array(tokens, np.int32), learned)]


def _n_common(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of leading tokens that two texts share."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def chat_windows(
    examples: Sequence[Sequence[Example]], n_ctx: int, val_split: float = 0.05, seed: int = 0
) -> tuple[Dataset, Dataset | None]:
    """Windows of conversations to train on, and of some others to evaluate.

    Several short texts share a window, without attending to each other. A text that is longer than
    a window loses its end, with a warning.

    Args:
        examples: of each conversation.
        val_split: fraction of the conversations to evaluate, drawn by ``seed``; 0: none, and the
            second result is None.

    Raises:
        ModelError: no conversation is left to train on, or those to train on or to evaluate have
            no answer within a window.
    """
    n_val = max(1, round(len(examples) * val_split)) if val_split > 0 else 0
    if n_val >= len(examples):
        raise ModelError(
            f"{len(examples)} conversations, of which {n_val} are held out: none is left to train "
            "on; use more, or a smaller `val_split`, or 0"
        )
    order = np.random.default_rng(seed).permutation(len(examples))
    held_out = set(order[:n_val].tolist())
    parts: list[Dataset | None] = []
    for is_val in (False, True):
        chosen = [e for i, one in enumerate(examples) for e in one if (i in held_out) == is_val]
        if chosen or not is_val:
            parts.append(_pack(chosen, n_ctx, seed, "to evaluate" if is_val else "to learn"))
        else:
            parts.append(None)
    train, val = parts
    assert train is not None
    return train, val


def _pack(examples: Sequence[Example], n_ctx: int, seed: int, purpose: str) -> Dataset:
    """Put each text into the fullest window that has room for it: best fit, O(n_ctx) a text."""
    windows: list[list[Example]] = []
    by_room: list[list[int]] = [[] for _ in range(n_ctx + 1)]  # windows with so many places left
    n_long = 0
    for one in examples:
        n_long += len(one.tokens) > n_ctx + 1
        one = Example(one.tokens[: n_ctx + 1], one.learned[: n_ctx + 1])
        if not one.learned[1:].any():
            continue
        n = len(one.tokens) - 1  # of the last token nothing is predicted
        room = next((room for room in range(n, n_ctx + 1) if by_room[room]), n_ctx)
        if not by_room[room]:
            by_room[room].append(len(windows))
            windows.append([])
        at = by_room[room].pop()
        windows[at].append(one)
        by_room[room - n].append(at)
    if n_long:
        log.warning("%d of %d texts are longer than %d tokens, and cut off; a larger `n_ctx` has "
                    "room for them", n_long, len(examples), n_ctx)  # fmt: skip
    if not windows:
        raise ModelError(
            f"none of {len(examples)} texts has an answer of the assistant within {n_ctx} tokens: "
            f"there is nothing {purpose}; use a larger `n_ctx`, or other conversations"
        )
    data = np.zeros((len(windows), 2, n_ctx), np.int32)
    labels = np.full((len(windows), n_ctx), -1, np.int32)
    for i, window in enumerate(windows):
        at = 0
        for tokens, learned in window:
            part = slice(at, at + len(tokens) - 1)
            data[i, 0, part], data[i, 1, part] = tokens[:-1], np.arange(len(tokens) - 1)
            labels[i, part] = np.where(learned[1:], tokens[1:], -1)
            at = part.stop
    return Dataset(data, labels, seed)
