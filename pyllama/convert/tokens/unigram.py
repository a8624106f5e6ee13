"""Reads Unigram vocabularies, those of XLM-RoBERTa and T5, from tokenizer.json.

    vocabulary = read_unigram(Folder(Path("folder")))

Source: llama.cpp, ``BertModel._xlmroberta_set_vocab``, ``T5Model.set_vocab``.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np

from ...errors import TokenizerError
from ...inputs.budget import shown
from ...tokenizer.special import NORMAL, UNKNOWN
from ..files.folder import Folder, objects
from .tokens import MAX_TOKENS, FileToken, FileVocabulary

_MAX_SCORE = float(np.finfo(np.float32).max)  # scores are float32 in GGUF


def read_unigram(folder: Folder) -> FileVocabulary:
    """Return the vocabulary. Raises: TokenizerError, ModelError."""
    path, root = folder.path / "tokenizer.json", folder.json("tokenizer.json")
    model = root["model"]
    pieces, unk = model.get("vocab"), model.get("unk_id")
    if not isinstance(pieces, list) or not 0 < len(pieces) <= MAX_TOKENS:
        raise TokenizerError(f"{path}: it has no vocabulary: download the file again")
    tokens = {}
    for i, piece in enumerate(pieces):
        match piece:
            case [str(text), int() | float() as score] if abs(score) <= _MAX_SCORE:
                tokens[i] = FileToken(text, UNKNOWN if i == unk else NORMAL, float(score))
            case _:
                raise TokenizerError(f"{path}: token {i} is {shown(piece)}, not a text and a score")
    steps = _steps(root.get("normalizer"), "normalizers")
    words = _steps(root.get("pre_tokenizer"), "pretokenizers")
    prefixed = any(
        part.get("type") == "Metaspace"
        and part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never")
        != "never"
        for part in words
    )
    vocabulary = FileVocabulary(model="t5", tokens=tokens, pre="default", add_space_prefix=prefixed)
    collapses = any(part.get("type") == "WhitespaceSplit" for part in words) or any(
        part.get("type") == "Replace" and part.get("pattern") == {"Regex": " {2,}"}
        for part in steps
    )
    vocabulary.more["remove_extra_whitespaces"] = collapses
    charsmap = next((part.get("precompiled_charsmap") for part in steps
                     if part.get("type") == "Precompiled"), None)  # fmt: skip
    if isinstance(charsmap, str) and charsmap:
        try:
            data = base64.b64decode(charsmap, validate=True)
        except (binascii.Error, ValueError):
            raise TokenizerError(f"{path}: precompiled_charsmap is not base64") from None
        vocabulary.more["precompiled_charsmap"] = np.frombuffer(data, np.uint8)
    return vocabulary


def _steps(section: Any, inner: str) -> list[dict[str, Any]]:
    """The steps of a section of tokenizer.json, those of a sequence one by one."""
    return [step for part in objects(section) for step in (part, *objects(part.get(inner)))]
