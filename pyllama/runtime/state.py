"""Saves the KV cache and recurrent states of a context, or of one sequence, and restores them.

    save_state(context, "x.state", tokens)         # to a temporary file, then renamed
    tokens = load_state(context, "x.state")        # the context continues where it was

    save_state(context, "a.seq", seq=0); load_state(other, "a.seq", seq=3)

A file holds magic and version, a JSON header, the keys and values of the used cells, and the
recurrent states of each sequence, checkpoints included. It can be loaded into any context of the
same model and cache types that has enough cells and sequences. Everything is checked before the
context changes. A restored sequence continues with the same bits.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyggml.files import open_regular, replacing

from ..errors import StateError, StateFull
from ..inputs.bounded_json import parse_json
from ..kv.cache import KVCache
from ..kv.states import StateCache
from .adapters import key_of, uses_of

if TYPE_CHECKING:
    from .context import Context

MAGIC, VERSION = b"PYLS", 2
_HEAD = struct.Struct("<4sIQI")  # magic, version, bytes of the JSON header, CRC of the rest
_ALIGN = 64
_MAX_CHARS = 100  # of a string in the header
_MAX_VALUES = 1 << 22  # in the header: tokens, and two per sequence
Bytes = npt.NDArray[np.uint8]


def dump_state(
    context: Context, tokens: Sequence[int] = (), *, seq: int | None = None,
    adapters: str | None = None,
) -> list[Bytes]:  # fmt: skip
    """The KV cache of a context, or of one of its sequences, as pieces of a file.

    Args:
        tokens: stored too, and returned by ``restore_state``.
        seq: the sequence; None for all.
        adapters: ``key_of`` those that the tokens were computed with, which ``restore_state`` must
            be given too; None: those that the context applies.

    Raises:
        BatchError: the context has no such sequence.
        StateError: a sequence was reduced.
    """
    context.apply_pending()
    seqs = range(context.kv.n_seq_max) if seq is None else [seq]
    for s in filter(context.kv.reduced, seqs):
        raise StateError(
            f"sequence {s} was reduced to {context.params.kv_keep} tokens (kv_keep): it cannot be "
            "saved"
        )
    caches, blobs = [], []
    for cache in context.kv.caches:
        cells, lists = cache.export_lists(seqs)
        part = [cache.read_cells(t, cells) for t in cache.stored]
        blobs += [np.ascontiguousarray(x).view(np.uint8).reshape(-1) for x in (*lists, *part)]
        caches.append(
            {
                "window": cache.window,
                "layers": len(cache.layers),
                "cells": len(cells),
                "lengths": [len(entries) for entries in lists],
                "lost": [cache.evicted(s) for s in seqs],
            }
        )
        if cache.encoded:
            caches[-1]["encoded"] = [cache.encoded.get(s, 0) for s in seqs]
    header = {
        "model": _fingerprint(context, adapters),
        "type": context.kv.types,
        "tokens": [int(t) for t in tokens],
        "caches": caches,
    }
    states = context.kv.states
    if states is not None:
        kept = [states.states_of(s) for s in seqs]
        header["states"] = [[state.position for state in of_seq] for of_seq in kept]
        blobs += [states.read(t, x.slot) for of_seq in kept for x in of_seq for t in states.stored]
    text = json.dumps(header).encode()
    text += b" " * (-(_HEAD.size + len(text)) % _ALIGN)
    head = _HEAD.pack(MAGIC, VERSION, len(text), _crc(text, *blobs))
    return [np.frombuffer(head + text, np.uint8), *blobs]


def save_state(
    context: Context,
    path: str | os.PathLike[str],
    tokens: Sequence[int] = (),
    *,
    seq: int | None = None,
    adapters: str | None = None,
) -> None:
    """Write ``dump_state`` to a file.

    Raises:
        BatchError: the context has no such sequence.
        OSError: the file cannot be written; an existing file is left unchanged.
    """
    parts = dump_state(context, tokens, seq=seq, adapters=adapters)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        for part in parts:
            file.write(part.data)


def load_state(
    context: Context, path: str | os.PathLike[str], *, seq: int | None = None,
    adapters: str | None = None,
) -> list[int]:  # fmt: skip
    """``restore_state`` from a file. Raises: StateError, BatchError, OSError."""
    with open_regular(path) as file:
        if file.read(len(MAGIC)) != MAGIC:  # do not read a large file of another kind
            raise StateError(f"{os.fspath(path)}: not a saved state")
        file.seek(0)
        return restore_state(context, file.read(), seq=seq, name=os.fspath(path), adapters=adapters)


def restore_state(
    context: Context, data: bytes, *, seq: int | None = None, name: str = "state",
    adapters: str | None = None,
) -> list[int]:  # fmt: skip
    """Replace the KV cache of a context, or of one sequence, by a saved one.

    Args:
        seq: sequence to replace by the one in the state; None to replace all by the state of a
            whole context.
        name: the state's name in error messages.
        adapters: as for ``dump_state``.

    Returns:
        The tokens given to ``dump_state``.

    Raises:
        StateError: not a state, damaged, too large for the context, or of another version, model,
            cache type or other adapters. The context is unchanged.
        BatchError: the context has no such sequence.
    """
    header, rest = _read(data, name)
    _check_fits(context, header, name, adapters)
    seqs = range(context.kv.n_seq_max) if seq is None else [seq]
    parts = []
    for cache, info in zip(context.kv.caches, header["caches"], strict=True):
        part = _CacheState(cache, info, rest, len(seqs), name)
        parts.append(part)
        rest = rest[part.n_bytes :]
    kept = None
    if context.kv.states is not None:
        kept = _SavedStates(context.kv.states, header["states"], parts[0].ends(), rest, name)
        rest = rest[kept.n_bytes :]
    if len(rest):
        raise StateError(f"{name}: {len(rest)} bytes too many; the file is damaged")
    for part in parts:
        part.check_room(seq)
    if seq is None:
        context.kv.clear()
    else:
        context.apply_pending()
        context.kv.seq_rm(seq)
    for part in parts:
        part.write(seqs)
    if kept is not None:
        kept.write(seqs)
    return [int(t) for t in header["tokens"]]


class _CacheState:
    """The validated part of a saved state that belongs to one cache."""

    def __init__(
        self, cache: KVCache, info: dict[str, Any], data: Bytes, n_seq: int, path: str
    ) -> None:
        lengths, n = info["lengths"], info["cells"]
        if len(lengths) > n_seq and any(lengths[n_seq:]):
            raise StateError(f"{path}: {len(lengths)} sequences, this context has {n_seq}")
        self._cache, self._n, self._path = cache, n, path
        self._evicted, self._encoded = info["lost"], info.get("encoded", ())
        if any(m > length for m, length in zip(self._encoded, lengths, strict=False)):
            raise StateError(f"{path}: encoded texts of {self._encoded[:9]} tokens; damaged")
        tensors = cache.stored
        shapes = [(t.ne[2], n, t.nb[1]) for t in tensors]
        sizes = [8 * length for length in lengths] + [int(np.prod(s)) for s in shapes]
        self.n_bytes = sum(sizes)
        if self.n_bytes > len(data):
            raise StateError(f"{path}: {self.n_bytes - len(data)} bytes are missing; damaged")
        pieces = np.split(data[: self.n_bytes], np.cumsum(sizes)[:-1])
        self._lists = [p.view(np.int32).reshape(-1, 2) for p in pieces[: len(lengths)]]
        self._values = [
            (t, p.reshape(s))
            for t, p, s in zip(tensors, pieces[len(lengths) :], shapes, strict=True)
        ]
        for entries in self._lists:
            index, position = entries[:, 0], entries[:, 1]
            if len(entries) and not (
                index.min() >= 0
                and index.max() < n
                and position[0] >= 0
                and (np.diff(position) >= 0).all()
                and len(np.unique(index)) == len(index)
            ):
                raise StateError(f"{path}: cells or positions out of order; the file is damaged")

    def check_room(self, seq: int | None) -> None:
        """Raise StateFull unless the cells fit; drops cells outside of the window if needed."""
        if not self._cache.room_for(self._lists, self._n, seq):
            self._drop_outside_window()
        if not self._cache.room_for(self._lists, self._n, seq):
            raise StateFull(
                f"{self._path}: the saved {self._n} tokens do not fit into the free cells of this "
                f"context of {self._cache.n_cells}; use a larger `n_ctx`"
            )

    def _drop_outside_window(self) -> None:
        for i, entries in enumerate(self._lists):
            start = int(entries[-1, 1]) + 1 if len(entries) else 0
            n = self._cache.n_outside_window(entries, start)
            if n:
                self._evicted[i], self._lists[i] = int(entries[n - 1, 1]), entries[n:]
        kept = np.unique(np.concatenate([entries[:, 0] for entries in self._lists]))
        self._n = len(kept)
        self._values = [(t, values[:, kept]) for t, values in self._values]
        for i, entries in enumerate(self._lists):
            self._lists[i] = np.stack([np.searchsorted(kept, entries[:, 0]), entries[:, 1]], 1)

    def ends(self) -> list[int]:
        """The next position of each saved sequence, 0 where it is empty."""
        return [int(entries[-1, 1]) + 1 if len(entries) else 0 for entries in self._lists]

    def write(self, seqs: Sequence[int]) -> None:
        cells = self._cache.import_lists(seqs, self._lists, self._evicted, self._n)
        for seq, n_encoded in zip(seqs, self._encoded, strict=False):
            if n_encoded:
                self._cache.encoded[seq] = n_encoded
        for tensor, values in self._values:
            self._cache.write_cells(tensor, cells, values)


class _SavedStates:
    """The validated recurrent states of a saved state."""

    def __init__(
        self, states: StateCache, saved: list[list[int]], ends: list[int], data: Bytes, path: str
    ) -> None:
        self._states, self._saved = states, saved
        for positions, end in zip(saved, ends, strict=False):
            fits = positions == sorted(set(positions)) and (positions or [0])[-1] == end
            if not fits or len(saved) != len(ends):
                raise StateError(f"{path}: recurrent states at {positions[:9]}, want one at {end}")
        sizes = [t.nbytes // states.n_slots for t in states.stored]
        self.n_bytes = sum(sizes) * sum(map(len, saved))
        if self.n_bytes > len(data):
            raise StateError(f"{path}: {self.n_bytes - len(data)} bytes are missing; damaged")
        self._data = data[: self.n_bytes].reshape(-1, sum(sizes))
        self._cuts = np.cumsum(sizes)[:-1]

    def write(self, seqs: Sequence[int]) -> None:
        rows = iter(self._data)
        for seq, positions in zip(seqs, self._saved, strict=False):
            for slot in self._states.adopt(seq, positions):
                row = next(rows)
                for tensor, part in zip(
                    self._states.stored, np.split(row, self._cuts), strict=True
                ):
                    if slot >= 0:
                        self._states.write(tensor, slot, part)


def _read(data: bytes, name: str) -> tuple[dict[str, Any], Bytes]:
    """Header and data of a state. Raises: StateError, also for a wrong checksum."""
    if len(data) < _HEAD.size or data[:4] != MAGIC:
        raise StateError(f"{name}: not a saved state (it begins with {data[:4]!r})")
    _, version, size, crc = _HEAD.unpack_from(data)
    if version != VERSION:
        raise StateError(f"{name}: a state of version {version}, want {VERSION}; save it again")
    body = memoryview(data)[_HEAD.size :]
    if size > len(body) or zlib.crc32(body) != crc:
        raise StateError(f"{name}: the checksum differs; the file is damaged, save it again")
    try:
        header = parse_json(bytes(body[:size]), _MAX_VALUES)
        ok = isinstance(header, dict) and _is_header(header)
    except ValueError:
        ok = False
    if not ok:
        raise StateError(f"{name}: its header is not that of a saved state; save it again")
    return header, np.frombuffer(body[size:], np.uint8)


def _is_header(header: Mapping[str, Any]) -> bool:
    """Whether all fields are present and have their types."""
    try:
        texts, caches = (header["model"], header["type"]), header["caches"]
        lists = [
            header["tokens"],
            *header.get("states", ()),
            *(c[k] for c in caches for k in ("lengths", "lost")),
        ]
        encoded = [c.get("encoded", []) for c in caches]
        sizes = [c[k] for c in caches for k in ("window", "layers", "cells")]
        sizes += [length for c in caches for length in c["lengths"]]
        paired = all(len(c["lengths"]) == len(c["lost"]) for c in caches)
    except (KeyError, TypeError):
        return False
    lists += encoded
    if not (paired and all(isinstance(one, list) for one in lists)):
        return False
    numbers = [*sizes, *(x for one in lists for x in one)]
    return (
        all(isinstance(text, str) and len(text) <= _MAX_CHARS for text in texts)
        and all(type(x) is int and -1 <= x < 1 << 31 for x in numbers)
        and all(x >= 0 for x in (*sizes, *(n for one in encoded for n in one)))
    )


def _fingerprint(context: Context, adapters: str | None) -> str:
    """A digest of all that keys and values depend on.

    That is the model, overridden hyperparameters and adapters.
    """
    model = context.model
    if adapters is None:
        adapters = key_of(uses_of(context.applied, ()))
    if context.hparams == model.hparams and not adapters:
        return model.fingerprint
    parts = model.fingerprint, repr(context.hparams), *([adapters] if adapters else [])
    return sha256(" ".join(parts).encode()).hexdigest()


def _check_fits(context: Context, header: dict[str, Any], path: str, adapters: str | None) -> None:
    kv = context.kv
    if header["model"] != _fingerprint(context, adapters):
        raise StateError(
            f"{path}: saved with another model, with other adapters, or with other rope, "
            "activation, layers or `sparse` options"
        )
    if header["type"] != kv.types:
        raise StateError(
            f"{path}: saved from a {header['type']} cache, this one is {kv.types}; "
            "use the same `type_k`, `type_v` and draft head"
        )
    if ("states" in header) != (kv.states is not None):
        raise StateError(f"{path}: has recurrent states and this model has none, or the reverse")
    mine = [(cache.window, len(cache.layers)) for cache in kv.caches]
    if [(c["window"], c["layers"]) for c in header["caches"]] != mine:
        raise StateError(f"{path}: saved from caches other than those of this context, {mine}")


def _crc(*parts: bytes | Bytes) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part if isinstance(part, bytes) else part.data, crc)
    return crc
