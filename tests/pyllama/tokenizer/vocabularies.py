"""Metadata of small vocabularies, built as llama.cpp's converter builds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyllama.tokenizer.bpe import CHAR_OF_BYTE

DATA = Path(__file__).parents[2] / "data" / "tokenizer"
Metadata = dict[str, Any]


def keys(**values: Any) -> Metadata:
    """Metadata from keys without their common prefix."""
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def cases(name: str) -> list[tuple[str, list[int]]]:
    """Texts with the ids of `sentencepiece` or `tokenizers`."""
    text = (DATA / name / "tokenizer_cases.json").read_text(encoding="utf-8")
    return [(case["text"], case["ids"]) for case in json.loads(text)]


def spm_metadata(path: Path) -> Metadata:
    """Metadata of a SentencePiece model; needs the sentencepiece package."""
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(path))
    ids = range(model.vocab_size())
    kinds = [
        (model.is_unknown, 2),
        (model.is_control, 3),
        (model.is_unused, 5),
        (model.is_byte, 6),
        (lambda _: True, 1),
    ]
    return keys(
        model="llama",
        tokens=[model.id_to_piece(i) for i in ids],
        scores=[model.get_score(i) for i in ids],
        token_type=[next(kind for test, kind in kinds if test(i)) for i in ids],
    )


def gpt2_metadata(folder: Path) -> Metadata:
    """Metadata of a vocab.json and its merges.txt."""
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    tokens = sorted(vocab, key=vocab.__getitem__)
    special = {"<s>", "</s>", "<pad>", "<unk>"}
    return keys(
        model="gpt2",
        pre="gpt-2",
        tokens=tokens,
        token_type=[3 if token in special else 1 for token in tokens],
        merges=[line for line in lines if not line.startswith("#version")],
    )


def spm(*pieces: str, **more: Any) -> Metadata:
    """An SPM vocabulary of all bytes and these pieces, the first with the highest score."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    base = keys(
        model="llama",
        tokens=tokens,
        scores=[0.0] * 259 + [-float(i) for i in range(len(pieces))],
        token_type=[2, 3, 3] + [6] * 256 + [1] * len(pieces),
    )
    return base | keys(**more)


def bpe(*merges: str, special: dict[str, int] | None = None, **more: Any) -> Metadata:
    """A byte-level BPE vocabulary of all bytes, these merges' results and special tokens."""
    results = list(dict.fromkeys(merge.replace(" ", "") for merge in merges))
    special = special or {}
    tokens = [*CHAR_OF_BYTE.values(), *results, *special]
    base = keys(
        model="gpt2",
        pre="gpt-2",
        tokens=tokens,
        merges=list(merges),
        token_type=[1] * (256 + len(results)) + list(special.values()),
    )
    return base | keys(**more)


def wordpiece(*pieces: str, **more: Any) -> Metadata:
    """A WordPiece vocabulary of these pieces, as a converter spells them."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *pieces]
    ids = {"bos": 2, "seperator": 3, "unknown": 1, "padding": 0}
    base = keys(
        model="bert",
        tokens=tokens,
        token_type=[3, 2, 3, 3] + [1] * len(pieces),
        **{f"{role}_token_id": i for role, i in ids.items()},
    )
    return base | keys(**more)


def ugm(pieces: dict[str, float], **more: Any) -> Metadata:
    """A UGM vocabulary of these pieces and their scores."""
    base = keys(
        model="t5",
        tokens=["<pad>", "</s>", "<unk>", *pieces],
        scores=[0.0] * 3 + list(pieces.values()),
        token_type=[3, 3, 2] + [1] * len(pieces),
        add_space_prefix=True,
    )
    return base | keys(**more)


def charsmap(rules: dict[str, str]) -> bytes:
    """Rules for single bytes in SentencePiece's packed form."""
    nodes = [0] * 512
    nodes[0] = 256 << 10  # the children of the root lie at 256 ^ byte
    texts = b""
    for key, replacement in rules.items():
        child = 256 ^ ord(key)
        # its value lies at child ^ base; 1 and 2 are bytes that no rule here begins with
        value = child ^ (child ^ ord(key))
        nodes[child] = ord(key) | 1 << 8 | (child ^ value) << 10
        nodes[value] = len(texts) | 1 << 31
        texts += replacement.encode() + b"\0"
    packed = b"".join(node.to_bytes(4, "little") for node in nodes)
    return len(packed).to_bytes(4, "little") + packed + texts
