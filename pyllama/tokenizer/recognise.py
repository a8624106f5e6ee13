"""Which of llama.cpp's pre-tokenizers a ``tokenizer.json`` means, by how it cuts text.

    recognised = recognise(root["pre_tokenizer"], root["normalizer"])
    recognised.name             # "qwen2", for tokenizer.ggml.pre
    recognised.warning          # None, or one line that says what differs

A model that nobody has seen is recognised like any other, or gets the name that comes closest: the
sections are followed on a fixed text and the words compared with those of every pre-tokenizer.
Never raises, whatever the sections hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import Any

from ..files.budget import Budget
from .boundaries import SPACE
from .characters import WHITE
from .pretokenize import Cutter, PreTokenizer
from .pretokenizers import PRE_TOKENIZERS
from .tokenizer_json import Steps

# Everything by which one of the table differs from another. In NFC, which llama.cpp does not bring
# BPE's texts into: hardly a text would differ, and no model should get a warning for that.
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
    """What to write as ``tokenizer.ggml.pre``.

    Attributes:
        name: Name of a pre-tokenizer.
        warning: What differs between it and the model's own, in one line; None if nothing does.
    """

    name: str
    warning: str | None = None


def recognise(
    pre_tokenizer: Any,
    normalizer: Any,
    *,
    ignore_merges: bool = False,
    budget: Budget | None = None,
) -> Recognised:
    """The pre-tokenizer that cuts text as these sections do, or comes closest.

    Args:
        pre_tokenizer: Section of that name, parsed; None if there is none.
        normalizer: Section of that name, parsed; None if there is none.
        ignore_merges: What the section ``model`` says under this name.
        budget: What is left of it is the time that following the sections may take.
    """
    steps = Steps(budget or Budget())
    words = steps.words(pre_tokenizer, normalizer, PROBE)
    names = [name for name, pre in PRE_TOKENIZERS.items() if pre.byte_level == steps.byte_level]
    exact = [name for name in names if words in _cuts(PRE_TOKENIZERS[name])]
    # the first of equals, so that a family goes by its first name
    wanted = [n for n in exact if PRE_TOKENIZERS[n].ignore_merges == ignore_merges]
    name = (wanted or exact or [_closest(words, names)])[0]
    differences = list(_differences(steps, words, name, exact=bool(exact)))
    if exact and not wanted:
        what = "takes words that are tokens whole" if ignore_merges else "merges them like others"
        differences.append(f"the model {what} (ignore_merges), {name!r} does not")
    if not differences:
        return Recognised(name)
    return Recognised(name, f"pre-tokenizer {name!r}: {'; '.join(differences)}")


def _differences(steps: Steps, words: list[str], name: str, *, exact: bool) -> Iterator[str]:
    if not exact:
        ours = _cuts(PRE_TOKENIZERS[name])[-1]
        n_same = sum(block.size for block in _matcher(words, ours).get_matching_blocks())
        at = next(op for op in _matcher(words, ours).get_opcodes() if op[0] != "equal")
        yield (
            "none of llama.cpp's cuts text as this model does, this one comes closest "
            f"({n_same} of {len(words)} words); it makes {_shown(ours[at[3] : at[4]])} of what the "
            f"model cuts into {_shown(words[at[1] : at[2]])}"
        )
    if steps.unread:
        yield f"steps that are not understood: {', '.join(steps.unread)}"
    if steps.prefixes_space:
        yield "the model puts a space before a text (add_prefix_space), llama.cpp does not"


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
    """The probe's words by the family's own regular expressions, and by llama.cpp's."""
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
