r"""Cutting text into words before BPE merges: the regular expressions of llama.cpp, by name.

    pre = pretokenizer("smollm")
    list(split("In 2026, we", [regex.compile(f"({r})") for r in pre.regexes]))

A table and a function; nothing is compiled until a tokenizer first encodes.

Source: llama.cpp, ``llm_tokenizer_bpe`` and ``llama_vocab::impl::load``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

log = logging.getLogger(__name__)


class Pattern(Protocol):
    """What `split` needs of a compiled regular expression."""

    def split(self, string: str, /) -> list[str]:
        """Matches of the one capturing group, and the gaps between them, in turn."""


@dataclass(frozen=True)
class PreTokenizer:
    """How one family of BPE vocabularies cuts text into words.

    Attributes:
        regexes: Applied in sequence, each to all pieces that the one before it left.
        ignore_merges: A word that is a token is taken whole, whatever the merges say.
        add_bos: Default of ``add_bos_token``.
        byte_level: Words are spelt in GPT-2's byte alphabet; else in plain UTF-8 with spaces
            written as U+2581.
    """

    regexes: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    byte_level: bool = True


def split(text: str, patterns: Iterable[Pattern]) -> list[str]:
    """Cut ``text`` by each pattern in turn; what no pattern matches stays a piece of its own."""
    pieces = [text]
    for pattern in patterns:
        pieces = [part for piece in pieces for part in pattern.split(piece) if part]
    return pieces


def pretokenizer(name: str | None) -> PreTokenizer:
    """The pre-tokenizer that ``tokenizer.ggml.pre`` names; the default one, with a warning, if
    the name is missing or unknown."""
    if name is not None and name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    what = "is missing" if name is None else f"is {name!r}, which is unknown"
    log.warning("tokenizer.ggml.pre %s: using 'default', quality may be degraded", what)
    return PRE_TOKENIZERS["default"]


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_PUNCTUATION}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_MINICPM5 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_PUNCTUATION}|{_SPACES}"
_SEED_CODER = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = (
    rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_PUNCTUATION}"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_NOT_LOWER, _NOT_UPPER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_NOT_LOWER}*{_NOT_UPPER}+"
_CASED_UPPER = rf"[^\r\n\p{{L}}\p{{N}}]?{_NOT_LOWER}+{_NOT_UPPER}*"
_PUNCTUATION_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CASED}|{_CASED_UPPER}|\p{{N}}|{_PUNCTUATION_SLASH}|{_SPACES}"
_GPT4O = (
    rf"{_CASED}{_CONTRACTION}?|{_CASED_UPPER}{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_PUNCTUATION_SLASH}|{_SPACES}"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_SPACES}"
)
_CJK = "[一-龥ࠀ-一가-퟿]+"
# Letters of the scripts with case, as DeepSeek lists them; escaped, since an editor that
# normalises Unicode would change them.
_DEEPSEEK_LETTERS = (
    r"\s?[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293"
    r"\u0295-\u02AF\u0370-\u0373\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C"
    r"\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F\u0531-\u0556\u10A0-\u10C5"
    r"\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77"
    r"\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59"
    r"\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC"
    r"\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107"
    r"\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139"
    r"\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE"
    r"\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E"
    r"\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F"
    r"\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2\U00010CC0-\U00010CF2"
    r"\U000118A0-\U000118DF\U0001E900-\U0001E943]+"
)


def _family(names: str, pre: PreTokenizer) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names.split(), pre)


_llama3 = PreTokenizer((_LLAMA3,))
_gemma = PreTokenizer((r"[^\n]+|[\n]+",), byte_level=False)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **_family(
        "default",
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    ),
    **_family(
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 jina-es jina-de jina-v2-es "
        "jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 mellum modern-bert",
        PreTokenizer((_GPT2,)),
    ),
    **_family(
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        PreTokenizer((r"\p{N}", _GPT2)),
    ),
    **_family("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"))),
    **_family(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        replace(_llama3, ignore_merges=True, add_bos=True),
    ),
    **_family("dbrx smaug-bpe chatglm-bpe", _llama3),
    **_family("glm4 glm5", replace(_llama3, ignore_merges=True)),
    **_family(
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        PreTokenizer((_QWEN2,)),
    ),
    **_family("qwen35", PreTokenizer((_QWEN35,))),
    **_family("laguna", PreTokenizer((r"[^\n]+|[\n]+", _QWEN2))),
    **_family("minicpm5", PreTokenizer((r"\p{N}{1,3}", _MINICPM5), ignore_merges=True)),
    **_family("seed-coder", PreTokenizer((_SEED_CODER,))),
    **_family("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,))),
    **_family("tekken", PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True)),
    **_family("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((_GPT4O,))),
    **_family("bloom poro-chat gpt3-finnish", PreTokenizer((_BLOOM,))),
    **_family("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
    **_family(
        "deepseek-coder",
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    ),
    **_family(
        "deepseek-llm",
        PreTokenizer(
            (
                r"[\r\n]",
                _DEEPSEEK_LETTERS,
                r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
                r"\s+$",
                _CJK,
                r"\p{N}+",
            )
        ),
    ),
    **_family(
        "deepseek-v3 hunyuan-dense hy_v4 joyai-llm",
        PreTokenizer((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)),
    ),
    **_family("gemma4 granite-embed-multi-311m", replace(_gemma, add_bos=True)),
    **_family("sarvam-moe", _gemma),
}
