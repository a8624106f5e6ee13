"""Paths in what clients are told: the names of files, not the folders that they are in.

without_folders("cannot open /home/me/models/a.gguf")      # "cannot open a.gguf"
"""

from __future__ import annotations

import re

# from a root on: /, ~/ or C:\, up to the last separator
_FOLDERS = re.compile(r"(?<![\w.:/\\<])(?:~|[A-Za-z]:)?[/\\](?:[^/\\\s:;,'\"()]+[/\\])+")


def without_folders(message: str, *folders: object) -> str:
    """A message without the folders of the absolute paths in it.

    Args:
        folders: some that may be in it, whose names may have spaces.
    """
    for folder in map(str, folders):
        for separator in "/\\":
            message = message.replace(folder.rstrip("/\\") + separator, "")
    return _FOLDERS.sub("", message)
