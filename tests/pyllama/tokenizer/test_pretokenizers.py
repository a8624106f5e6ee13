"""Every BPE pre-tokenizer cuts difficult texts as llama.cpp's of that name does."""

from __future__ import annotations

import gzip
import json

import pytest

from pyllama.tokenizer import load_tokenizer

from .record_pretokenizers import RECORD, TEXTS, names, vocabulary

RECORDS = json.loads(gzip.decompress(RECORD.read_bytes()))


@pytest.mark.parametrize("name", names())
def test_texts_are_cut_as_by_llama_cpp(name: str) -> None:
    tokenizer = load_tokenizer(vocabulary(name))
    recorded = [(i, ids) for i, ids, of in RECORDS if name in of]
    for i, ids in recorded:
        assert tokenizer.encode(TEXTS[i], add_special=False) == ids, TEXTS[i]
    assert len(recorded) == len(TEXTS)
