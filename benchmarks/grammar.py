"""Measures grammars: compile time and time per mask; prints a table and appends a result line.

    python -m benchmarks.grammar MODEL.gguf [--random 200]

Tokens are sampled from random logits at temperature 1.2, so that each text visits states for the
first time; every token's mask is made, nothing is remembered between grammars. The peer, if
installed, is llguidance with a grammar of the same language and the same vocabulary.

JSON schemas, the fixed ones of the tests and random ones with bounded strings and arrays, are
compiled and visited once each, with logits that prefer common tokens, so that texts end. The peer
gets the same tokens; schemas and texts that it refuses are left out for both.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from pyggml.gguf import GGUFFile
from pyllama.errors import SchemaError
from pyllama.grammar import Grammar
from pyllama.grammar.vocabulary import TokenTexts
from pyllama.tokenizer import Tokenizer, load_tokenizer
from tests.pyllama.grammar.random_schemas import RandomSchema, bounded

RESULTS = Path(__file__).parent / "results" / "grammar.jsonl"
SCHEMAS = Path(__file__).parents[1] / "tests" / "data" / "json_schemas"
_TOKENS, _TEXTS, _SCHEMA_TOKENS = 150, 4, 400

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


def schemas(n_random: int) -> dict[str, Any]:
    """The fixed schemas and the first random ones that some document matches, by name."""
    found = {path.stem: json.loads(path.read_bytes()) for path in sorted(SCHEMAS.glob("*.json"))}
    n, seed = len(found) + n_random, 0
    while len(found) < n:
        schema = bounded(RandomSchema(seed).draw())
        try:
            Grammar.from_json_schema(schema)
            found[f"random {seed}"] = schema
        except SchemaError:
            pass
        seed += 1
    return found


class SchemaTimes:
    """Seconds of an engine for one schema: to compile it, and of each mask and accepted token."""

    def __init__(self, make: Maker, schema: str) -> None:
        start = time.perf_counter()
        self._mask, self._accept = make(schema)
        self.compiling = time.perf_counter() - start
        self.masks: list[float] = []
        self.accepts: list[float] = []

    def mask(self) -> bytes:
        start = time.perf_counter()
        bits = self._mask()
        self.masks.append(time.perf_counter() - start)
        return bits

    def accept(self, token: int) -> bool:
        start = time.perf_counter()
        accepted = self._accept(token)
        self.accepts.append(time.perf_counter() - start)
        return accepted is not False


def compared(
    makers: dict[str, Maker], schema: str, tokenizer: Tokenizer
) -> dict[str, SchemaTimes] | None:
    """The engines' times for a schema and the same tokens, which the first one allows.

    None if another engine refuses the schema or a token.
    """
    rng = np.random.default_rng(0)
    common = -np.log(np.arange(tokenizer.n_vocab) + 10)
    try:
        times = {engine: SchemaTimes(make, schema) for engine, make in makers.items()}
    except ValueError:
        return None
    first, *others = times.values()
    for _ in range(_SCHEMA_TOKENS):
        flags = np.unpackbits(np.frombuffer(first.mask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(flags[: tokenizer.n_vocab])
        logits = (2 * rng.standard_normal(allowed.size) + common[allowed]) / 1.2
        token = int(allowed[(logits + rng.gumbel(size=allowed.size)).argmax()])
        for other in others:
            other.mask()  # of a forced text, llguidance allows one token only
        if token in tokenizer.eog:
            break
        if not all(one.accept(token) for one in times.values()):
            return None
    return times


def schema_row(times: Iterable[SchemaTimes]) -> dict[str, float]:
    """Milliseconds to compile, and microseconds per mask and accepted token, of many schemas."""
    times = list(times)
    compiling = [1e3 * one.compiling for one in times]
    masks = [1e6 * np.array(one.masks) for one in times]
    accepts = [1e6 * np.array(one.accepts) for one in times if one.accepts]
    return {
        "compile_ms_median": round(float(np.median(compiling)), 2),
        "compile_ms_p99": round(float(np.percentile(compiling, 99)), 2),
        "mask_us_median_of_medians": round(float(np.median([np.median(m) for m in masks])), 1),
        "mask_us_median_of_means": round(float(np.median([m.mean() for m in masks])), 1),
        "mask_us_p99": round(float(np.percentile(np.concatenate(masks), 99)), 1),
        "mask_us_max": round(float(np.concatenate(masks).max()), 1),
        "accept_us_median": round(float(np.median(np.concatenate(accepts))), 1),
    }


def ours(tokenizer: Tokenizer, grammar: Callable[[str], Grammar] = Grammar) -> Maker:
    """Our matcher, without what earlier grammars left."""

    def make(text: str) -> tuple[Mask, Accept]:
        TokenTexts.of(tokenizer).kept.clear()
        matcher = grammar(text).matcher(tokenizer)
        return lambda: matcher.mask().tobytes(), matcher.accept

    return make


def llguidance(tokenizer: Tokenizer) -> tuple[Maker, Maker] | None:
    """llguidance's matcher of Lark's grammars and of JSON schemas, None if it is not installed."""
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

    def maker(grammar: Callable[[str], str]) -> Maker:
        def make(text: str) -> tuple[Mask, Accept]:
            matcher = peer.LLMatcher(wrapped, grammar(text))
            if matcher.is_error():
                raise ValueError(matcher.get_error())
            return matcher.compute_bitmask, matcher.consume_token

        return make

    return maker(peer.LLMatcher.grammar_from_lark), maker(peer.LLMatcher.grammar_from_json_schema)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--random", type=int, default=200, help="number of random schemas")
    options = parser.parse_args()
    with GGUFFile(options.model) as file:
        tokenizer = load_tokenizer(file.metadata)
    makers, schema_makers = [ours(tokenizer)], [ours(tokenizer, Grammar.from_json_schema)]
    peer = llguidance(tokenizer)
    if peer is not None:
        makers.append(peer[0])
        schema_makers.append(peer[1])
    engines = ("pyllama", "llguidance")
    makers[0]('root ::= "a"')[0]()  # compiles kernels
    found: dict[str, Any] = {}
    for name, texts in GRAMMARS.items():
        for engine, make, text in zip(engines, makers, texts, strict=False):
            found.setdefault(name, {})[engine] = row = measured(make, text, tokenizer)
            print(f"{name:12} {engine:10} {row}", flush=True)
    given = [json.dumps(schema) for schema in schemas(options.random).values()]
    compare = dict(zip(engines, schema_makers, strict=False))
    alone = {"pyllama": schema_makers[0]}
    table: dict[str, Any] = {}
    for title, chosen in {"all": alone, "both accept": compare}.items():
        times = [one for text in given if (one := compared(chosen, text, tokenizer)) is not None]
        table[title] = {"schemas": len(times)}
        for engine in chosen:
            table[title][engine] = row = schema_row(one[engine] for one in times)
            print(f"{len(times)} schemas ({title}) {engine:10} {row}", flush=True)
    line = {**machine.head(), "n_vocab": tokenizer.n_vocab, "grammars": found, "schemas": table}
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
