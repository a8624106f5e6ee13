"""Text that is on every machine: the docstrings of Python's library and of installed packages.

    train, held_out = documents()
    processor = tokenizer(folder / "tokenizer.model", train)

The files are read in the order of their paths, a paragraph that comes again is left out, and whole
files are held out, so no sentence of theirs was trained on.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

N_VOCAB = 2048
HELD_OUT = 50  # one file of so many
_LONG = 60  # characters of a paragraph
_PROSE = 0.85  # letters and spaces, the rest is code


def _files() -> Iterator[tuple[str, Path]]:
    """Source files of the library and of the packages, with their paths beneath it."""
    for key in ("stdlib", "purelib"):
        root = Path(sysconfig.get_path(key))
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root)
            if key == "purelib" or name.parts[0] not in ("site-packages", "test"):
                yield f"{key}/{name.as_posix()}", path


def _docstrings(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escapes in strings
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return  # files that are there to fail
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def _prose(paragraph: str) -> bool:
    flat = re.sub(r"\s+", " ", paragraph)
    plain = sum(c.isalpha() or c == " " for c in flat)
    return len(flat) >= _LONG and ">>>" not in flat and plain >= _PROSE * len(flat)


def documents() -> tuple[list[str], list[str]]:
    """Texts for training and held-out texts; each file is one document."""
    seen: set[str] = set()
    parts: tuple[list[str], list[str]] = ([], [])
    for name, path in _files():
        found = []
        for docstring in _docstrings(path):
            for paragraph in filter(_prose, re.split(r"\n\s*\n", docstring)):
                key = re.sub(r"\W+", "", paragraph.lower())
                if key not in seen:
                    seen.add(key)
                    found.append(paragraph.strip())
        if found:
            parts[zlib.crc32(name.encode()) % HELD_OUT == 0].append("\n\n".join(found))
    return parts


def tokenizer(path: Path, texts: list[str]) -> Any:
    """A SentencePiece BPE vocabulary as LLaMA's; trained on the texts unless the file exists."""
    import sentencepiece

    if not path.exists():
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter("\n".join(texts).splitlines()),
            model_prefix=str(path.with_suffix("")),
            model_type="bpe",
            vocab_size=N_VOCAB,
            byte_fallback=True,
            split_digits=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            num_threads=2,
            minloglevel=2,
        )
    return sentencepiece.SentencePieceProcessor(model_file=str(path))
