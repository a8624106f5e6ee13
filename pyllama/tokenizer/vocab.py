"""The vocabulary of a model: tokens, types, scores, special ids, flags.

    vocab = read_vocab(gguf_file.metadata)
    vocab.tokens[vocab.roles["eos"]]

Reading validates everything that encoding and decoding rely on. A `Vocab` is immutable.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import compress, repeat
from operator import contains
from typing import Any

import numpy as np

from ..errors import TokenizerError
from .metadata import PREFIX, Metadata
from .pretokenizers import PRE_TOKENIZERS, PreTokenizer, pretokenizer
from .special import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    detect_roles,
    find_eog,
    override_types,
    read_roles,
    space_strippers,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Model:
    """Defaults of a ``tokenizer.ggml.model``, and the arrays that it uses.

    Attributes:
        roles: id by role.
        needs: keys of arrays; missing scores are zero.
    """

    roles: Mapping[str, int] = field(default_factory=dict)
    needs: str = ""
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    clean_spaces: bool = False


NO_VOCABULARY = "none"  # of models that run on token ids; some files say "no_vocab"
_MAX_TOKENS = 1 << 24  # far above those of real models
_MODELS: dict[str, _Model] = {
    "llama": _Model({"bos": 1, "eos": 2, "unk": 0}, "scores", add_bos=True, add_space_prefix=True),
    "gpt2": _Model(needs="merges"),
    "gemma4": _Model(needs="merges"),
    "whitespace": _Model(needs="merges"),
    "bert": _Model(
        {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103}, add_bos=True, clean_spaces=True
    ),
    "t5": _Model({"eos": 1, "unk": 2, "pad": 0}, "scores charsmap", add_eos=True),
    "rwkv": _Model(),
    "plamo2": _Model({"bos": 1, "eos": 2, "unk": 0, "pad": 3}, "scores"),
    NO_VOCABULARY: _Model(),
}
_PREFIXING = ("llama", "t5")
_SPECIAL = frozenset({CONTROL, USER_DEFINED, UNKNOWN})


@dataclass(frozen=True)
class Vocab:
    """Tokens and their properties from the metadata.

    Attributes:
        model: "llama" (SPM), "gpt2" (byte-level BPE), "gemma4" (BPE on raw UTF-8), "whitespace"
            (the same without spaces), "bert" (WordPiece), "t5" (UGM), "rwkv", "plamo2", or "none":
            the model runs on token ids, which have no texts.
        pre: pre-tokenizer of a BPE vocabulary; None for others.
        tokens: text by id, as in the file; invalid UTF-8 is surrogate-escaped; empty for "none".
        types: token type by id (`special.CONTROL` ...).
        scores: SPM merge score, or log probability, by id; empty for others.
        merges: BPE merges "a b", by rank.
        ids: id by text.
        roles: id by role: bos eos eot eom unk sep pad mask fim_pre fim_suf fim_mid ...
        eog: tokens that end a generation.
        lstrip: tokens that strip the white space before them in a text.
        rstrip: tokens that strip the white space after them in a text.
        suppress: tokens that must not be sampled.
        add_bos: an encoded text begins with BOS.
        add_eos: an encoded text ends with EOS; for WordPiece with SEP.
        add_space_prefix: SPM and UGM add a space before a text.
        clean_spaces: llama.cpp removes spaces before punctuation when detokenizing.
        merge_spaces: UGM merges adjacent spaces.
        charsmap: UGM's precompiled normalization rules.
        lowercase: WordPiece converts to lower case.
        strip_accents: WordPiece removes accents.
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
    clean_spaces: bool
    merge_spaces: bool
    charsmap: bytes
    lowercase: bool
    strip_accents: bool

    @property
    def begin(self) -> int | None:
        """The first token of an encoded text, or None."""
        return self.roles["bos"] if self.add_bos else None

    @property
    def end(self) -> int | None:
        """The last token of an encoded text, or None."""
        return self.roles["sep" if self.model == "bert" else "eos"] if self.add_eos else None


def read_vocab(metadata: Mapping[str, Any]) -> Vocab:
    """Read and check the vocabulary in a file's metadata.

    Raises:
        TokenizerError: a key is missing, has a wrong type, length or range, or names an
            unsupported tokenizer.

    Source: llama.cpp, ``llama_vocab::impl::load``.
    """
    keys = Metadata(metadata)
    model, kind = _read_model(keys)
    if model == NO_VOCABULARY:
        return _without_texts(keys)
    tokens = _read_tokens(keys)
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    types = _read_types(keys, len(tokens))
    given = read_roles(keys, len(tokens), kind.roles)
    detected = detect_roles(given, ids)
    roles = given | detected
    eog = find_eog(roles, ids)
    override_types(types, detected.values(), eog, ids)

    pre_name = "gemma4" if model == "gemma4" else keys.text("pre")
    pre = pretokenizer(pre_name) if "merges" in kind.needs else None
    special = list(compress(range(len(types)), map(_SPECIAL.__contains__, types)))
    lstrip, rstrip = space_strippers(keys, pre_name or "", special, ids)
    suppress = keys.numbers("suppress_tokens", "iu", ()).tolist()
    charsmap = keys.numbers("precompiled_charsmap", "iu", ())
    lowercase = keys.flag("normalizer.lowercase", default=model == "bert")
    return Vocab(
        model=model,
        pre=pre,
        tokens=tokens,
        types=types,
        scores=_read_scores(keys, len(tokens)) if "scores" in kind.needs else [],
        merges=_read_merges(keys, pre_name) if pre is not None else [],
        ids=ids,
        roles=roles,
        eog=eog,
        lstrip=lstrip,
        rstrip=rstrip,
        suppress=frozenset(token for token in suppress if 0 <= token < len(tokens)),
        **_read_ends(keys, model, pre, roles),
        add_space_prefix=model in _PREFIXING
        and keys.flag("add_space_prefix", default=kind.add_space_prefix),
        clean_spaces=kind.clean_spaces if pre is None else pre.clean_spaces,
        merge_spaces=keys.flag("remove_extra_whitespaces", default=False),
        charsmap=charsmap.astype(np.uint8).tobytes() if "charsmap" in kind.needs else b"",
        lowercase=lowercase,
        strip_accents=keys.flag("normalizer.strip_accents", default=lowercase),
    )


