"""The vocabulary of a model: tokens, types, scores, special ids, flags.

    vocab = read_vocab(gguf_file.metadata)
    vocab.tokens[vocab.roles["eos"]]

Reading checks everything that encoding and decoding rely on. A `Vocab` never changes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import TokenizerError
from .metadata import PREFIX, Metadata
from .pretokenize import PreTokenizer, pretokenizer
from .special import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    detect_roles,
    find_eog,
    override_types,
    read_roles,
    space_swallowers,
)

log = logging.getLogger(__name__)

# tokenizer.ggml.model -> ids of roles when the metadata is silent.
_MODELS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "gpt2": {},
    "gemma4": {},
}


@dataclass(frozen=True)
class Vocab:
    """Tokens and everything that the metadata says about them.

    Attributes:
        model: "llama" (SPM), "gpt2" (byte-level BPE) or "gemma4" (BPE on raw UTF-8).
        pre: Pre-tokenizer; None for SPM, which has none.
        tokens: Text by id, in the vocabulary's own spelling; invalid UTF-8 is surrogate-escaped.
        types: Token type by id (`special.CONTROL` ...).
        scores: SPM merge score by id.
        merges: BPE merges "a b", best first.
        ids: Id by text.
        roles: Id by role: bos eos eot eom unk sep pad mask fim_pre fim_suf fim_mid ...
        eog: Tokens that end a generation.
        lstrip: Tokens that swallow the white space before them in a text.
        rstrip: Tokens that swallow the white space after them in a text.
        suppress: Tokens that must never be sampled.
        add_bos: Begin an encoded text with BOS.
        add_eos: End an encoded text with EOS.
        add_space_prefix: SPM puts a space before a text.
    """

    model: str
    pre: PreTokenizer | None
    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]
    ids: dict[str, int]
    roles: dict[str, int]
    eog: frozenset[int]
    lstrip: frozenset[int]
    rstrip: frozenset[int]
    suppress: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool


def read_vocab(metadata: Mapping[str, Any]) -> Vocab:
    """Read and check the vocabulary in a file's metadata.

    Raises:
        TokenizerError: A key is missing, of the wrong type, length or range, or names a
            tokenizer that is not supported.

    Source: llama.cpp, ``llama_vocab::impl::load``.
    """
    keys = Metadata(metadata)
    model = keys.text("model")
    if model is None:
        raise TokenizerError(f"{PREFIX}model is missing: this file has no vocabulary")
    if model not in _MODELS:
        raise TokenizerError(
            f"{PREFIX}model is {model!r}, which is not supported (supported: {', '.join(_MODELS)})"
        )
    tokens = _read_tokens(keys)
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    types = _read_types(keys, len(tokens))
    given = read_roles(keys, len(tokens), _MODELS[model])
    detected = detect_roles(given, ids)
    roles = given | detected
    eog = find_eog(roles, ids)
    override_types(types, detected.values(), eog, ids)

    is_spm = model == "llama"
    pre_name = "gemma4" if model == "gemma4" else keys.text("pre")
    pre = None if is_spm else pretokenizer(pre_name)
    special = [i for i, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED, UNKNOWN)]
    name = keys.full_text("general.name") or ""
    lstrip, rstrip = space_swallowers(name, pre_name or "", special, ids)
    add_bos = keys.flag("add_bos_token", default=True if pre is None else pre.add_bos)
    return Vocab(
        model=model,
        pre=pre,
        tokens=tokens,
        types=types,
        scores=_read_scores(keys, len(tokens)) if is_spm else [],
        merges=[] if is_spm else _read_merges(keys),
        ids=ids,
        roles=roles,
        eog=eog,
        lstrip=lstrip,
        rstrip=rstrip,
        suppress=_read_suppress(keys, len(tokens)),
        add_bos=_usable("add_bos_token", add_bos or model == "gemma4", "bos", roles),
        add_eos=_usable("add_eos_token", keys.flag("add_eos_token", False), "eos", roles),
        add_space_prefix=is_spm and keys.flag("add_space_prefix", default=True),
    )


def _read_tokens(keys: Metadata) -> list[str]:
    tokens = keys.strings("tokens")
    if not tokens:
        raise TokenizerError(f"{PREFIX}tokens is empty: this file has no vocabulary")
    try:
        "".join(tokens).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise TokenizerError(f"{PREFIX}tokens holds text that is no UTF-8 at all") from None
    if "" in tokens:
        # llama.cpp's stand-in, so that no text can match an empty token
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    return tokens


def _read_types(keys: Metadata, n_tokens: int) -> list[int]:
    if "token_type" not in keys:
        return [NORMAL] * n_tokens
    types: list[int] = keys.numbers("token_type", "iu").tolist()
    _check_length("token_type", len(types), n_tokens)
    return types[:n_tokens]


def _read_scores(keys: Metadata, n_tokens: int) -> list[float]:
    if "scores" not in keys:
        return [0.0] * n_tokens
    scores = keys.numbers("scores", "iuf").astype(np.float64)
    _check_length("scores", len(scores), n_tokens)
    # a NaN would make the order of merges, and so the tokens, depend on chance
    finite: list[float] = np.nan_to_num(scores[:n_tokens]).tolist()
    return finite


def _read_merges(keys: Metadata) -> list[str]:
    merges = keys.strings("merges")
    bad = [i for i, merge in enumerate(merges) if " " not in merge]
    if bad:
        raise TokenizerError(
            f"{PREFIX}merges[{bad[0]}] is {merges[bad[0]]!r}, not two symbols with a space "
            "between: the file is damaged"
        )
    return merges


def _read_suppress(keys: Metadata, n_tokens: int) -> frozenset[int]:
    if "suppress_tokens" not in keys:
        return frozenset()
    given = keys.numbers("suppress_tokens", "iu").tolist()
    return frozenset(token for token in given if 0 <= token < n_tokens)


def _check_length(key: str, got: int, n_tokens: int) -> None:
    if got < n_tokens:
        raise TokenizerError(
            f"{PREFIX}{key} has {got} entries for {n_tokens} tokens: the file is damaged"
        )


def _usable(flag: str, value: bool, role: str, roles: Mapping[str, int]) -> bool:
    """``value``, or False with a warning if there is no token of that role to add."""
    if value and role not in roles:
        log.warning("%s%s is set, but the vocabulary has no %s token", PREFIX, flag, role.upper())
        return False
    return value
