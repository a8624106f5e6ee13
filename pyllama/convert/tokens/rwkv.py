r"""Reads the vocabulary of RWKV: a line for each token, of its id, a Python literal and its length.

    vocabulary = read_rwkv(Folder(Path("folder")))     # 258 '\x01\x02' 2, 259 b'\xff\xfe' 2, ...

Source: BlinkDL, ``rwkv_vocab_v20230424.txt``; llama.cpp, ``_set_vocab_rwkv_world``.
"""

from __future__ import annotations

import ast

from ...errors import TokenizerError
from ...inputs.budget import shown
from ...tokenizer.special import CONTROL, NORMAL
from ..files.folder import Folder
from .tokens import FileToken, FileVocabulary

NAME = "rwkv_vocab_v20230424.txt"
_MAX_LINE = 1024  # bytes; the longest known token has 128 bytes
_END_OF_TURN = b"\n\n"
CHAT_TEMPLATE = (  # for folders without one, as in llama.cpp
    "{% for message in messages %}{{ message['role'] | capitalize }}: "
    "{{ message['content'] | trim }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


def read_rwkv(folder: Folder) -> FileVocabulary:
    """Return the vocabulary. Raises: TokenizerError, ModelError."""
    path, lines = folder.path / NAME, folder.read(NAME).splitlines()
    folder.budget.take("values", 8 * len(lines), path)
    ids = {b"": 0}  # of the token <s>
    tokens = {0: FileToken("<s>", CONTROL)}
    for i, line in enumerate(lines, 1):
        token = _token(line, i)
        if token is None or ids.setdefault(token, i) != i:
            raise TokenizerError(
                f"{path}: line {i} is {shown(line)}, want {i}, a new token and its length: "
                "download the file again"
            )
        tokens[i] = FileToken(repr(token)[2:-1], NORMAL)
    roles = {"bos": 0, "eos": 0}
    if _END_OF_TURN in ids:
        roles["eot"] = ids[_END_OF_TURN]
    return FileVocabulary(model="rwkv", tokens=tokens, roles=roles, added={0})


def _token(line: bytes, i: int) -> bytes | None:
    """Return the token of a line; None if the line is invalid, or not of token ``i``."""
    parts = line.split(b" ")
    try:
        value = ast.literal_eval(b" ".join(parts[1:-1])[:_MAX_LINE].decode())
        token = value.encode() if isinstance(value, str) else value
        valid = isinstance(token, bytes) and (int(parts[0]), int(parts[-1])) == (i, len(token))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return token if valid else None
