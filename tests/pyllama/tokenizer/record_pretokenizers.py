"""Records how llama.cpp cuts difficult texts, for each name of a BPE pre-tokenizer.

    python -m tests.pyllama.tokenizer.record_pretokenizers      # needs xllamacpp: its library

The vocabulary has each short piece of the texts as a token, so that a text that is cut elsewhere
has other tokens. Names that cut alike share a record.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pyllama.tokenizer.bpe import CHAR_OF_BYTE
from pyllama.tokenizer.pretokenizers import PRE_TOKENIZERS

from ..models import Spec, random_weights, write_model
from .vocabularies import DATA, Metadata, bpe

RECORD = DATA / "pretokenizers.json.gz"
TEXTS = (
    "It's 1234567 o'clock, I'LL say; we'Ve 42 of 1,000.50 and x²³ ½ Ⅻ ٣٤٥",
    "    indented\n\n\n  lines \r\n\twith\t\ttabs   \n ends  ",
    "camelCase HTTPServer snake_case __init__ kebab-case ABCdef aB\u0130i",
    "def f(x):\n    return {'a': x[0]/2, \"b\": ~x}  # end!!!\n\n",
    "你好，世界。これはテストです。カタカナ ｶﾀｶﾅ 한국어 문장 123개",
    "สวัสดีครับ ผมชื่อ हिन्दी में लिखा العَرَبِيَّة عربي",
    "e\u0301 cafe\u0301 naïve Ångström ǅ ß ﬁn Ωμέγα ПРИВЕТ мир",
    "🙂🙃 👩‍👩‍👧 a🙂b … “quotes” — – ¿qué? §5 €100 $3.14 <|x|> @me #tag\u00a0nbsp\u3000wide",
    "a\u200bb\u200d \ufe0f 12 345 6789 00 1a2b3c / // \\n ... ,,, '' ''' `code`",
)
_LONGEST = 16  # bytes of a token


def vocabulary(pre: str) -> Metadata:
    """A vocabulary of all bytes and all short pieces of the texts."""
    merges: dict[str, None] = {}
    for text in TEXTS:  # a piece grows from its beginning
        chars = "".join(CHAR_OF_BYTE[byte] for byte in text.encode())
        for i in range(len(chars)):
            for end in range(i + 1, min(i + _LONGEST, len(chars))):
                merges[f"{chars[i:end]} {chars[end]}"] = None
    return bpe(*merges, pre=pre, bos_token_id=0, eos_token_id=1, add_bos_token=False)


def names() -> list[str]:
    """Pre-tokenizers of byte-level BPE that both know."""
    return sorted(name for name, one in PRE_TOKENIZERS.items() if one.byte_level)


def main() -> None:
    from benchmarks.llama_cpp_logits import library

    lib, found = library(None), dict[str, list[str]]()
    lib.llama_backend_init()
    for name in names():
        with TemporaryDirectory() as folder:
            path = Path(folder) / "x.gguf"
            metadata = vocabulary(name)
            n_vocab = len(metadata["tokenizer.ggml.tokens"])
            spec = Spec(n_layer=1, n_vocab=n_vocab, n_embd=32)
            write_model(path, spec, random_weights(spec), metadata=metadata)
            params = lib.llama_model_default_params()
            model = lib.llama_model_load_from_file(str(path).encode(), params)
            if not model:
                print(f"llama.cpp does not know {name}", file=sys.stderr)
                continue
            vocab = ctypes.c_void_p(lib.llama_model_get_vocab(ctypes.c_void_p(model)))
            for i, text in enumerate(TEXTS):
                data, ids = text.encode(), np.empty(1000, np.int32)
                out = ids.ctypes.data_as(ctypes.c_void_p)
                n = lib.llama_tokenize(vocab, data, len(data), out, 1000, False, False)
                key = json.dumps([i, ids[:n].tolist()])
                found.setdefault(key, []).append(name)
            lib.llama_model_free(ctypes.c_void_p(model))
    records = [[*json.loads(key), of] for key, of in sorted(found.items())]
    RECORD.write_bytes(gzip.compress(json.dumps(records).encode(), mtime=0))
    print(f"{len(names())} names, {len(records)} records, {RECORD.stat().st_size} bytes")


if __name__ == "__main__":
    main()
