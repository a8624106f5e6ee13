"""Recurrent states: what layers without keys and values carry from token to token.

    states = StateCache(hparams, n_seq_max=4, n_checkpoints=32)
    runs, slots = states.place([0, 0, 1], [5, 6, 0])            # inputs of the ops with slots
    states.resume(0, 6)                            # the newest position up to 6 with a state: 5
    states.truncate(0, 5)

A slot has the states of all layers after some token, and does not change while anything but the
end of a sequence refers to it: the next token then writes to another slot. So a copy of a sequence
and a checkpoint, to which the sequence can go back, cost nothing when they are made. Where slots
run out, the oldest checkpoint is dropped. A state's position is that of the token that comes next.
States of a layer are in the memory of the device that updates them. Of the host's, the system
commits memory when a slot is first written. Not thread-safe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyggml.alloc import alloc_ctx_tensors
from pyggml.buffer import HOST
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError
from pyggml.host import available_memory
from pyggml.tensor import BufferType, Tensor

from ..errors import BatchError
from ..hparams import HParams
from .table import Ints, Seqs, seq_tuple

_DRAFT_SLOTS = 32  # beside the checkpoints, for the states after drafted tokens
Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True)
class KeptState:
    """A slot that something refers to.

    Attributes:
        position: of the token that comes next.
        drafted: whether it is kept only until its sequence goes on.
    """

    position: int
    slot: int
    drafted: bool = False


class StatePlaces(NamedTuple):
    """Where states are.

    Attributes:
        layer_buft: the buffer type of a layer's states.
        n_spare: the most slots besides two for each sequence; None: as many as are wanted.
    """

    layer_buft: Callable[[int], BufferType]
    n_spare: int | None = None


ON_HOST = StatePlaces(lambda layer: HOST)


class StateCache:
    """The states of some layers, for each sequence the newest and some older ones.

    Args:
        n_seq_max: number of sequences.
        n_checkpoints: the most older states of all sequences together; fewer where they would
            take a quarter of the host's free memory, or there are fewer ``n_spare``.
        every: a state becomes a checkpoint at each multiple of this position; 0: at none.
        places: where they are.

    Attributes:
        tensors: by name and layer, F32 [..., n_slots], with the sizes of ``HParams.states``.
        stored: all of them.
        n_drafted: the most states that are kept of drafted tokens of all sequences.
        size_bytes: of one slot for each sequence.

    Raises:
        AllocError: these do not fit into this machine's memory.
    """

    def __init__(
        self,
        hparams: HParams,
        n_seq_max: int,
        n_checkpoints: int,
        every: int = 0,
        places: StatePlaces = ON_HOST,
    ) -> None:
        layer_buft, n_spare = places
        sizes = slot_bytes(hparams, layer_buft)
        self.size_bytes = sum(sizes.values()) * n_seq_max
        self.n_seq_max, self.n_checkpoints, self.n_drafted = n_seq_max, n_checkpoints, _DRAFT_SLOTS
        self._every = every
        on_host, have = sum(n for buft, n in sizes.items() if buft.is_host), available_memory()
        if have is not None and on_host:
            _check_memory(on_host * n_seq_max, n_seq_max, have)
            n = have // (4 * on_host)
            n_spare = n if n_spare is None else min(n, n_spare)
        if n_spare is not None:
            self.n_drafted = min(_DRAFT_SLOTS, n_spare // 2)
            self.n_checkpoints = min(n_checkpoints, n_spare - self.n_drafted)
        self.n_slots = 2 * n_seq_max + self.n_checkpoints + self.n_drafted
        contexts = {buft: Context(no_alloc=True) for buft in sizes}
        self.tensors: dict[str, dict[int, Tensor]] = {}
        for layer, shapes in enumerate(hparams.states):
            for name, ne in shapes.items():
                ctx = contexts[layer_buft(layer)]
                tensor = ctx.new_tensor(GGMLType.F32, (*ne, self.n_slots))
                tensor.set_name(f"state_{name}_l{layer}")
                self.tensors.setdefault(name, {})[layer] = tensor
        for buft, ctx in contexts.items():
            alloc_ctx_tensors(ctx, buft)
        self.stored = [t for by_layer in self.tensors.values() for t in by_layer.values()]
        self.clear()

    def clear(self) -> None:
        """Remove everything."""
        self._newest: list[KeptState | None] = [None] * self.n_seq_max
        self._older: list[list[KeptState]] = [[] for _ in range(self.n_seq_max)]  # by position
        self._order: list[KeptState] = []  # those of all sequences, the oldest first
        self._drafted = [False] * self.n_seq_max  # whether a sequence has drafted states
        self._n_refs = [0] * self.n_slots
        self._free = list(range(self.n_slots - 1, -1, -1))

    # --- tokens ---------------------------------------------------------------------------------

    def place(
        self, seqs: Seqs, positions: Sequence[int], kept: Collection[int] = (),
        drafted: Collection[int] = (),
    ) -> tuple[Ints, Ints]:  # fmt: skip
        """Choose the slots of a ubatch, in which the tokens of a sequence follow each other.

        Args:
            seqs: the sequence of each token, or a tuple of several, which must share a state.
            positions: of each token.
            kept: tokens after which the state becomes a checkpoint.
            drafted: tokens after which the state is kept until the sequence goes on.

        Returns:
            The runs int32[n, 3] and the slots int32[T] of ``ops.recurrent.runs``.

        Raises:
            BatchError: sequences of one token have different states; some runs may be placed.
        """
        runs, slots = [], np.full(len(seqs), -1, np.int32)
        read: list[int] = []  # slots that stay until the last run is placed
        start, n = 0, len(seqs)
        while start < n:
            end = start + 1
            while end < n and seqs[end] == seqs[start]:
                end += 1
            group = seq_tuple(seqs[start])
            before = self._shared(group)
            if before >= 0:
                self._n_refs[before] += 1
                read.append(before)
            runs.append((start, end - start, before))
            for t in range(start, end):
                is_last, position = t == end - 1, positions[t] + 1
                is_kept = (t in kept or self._is_regular(position)) and self.n_checkpoints > 0
                if is_last:
                    slots[t] = self._advance(group, position, before)
                elif is_kept or t in drafted:
                    slots[t] = self._take()
                if is_kept or t in drafted:
                    self._add_checkpoint(group, position, int(slots[t]), not is_kept)
            start = end
        for slot in read:
            self._drop_ref(slot)
        return np.array(runs, np.int32), slots

    def append(self, seq: int) -> tuple[int, int]:
        """The slots before and after the next token of a sequence; see `place`."""
        newest = self._newest[seq]
        if (
            newest is not None and self._n_refs[newest.slot] == 1
            and not self._drafted[seq] and not self._is_regular(newest.position + 1)
        ):  # fmt: skip
            newest.position += 1
            return newest.slot, newest.slot
        runs, slots = self.place([seq], [self.position(seq)])
        return int(runs[0, 2]), int(slots[0])

    def _is_regular(self, position: int) -> bool:
        return self._every > 0 and position % self._every == 0

    def _shared(self, group: tuple[int, ...]) -> int:
        """The newest slot of all these sequences, -1 for none; forgets drafted states."""
        newest = {
            -1 if state is None else state.slot for state in map(self._newest.__getitem__, group)
        }
        if len(newest) > 1:
            raise BatchError(
                f"a token of sequences {list(group)}, whose recurrent states differ: decode it "
                "for each of them"
            )
        for s in group:
            self._drop_drafted(s)
        return newest.pop()

    def _drop_drafted(self, seq: int) -> None:
        if self._drafted[seq]:
            for state in [x for x in self._older[seq] if x.drafted]:
                self._remove(seq, state)
            self._drafted[seq] = False

    def _advance(self, group: tuple[int, ...], position: int, before: int) -> int:
        """The slot for the newest state of some sequences, which was in slot ``before``."""
        in_place = before >= 0 and self._n_refs[before] == len(group) + 1  # and one of `place`
        slot = before if in_place else self._take()
        for s in group:
            newest = self._newest[s]
            if newest is None:
                self._newest[s] = KeptState(position, slot)
                self._n_refs[slot] += 1
            else:
                self._n_refs[slot] += 1
                self._drop_ref(newest.slot)
                newest.position, newest.slot = position, slot
        return slot

    def _add_checkpoint(
        self, group: tuple[int, ...], position: int, slot: int, drafted: bool
    ) -> None:
        for s in group:
            known = [x for x in self._older[s] if x.position == position]
            for state in known:
                self._remove(s, state)
            state = KeptState(position, slot, drafted)
            self._older[s].append(state)
            self._order.append(state)
            self._n_refs[slot] += 1
            self._drafted[s] |= drafted
        self._drop_surplus()

    def _drop_surplus(self) -> None:
        """Drop the oldest checkpoints beyond ``n_checkpoints``."""
        kept = [state for state in self._order if not state.drafted]
        for state in kept[: max(0, len(kept) - self.n_checkpoints)]:
            self._drop_checkpoint(state)

    # --- sequences ------------------------------------------------------------------------------

    def position(self, seq: int) -> int:
        """The position of a sequence's next token, 0 where it is empty."""
        newest = self._newest[seq]
        return 0 if newest is None else newest.position

    def resume(self, seq: int, position: int) -> int:
        """The largest position up to ``position`` at which a sequence can go on."""
        newest = self._newest[seq]
        if newest is None or newest.position <= position:
            return min(position, self.position(seq))
        return max((x.position for x in self._older[seq] if x.position <= position), default=0)

    def truncate(self, seq: int, position: int) -> None:
        """Go back to a position of `resume`; 0: to nothing."""
        newest = self._newest[seq]
        if newest is None or newest.position <= position:
            return
        self._go_back(seq, position)

    def lose(self, seq: int, position: int) -> None:
        """Forget the states of a decode that failed, from a position on, and the one before it.

        The newest one may be half written; a checkpoint is not.
        """
        if self._newest[seq] is not None:
            self._go_back(seq, position)

    def _go_back(self, seq: int, position: int) -> None:
        """Make the newest checkpoint up to a position the state of a sequence."""
        newest, self._newest[seq] = self._newest[seq], None
        assert newest is not None
        for state in [x for x in self._older[seq] if x.position > position]:
            self._remove(seq, state)
        at = max(self._older[seq], key=lambda x: x.position, default=None)
        if at is not None:
            self._newest[seq] = KeptState(at.position, at.slot)
            self._n_refs[at.slot] += 1
        self._drop_ref(newest.slot)
        self._drop_drafted(seq)

    def copy(self, source: int, target: int, position: int) -> None:
        """Make a sequence a copy of another up to a position of `resume`."""
        self.truncate(target, 0)
        states = [x for x in self._older[source] if x.position <= position and not x.drafted]
        newest = self._newest[source]
        if newest is None or position == 0:
            return
        at = next((x for x in self._older[source] if x.position == position), newest)
        self._newest[target] = KeptState(at.position, at.slot)
        self._n_refs[at.slot] += 1
        for state in states:
            shared = KeptState(state.position, state.slot)
            self._older[target].append(shared)
            self._order.insert(self._order.index(state), shared)  # the copy goes first
            self._n_refs[state.slot] += 1
        self._drop_surplus()

    def states_of(self, seq: int) -> list[KeptState]:
        """The checkpoints of a sequence, then its newest state; none where it is empty."""
        newest = self._newest[seq]
        if newest is None:
            return []
        older = sorted(self._older[seq], key=lambda x: x.position)
        return [x for x in older if x.position < newest.position and not x.drafted] + [newest]

    def adopt(self, seq: int, positions: Sequence[int]) -> list[int]:
        """Slots for saved states of an empty sequence, as of `states_of`; -1: not taken."""
        room = max(0, self.n_checkpoints - len(self._order))
        first = max(0, len(positions) - 1 - room)  # of the checkpoints, the newest fit
        slots = [-1] * min(first, len(positions))
        for position in positions[first:-1]:
            slots.append(self._take())
            self._add_checkpoint((seq,), position, slots[-1], drafted=False)
        for position in positions[-1:]:
            slots.append(self._advance((seq,), position, -1))
        return slots

    def read(self, tensor: Tensor, slot: int) -> Bytes:
        """A copy of the bytes of a slot."""
        assert tensor.buffer is not None
        size = tensor.nbytes // self.n_slots
        return tensor.buffer.get_tensor(tensor, slot * size, size)

    def write(self, tensor: Tensor, slot: int, data: Bytes) -> None:
        """Write the bytes of a slot."""
        assert tensor.buffer is not None
        tensor.buffer.set_tensor(tensor, data, slot * (tensor.nbytes // self.n_slots))

    # --- slots ----------------------------------------------------------------------------------

    def _take(self) -> int:
        """A free slot, after dropping the oldest checkpoints if need be."""
        while not self._free:
            self._drop_checkpoint(next(s for s in self._order if self._n_refs[s.slot] == 1))
        return self._free.pop()

    def _drop_checkpoint(self, state: KeptState) -> None:
        seq = next(s for s, older in enumerate(self._older) if any(x is state for x in older))
        self._remove(seq, state)

    def _remove(self, seq: int, state: KeptState) -> None:
        """Remove an older state of a sequence."""
        self._older[seq] = [x for x in self._older[seq] if x is not state]
        self._order = [x for x in self._order if x is not state]
        self._drop_ref(state.slot)

    def _drop_ref(self, slot: int) -> None:
        self._n_refs[slot] -= 1
        if not self._n_refs[slot]:
            self._free.append(slot)


def _check_memory(size: int, n_seq_max: int, have: int) -> None:
    if size > have:
        raise AllocError(
            f"the recurrent states of {n_seq_max} sequences need {size} bytes "
            f"({size / 2**30:.2f} GiB), this machine has {have / 2**30:.2f} GiB free; choose a "
            "smaller `n_seq_max`"
        )


def slot_bytes(hparams: HParams, layer_buft: Callable[[int], BufferType]) -> Counter[BufferType]:
    """Bytes of the states of all layers, by the type of their memory."""
    found = Counter[BufferType]()
    for layer, shapes in enumerate(hparams.states):
        if shapes:
            found[layer_buft(layer)] += sum(4 * prod(ne) for ne in shapes.values())
    return found