def _read_model(keys: Metadata) -> tuple[str, _Model]:
    model = keys.text("model")
    if model is None:
        raise TokenizerError(f"{PREFIX}model is missing: this file has no vocabulary")
    if model == "no_vocab":
        model = NO_VOCABULARY
    if model not in _MODELS:
        raise TokenizerError(
            f"{PREFIX}model is {model!r}, which is not supported (supported: {', '.join(_MODELS)})"
        )
    return model, _MODELS[model]


def _without_texts(keys: Metadata) -> Vocab:
    """The vocabulary of a file that has none: as many tokens as the model has, without texts."""
    key = f"{keys.full_text('general.architecture')}.vocab_size"
    n = keys.number(key)
    if n is None or not 0 < n <= _MAX_TOKENS:
        what = "missing" if n is None else f"{n}, must be 1 to {_MAX_TOKENS}"
        raise TokenizerError(
            f"{PREFIX}model is {keys.text('model')!r}: this file has no vocabulary, and {key}, the "
            f"number of tokens, is {what}"
        )
    none: frozenset[int] = frozenset()
    return Vocab(
        NO_VOCABULARY, None, [""] * n, [NORMAL] * n, [], [], {}, {}, none, none, none, none,
        add_bos=False, add_eos=False, add_space_prefix=False, clean_spaces=False,
        merge_spaces=False, charsmap=b"", lowercase=False, strip_accents=False,
    )  # fmt: skip


def _read_ends(
    keys: Metadata, model: str, pre: PreTokenizer | None, roles: Mapping[str, int]
) -> dict[str, bool]:
    """The values of ``add_bos`` and ``add_eos``."""
    kind = _MODELS[model]
    add_bos = keys.flag("add_bos_token", default=kind.add_bos if pre is None else pre.add_bos)
    add_eos = keys.flag("add_eos_token", default=kind.add_eos)
    if model == "rwkv":  # llama.cpp adds nothing, whatever the metadata says
        add_bos = add_eos = False
    if model == "bert":  # ... and always adds both
        add_bos = add_eos = True
    if pre == PRE_TOKENIZERS["gemma4"]:
        add_bos = True
    end = "sep" if model == "bert" else "eos"
    return {
        "add_bos": _usable("add_bos_token", add_bos, "bos", roles),
        "add_eos": _usable("add_eos_token", add_eos, end, roles),
    }


def _read_tokens(keys: Metadata) -> list[str]:
    tokens = keys.strings("tokens")
    if not tokens:
        raise TokenizerError(f"{PREFIX}tokens is empty: this file has no vocabulary")
    try:
        "".join(tokens).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise TokenizerError(f"{PREFIX}tokens has text that is not UTF-8") from None
    if "" in tokens:
        # placeholder as in llama.cpp, so that no text matches an empty token
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    return tokens


def _read_types(keys: Metadata, n_tokens: int) -> list[int]:
    types: list[int] = keys.numbers("token_type", "iu", [NORMAL] * n_tokens).tolist()
    _check_length("token_type", len(types), n_tokens)
    return types[:n_tokens]


def _read_scores(keys: Metadata, n_tokens: int) -> list[float]:
    scores = keys.numbers("scores", "iuf", [0.0] * n_tokens).astype(np.float64)
    _check_length("scores", len(scores), n_tokens)
    # a NaN would make the order of merges undefined
    finite: list[float] = np.nan_to_num(scores[:n_tokens]).tolist()
    return finite


def _read_merges(keys: Metadata, pre: str | None) -> list[str]:
    if pre == "kimi-k2" and "merges" not in keys:
        return []  # as in llama.cpp, which does not need them for such files
    merges = keys.strings("merges")
    if not all(map(contains, merges, repeat(" "))):
        bad = next(i for i, merge in enumerate(merges) if " " not in merge)
        raise TokenizerError(
            f"{PREFIX}merges[{bad}] is {merges[bad]!r}, not two symbols separated by a space: the "
            "file is damaged"
        )
    return merges


def _check_length(key: str, got: int, n_tokens: int) -> None:
    if got < n_tokens:
        raise TokenizerError(
            f"{PREFIX}{key} has {got} entries for {n_tokens} tokens: the file is damaged"
        )


def _usable(flag: str, value: bool, role: str, roles: Mapping[str, int]) -> bool:
    """``value``, or False with a warning if there is no token of that role."""
    if value and role not in roles:
        log.warning("%s%s is set, but the vocabulary has no %s token", PREFIX, flag, role.upper())
        return False
    return value
