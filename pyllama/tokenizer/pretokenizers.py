r"""Cuts text into words before BPE merges, by llama.cpp's pre-tokenizers.

    pre = pretokenizer("smollm")
    Cutter(pre.regexes)("In 2026, we")     # ['In', ' ', '2', '0', '2', '6', ',', ' we']

Takes linear time for every pre-tokenizer in the table. The joined pieces are the text.
To add one, add its name to the family with the same values, or add a new family. Regular
expressions are compiled at the first encode.

Source: llama.cpp, ``llm_tokenizer_bpe`` and ``llama_vocab::impl::load``. Where its regular
expressions ignore case, or distinguish it only for ASCII letters, so do these.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from .words import Memo

log = logging.getLogger(__name__)

BACKWARDS = "(?r)"
# Regular expressions after the first one with letters only cut single words further.
_ABOUT_LETTERS = re.compile(r"\\p\{L|A-Z|\[\^")


@dataclass(frozen=True)
class PreTokenizer:
    """The pre-tokenizer of a family of BPE vocabularies.

    Attributes:
        regexes: applied in sequence to all pieces of the previous one; text between matches is a
            piece too. A leading ``(?r)`` matches from the right.
        originals: regexes of the family's ``tokenizer.json``, if llama.cpp only approximates them;
            used for recognition, not for encoding.
        ignore_merges: a word that is a token is not split, even if no merges produce it.
        add_bos: default of ``add_bos_token``.
        clean_spaces: llama.cpp removes spaces before punctuation when detokenizing.
        byte_level: words are mapped to GPT-2's byte alphabet; else they are UTF-8 with spaces
            written as U+2581.
        whole_newlines: a run of newlines that is a token is not split.
        prefix_lines: a space is added to lines that do not begin with one.
        drop_spaces: white space is removed.
    """

    regexes: tuple[str, ...]
    originals: tuple[str, ...] | None = None
    ignore_merges: bool = False
    add_bos: bool = False
    clean_spaces: bool = False
    byte_level: bool = True
    whole_newlines: bool = False
    prefix_lines: bool = False
    drop_spaces: bool = False


class Cutter:
    """Cuts text by a sequence of regular expressions, with a cache of pieces.

    Args:
        regexes: as in `PreTokenizer`.
    """

    def __init__(self, regexes: Sequence[str]) -> None:
        cuts = list(map(_compile, regexes))
        self._first, rest = cuts[:1], cuts[1:]
        self._rest = [Memo(cut) for cut in rest]

    def __call__(self, text: str) -> list[str]:
        """The non-empty pieces of a text."""
        pieces = [text] if text else []
        for cut in self._first:
            pieces = cut(text)
        for memo in self._rest:
            pieces = list(chain.from_iterable(map(memo.__getitem__, pieces)))
        return pieces


def word_cutters(regexes: Sequence[str]) -> tuple[Cutter, Cutter]:
    """A cutter of text into words, and a cutter of words, whose results can be cached by word."""
    about_letters = (i for i, text in enumerate(regexes) if _ABOUT_LETTERS.search(text))
    n = 1 + next(about_letters, len(regexes) - 1)
    return Cutter(regexes[:n]), Cutter(regexes[n:])


def _compile(text: str) -> Callable[[str], list[str]]:
    # imported late: slow, and not needed for decoding
    import regex

    backwards = text.startswith(BACKWARDS)
    # with one capturing group, `split` returns matches and gaps alternately
    text = f"{BACKWARDS}({text.removeprefix(BACKWARDS)})" if backwards else f"({text})"
    split = regex.compile(text).split
    if backwards:
        return lambda piece: [part for part in reversed(split(piece)) if part]
    return lambda piece: list(filter(None, split(piece)))


# --- the table ------------------------------------------------------------------------------------

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_WORD = rf"{_LEAD}\p{{L}}+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}"
_NO_CONTRACTION = rf"{_WORD}|\p{{N}}|{_PUNCTUATION}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_NO_CONTRACTION}"
_QWEN35 = (
    rf"{_CONTRACTION}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_MINICPM5 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_PUNCTUATION}|{_SPACES}"
_SEED_CODER = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_ONE_NEWLINE = r"\s*[\r\n]|\s+(?!\S)|\s+"
_BAILING = (
    rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_PUNCTUATION}|{_ONE_NEWLINE}"
)
_EXAONE_MOE = (
    rf"{_CONTRACTION}|{_LEAD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|{_ONE_NEWLINE}"
)
_HALVED = "".join(rf"|\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4"))
_JAIS2 = (
    rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCTUATION}|\s*[\r\n]+{_HALVED}|\s{{1,2}}(?!\S)|\s"
)
_PUNCTUATION_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"


def _cased(upper: str, lower: str, after: str, digits: str) -> str:
    """The regular expression of o200k, which cuts words where lower case precedes upper case."""
    return (
        rf"{_LEAD}{upper}*{lower}+{after}|{_LEAD}{upper}+{lower}*{after}"
        rf"|{digits}|{_PUNCTUATION_SLASH}|{_SPACES}"
    )


_DIGITS = r"\p{N}{1,3}"
_ASCII_CASE = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
_ASCII_CASE_MARKS = r"(?:(?=[\p{L}\p{M}])[^a-z])", r"(?:(?=[\p{L}\p{M}])[^A-Z])"
_CASE = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = _cased(*_ASCII_CASE, "", r"\p{N}")
_TEKKEN_ORIGINAL = _cased(*_CASE, "", r"\p{N}")
_GPT4O = _cased(*_ASCII_CASE, f"{_CONTRACTION}?", _DIGITS)
_GPT4O_MARKS = _cased(*_ASCII_CASE_MARKS, f"{_CONTRACTION}?", _DIGITS)
_GPT4O_ORIGINAL = _cased(*_CASE, f"{_CONTRACTION}?", _DIGITS)
_YOUTU_ORIGINAL = _cased(*_CASE, f"{_CONTRACTION}?", r"\p{N}")
_UNCASED = rf"{_LEAD}[\p{{L}}\p{{M}}]+{_CONTRACTION}?"
_YOUTU = rf"{_UNCASED}|\p{{N}}|{_PUNCTUATION_SLASH}|{_SPACES}"
_YOUTU_SCRIPTS = (
    r"[\uac00-\ud7a3\u3131-\u318e]+|[！…“”‘’—：；，\u3001-\u303f\ufe30-\ufe4f]+"
    r"|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
_TINY_AYA = rf"{_UNCASED}|{_DIGITS}|{_PUNCTUATION_SLASH}|{_SPACES}"
# llama.cpp's version is simpler than Kimi's own, which distinguishes case and marks
_HAN = (
    r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ebef"
    r"\U0002f800-\U0002fa1f]"
)
_KIMI = rf"{_HAN}+|{_LEAD}(?:(?!{_HAN})\p{{L}})+{_CONTRACTION}?|{_DIGITS}|{_PUNCTUATION}|{_SPACES}"
_KIMI_ORIGINAL = (
    rf"{_HAN}+|{_LEAD}(?:(?!{_HAN}){_CASE[0]})*(?:(?!{_HAN}){_CASE[1]})+{_CONTRACTION}?"
    rf"|{_LEAD}(?:(?!{_HAN}){_CASE[0]})+(?:(?!{_HAN}){_CASE[1]})*{_CONTRACTION}?"
    rf"|{_DIGITS}|{_PUNCTUATION}|{_SPACES}"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_AFTER_PUNCTUATION = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    r"| ?[\p{P}\p{S}]+"
)
_DEEPSEEK3 = rf"{_AFTER_PUNCTUATION}[\r\n]*|{_SPACES}"
_SPARK = rf"{_AFTER_PUNCTUATION}|[\r\n]|\s+(?!\S)|\s+"
# llama.cpp matches Unicode white space as if it were a tab, so ranges exclude it
_CJK = (
    r"[\u4e00-\u9fa5\u0800-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e"
    r"\u2060-\u2fff\u3001-\u4e00\uac00-\ud7ff]+"
)
_CJK_ORIGINAL = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CJK_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_ASIAN = (
    r"[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f"
    r"\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f"
    r"\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
# Letters of scripts with case, as listed by DeepSeek; escaped, since editors that normalize
# Unicode would change them.
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
_DEEPSEEK_LLM = (r"[\r\n]", _DEEPSEEK_LETTERS)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+")
_CHAMELEON = (
    r"<sentinel:[0-9]+>",
    r"IMGIMG[A-I]{1,4}Z",
    r"[\t\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
# in llama.cpp the first group of a number includes the text before it
_THREES_FROM_THE_RIGHT = r"(?r)\P{N}*\p{N}{1,3}"
_THREES_ORIGINAL = r"\d{1,3}(?=(?:\d{3})*\b)"
_LINES = r"[^\n]+|[\n]+"


def _families(*rows: tuple[str, PreTokenizer]) -> dict[str, PreTokenizer]:
    return {name: pre for names, pre in rows for name in names.split()}


_gpt2 = PreTokenizer((_GPT2,), clean_spaces=True)
_digit_gpt2 = PreTokenizer((r"\p{N}", _GPT2), clean_spaces=True)
_llama3 = PreTokenizer((_LLAMA3,), clean_spaces=True)
_qwen2 = PreTokenizer((_QWEN2,))
_gpt4o = PreTokenizer((_GPT4O,), originals=(_GPT4O_ORIGINAL,))
_bloom = PreTokenizer((_BLOOM,), clean_spaces=True)
# the whole text is one word in llama.cpp; cutting at newlines does not change the tokens
_gemma = PreTokenizer((_LINES,), originals=(), byte_level=False)

# Converters write the first name of a family.
PRE_TOKENIZERS: dict[str, PreTokenizer] = _families(
    (
        "default",
        PreTokenizer(
            (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"), clean_spaces=True
        ),
    ),
    (
        "gpt-2 phi-2 mpt olmo jais exaone4 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en "
        "jina-v2-code roberta-bpe gigachat a.x-4.0 mellum modern-bert",
        _gpt2,
    ),
    ("trillion granite-docling", replace(_gpt2, clean_spaces=False)),
    ("starcoder refact codeshell exaone minerva-7b mellum2", _digit_gpt2),
    ("smollm command-r", replace(_digit_gpt2, clean_spaces=False)),
    (
        "falcon",
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"), clean_spaces=True),
    ),
    ("smaug-bpe dbrx chatglm-bpe", _llama3),
    ("glm4 glm5", replace(_llama3, ignore_merges=True)),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        replace(_llama3, ignore_merges=True, add_bos=True),
    ),
    ("jais-2", PreTokenizer((_JAIS2,), clean_spaces=True)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan solar-open grok-2", _qwen2),
    ("stablelm2 megrez", replace(_qwen2, clean_spaces=True)),
    ("qwen35", PreTokenizer((_QWEN35,))),
    ("ufakzeka", PreTokenizer((_NO_CONTRACTION,))),
    ("laguna", PreTokenizer((_LINES, _QWEN2))),
    ("minicpm5", PreTokenizer((_DIGITS, _MINICPM5), ignore_merges=True, clean_spaces=True)),
    ("seed-coder", PreTokenizer((_SEED_CODER,))),
    ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,))),
    ("exaone-moe", PreTokenizer((_EXAONE_MOE,), clean_spaces=True)),
    (
        "tekken",
        PreTokenizer((_TEKKEN,), originals=(_TEKKEN_ORIGINAL,), ignore_merges=True, add_bos=True),
    ),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _gpt4o),
    (
        "granite-embed-multi-97m",
        replace(_gpt4o, regexes=(_GPT4O_MARKS,), ignore_merges=True),
    ),
    (
        "tiny_aya cohere2moe",
        PreTokenizer(
            (_THREES_FROM_THE_RIGHT, _TINY_AYA),
            originals=(_THREES_ORIGINAL, _GPT4O_ORIGINAL),
        ),
    ),
    (
        "youtu",
        PreTokenizer(
            (_YOUTU_SCRIPTS, _YOUTU),
            originals=(_YOUTU_SCRIPTS, _YOUTU_ORIGINAL),
            ignore_merges=True,
        ),
    ),
    ("kimi-k2", PreTokenizer((_KIMI,), originals=(_KIMI_ORIGINAL,))),
    ("bloom gpt3-finnish", _bloom),
    ("poro-chat", replace(_bloom, clean_spaces=False)),
    ("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
    (
        "deepseek-coder",
        PreTokenizer(
            (*_DEEPSEEK_CODER, _CJK, r"\p{N}"),
            originals=(*_DEEPSEEK_CODER, _CJK_ORIGINAL, r"\p{N}"),
        ),
    ),
    (
        "deepseek-llm",
        PreTokenizer(
            (*_DEEPSEEK_LLM, r"\s?[!-/:-~！-／：-～‘-‟、。]+", r"\s+$", _CJK, r"\p{N}+"),
            originals=(
                *_DEEPSEEK_LLM,
                r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
                r"\s+$",
                _CJK_ORIGINAL,
                r"\p{N}+",
            ),
        ),
    ),
    (
        "deepseek-v3 hunyuan-dense hy_v4 joyai-llm",
        PreTokenizer((_DIGITS, _CJK_KANA, _DEEPSEEK3)),
    ),
    ("spark2_5", PreTokenizer((_DIGITS, _CJK_KANA, _SPARK, r"\p{N}"))),
    (
        "afmoe",
        PreTokenizer(
            (_THREES_FROM_THE_RIGHT, _ASIAN, _DEEPSEEK3),
            originals=(_THREES_ORIGINAL, _ASIAN, _DEEPSEEK3),
        ),
    ),
    ("chameleon", PreTokenizer(_CHAMELEON, add_bos=True)),
    ("superbpe", PreTokenizer((r"\p{N}+", r"(?r)[0-9]{3}[^0-9]*"))),
    (
        "gemma4 granite-embed-multi-311m",
        replace(_gemma, add_bos=True, clean_spaces=True, whole_newlines=True),
    ),
    ("sarvam-moe", _gemma),
    (
        "mmbert",
        PreTokenizer(
            (_LINES, "\u2581[^\u2581]*"),
            originals=("\u2581[^\u2581]*",),
            byte_level=False,
            clean_spaces=True,
            whole_newlines=True,
            prefix_lines=True,
        ),
    ),
    ("whitespace", PreTokenizer((r"\S+",), clean_spaces=True, byte_level=False, drop_spaces=True)),
)


def pretokenizer(name: str | None) -> PreTokenizer:
    """The pre-tokenizer of a name in ``tokenizer.ggml.pre``.

    A missing or unknown name gives the default pre-tokenizer, with a warning.
    """
    if name is not None and name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    what = "is missing" if name is None else f"is {name!r}, which is unknown"
    log.warning("tokenizer.ggml.pre %s: using 'default', quality may be degraded", what)
    return PRE_TOKENIZERS["default"]
