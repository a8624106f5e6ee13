"""Finds the pre-tokenizer of llama.cpp that cuts text as a ``tokenizer.json`` does.

    recognised = recognise(root["pre_tokenizer"], root["normalizer"])
    recognised.name             # "qwen2", for tokenizer.ggml.pre
    recognised.warning          # None, or one line with the differences

The sections are applied to a fixed text, and its words compared with those of every pre-tokenizer,
so new models are recognised too. Without an exact match the most similar one is returned.
Never raises, for any content of the sections.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import Any

from ...inputs.budget import ReadBudget
from ...tokenizer.boundaries import SPACE
from ...tokenizer.characters import WHITE
from ...tokenizer.pretokenizers import PRE_TOKENIZERS, Cutter, PreTokenizer
from .tokenizer_json import TextSteps

# Text on which all pre-tokenizers of the table differ. It is in NFC: llama.cpp does not normalize
# text for BPE, but that rarely matters and should give no warning.
PROBE = (
    "Hello world's end: I'LL say they'Re \"DON'T\", 'm 't (well) camelCase HTTPServer Ärger ÉCOLE"
    " naïve don't'll\n\n  def f(x):\n\treturn x+=1;  \r\n\r\n/path//to\n/ a.b,c ...x \n\n/\n"
    "12345678 x1234567 3.14 ½² 1 23 456 7890 ٣٤٥\u00a0\u00a0!?\u3000。漢字かな交じり、カナ 한국어ㄱ"
    " ภาษาไทย हिन्दी עברית क्\u200d Å🙂👍🏽 <|x|> $5+3=8^2~`a`_b {a} [b] #c @d %e &f *g\\h"
    " <sentinel:12> IMGIMGABZ 中文“引”—x…！（）A中B ab 　 Σας  .\t\t.\n \n  \nend'S l'test"
    " a  1      eight          ten\n    four  \n\n"
)
_SHOWN_WORDS, _SHOWN_CHARS = 6, 60


@dataclass(frozen=True)
class Recognised:
    """A value for ``tokenizer.ggml.pre``.

    Attributes:
        name: name of a pre-tokenizer.
        warning: differences from the model's own in one line; None if there are none.
    """

    name: str
    warning: str | None = None


def recognise(
    pre_tokenizer: Any,
    normalizer: Any,
    *,
    ignore_merges: bool = False,
    budget: ReadBudget | None = None,
) -> Recognised:
    """The pre-tokenizer that cuts text as these sections do, or the most similar one.

    Args:
        pre_tokenizer: the parsed section of that name, or None.
        normalizer: the parsed section of that name, or None.
        ignore_merges: the value in the section ``model``.
        budget: limits the time for applying the sections.
    """
    steps = TextSteps(budget or ReadBudget())
    words = steps.words(pre_tokenizer, normalizer, PROBE)
    names = [name for name, pre in PRE_TOKENIZERS.items() if pre.byte_level == steps.byte_level]
    exact = [name for name in names if words in _cuts(PRE_TOKENIZERS[name])]
    # the first of equal ones, which is the first name of a family
    same_merges = [n for n in exact if PRE_TOKENIZERS[n].ignore_merges == ignore_merges]
    name = (same_merges or exact or [_closest(words, names)])[0]
    differences = list(_differences(steps, words, name, exact=bool(exact)))
    if exact and not same_merges:
        what = "does not split words that are tokens" if ignore_merges else "splits such words"
        differences.append(f"the model {what} (ignore_merges), {name!r} does not")
    if not differences:
        return Recognised(name)
    return Recognised(name, f"pre-tokenizer {name!r}: {'; '.join(differences)}")


def _differences(steps: TextSteps, words: list[str], name: str, *, exact: bool) -> Iterator[str]:
    if not exact:
        ours = _cuts(PRE_TOKENIZERS[name])[-1]
        n_same = sum(block.size for block in _matcher(words, ours).get_matching_blocks())
        at = next(op for op in _matcher(words, ours).get_opcodes() if op[0] != "equal")
        yield (
            "no pre-tokenizer of llama.cpp cuts text as this model does, this is the most similar "
            f"({n_same} of {len(words)} words); it cuts {_shown(ours[at[3] : at[4]])} where the "
            f"model cuts {_shown(words[at[1] : at[2]])}"
        )
    if steps.unread:
        yield f"unsupported steps: {', '.join(steps.unread)}"
    if steps.prefixes_space:
        yield "the model adds a space before a text (add_prefix_space), llama.cpp does not"


def _shown(words: list[str]) -> str:
    """A few words in one line."""
    text = " ".join(map(repr, words[:_SHOWN_WORDS])) or "nothing"
    more = " ..." if len(words) > _SHOWN_WORDS or len(text) > _SHOWN_CHARS else ""
    return text[:_SHOWN_CHARS] + more


def _closest(words: list[str], names: list[str]) -> str:
    first_of_family = {PRE_TOKENIZERS[name].regexes: name for name in reversed(names)}

    def likeness(name: str) -> float:
        return max(_matcher(words, cut).ratio() for cut in _cuts(PRE_TOKENIZERS[name]))

    return max(reversed(first_of_family.values()), key=likeness)


def _matcher(a: list[str], b: list[str]) -> SequenceMatcher[str]:
    return SequenceMatcher(None, a, b, autojunk=False)


@cache
def _cuts(pre: PreTokenizer) -> list[list[str]]:
    """The words of `PROBE` by the family's original regexes, if any, and by llama.cpp's."""
    found = [Cutter(pre.regexes)(_spelt(pre))]
    if pre.originals is not None:
        found.insert(0, Cutter(pre.originals)(_spelt(pre)))
    if pre.drop_spaces:
        found = [[word for word in words if word.strip(WHITE)] for words in found]
    return found


def _spelt(pre: PreTokenizer) -> str:
    if pre.byte_level or pre.drop_spaces:
        return PROBE
    return (SPACE if pre.prefix_lines else "") + PROBE.replace(" ", SPACE)
