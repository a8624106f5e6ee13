"""A context without a model: its logits are a function of all tokens before, and it can recite.

    context = FakeContext(FakeModel("The cat sat."), n_ctx=64)

Token 1 is BOS, 2 is EOS, byte b is token 3 + b, a space is token 259. After a prompt of p tokens
(BOS included) the likeliest token is the text's p-th, and EOS behind its end; the noise added to it
depends on every token in the cache, so a wrong cache shows in the logits.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pyggml.errors import Aborted
from pyllama.errors import BatchError, ContextFull
from pyllama.runtime.batch import Batch
from pyllama.runtime.params import ContextParams
from pyllama.tokenizer import load_tokenizer

from .tokenizer.vocabularies import spm

METADATA = spm("▁", add_space_prefix=False) | {
    "general.name": "fake",
    "fake.n": np.uint32(7),
    "fake.eps": 1e-5,
    "fake.flag": True,
}
TOKENIZER = load_tokenizer(METADATA)
BOS, EOS = 1, 2
TEXT = "The cat sat on the mat, naïvely. 🙂 End"


def ids(text: str) -> list[int]:
    """Tokens of a text, with BOS."""
    return TOKENIZER.encode(text)


def text_of(result: Any) -> str:
    """The text of a completion, or of a part of one."""
    text: str = result["choices"][0]["text"]
    return text


class FakeModel:
    path = Path("fake.gguf")
    desc, n_params, size_bytes = "fake 1K F32", 1000, 4000
    metadata = METADATA
    tokenizer = TOKENIZER
    n_embd, n_ctx_train = 8, 512
    n_gpu_layers, devices = 0, ("cpu",)

    def __init__(self, text: str = "") -> None:
        self.text = [*TOKENIZER.encode(text, add_special=False), EOS]
        self.hparams = SimpleNamespace(
            n_vocab=TOKENIZER.n_vocab, causal=True, pooling_type=0, has_encoder=False,
            reads_texts=False, learned_positions=False, head_pooling=-1,
        )  # fmt: skip
        self.closed = False
        self.given: dict[str, Any] = {}  # what it was loaded with

    def logits(self, tokens: list[int]) -> np.ndarray:
        """float32[n_vocab] after these tokens."""
        rng = np.random.default_rng(zlib.crc32(np.array(tokens, np.int64).tobytes()))
        logits = rng.standard_normal(self.hparams.n_vocab).astype(np.float32)
        logits[EOS] = -5
        if len(self.text) > 1:
            logits[self.text[min(len(tokens), len(self.text)) - 1]] += 20
        return logits

    def close(self) -> None:
        self.closed = True


class FakeKV:
    unified, n_cells, states, has_checkpoints = True, 1 << 30, None, False

    def __init__(self, n_seq_max: int = 1) -> None:
        self.n_seq_max = n_seq_max
        self.sequences: list[list[int]] = [[] for _ in range(n_seq_max)]

    @property
    def tokens(self) -> list[int]:
        """The tokens of sequence 0."""
        return self.sequences[0]

    @property
    def n_used(self) -> int:
        return sum(map(len, self.sequences))

    def clear(self) -> None:
        for tokens in self.sequences:
            tokens.clear()

    def n_recomputed(self, seq: int) -> int:
        """The last token alone: nothing is reduced."""
        return 1

    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        del self.sequences[seq][p0 : None if p1 == -1 else p1]

    def seq_cp(self, source: int, target: int, p0: int, p1: int) -> None:
        assert len(self.sequences[target]) == p0 == 0
        self.sequences[target][:] = self.sequences[source][:p1]

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Does nothing: this context has no position encoding."""

    def resume(self, seq: int, position: int) -> int:
        return position

    def rewind(self, seq: int, position: int) -> int:
        self.seq_rm(seq, position, -1)
        return position

    def check_shift(self) -> None:
        """Does nothing: positions may shift."""

    def length(self, seq: int) -> int:
        return len(self.sequences[seq])

    def encoded(self, seq: int) -> int:
        return 0

    def reduced(self, seq: int) -> int:
        return 0

    def seq_pos_max(self, seq: int) -> int:
        return len(self.sequences[seq]) - 1


class FakeContext:
    def __init__(self, model: Any, params: ContextParams | None = None, **fields: Any) -> None:
        given = replace(params or ContextParams(), **fields)
        self.given = given  # for a test of the options
        self.model, self.types, self.overrides = (
            model,
            (given.type_k, given.type_v),
            given.overrides,
        )
        n_ctx, n_batch, n_ubatch = given.n_ctx, given.n_batch, given.n_ubatch
        n_threads, n_seq_max = given.n_threads, given.n_seq_max
        self.hparams = model.hparams
        self.n_ctx = self.n_ctx_seq = n_ctx or model.n_ctx_train
        self.n_batch, self.n_ubatch = min(n_batch, self.n_ctx), n_ubatch
        self.n_threads = self.n_threads_batch = n_threads or 1
        self.kv = FakeKV(n_seq_max)
        self.adapters, self.applied = (), dict[Any, float]()
        self.n_reused = 0
        self.build_s = 0.0
        self.expert_stats = None
        self.decoded: list[int] = []  # sizes of the batches
        self.fail_after: int | None = None  # decodes until one is aborted half-way
        self.closed = False

    def decode(self, batch: Batch) -> None:
        if not 1 <= len(batch.tokens) <= self.n_batch:
            raise BatchError(f"{len(batch.tokens)} tokens in a batch of {self.n_batch}")
        if not all(0 <= t < self.model.hparams.n_vocab for t in batch.tokens):
            raise BatchError("no such token")
        sequences = [self.kv.sequences[seq] for seq in batch.seqs()]  # type: ignore[index]
        if len(sequences[0]) + len(batch.tokens) > self.n_ctx:
            raise ContextFull("full")
        if self.fail_after == 0:
            self.fail_after = None
            sequences[0].extend(batch.tokens[: len(batch.tokens) // 2])
            raise Aborted("stopped")
        if self.fail_after is not None:
            self.fail_after -= 1
        wanted, rows = set(batch.outputs()), []
        for i, (token, tokens) in enumerate(zip(batch.tokens, sequences, strict=True)):
            tokens.append(int(token))
            if i in wanted:
                rows.append(self.model.logits(tokens))
        self.logits = np.array(rows, np.float32).reshape(len(rows), self.model.hparams.n_vocab)
        self.decoded.append(len(batch.tokens))
        self.n_reused += 1

    def decode_token(self, token: int, seq: int = 0, scales: Any = None) -> None:
        self.decode(Batch([token], seq_id=seq))

    def reserve(self, sizes: list[int], *, build: bool) -> None:
        """Does nothing: there are no graphs to build."""

    def check_drafts(self) -> None:
        """Does nothing: no sequence is reduced."""

    def logits_ith(self, i: int) -> np.ndarray:
        return self.logits[i]

    def argmax_ith(self, i: int) -> int:
        return int(self.logits[i].argmax())

    def output_ith(self, i: int) -> tuple[np.ndarray, int]:
        return self.logits[i], self.argmax_ith(i)

    def close(self) -> None:
        self.closed = True
