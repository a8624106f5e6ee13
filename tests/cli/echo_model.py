r"""``python -m tests.cli.echo_model ARGS``: ``pyllama-cli`` with a model that repeats the message.

The reply to ``one\ntwo`` is ``[one/two]``, after ``slow`` character by character, after ``endless``
without an end.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from pyllama_cli import interrupt
from pyllama_cli.commands import completion, run

from ..pyllama.fake_context import EOS, METADATA, FakeContext, FakeModel

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}|{% endfor %}a:"
BYTE, SPACE = 3, 259  # tokens of byte 0 and of a space


class EchoModel(FakeModel):
    """A model whose reply is the last message between brackets."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = type(self.tokenizer)(self.tokenizer.vocab, TEMPLATE)  # type: ignore[misc]
        self.metadata = METADATA | {"tokenizer.chat_template": TEMPLATE}

    def logits(self, tokens: list[int]) -> np.ndarray:
        """float32[n_vocab] after these tokens."""
        known = bytes(32 if t == SPACE else t - BYTE for t in tokens if BYTE <= t <= SPACE)
        message, _, said = known.decode("utf-8", "replace").rpartition("u:")[2].rpartition("|a:")
        reply = f"[{message}]".replace("\n", "/")
        if message.startswith("endless"):
            reply = "." * (len(said) + 1)
        if message.startswith(("slow", "endless")) and said:
            time.sleep(0.05)
        logits = np.zeros(self.hparams.n_vocab, np.float32)
        following = reply[len(said) : len(said) + 1].encode()
        token = EOS if not following else SPACE if following == b" " else BYTE + following[0]
        logits[token] = 20
        return logits


def main(name: str = "completion") -> None:
    """Run ``pyllama-cli``, or ``pyllama run``, with the model."""
    fakes: dict[str, Any] = {
        "load_model": lambda *args: EchoModel(),
        "make_context": lambda model, sizes: FakeContext(model, n_ctx=sizes.n_ctx or 512),
    }
    vars(completion).update(fakes)
    interrupt.begin()
    tool = run.command if name == "run" else completion.command
    tool(sys.argv[1:], "pyllama-cli")


if __name__ == "__main__":
    main()
