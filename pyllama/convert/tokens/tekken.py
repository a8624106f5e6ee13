"""Reads Mistral's own vocabulary (tekken.json): special tokens, then tokens of bytes by rank.

    vocabulary = read_tekken(Folder(Path("folder")))

The file has no merges. They are all pairs of tokens that make a token, in order of its rank, which
merge a text as the ranks do.
Source: mistral-common, ``Tekkenizer``; gguf-py, ``MistralVocab``.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

from ...errors import TokenizerError
from ...inputs.budget import shown
from ...tokenizer.bpe import CHAR_OF_BYTE
from ...tokenizer.special import CONTROL, NORMAL
from ..files.folder import Folder, objects
from .tokens import MAX_TOKENS, FileToken, FileVocabulary

NAME = "tekken.json"
_MAX_BYTES = 1024  # of a token: the time for its merges is quadratic; the longest known has 128
# special tokens of files that have none, by id
_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip
_ROLES = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"}


def read_tekken(folder: Folder) -> FileVocabulary:
    """Return the vocabulary of tekken.json. Raises: TokenizerError, ModelError."""
    path, root = folder.path / NAME, folder.json(NAME)
    sizes: Any = root.get("config")
    n_vocab: Any = sizes.get("default_vocab_size") if isinstance(sizes, dict) else None
    n_special: Any = sizes.get("default_num_special_tokens") if isinstance(sizes, dict) else None
    are_sizes = type(n_vocab) is int and type(n_special) is int
    if not are_sizes or not 0 < n_special < n_vocab <= MAX_TOKENS:
        raise TokenizerError(
            f"{path}: {shown(n_vocab)} tokens, {shown(n_special)} of them special, in its config"
        )
    special = _special(path, root.get("special_tokens"), n_special)
    ranks = _ranks(path, root.get("vocab"), n_vocab - n_special)
    folder.budget.take("values", sum(map(len, ranks)), path)
    tokens = {i: FileToken(text, CONTROL) for i, text in enumerate(special)}
    texts = {token: "".join(CHAR_OF_BYTE[byte] for byte in token) for token in ranks}
    tokens |= {rank + n_special: FileToken(texts[x], NORMAL) for x, rank in ranks.items()}
    ids = {text: i for i, text in enumerate(special)}
    roles = {role: ids[text] for role, text in _ROLES.items() if text in ids}
    return FileVocabulary(
        model="gpt2",
        tokens=tokens,
        pre="tekken",
        merges=_merges(path, ranks, texts),
        roles={"pad": roles.get("eos", 0), **roles},
        add_bos=True,
    )


def _special(path: Path, listed: Any, n: int) -> list[str]:
    """Return the texts of the special tokens by id."""
    texts = dict(enumerate(_SPECIAL[:n]))
    if listed is not None:
        texts = {}
        for entry in objects(listed):
            i, text = entry.get("rank"), entry.get("token_str")
            if type(i) is not int or not 0 <= i < n or not isinstance(text, str) or i in texts:
                raise TokenizerError(f"{path}: the special token {shown(text)} has rank {shown(i)}")
            texts[i] = text
    return [texts.get(i, f"<SPECIAL_{i}>") for i in range(n)]


def _ranks(path: Path, vocab: Any, n: int) -> dict[bytes, int]:
    """Return the ranks of the first ``n`` tokens."""
    entries = objects(vocab)[:n]
    ranks: dict[bytes, int] = {}
    for rank, entry in enumerate(entries):
        text = entry.get("token_bytes")
        try:
            token = base64.b64decode(text if isinstance(text, str) else "", validate=True)
        except (binascii.Error, ValueError):
            token = b""
        if entry.get("rank") != rank or not 0 < len(token) <= _MAX_BYTES or token in ranks:
            raise TokenizerError(
                f"{path}: token {rank} has the rank {shown(entry.get('rank'))} and the bytes "
                f"{shown(text)}: download the file again"
            )
        ranks[token] = rank
    if len(ranks) < n:
        raise TokenizerError(f"{path}: {len(ranks)} tokens that are not special, must be {n}")
    return ranks


def _merges(path: Path, ranks: dict[bytes, int], texts: dict[bytes, str]) -> list[str]:
    merges: list[str] = []
    for token, rank in ranks.items():
        if len(token) == 1:
            continue
        pairs = ((token[:i], token[i:]) for i in range(1, len(token)))
        found = [(ranks[a], ranks[b], a, b) for a, b in pairs if a in ranks and b in ranks]
        if not found:
            raise TokenizerError(f"{path}: token {rank}, {shown(token)}, is no pair of tokens")
        merges += [f"{texts[a]} {texts[b]}" for _, _, a, b in sorted(found)]
    return merges
