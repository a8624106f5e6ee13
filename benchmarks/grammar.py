"""Measures grammars: compile time and time per mask; prints a table and appends a result line.

    python -m benchmarks.grammar MODEL.gguf

Tokens are sampled from random logits at temperature 1.2, so that each text visits states for the
first time; every token's mask is made, nothing is remembered between grammars. The peer, if
installed, is llguidance with a grammar of the same language and the same tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from pyggml.gguf import GGUFFile
from pyllama.grammar import Grammar
from pyllama.grammar.vocabulary import Vocabulary
from pyllama.tokenizer import Tokenizer, load_tokenizer

RESULTS = Path(__file__).parent / "results" / "grammar.jsonl"
_TOKENS, _TEXTS = 150, 4

_STRING = r'"\"" ( [^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )'
_STRING_LARK = r'/"([^"\\\x00-\x1F]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))'
_NUMBER = '"-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,15})?'
_NUMBER_LARK = r"/-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?/"
GRAMMARS = {
    "json": (
        'root ::= object\nvalue ::= object | array | string | number | "true" | "false" | "null"\n'
        'object ::= "{" ( pair (", " pair)* )? "}"\npair ::= string ": " value\n'
        f'array ::= "[" ( value (", " value)* )? "]"\nstring ::= {_STRING}* "\\""\n'
        f"number ::= {_NUMBER}",
        'start: object\nvalue: object | array | STRING | NUMBER | "true" | "false" | "null"\n'
        'object: "{" ( pair (", " pair)* )? "}"\npair: STRING ": " value\n'
        f'array: "[" ( value (", " value)* )? "]"\nSTRING: {_STRING_LARK}*"/\n'
        f"NUMBER: {_NUMBER_LARK}",
    ),
    "record": (
        f'root ::= "{{\\"name\\": " string ", \\"age\\": " number (", \\"tags\\": [" string (", " '
        f'string){{0,5}} "]")? ", \\"kind\\": " kind "}}"\nkind ::= "\\"red\\"" | "\\"green\\"" | '
        f'"\\"blue\\""\nstring ::= {_STRING}{{0,30}} "\\""\nnumber ::= {_NUMBER}',
        'start: "{\\"name\\": " STRING ", \\"age\\": " NUMBER (", \\"tags\\": [" STRING (", " '
        'STRING){0,5} "]")? ", \\"kind\\": " KIND "}"\nKIND: "\\"red\\"" | "\\"green\\"" | '
        f'"\\"blue\\""\nSTRING: {_STRING_LARK}{{0,30}}"/\nNUMBER: {_NUMBER_LARK}',
    ),
    "identifiers": (
        'root ::= "[" name ("," name)* "]"\nname ::= "\\"" [a-zA-Z_] [a-zA-Z0-9_]{0,20} "\\""',
        'start: "[" NAME ("," NAME)* "]"\nNAME: /"[a-zA-Z_][a-zA-Z0-9_]{0,20}"/',
    ),
}
Mask = Callable[[], bytes]
Accept = Callable[[int], Any]
Maker = Callable[[str], tuple[Mask, Accept]]


def measured(make: Maker, text: str, tokenizer: Tokenizer) -> dict[str, float]:
    """Milliseconds to compile, and microseconds per mask and per accepted token."""
    rng = np.random.default_rng(0)
    compiling, masks, accepts = [], [], []
    for _ in range(_TEXTS):
        start = time.perf_counter()
        mask, accept = make(text)
        compiling.append(time.perf_counter() - start)
        for _ in range(_TOKENS):
            start = time.perf_counter()
            bits = mask()
            masks.append(time.perf_counter() - start)
            flags = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
            allowed = np.flatnonzero(flags[: tokenizer.n_vocab])
            logits = rng.standard_normal(allowed.size) / 1.2
            token = int(allowed[(logits + rng.gumbel(size=allowed.size)).argmax()])
            if token in tokenizer.eog:
                break
            start = time.perf_counter()
            accept(token)
            accepts.append(time.perf_counter() - start)
    return {
        "compile_ms": round(1e3 * float(np.median(compiling)), 2),
        "mask_us_median": round(1e6 * float(np.median(masks)), 1),
        "mask_us_mean": round(1e6 * float(np.mean(masks)), 1),
        "mask_us_p99": round(1e6 * float(np.percentile(masks, 99)), 1),
        "accept_us_median": round(1e6 * float(np.median(accepts)), 1),
    }


def ours(tokenizer: Tokenizer) -> Maker:
    """Our matcher, without what earlier grammars left."""

    def make(text: str) -> tuple[Mask, Accept]:
        Vocabulary.of(tokenizer).kept.clear()
        matcher = Grammar(text).matcher(tokenizer)
        return lambda: matcher.mask().tobytes(), matcher.accept

    return make


def llguidance(tokenizer: Tokenizer) -> Maker | None:
    """llguidance's matcher, None if it is not installed."""
    try:
        import llguidance as peer  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    texts = [tokenizer.token_to_piece(t, special=True) for t in range(tokenizer.n_vocab)]

    class Words:
        eos_token_id = min(tokenizer.eog)
        bos_token_id = None
        special_token_ids = tuple(t for t in range(len(texts)) if not tokenizer.token_to_piece(t))
        tokens = tuple(texts)

        def __call__(self, text: bytes | str) -> list[int]:
            data = text if isinstance(text, bytes) else text.encode()
            return [texts.index(bytes([byte])) for byte in data]

    wrapped = peer.LLTokenizer(peer.TokenizerWrapper(Words()))

    def make(text: str) -> tuple[Mask, Accept]:
        matcher = peer.LLMatcher(wrapped, peer.LLMatcher.grammar_from_lark(text))
        return matcher.compute_bitmask, matcher.consume_token

    return make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    options = parser.parse_args()
    with GGUFFile(options.model) as file:
        tokenizer = load_tokenizer(file.metadata)
    makers = {"pyllama": ours(tokenizer), "llguidance": llguidance(tokenizer)}
    makers["pyllama"]('root ::= "a"')[0]()  # type: ignore[misc]  # compiles kernels
    found: dict[str, Any] = {}
    for name, texts in GRAMMARS.items():
        for engine, make, text in zip(makers, makers.values(), texts, strict=True):
            if make is not None:
                found.setdefault(name, {})[engine] = row = measured(make, text, tokenizer)
                print(f"{name:12} {engine:10} {row}", flush=True)
    line = {**machine.head(), "n_vocab": tokenizer.n_vocab, "grammars": found}
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
