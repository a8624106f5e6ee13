"""Records the tokens that llama.cpp's samplers choose, for tests/pyllama/sampling/test_golden.py.

    python record.py DRIVER     # writes golden.jsonl; DRIVER: driver.cpp, compiled

With SOURCE and BUILD of llama.cpp (build 11434, static libraries, x86-64, g++ 12):

    g++ -O2 -std=c++17 -I SOURCE/include -I SOURCE/common -I SOURCE/ggml/include driver.cpp \
        -o driver -Wl,--start-group $(find BUILD -name 'lib*.a') -Wl,--end-group -fopenmp

Each line of the file has the parameters of a case that differ from llama.cpp's defaults, the
generator of its logits (see driver.cpp), the accepted prompt and the sampled tokens.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyggml.gguf import write_gguf

HERE = Path(__file__).parent
DEFAULTS: dict[str, Any] = {
    "seed": 1, "min_keep": 0, "temp": 0.8, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0,
    "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1.0, "top_n_sigma": -1.0,
    "xtc_probability": 0.0, "xtc_threshold": 0.1, "repeat_last_n": 64, "repeat_penalty": 1.0,
    "frequency_penalty": 0.0, "presence_penalty": 0.0, "dry_multiplier": 0.0, "dry_base": 1.75,
    "dry_allowed_length": 2, "dry_penalty_last_n": 64, "adaptive_target": -1.0,
    "adaptive_decay": 0.9, "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1,
}  # fmt: skip
ACTIVE: dict[str, list[dict[str, Any]]] = {  # letter of a sampler: parameters that enable it
    "e": [
        {"repeat_penalty": 1.3},
        {"repeat_penalty": 0.8, "repeat_last_n": 5},
        {"frequency_penalty": 0.7, "presence_penalty": 0.2, "repeat_last_n": 9},
    ],
    "d": [
        {"dry_multiplier": 2.0, "dry_sequence_breakers": [[3]]},
        {"dry_multiplier": 0.8, "dry_base": 1.1, "dry_allowed_length": 1,
         "dry_sequence_breakers": [[7], [2, 5]]},
        {"dry_multiplier": 3.0, "dry_penalty_last_n": 12, "dry_allowed_length": 0,
         "dry_sequence_breakers": [[1, 2], [1, 2, 3], [4]]},
        {"dry_multiplier": 5.0, "dry_base": 1.0, "dry_sequence_breakers": [[900]]},
    ],
    "s": [{"top_n_sigma": n} for n in (0.7, 1.0, 2.5)],
    "k": [{"top_k": k} for k in (1, 8, 40, 300)],
    "y": [{"typical_p": p} for p in (0.2, 0.6, 0.95)],
    "p": [{"top_p": p} for p in (0.3, 0.9, 0.995)],
    "m": [{"min_p": p} for p in (0.01, 0.1, 0.5)],
    "x": [
        {"xtc_probability": 0.5, "xtc_threshold": 0.1},
        {"xtc_probability": 0.9, "xtc_threshold": 0.02},
        {"xtc_probability": 1.0, "xtc_threshold": 0.2},
    ],
    "t": [
        {"temp": 0.6},
        {"temp": 1.7},
        {"temp": 0.9, "dynatemp_range": 0.4},
        {"temp": 0.5, "dynatemp_range": 1.0, "dynatemp_exponent": 2.5},
        {"temp": 1.2, "dynatemp_range": 0.7, "dynatemp_exponent": 0.5},
    ],
    "a": [
        {"adaptive_target": 0.3},
        {"adaptive_target": 0.05, "adaptive_decay": 0.5},
        {"adaptive_target": 0.9, "adaptive_decay": 0.99},
        {"adaptive_target": -1.0},
    ],
}  # fmt: skip

GRAMMARS = [  # of texts that mostly do not end by themselves, so that many tokens are sampled
    'root ::= (" " [abcd:]+ | "x"{2,5} "\\n")+',
    'root ::= item{3,12} "."?\nitem ::= ("ab" | "bc:") [ a-d]{2,9} "\\n"',
]
CONSTRAINED: list[dict[str, Any]] = [
    {"chain": "", "mirostat": 1, "mirostat_tau": 3.0},
    {"chain": "", "mirostat": 2, "mirostat_tau": 3.0, "temp": 1.3},
    {"chain": "ma", "adaptive_target": 0.2, "min_p": 0.01},
    {"chain": "ka", "adaptive_target": 0.6, "top_k": 100},
    {"chain": "kxt", "xtc_probability": 0.6, "xtc_threshold": 0.05},
    {"chain": "xt", "xtc_probability": 0.9, "xtc_threshold": 0.02, "temp": 1.5},
    {"chain": "eskpt", "repeat_penalty": 1.4, "top_n_sigma": 2.0},
    {"chain": "yt", "typical_p": 0.8},
]


def sampled(rng: random.Random, n_vocab: int, first: int = 0, **more: Any) -> dict[str, Any]:
    """A case with random seed and logits, and a prompt of few tokens from ``first`` on."""
    prompt = [first + rng.randrange(9) for _ in range(rng.choice([0, 20, 70]))]
    return {
        "n_vocab": n_vocab, "row": rng.randrange(2**20), "period": 7, "n": 40,
        "scale": rng.choice([3.0, 6.0, 12.0, 25.0]), "prompt": prompt,
        "seed": rng.randrange(2**32 - 1), **more,
    }  # fmt: skip


def cases(vocabularies: list[str]) -> Iterator[dict[str, Any]]:
    rng = random.Random(20)
    for letter, choices in ACTIVE.items():
        for active in choices:
            for chain, n_vocab in ((letter, 5000), ("k" + letter, 5000), (letter, 37)):
                yield sampled(rng, n_vocab, chain=chain, **active)
    for _ in range(10):
        yield sampled(rng, 5000, chain="edskypmxt")
    for version in (1, 2):
        for _ in range(10):
            mirostat = {"mirostat": version, "mirostat_tau": rng.choice([2.0, 5.0, 7.5])}
            eta, temp = rng.choice([0.1, 0.4]), rng.choice([0.7, 1.0, 1.5])
            n_vocab = rng.choice([37, 5000])
            yield sampled(rng, n_vocab, chain="", mirostat_eta=eta, temp=temp, **mirostat)
    for i in range(150):
        letters = rng.sample(list(ACTIVE), rng.randrange(2, 8))
        active = {k: v for letter in letters for k, v in rng.choice(ACTIVE[letter]).items()}
        min_keep = rng.choice([0, 0, 1, 4])
        n_vocab = rng.choice([12, 300, 5000])
        yield sampled(rng, n_vocab, chain="".join(letters), min_keep=min_keep, **active)
        if i < 5:
            yield sampled(rng, 300, chain="ekpmt", temp=0.0, repeat_penalty=1.5, top_k=30)
    for vocabulary in vocabularies:
        for breakers in (["\n", ":", '"', "*"], ["a"], ["ab", " b", "abc: d"], ["é\n", "x" * 50]):
            dry = {"dry_multiplier": 4.0, "dry_allowed_length": 1, "breakers": breakers}
            yield sampled(rng, 270, 255, vocab=vocabulary, chain="dkt", temp=1.5, **dry)
        for text in GRAMMARS:
            for constrained in CONSTRAINED:
                more = {"scale": rng.choice([3.0, 8.0]), "grammar": text, **constrained}
                yield sampled(rng, 270, 255, vocab=vocabulary) | more
        for top_k in (3, 8, 30, 30):
            infill = {"temp": 1.0, "top_k": top_k}
            yield sampled(rng, 270, vocab=vocabulary, chain="kit", **infill)


def line(case: dict[str, Any], files: dict[str, Path]) -> str:
    """A case as the driver reads it."""
    values = DEFAULTS | case
    values["prompt"] = ",".join(map(str, case["prompt"]))
    breakers = case.get("dry_sequence_breakers", [])
    values["dry_sequence_breakers"] = ";".join(",".join(map(str, b)) for b in breakers)
    if "breakers" in case:
        values["breakers"] = ",".join(b.encode().hex() for b in case["breakers"])
    if "grammar" in case:
        values["grammar"] = case["grammar"].encode().hex()
    if "vocab" in case:
        values["vocab"] = files[case["vocab"]]
    return " ".join(f"{key}={value}" for key, value in values.items())


def vocabularies() -> dict[str, dict[str, Any]]:
    """The metadata of two small vocabularies."""
    sys.path.insert(0, str(HERE.parents[2]))
    from tests.pyllama.tokenizer.vocabularies import bpe, spm

    pieces = '▁ a b ab ▁a ▁b abc ▁ab bc c : d ▁d \n ▁: :\n x xx xxxx xxxxxxxx é " * ." ** \n\n é\n'
    merges = 'a b,ab c,Ġ a,Ġ b,Ġ ab,b c,Ġ d,: Ċ,x x,xx xx,Ã ©,Ã© Ċ,. ",* *,Ċ Ċ,a :'
    words = {"block_count": 1, "context_length": 64, "embedding_length": 8}
    words |= {"feed_forward_length": 8, "attention.head_count": 1}
    sizes = {f"llama.{key}": value for key, value in words.items()}
    sizes["llama.attention.layer_norm_rms_epsilon"] = 1e-5
    ends = {"<|end|>": 3, "<|turn|>": 3}
    n_bpe = 256 + len(merges.split(","))
    special = {"eos_token_id": n_bpe, "eot_token_id": n_bpe + 1}
    return {
        "spm": sizes | spm(*pieces.split(" ")),
        "bpe": sizes | bpe(*merges.split(","), special=ends, **special),
    }


def main() -> None:
    metadata = vocabularies()
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.gguf" for name in metadata}
        for name, file in files.items():
            write_gguf(file, metadata[name], {})
        made = list(cases(list(files)))
        text = "\n".join(line(case, files) for case in made) + "\n"
        result = subprocess.run(
            [sys.argv[1]], input=text, capture_output=True, text=True, check=True
        )
    rows = result.stdout.splitlines()
    assert len(rows) == len(made)
    (HERE / "vocabularies.json").write_text(json.dumps(metadata), encoding="utf-8")
    with (HERE / "golden.jsonl").open("w", encoding="utf-8") as out:
        for case, row in zip(made, rows, strict=True):
            given = {k: v for k, v in case.items() if DEFAULTS.get(k) != v}
            given["tokens"] = [int(token) for token in row.split()]
            out.write(json.dumps(given, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
