"""Caches of states by their tokens, of llama-cpp-python's names: in memory and in files.

    llama.set_cache(LlamaRAMCache(capacity_bytes=2 << 30))
    llama.set_cache(LlamaDiskCache("states"))

A completion loads the state with the longest common prefix with its prompt, and saves its own. A
`BaseLlamaCache` of one's own needs ``__getitem__``, which raises KeyError, and ``__setitem__``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import zipfile
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyggml.files import open_regular, read_regular, replacing

from .state import LlamaState

_CAPACITY = 2 << 30
_SUFFIX = ".llama-state"


def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of equal tokens at the beginning of both."""
    n = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        n += 1
    return n


class BaseLlamaCache(ABC):
    """States by the tokens that they hold.

    Args:
        capacity_bytes: maximum size of all states.

    Source: llama-cpp-python, ``llama_cache.py``.
    """

    def __init__(self, capacity_bytes: int = _CAPACITY) -> None:
        self.capacity_bytes = capacity_bytes

    @property
    @abstractmethod
    def cache_size(self) -> int:
        """Size of all states in bytes."""

    @abstractmethod
    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """The state that has the longest common prefix with a prompt.

        Raises:
            KeyError: no state has its first token.
        """

    @abstractmethod
    def __contains__(self, key: Sequence[int]) -> bool:
        """Whether a state has a common prefix with a prompt."""

    @abstractmethod
    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        """Store the state that holds these tokens."""


class LlamaRAMCache(BaseLlamaCache):
    """States in memory; the least recently used ones are dropped first.

    Attributes:
        cache_state: the states by their tokens.
    """

    def __init__(self, capacity_bytes: int = _CAPACITY) -> None:
        super().__init__(capacity_bytes)
        self.cache_state = OrderedDict[tuple[int, ...], LlamaState]()

    @property
    def cache_size(self) -> int:
        """Size of all states in bytes, without their logits."""
        return sum(state.llama_state_size for state in self.cache_state.values())

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        found = _nearest(self.cache_state, key)
        if found is None:
            raise KeyError("no state has a common prefix with these tokens")
        self.cache_state.move_to_end(found)
        return self.cache_state[found]

    def __contains__(self, key: Sequence[int]) -> bool:
        return _nearest(self.cache_state, key) is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        self.cache_state[tuple(key)] = value
        self.cache_state.move_to_end(tuple(key))
        while self.cache_size > self.capacity_bytes:
            self.cache_state.popitem(last=False)


LlamaCache = LlamaRAMCache


class LlamaDiskCache(BaseLlamaCache):
    """States in files of a folder; the least recently used ones are deleted first.

    The files are NumPy's, and nothing in them is executed; those of llama-cpp-python (diskcache)
    are not read. Several processes may use a folder. A damaged file counts as missing.

    Args:
        cache_dir: the folder, created at the first state.
        capacity_bytes: maximum size of all files.
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] = ".cache/llama_cache",
        capacity_bytes: int = _CAPACITY,
    ) -> None:
        super().__init__(capacity_bytes)
        self._folder = Path(cache_dir)
        self._keys: dict[Path, tuple[int, ...]] = {}  # of the files that were read

    @property
    def cache_size(self) -> int:
        """Size of all files in bytes."""
        return sum(size for _, size, _ in self._files())

    def _files(self) -> list[tuple[int, int, Path]]:
        """Time of the last use, size and path of each file."""
        found = []
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):  # another process deleted it
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        return found

    def _key(self, path: Path) -> tuple[int, ...]:
        if path not in self._keys:
            try:
                with open_regular(path) as file, zipfile.ZipFile(file) as archive:
                    data = archive.read("key.npy")
                self._keys[path] = tuple(np.load(BytesIO(data), allow_pickle=False).tolist())
            except (OSError, ValueError, KeyError, zipfile.BadZipFile):
                return ()
        return self._keys[path]

    def _nearest(self, key: Sequence[int]) -> Path | None:
        keys = {self._key(path): path for _, _, path in self._files()}
        found = _nearest(keys, key)
        return None if found is None else keys[found]

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        path = self._nearest(key)
        state = None if path is None else _read(path)
        if path is None or state is None:
            raise KeyError("no state has a common prefix with these tokens")
        _count_use(path)
        return state

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._nearest(key) is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        ids = np.array(key, np.int64)
        path = self._folder / (hashlib.sha256(ids.tobytes()).hexdigest() + _SUFFIX)
        with replacing(path) as temporary, open(temporary, "wb") as file:
            _write(file, ids, value)
        _count_use(path)
        files = sorted(self._files())
        size = sum(n for _, n, _ in files)
        for _, n, old in files:
            if size <= self.capacity_bytes:
                break
            old.unlink(missing_ok=True)
            self._keys.pop(old, None)
            size -= n


def _nearest(keys: Iterable[tuple[int, ...]], tokens: Sequence[int]) -> tuple[int, ...] | None:
    """The key with the longest common prefix; None without any."""
    n, found = 0, None
    for key in keys:
        n_common = longest_token_prefix(key, tokens)
        if n_common > n:
            n, found = n_common, key
    return found


def _count_use(path: Path) -> None:
    now = time.time_ns()  # the system's own times of files are several milliseconds apart
    with contextlib.suppress(OSError):  # another process deleted it
        os.utime(path, ns=(now, now))


def _write(file: object, key: npt.NDArray[np.int64], state: LlamaState) -> None:
    """Write a state; of the logits only the rows that are stored."""
    rows = np.flatnonzero(state.scores.any(axis=1))
    sizes = [*state.scores.shape, len(state.input_ids), state.n_tokens, state.seed]
    np.savez(
        file,  # type: ignore[arg-type]
        key=key,
        ids=state.input_ids[: state.n_tokens],
        rows=rows,
        scores=state.scores[rows],
        memory=np.frombuffer(state.llama_state, np.uint8),
        sizes=np.array(sizes, np.int64),
    )


def _read(path: Path) -> LlamaState | None:
    """The state of a file; None if it is missing or damaged."""
    try:
        with np.load(BytesIO(read_regular(path)), allow_pickle=False) as file:
            n_rows, n_vocab, n_ids, n_tokens, seed = map(int, file["sizes"])
            scores = np.zeros((n_rows, n_vocab), np.float32)
            scores[file["rows"]] = file["scores"]
            ids = np.zeros(n_ids, np.intc)
            ids[:n_tokens] = file["ids"]
            memory = file["memory"].tobytes()
    except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile):
        return None
    return LlamaState(ids, scores, n_tokens, memory, len(memory), seed)
