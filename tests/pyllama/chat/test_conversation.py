"""Conversations on a fake context: evaluated tokens, replies, and interrupted replies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pyggml.errors import Aborted
from pyllama.chat.conversation import Conversation
from pyllama.chat.formats import ChatFormat
from pyllama.chat.llama_cpp_formats import FORMATS
from pyllama.chat.reply import Reply, ReplyOptions
from pyllama.chat.transcript import Transcript
from pyllama.chat.turn import TurnOptions
from pyllama.engine import Engine, Lease
from pyllama.errors import ContextFull
from pyllama.sampling import SamplingParams
from pyllama.tokenizer.detokenize import Pieces

from ..fake_context import EOS, TOKENIZER, FakeContext, FakeModel, ids
from .tools.templates import TEMPLATES

GREEDY = ReplyOptions(SamplingParams(temp=0))
SHOWN_STOPS = SamplingParams(temp=0, include_stop_str_in_output=True)


def state_of(text: str, n_ctx: int = 256) -> Any:
    context: Any = FakeContext(FakeModel(text), n_ctx=n_ctx)
    return Lease(Engine(context))


def talk(state: Lease, name: str = "vicuna", **options: Any) -> Conversation:
    return Conversation(state, ChatFormat(name, FORMATS[name], TOKENIZER), **options)


def said(dialogue: Conversation | Transcript, options: ReplyOptions = GREEDY) -> str:
    return "".join(delta.content for delta in dialogue.reply(options))


def test_only_new_tokens_are_evaluated() -> None:
    state = state_of("USER: Hi\nASSISTANT: naïve 🙂")
    dialogue = talk(state)
    dialogue.say("Hi")
    assert said(dialogue) == " naïve 🙂"
    held = state.n_tokens
    assert held == len(ids("USER: Hi\nASSISTANT: naïve 🙂"))
    decoded = state.context.decoded
    decoded.clear()
    dialogue.say("And?")
    said(dialogue, ReplyOptions(SamplingParams(temp=0), n_predict=1))
    assert decoded == [len(TOKENIZER.encode("\nUSER: And?\nASSISTANT:", False)) + 1]
    assert state.ids[held] == EOS
    assert [m["role"] for m in dialogue.messages] == ["user", "assistant", "user", "assistant"]


def test_reasoning_is_separated_and_not_part_of_later_prompts() -> None:
    format = TEMPLATES["qwq"].format(TOKENIZER)
    prompt = format.turn([{"role": "user", "content": "Hi"}], TurnOptions()).prompt
    dialogue = Conversation(state_of(f"{prompt.text}So.\n</think>\n\nHello"), format)
    dialogue.say("Hi")
    deltas = list(dialogue.reply(GREEDY))
    assert "".join(delta.reasoning for delta in deltas) == "So."
    assert "".join(delta.content for delta in deltas) == "Hello"
    reply = {"role": "assistant", "content": "Hello", "reasoning_content": "So."}
    assert dialogue.messages[-1] == reply
    dialogue.say("And?")
    assert "So." not in format.prompt(dialogue.messages).text
    assert said(dialogue, ReplyOptions(SamplingParams(temp=0), n_predict=1)) == ""
    dialogue.clear()
    dialogue.say("Hi")
    stream = dialogue.reply(GREEDY)
    assert next(stream).reasoning == "S"
    stream.close()  # type: ignore[attr-defined]
    assert dialogue.messages[-1] == {"role": "assistant", "content": "", "reasoning_content": "S"}


def test_regenerate_and_clear() -> None:
    dialogue = talk(state_of("SYSTEM: s\nUSER: Hi\nASSISTANT: x"), "vicuna-orca", system="s")
    assert not dialogue.can_regenerate()
    dialogue.unsay()
    dialogue.say("Hi")
    first = said(dialogue)
    assert dialogue.messages[-1]["content"] == "x"  # the format writes the space
    assert first == " x" and dialogue.can_regenerate()
    dialogue.unsay()
    assert not dialogue.can_regenerate()
    assert said(dialogue) == first
    dialogue.clear()
    assert [m["content"] for m in dialogue.messages] == ["s"]


def test_a_reply_that_is_left_counts_as_far_as_it_was_shown() -> None:
    dialogue = talk(state_of("USER: Hi\nASSISTANT: a long reply"))
    dialogue.say("Hi")
    stream = dialogue.reply(GREEDY)
    shown = "".join(next(stream).content for _ in range(7))
    stream.close()  # type: ignore[attr-defined]
    assert dialogue.messages[-1] == {"role": "assistant", "content": shown.lstrip()}
    dialogue.say("Go on")
    assert isinstance(said(dialogue, ReplyOptions(SamplingParams(temp=0), n_predict=2)), str)


@pytest.mark.parametrize("aborted", [False, True])
def test_a_reply_that_is_left_has_no_tokens_that_were_held_back(aborted: bool) -> None:
    """Of "xxxy" the second x may begin "xxz", and the é has only its first byte."""
    state = state_of("abcd xxxé")
    if aborted:
        state.context.fail_after = 7  # decodes up to the first byte of é
    reply = Reply(ReplyOptions(SamplingParams(temp=0), stop=("xxz",)))
    stream = reply.stream(state, ids("ab"))
    if aborted:
        with pytest.raises(Aborted):
            list(stream)
    else:
        assert "".join(next(stream) for _ in range(4)) == "cd x"
        stream.close()  # type: ignore[attr-defined]
    assert (reply.text, reply.ended, reply.rest) == ("cd x", "", "")
    assert reply.tokens == ids("abcd x")[3:]


def test_a_token_of_which_a_part_was_shown() -> None:
    tokens = {7: b"one", 8: b" two \xc3", 9: b"\xa9", 10: b"."}
    reply = Reply(ReplyOptions(SamplingParams(temp=0), stop=("two x",)))

    class Fake(Pieces):
        eog, vocab = (), SimpleNamespace(suppress=())

        def token_to_piece(self, token: int, special: bool = False) -> bytes:
            return tokens[token]

        def is_eog(self, token: int) -> bool:
            return False

    state = state_of("")
    state.context.model.tokenizer = Fake()
    state.context.model.logits = lambda past: np.eye(260, dtype=np.float32)[7 + len(past) - 3]
    stream = reply.stream(state, ids("ab"))
    assert [next(stream), next(stream)] == ["one", " "]
    stream.close()  # type: ignore[attr-defined]
    assert (reply.text, reply.tokens, reply.rest) == ("one ", [7], " ")


def test_an_abort_while_the_prompt_is_read_says_nothing() -> None:
    state = state_of("USER: Hi\nASSISTANT: x")
    dialogue = talk(state)
    dialogue.say("Hi")
    state.context.fail_after = 0
    with pytest.raises(Aborted):
        said(dialogue)
    assert not dialogue.can_regenerate()
    assert said(dialogue) == " x"


def test_how_replies_end() -> None:
    prompt = ids("ab")
    for options, stop, text, ended in (
        (GREEDY, (), "cd. End", "eog"),
        (ReplyOptions(SamplingParams(temp=0), n_predict=2), (), "cd", "length"),
        (ReplyOptions(SamplingParams(temp=0), n_predict=0), (), "", "length"),
        (ReplyOptions(SamplingParams(temp=0), stop=(". E",)), (), "cd", "stop"),
        (ReplyOptions(SHOWN_STOPS, stop=(". E",)), (), "cd. E", "stop"),
        (GREEDY, ("d.",), "c", "stop"),
    ):
        reply = Reply(options)
        assert "".join(reply.stream(state_of("abcd. End"), prompt, stop)) == text == reply.text
        assert reply.ended == ended
    full = Reply(GREEDY)
    assert "".join(full.stream(state_of("abcdefgh", n_ctx=6), prompt)) == "cdef"
    assert full.ended == "full"
    with pytest.raises(ContextFull):
        list(Reply(GREEDY).stream(state_of("abcd", n_ctx=3), prompt))


def test_a_transcript_grows_by_turns() -> None:
    state = state_of("Bob: Hi. User: Who? Bob: Me. User:")
    dialogue = Transcript(state, "Bob: Hi.", between=(" ", " Bob:"))
    stops = ReplyOptions(SHOWN_STOPS, stop=("User:",))
    assert said(dialogue, stops) == " User:"
    state.context.decoded.clear()
    dialogue.say("Who?")
    assert said(dialogue, stops) == " Me. User:"
    assert state.context.decoded[0] == len(" Who? Bob:") + 1
    assert dialogue.can_regenerate()
    dialogue.unsay()
    assert said(dialogue, stops) == " Me. User:"
    dialogue.say("")
    assert not dialogue.can_regenerate()
    dialogue.clear()
    assert said(dialogue, stops) == " User:"


def test_a_transcript_adds_the_users_name_after_eog() -> None:
    dialogue = Transcript(state_of("a b"), "a")
    assert said(dialogue, ReplyOptions(SamplingParams(temp=0), stop=("\nUser:",))) == " b\nUser:"


def shifting(n_keep: int, n_predict: int = 1) -> ReplyOptions:
    return ReplyOptions(SamplingParams(temp=0), n_predict=n_predict, n_keep=n_keep)


@pytest.mark.parametrize("n_keep", [0, 9, 25])
def test_a_message_is_read_whole_or_refused(n_keep: int) -> None:
    """A context shift removes earlier messages, and never a part of the new one."""
    for n in (1, 40, *range(52, 66), 200):
        state = state_of("", n_ctx=100)
        dialogue = talk(state, "vicuna-orca", system="Be brief.")
        n_system = len(dialogue.opening())
        for text in ("What?", "Why?"):
            dialogue.say(text)
            said(dialogue, shifting(n_keep, 9))
        message = "".join(chr(ord("a") + i % 26) for i in range(n))
        dialogue.say(message)
        if len(dialogue.opening(message)) + max(n_keep - n_system, 0) < 100:
            said(dialogue, shifting(n_keep))
            read = state.tokens
            assert f"USER: {message}\nASSISTANT:" in TOKENIZER.decode(read)
            assert read[:n_keep] == dialogue.opening("What?")[:n_keep]
        else:
            with pytest.raises(ContextFull, match="context of 100 takes"):
                said(dialogue, shifting(n_keep))


def test_a_shift_keeps_the_users_text_in_a_transcript_too() -> None:
    state = state_of("", n_ctx=50)
    dialogue = Transcript(state, "x" * 40)
    said(dialogue, shifting(5))
    for n in (20, 44, 43, 30):
        message = "".join(chr(ord("a") + i % 26) for i in range(n))
        dialogue.say(message)
        said(dialogue, shifting(5))
        assert TOKENIZER.decode(state.tokens).endswith(message)
    dialogue.say("y" * 45)
    with pytest.raises(
        ContextFull, match="has 45 tokens after 5 earlier ones, a context of 50 takes 44"
    ):
        said(dialogue, shifting(5))
