"""An emulator of the PTX that NVVM emits: runs compiled kernels on NumPy, without a GPU.

    program = Program(compile_ptx(kernel, (8, 0)).code)
    program.launch(memory, Grid(64), 256, (address, 1024, 0.5))

Addresses are real ones of the host. These are errors, which name kernel, instruction, block,
thread and address: an access outside of one allocation, a misaligned one, a barrier that some
threads miss, a shuffle from an absent lane, an instruction that is not emulated. Shared and local
memory start as NaNs. Data of ``cp.async`` arrive at the wait, and its target holds NaNs until then.

All threads of many blocks go through an instruction at once, as arrays with one element for each
lane; a value that is equal in all lanes is an array of one element. Where lanes diverge, those with
the lowest program counter go first, until they meet the others. So the threads of a block run in
lockstep, and a missing barrier need not show in the result. So an access to shared memory is also
an error if another warp of the block wrote there since the last barrier, or read what it writes.
Between lanes of a warp that is not checked: run such kernels in ``simulator``.

Not as on a GPU: approximate functions are exact to rounding, denormals are kept, and a fused
multiply-add rounds a float64 sum.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from .memory import POISON, KernelFault, Memory, Space

Array = npt.NDArray[Any]
Lanes = Array | None  # sorted lane numbers; None for all that have not exited
Read = Callable[["Batch", Lanes], Array]
Run = Callable[["Batch", Lanes], None]

SHARED_WINDOW, LOCAL_WINDOW = 1 << 60, 1 << 61  # generic addresses of shared and local memory
LANES_AT_ONCE = 1 << 14
_MAX_STEPS = 20_000_000
_FULL = 0xFFFFFFFF
_LANE = np.arange(32)

_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_KINDS = {
    "u": _UNSIGNED,
    "b": _UNSIGNED,
    "s": {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64},
    "f": {16: np.float16, 32: np.float32, 64: np.float64},
}
_PACKED = {"bf16": np.uint16, "bf16x2": np.uint32, "f16x2": np.uint32}
_F32, _F64, _U32, _U64, _I64 = (
    np.dtype(t) for t in (np.float32, np.float64, np.uint32, np.uint64, np.int64)
)
_TYPE = re.compile(r"(pred|[usbf](8|16|32|64)|f16x2|bf16|bf16x2)$")


def dtype_of(type_: str) -> Any:
    """The NumPy type of a PTX type; bits, for those that NumPy lacks."""
    if type_ == "pred":
        return np.dtype(bool)
    if type_ in _PACKED:
        return np.dtype(_PACKED[type_])
    return np.dtype(_KINDS[type_[0]][int(type_[1:])])


def _twice(type_: str) -> str:
    return f"{type_[0]}{2 * int(type_[1:])}"


def bf16_to_f32(bits: Array) -> Array:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: Array) -> Array:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = np.where(np.isnan(values), np.uint32(0x7FFF0000), rounded)
    return (rounded >> np.uint32(16)).astype(np.uint16)


@dataclass(frozen=True)
class Instruction:
    """One statement of a kernel."""

    text: str
    guard: str  # a predicate, with "!" where it is negated; "" for none
    op: list[str]
    args: list[str]

    @property
    def type(self) -> str:
        return self.op[-1]

    def has(self, *words: str) -> bool:
        return any(w in self.op for w in words)


@dataclass(frozen=True)
class Symbol:
    """A variable in shared, local, global or constant memory."""

    space: str
    offset: int


class Batch:
    """The blocks that run together, and what their threads have computed.

    Attributes:
        regs: an array for each register, of one element or of one for each lane.
        alive: lanes that have not exited; a block is padded to whole warps.
        ready, parked: lanes that may go on, and that wait for others, by program counter.
    """

    def __init__(self, program: Program, memory: Memory, launch: Launch, blocks: range) -> None:
        self.program, self.memory, self.blocks, self.launch = program, memory, blocks, launch
        self.per_block = launch.lanes
        self.n = n = launch.lanes * len(blocks)
        undefined = np.array([0xA5A5A5A5A5A5A5A5], np.uint64)
        self.regs: list[Array] = [
            undefined[:1].astype(bool) if w == 1 else undefined.astype(_UNSIGNED[w])
            for w in program.widths
        ]
        self.alive = np.tile(np.arange(launch.lanes) < launch.threads, len(blocks))
        self.n_alive = int(np.count_nonzero(self.alive))
        self.all_lanes = np.flatnonzero(self.alive)
        self.block_of = np.repeat(np.arange(len(blocks)), launch.lanes)
        self.ready: dict[int, Array] = {}
        self.parked: dict[int, Array] = {}
        self.special: dict[str, Array] = {}
        self.shared_stride = -(-(program.shared_bytes + launch.dynamic_bytes) // 16) * 16
        self.shared = Space(self.shared_stride * len(blocks))
        self.shared_limit = program.shared_bytes + launch.dynamic_bytes
        self.local = Space(program.local_bytes * n)
        self.shared_base = self.block_of * self.shared_stride
        self.local_base = np.arange(n) * program.local_bytes
        self.copies: list[_Copy] = []  # of cp.async, not yet arrived
        self.n_groups: Array = np.zeros(n, np.int64)  # that each lane has committed
        self.steps = self.executed = 0
        several = launch.lanes > 32 and self.shared_stride > 0
        self.races = _Races(self) if several else None

    def lanes(self, ix: Lanes) -> Array:
        return self.all_lanes if ix is None else ix

    def put(self, slot: int, value: Array, ix: Lanes) -> None:
        """Write a register."""
        if ix is None:
            self.regs[slot] = value
            return
        register = self.regs[slot]
        if register.size != self.n:
            register = self.regs[slot] = np.repeat(register, self.n)
        elif not register.flags.writeable:
            register = self.regs[slot] = register.copy()
        register[ix] = value.view(register.dtype)

    def full(self, value: Array) -> Array:
        """A value with one element for each lane."""
        return value if value.size == self.n else np.broadcast_to(value, (self.n,))

    def push(self, pc: int, ix: Array) -> None:
        there = self.ready.get(pc)
        self.ready[pc] = ix if there is None else np.sort(np.concatenate([there, ix]))

    def park(self, pc: int, ix: Array) -> None:
        there = self.parked.get(pc)
        self.parked[pc] = ix if there is None else np.sort(np.concatenate([there, ix]))

    def exit(self, ix: Lanes) -> None:
        self.alive[self.lanes(ix)] = False
        self.all_lanes = np.flatnonzero(self.alive)
        self.n_alive = self.all_lanes.size

    def place(self, lane: int) -> str:
        """Block and thread of a lane, for messages."""
        x, y, z = self.launch.block(self.blocks[lane // self.per_block])
        return f"block ({x}, {y}, {z}), thread {lane % self.per_block}"

    def fault(self, text: str, lane: int, what: str) -> KernelFault:
        return KernelFault(f"{self.program.name}: {what}; '{text}', {self.place(lane)}")

    def run(self) -> None:
        pc, ix = 0, None
        code = self.program.code
        while self.n_alive:
            self.steps += 1
            if self.steps > _MAX_STEPS:
                raise KernelFault(f"{self.program.name}: endless loop at '{code[pc].text}'")
            block = code[pc]
            self.executed += (self.n_alive if ix is None else ix.size) * block.size
            for run in block.body:
                run(self, ix)
            target = block.end(self, ix)
            if target is not None:
                if not self.ready:
                    pc = target
                    if ix is not None and ix.size == self.n_alive:
                        ix = None
                    continue
                self.push(target, self.lanes(ix))
            if not self.ready and not self._release():
                break
            pc = min(self.ready)
            ix = self.ready.pop(pc)
            if ix.size == self.n_alive:
                ix = None
        if self.n_alive:
            waits = "; ".join(
                f"'{code[pc].text}' has {ix.size} threads, such as {self.place(int(ix[0]))}"
                for pc, ix in self.parked.items()
            )
            raise KernelFault(f"{self.program.name}: divergent barrier: {waits}")

    def _release(self) -> bool:
        """Let parked lanes try again, now that no other can run: lanes may have exited."""
        parked, self.parked = self.parked, {}
        for pc, ix in parked.items():
            self.program.code[pc].end(self, ix, True)
        return bool(self.ready)


@dataclass(frozen=True)
class Launch:
    """The blocks and threads of one launch."""

    grid: tuple[int, int, int]
    threads: int
    dynamic_bytes: int
    arguments: dict[str, Array]

    @property
    def lanes(self) -> int:
        return -(-self.threads // 32) * 32

    def block(self, i: int) -> tuple[int, int, int]:
        x, y, _ = self.grid
        return i % x, i // x % y, i // (x * y)


class _Races:
    """Which warp wrote and read each unit of shared memory since its block's last barrier.

    A tag is 1 + the warp, in the low bits, and the block's number of barriers.
    """

    _MANY, _ATOMIC, _BITS = 2047, 2046, 11

    def __init__(self, s: Batch) -> None:
        self._s, self._unit = s, s.program.shared_unit
        n_units = s.shared.size // self._unit
        self._written, self._read = np.zeros(n_units, np.int64), np.zeros(n_units, np.int64)
        self._barriers = np.ones(len(s.blocks), np.int64)
        self._warp = np.arange(s.n) % s.per_block // 32 + 1

    def barrier(self, lanes: Lanes) -> None:
        blocks = slice(None) if lanes is None else np.unique(self._s.block_of[lanes])
        self._barriers[blocks] += 1

    def read(self, offsets: Array, n_bytes: int, lanes: Array, text: str) -> None:
        units, lanes, since = self._of(offsets, n_bytes, lanes)
        tag = since | self._warp[lanes]
        written = self._written[units]
        self._check((written >= since) & (written != tag), lanes, units, text, "reads", "wrote")
        before = self._read[units]
        self._read[units] = np.where((before >= since) & (before != tag), since | self._MANY, tag)
        others = self._read[units] != tag
        self._read[units[others]] = since[others] | self._MANY

    def write(self, offsets: Array, n_bytes: int, lanes: Array, text: str) -> None:
        """Note writes that change memory."""
        self._write(offsets, n_bytes, lanes, text, None)

    def atomic(self, offsets: Array, n_bytes: int, lanes: Array, text: str) -> None:
        self._write(offsets, n_bytes, lanes, text, self._ATOMIC)

    def _write(
        self, offsets: Array, n_bytes: int, lanes: Array, text: str, who: int | None
    ) -> None:
        units, lanes, since = self._of(offsets, n_bytes, lanes)
        own = since | self._warp[lanes]
        tag = own if who is None else since | who
        read, written = self._read[units], self._written[units]
        self._check((read >= since) & (read != own), lanes, units, text, "writes", "read")
        self._check((written >= since) & (written != tag), lanes, units, text, "writes", "wrote")
        self._written[units] = tag

    def clash(self, offsets: Array, n_bytes: int, lanes: Array, text: str) -> None:
        """Check lanes whose values others replaced in the same instruction."""
        units, lanes, since = self._of(offsets, n_bytes, lanes)
        wrong = self._written[units] != since | self._warp[lanes]
        self._check(wrong, lanes, units, text, "writes", "writes")

    def _of(self, offsets: Array, n_bytes: int, lanes: Array) -> tuple[Array, Array, Array]:
        """Units, and the lane and the tag without a warp of each."""
        units = np.broadcast_to(offsets, lanes.shape) // self._unit
        n = n_bytes // self._unit
        if n > 1:
            units = (units[:, None] + np.arange(n)).reshape(-1)
            lanes = np.repeat(lanes, n)
        return units, lanes, self._barriers[self._s.block_of[lanes]] << self._BITS

    def _check(
        self, wrong: Array, lanes: Array, units: Array, text: str, now: str, before: str
    ) -> None:
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            byte = int(units[i]) * self._unit % self._s.shared_stride
            what = f"race: it {now} byte {byte} of shared memory, another warp {before} it"
            raise self._s.fault(text, int(lanes[i]), f"{what} since the last barrier")


class _Copy:
    """A ``cp.async`` that has not arrived: lanes, targets in shared memory, and data."""

    def __init__(self, ix: Array, target: Array, data: Array, group: Array, text: str) -> None:
        self.ix, self.target, self.data, self.group, self.text = ix, target, data, group, text

    def only(self, chosen: Array) -> _Copy:
        parts = (x[chosen] for x in (self.ix, self.target, self.data, self.group))
        return _Copy(*parts, self.text)


class Block:
    """A stretch of instructions that is entered only at its first one.

    Attributes:
        text: the last instruction.
        end: returns where all lanes go on, or None after giving them to the batch.
    """

    def __init__(self, text: str, body: list[Run], end: Callable[..., int | None]) -> None:
        self.text, self.body, self.end = text, body, end
        self.size = len(body) + 1


class Program:
    """A kernel of PTX text, decoded.

    Attributes:
        name: for messages; by default the entry's.
        code: basic blocks by the number of their first instruction.
        widths: bits of each register.

    Raises:
        KernelFault: an instruction is not emulated.
    """

    def __init__(self, code: bytes, name: str = "") -> None:
        text = re.sub(r"//[^\n]*", "", code.decode())
        self.globals = Memory(1 << 40)
        self.symbols: dict[str, Symbol] = {}
        self.widths: list[int] = []
        self.shared_bytes = self.local_bytes = 0
        self.shared_unit = 4  # bytes; of the smallest access to shared memory
        head = re.search(r"\.visible\s+\.entry\s+([\w$]+)\s*\((.*?)\)([^{]*)\{", text, re.S)
        if head is None:
            raise KernelFault("no entry in the PTX")
        self.name = name or head[1]
        self.parameters = [
            (words[-1], words[1][1:]) for words in (p.split() for p in head[2].split(",")) if words
        ]
        most = re.search(r"\.maxntid\s+(\d+)", head[3])
        self.max_threads = int(most[1]) if most else 1024
        self._declare(text[: head.start()])
        end, depth = head.end(), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        self._declare(text[end:])
        self.code = _Decoder(self, text[head.end() : end - 1]).blocks()

    def _declare(self, text: str) -> None:
        """Note the variables outside of the entry."""
        pattern = (
            r"\.(shared|global|const)\s+(?:\.attribute\S+\s+)?\.align\s+(\d+)\s+\.(\w+)\s+"
            r"([\w$]+)(?:\[(\d*)\])?(?:\s*=\s*\{([^}]*)\})?\s*;"
        )
        dynamic = []
        for space, align, type_, name, count, values in re.findall(pattern, text):
            dtype = dtype_of(type_)
            if space == "shared" and count == "":
                dynamic.append(name)
                continue
            n_bytes = int(count or 1) * dtype.itemsize
            if space == "shared":
                offset = -(-self.shared_bytes // int(align)) * int(align)
                self.shared_bytes = offset + n_bytes
                self.symbols[name] = Symbol("shared", offset)
            else:
                variable = self.globals.alloc(n_bytes)
                variable.bytes[:] = 0
                if values:
                    given = [int(v, 0) for v in values.split(",")]
                    variable.view(dtype)[: len(given)] = np.array(given).astype(dtype)
                self.symbols[name] = Symbol("global", variable.base)
        self.shared_bytes = -(-self.shared_bytes // 16) * 16 if dynamic else self.shared_bytes
        self.symbols |= {name: Symbol("shared", self.shared_bytes) for name in dynamic}

    def declare_local(self, name: str, align: int, n_bytes: int) -> None:
        offset = -(-self.local_bytes // align) * align
        self.symbols[name] = Symbol("local", offset)
        self.local_bytes = -(-(offset + n_bytes) // 16) * 16

    def launch(
        self,
        memory: Memory,
        grid: tuple[int, int, int],
        threads: int,
        arguments: Sequence[float],
        dynamic_bytes: int = 0,
    ) -> int:
        """Run a grid.

        Returns:
            How many instructions were executed, counted once for each lane.

        Raises:
            KernelFault: see the module.
        """
        if len(arguments) != len(self.parameters):
            raise KernelFault(f"{self.name}: {len(arguments)} arguments for {self.parameters}")
        values = {
            name: np.array([a]).astype(dtype_of(t))
            if t[0] == "f"
            else np.array([int(a) & ((1 << int(t[1:])) - 1)], dtype_of("u" + t[1:]))
            for (name, t), a in zip(self.parameters, arguments, strict=True)
        }
        launch = Launch((grid[0], grid[1], grid[2]), threads, dynamic_bytes, values)
        n_blocks = grid[0] * grid[1] * grid[2]
        at_once = max(1, LANES_AT_ONCE // launch.lanes)
        executed = 0
        with np.errstate(all="ignore"):
            for first in range(0, n_blocks, at_once):
                blocks = range(first, min(first + at_once, n_blocks))
                batch = Batch(self, memory, launch, blocks)
                batch.run()
                executed += batch.executed
        return executed


def _split(args: str) -> list[str]:
    """Operands, where commas inside of braces and brackets do not separate."""
    out, depth, now = [], 0, ""
    for c in args:
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(c, 0)
        if c == "," and not depth:
            out.append(now.strip())
            now = ""
        else:
            now += c
    return [*out, now.strip()] if now.strip() else out


def _names(vector: str) -> list[str]:
    return [name.strip() for name in vector.strip("{} ").split(",")]


_ENDS = {"bra", "brx", "ret", "exit", "bar", "barrier", "shfl", "vote", "match", "redux", "mma"}
_ENDS |= {"ldmatrix"}


class _Decoder:
    """Makes basic blocks of the text of a kernel's body."""

    def __init__(self, program: Program, body: str) -> None:
        self.program = program
        self.scopes: list[dict[str, int]] = [{}]
        self.families: dict[str, int] = {}  # "%r": bits, of registers declared by number
        self.labels: dict[str, int] = {}
        self.tables: dict[str, list[str]] = {}
        self.carry = self._slot("carry", 1)
        self.pending: list[tuple[Instruction, dict[str, int]]] = []
        for statement in body.split(";"):
            self._statement(" ".join(statement.split()))

    # Text

    def _statement(self, text: str) -> None:
        while True:
            label = re.match(r"([\w$]+):\s*", text)
            if label:
                text = text[label.end() :]
                table = re.match(r"\.branchtargets\s+(.*)", text)
                if table:
                    self.tables[label[1]] = _split(table[1])
                    return
                self.labels[label[1]] = len(self.pending)
            elif text.startswith("{"):
                self.scopes.append({})
                text = text[1:].strip()
            elif text.startswith("}"):
                self.scopes.pop()
                text = text[1:].strip()
            else:
                break
        if text.startswith(".reg"):
            _, type_, names = text.split(maxsplit=2)
            for name in names.split(","):
                self._register(name.strip(), type_.strip("."))
        elif text.startswith(".local"):
            found = re.match(r"\.local \.align (\d+) \.b8 ([\w$]+)\[(\d+)\]", text)
            assert found, text
            self.program.declare_local(found[2], int(found[1]), int(found[3]))
        elif text.startswith(".shared"):
            self.program._declare(text + ";")
        elif text and not text.startswith("."):
            found = re.match(r"(?:@(!?[%\w$]+)\s+)?([\w.:]+)\s*(.*)$", text)
            assert found, text
            guard, op, args = found[1] or "", found[2].split("."), _split(found[3])
            if guard and op[0] in _ENDS - {"bra", "ret", "exit"}:
                skip = f"after {len(self.pending)}"  # of lanes that do not take part
                inverse = guard[1:] if guard[0] == "!" else "!" + guard
                self._add(Instruction(text, inverse, ["bra"], [skip]))
                self._add(Instruction(text, "", op, args))
                self.labels[skip] = len(self.pending)
            else:
                self._add(Instruction(text, guard, op, args))

    def _add(self, instruction: Instruction) -> None:
        names = {k: v for scope in self.scopes[1:] for k, v in scope.items()}
        self.pending.append((instruction, names))

    def _register(self, name: str, type_: str) -> None:
        bits = 1 if type_ == "pred" else dtype_of(type_).itemsize * 8
        family = re.match(r"(.*)<\d+>$", name)
        if family:
            self.families[family[1]] = bits
        else:
            self.scopes[-1][name] = self._slot(name, bits)

    def _slot(self, name: str, bits: int) -> int:
        self.program.widths.append(bits)
        return len(self.program.widths) - 1

    # Operands

    def slot(self, name: str) -> int:
        """The number of a register."""
        for scope in (self.names, self.scopes[0]):
            if name in scope:
                return scope[name]
        family = re.match(r"(.*?)\d+$", name)
        if family is None or family[1] not in self.families:
            raise self.unknown(f"operand {name}")
        slot = self.scopes[0][name] = self._slot(name, self.families[family[1]])
        return slot

    def note_shared(self, space: str, dtype: Any) -> None:
        if space in ("shared", ""):
            self.program.shared_unit = min(self.program.shared_unit, dtype.itemsize)

    def is_register(self, name: str) -> bool:
        if name in self.names or name in self.scopes[0]:
            return True
        family = re.match(r"(.*?)\d+$", name)
        return family is not None and family[1] in self.families

    def unknown(self, what: str = "") -> KernelFault:
        return KernelFault(
            f"{self.program.name}: {what or 'it'} is not emulated: '{self.now.text}'"
        )

    def read(self, operand: str, type_: str) -> Read:
        """A function that returns an operand's value as an array of a type."""
        dtype = dtype_of(type_)
        if type_ == "pred" and operand.startswith("!"):
            inner = self.read(operand[1:], type_)
            return lambda s, ix: ~inner(s, ix)
        if self.is_register(operand):
            return self._read_register(self.slot(operand), dtype)
        if operand.startswith("%") or operand == "WARP_SZ":
            special = _special(operand)
            if special is None:
                raise self.unknown(f"register {operand}")

            def read_special(s: Batch, ix: Lanes) -> Array:
                value = s.special.get(operand)
                if value is None:
                    value = special(s)
                    value = value.astype(_U32) if value.dtype != _U64 else value
                    value.flags.writeable = False
                    s.special[operand] = value
                value = value if ix is None or value.size == 1 else value[ix]
                return value.astype(dtype)

            return read_special
        constant = self._constant(operand, type_, dtype)
        constant.flags.writeable = False
        return lambda s, ix: constant

    def _read_register(self, slot: int, dtype: Any) -> Read:
        bits = self.program.widths[slot]
        if dtype.kind == "b" or bits == 1 or bits == 8 * dtype.itemsize:

            def read(s: Batch, ix: Lanes) -> Array:
                value = s.regs[slot]
                if value.dtype is not dtype:
                    value = value.view(dtype)
                return value if ix is None or value.size == 1 else value[ix]

            return read
        bits_type, narrow = _UNSIGNED[bits], _UNSIGNED[8 * dtype.itemsize]

        def read_part(s: Batch, ix: Lanes) -> Array:
            value = s.regs[slot].view(bits_type)
            value = value if ix is None or value.size == 1 else value[ix]
            return value.astype(narrow).view(dtype)

        return read_part

    def _constant(self, operand: str, type_: str, dtype: Any) -> Array:
        found = re.match(r"([A-Za-z_$][\w$]*)(?:\+(-?\d+))?$", operand)
        if found and found[1] in self.program.symbols:
            address = self.program.symbols[found[1]].offset + int(found[2] or 0)
            return np.array([address]).astype(dtype)
        if operand[:2] in ("0f", "0F"):
            return np.array([int(operand[2:], 16)], _U32).view(_F32).astype(dtype)
        if operand[:2] in ("0d", "0D"):
            return np.array([int(operand[2:], 16)], _U64).view(_F64).astype(dtype)
        try:
            value = int(operand.rstrip("U"), 0)
        except ValueError:
            raise self.unknown(f"operand {operand}") from None
        if type_ == "pred":
            return np.array([bool(value)])
        if type_[0] == "f" and "x" not in type_:
            return np.array([value], dtype)
        bits = 8 * dtype.itemsize
        return np.array([value & ((1 << bits) - 1)], _UNSIGNED[bits]).view(dtype)

    def put(self, operand: str, type_: str) -> Callable[[Batch, Array, Lanes], None]:
        """A function that writes values of a type to a register, extended to its width."""
        dtype = dtype_of(type_)
        if operand == "_":
            return lambda s, value, ix: None
        slot = self.slot(operand)
        bits = self.program.widths[slot]
        if bits == 1 or bits <= 8 * dtype.itemsize:
            if bits > 1 and bits < 8 * dtype.itemsize:
                narrow = _UNSIGNED[bits]
                return lambda s, value, ix: s.put(slot, value.astype(narrow), ix)
            return lambda s, value, ix: s.put(slot, value, ix)
        wide = _KINDS["s" if dtype.kind == "i" else "u"][bits]
        source = dtype if dtype.kind in "iu" else _UNSIGNED[8 * dtype.itemsize]
        return lambda s, value, ix: s.put(slot, value.view(source).astype(wide), ix)

    def address(self, operand: str) -> Read:
        """A function that returns addresses, as int64."""
        found = re.match(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\w+))?\s*\]$", operand)
        if found is None:
            raise self.unknown(f"address {operand}")
        name, offset = found[1], np.int64(int(found[2] or "0", 0))
        if self.is_register(name):
            bits = self.program.widths[self.slot(name)]
            base = self.read(name, f"s{bits}" if bits == 64 else f"u{bits}")
            if bits != 64:
                return lambda s, ix: base(s, ix).astype(_I64) + offset
            return lambda s, ix: base(s, ix) + offset
        constant = self._constant(name, "s64", _I64) + offset
        return lambda s, ix: constant

    # Blocks

    def blocks(self) -> list[Any]:
        """Basic blocks at the indices of their first instructions."""
        n = len(self.pending)
        starts = {0, n, *self.labels.values()}
        starts |= {i + 1 for i, (x, _) in enumerate(self.pending) if x.op[0] in _ENDS}
        blocks: list[Any] = [None] * (n + 1)
        for first, last in pairwise(sorted(starts)):
            body: list[Run] = []
            end: Any = _go_on(last)
            for i in range(first, last):
                self.now, self.names = self.pending[i]
                if self.now.op[0] in _ENDS:
                    end = self._end(i)
                    joins = self.now.op[0] in _COLLECTIVES or self.now.op[0] in ("bar", "barrier")
                    if joins and i > first:
                        blocks[first] = Block(self.now.text, body, _go_on(i))
                        first, body = i, []
                else:
                    body.append(self._body())
            blocks[first] = Block(self.now.text, body, end)
        blocks[n] = Block("end", [], _exit)
        return blocks

    def _body(self) -> Run:
        now = self.now
        make = OPS.get(now.op[0])
        if make is None:
            raise self.unknown()
        run = make(self, now)
        if not now.guard:
            return run
        guard = self.read(now.guard, "pred")

        def guarded(s: Batch, ix: Lanes) -> None:
            on = guard(s, ix)
            if on.size == 1:
                if on[0]:
                    run(s, ix)
                return
            lanes = s.lanes(ix)
            lanes = lanes[on[lanes] if ix is None else on]
            if lanes.size:
                run(s, None if lanes.size == s.n_alive else lanes)

        return guarded

    def _end(self, i: int) -> Callable[..., int | None]:
        now = self.now
        name = now.op[0]
        if name in ("ret", "exit") and not now.guard:
            return _exit
        if name in ("bra", "ret", "exit"):
            return self._branch(i)
        if name == "brx":
            return self._switch()
        if name in _COLLECTIVES:
            return _COLLECTIVES[name](self, now, i)
        if now.has("warp"):
            return _collective(self, i, self.read(now.args[-1], "u32"), lambda s, ix: None)
        return _barrier(self, now, i)

    def _branch(self, i: int) -> Callable[..., int | None]:
        leaves = self.now.op[0] != "bra"
        target = -1 if leaves else self._label(self.now.args[0])
        if not self.now.guard:
            return _go_on(target)
        guard, after = self.read(self.now.guard, "pred"), i + 1

        def branch(s: Batch, ix: Lanes, retry: bool = False) -> int | None:
            on = guard(s, ix)
            lanes = ix
            if on.size == 1:
                count, size = int(on[0]), 1
            else:
                lanes = s.lanes(ix)
                if ix is None and s.n_alive != s.n:
                    on = on[lanes]
                count, size = int(np.count_nonzero(on)), on.size
            if count == 0:
                return after
            if count == size:
                return _exit(s, ix) if leaves else target
            assert lanes is not None
            if leaves:
                s.exit(lanes[on])
            else:
                s.push(target, lanes[on])
            s.push(after, lanes[~on])
            return None

        return branch

    def _switch(self) -> Callable[..., int | None]:
        index = self.read(self.now.args[0], "u32")
        targets = [self._label(name) for name in self.tables[self.now.args[1]]]

        def switch(s: Batch, ix: Lanes, retry: bool = False) -> int | None:
            lanes = s.lanes(ix)
            at = np.broadcast_to(index(s, lanes), lanes.shape)
            for i in np.unique(at):
                s.push(targets[i], lanes[at == i])
            return None

        return switch

    def _label(self, name: str) -> int:
        if name not in self.labels:
            raise self.unknown(f"label {name}")
        return self.labels[name]


def _go_on(pc: int) -> Callable[..., int | None]:
    return lambda s, ix, retry=False: pc


def _exit(s: Batch, ix: Lanes, retry: bool = False) -> None:
    s.exit(ix)


def _special(name: str) -> Callable[[Batch], Array] | None:
    """A function that makes the values of a special register."""
    if name in _SPECIAL:
        return _SPECIAL[name]
    found = re.match(r"%(tid|ntid|ctaid|nctaid)\.([xyz])$", name)
    if found is None:
        return None
    kind, axis = found[1], "xyz".index(found[2])

    def make(s: Batch) -> Array:
        if kind == "tid":
            return np.arange(s.n) % s.per_block if axis == 0 else np.zeros(1, int)
        if kind == "ntid":
            return np.array([s.launch.threads if axis == 0 else 1])
        if kind == "nctaid":
            return np.array([s.launch.grid[axis]])
        of_blocks = np.array([s.launch.block(b)[axis] for b in s.blocks])
        if (of_blocks == of_blocks[0]).all():
            return of_blocks[:1].copy()
        return np.repeat(of_blocks, s.per_block)

    return make


def _lane_masks(of: Callable[[int], int]) -> Callable[[Batch], Array]:
    masks = np.array([of(lane) & _FULL for lane in range(32)])
    return lambda s: np.tile(masks, s.n // 32)


_SPECIAL: dict[str, Callable[[Batch], Array]] = {
    "%laneid": lambda s: np.arange(s.n) & 31,
    "%warpid": lambda s: np.arange(s.n) % s.per_block >> 5,
    "%nwarpid": lambda s: np.array([s.per_block >> 5]),
    "WARP_SZ": lambda s: np.array([32]),
    "%lanemask_lt": _lane_masks(lambda i: (1 << i) - 1),
    "%lanemask_le": _lane_masks(lambda i: (2 << i) - 1),
    "%lanemask_eq": _lane_masks(lambda i: 1 << i),
    "%lanemask_ge": _lane_masks(lambda i: -(1 << i)),
    "%lanemask_gt": _lane_masks(lambda i: -(2 << i)),
    "%dynamic_smem_size": lambda s: np.array([s.launch.dynamic_bytes]),
    "%total_smem_size": lambda s: np.array([s.shared_limit]),
}


# Instructions of one lane


def _rounded(values: Array, dtype: Any, mode: str) -> Array:
    """float64 values rounded to a type: to nearest, or as rz, rm, rp say."""
    result: Array = values.astype(dtype)
    if mode == "rn":
        return result
    back = result.astype(_F64)
    low, high = dtype.type(-np.inf), dtype.type(np.inf)
    if mode == "rm":
        return np.where(back > values, np.nextafter(result, low), result)
    if mode == "rp":
        return np.where(back < values, np.nextafter(result, high), result)
    return np.where(np.abs(back) > np.abs(values), np.nextafter(result, dtype.type(0)), result)


def _mode(now: Instruction) -> str:
    return next((m for m in ("rz", "rm", "rp") if m in now.op), "rn")


def _on_type(f: Callable[..., Array], type_: str) -> Callable[..., Array]:
    """A function of floats as one of the bits of packed types and bf16."""
    if type_ == "bf16":
        return lambda *a: f32_to_bf16(f(*[bf16_to_f32(x) for x in a]))
    if type_ not in ("f16x2", "bf16x2"):
        return f
    part: Any = np.float16 if type_ == "f16x2" else np.uint16

    def on_pairs(*args: Array) -> Array:
        pairs = [np.ascontiguousarray(x).view(part).reshape(-1, 2) for x in args]
        if type_ == "bf16x2":
            result = f32_to_bf16(f(*[bf16_to_f32(x) for x in pairs]))
        else:
            result = f(*pairs).astype(np.float16)
        return np.ascontiguousarray(result).view(np.uint32)[:, 0]

    return on_pairs


def _pure(
    d: _Decoder, now: Instruction, f: Callable[..., Array], type_: str, *sources: str, to: str = ""
) -> Run:
    """An instruction that is a function of its operands.

    Args:
        type_: of the result; ``sources``: of the operands, of ``type_`` where none are given.
    """
    put = d.put(now.args[0], type_)
    given = now.args[1:]
    kinds = sources or (type_,) * len(given)
    reads = [d.read(a, t) for a, t in zip(given, kinds, strict=False)]
    if len(reads) == 1:
        (x,) = reads
        return lambda s, ix: put(s, f(x(s, ix)), ix)
    if len(reads) == 2:
        x, y = reads
        return lambda s, ix: put(s, f(x(s, ix), y(s, ix)), ix)
    if len(reads) == 3:
        x, y, z = reads
        return lambda s, ix: put(s, f(x(s, ix), y(s, ix), z(s, ix)), ix)
    return lambda s, ix: put(s, f(*[r(s, ix) for r in reads]), ix)


def _divide(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return x / y
    safe = np.where(y == 0, y.dtype.type(1), y)
    quotient = x // safe
    if x.dtype.kind == "i":  # NumPy rounds down, PTX to zero
        off = (quotient * safe != x) & ((x < 0) != (safe < 0))
        quotient = quotient + off.astype(x.dtype)
    return np.where(y == 0, x.dtype.type(-1 if x.dtype.kind == "i" else ~x.dtype.type(0)), quotient)


def _high_product(x: Array, y: Array) -> Array:
    bits = 8 * x.dtype.itemsize
    if bits < 64:
        wide = _KINDS["s" if x.dtype.kind == "i" else "u"][2 * bits]
        return (x.astype(wide) * y.astype(wide) >> wide(bits)).astype(x.dtype)
    ux, uy = x.view(_U64), y.view(_U64)
    low, half = np.uint64(_FULL), np.uint64(32)
    xl, xh, yl, yh = ux & low, ux >> half, uy & low, uy >> half
    middle = xh * yl + (xl * yl >> half)
    other = xl * yh + (middle & low)
    high = xh * yh + (middle >> half) + (other >> half)
    if x.dtype.kind == "i":
        high = high - np.where(x < 0, uy, np.uint64(0)) - np.where(y < 0, ux, np.uint64(0))
    return high.view(x.dtype)


def _approximate(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function at float64, rounded to the type of its argument."""
    return lambda x: f(x.astype(_F64)).astype(x.dtype)


def _shift_left(x: Array, n: Array) -> Array:
    bits = 8 * x.dtype.itemsize
    count = np.minimum(n, np.uint32(bits - 1)).astype(x.dtype)
    result = x << count
    return np.where(n >= bits, x.dtype.type(0), result) if int(n.max()) >= bits else result


def _shift_right(x: Array, n: Array) -> Array:
    bits = 8 * x.dtype.itemsize
    result = x >> np.minimum(n, np.uint32(bits - 1)).astype(x.dtype)
    if int(n.max()) >= bits and x.dtype.kind == "u":
        return np.where(n >= bits, x.dtype.type(0), result)
    return result


def _popc(x: Array) -> Array:
    return np.bitwise_count(x).astype(_U32)


def _reverse(x: Array) -> Array:
    bits = np.unpackbits(np.ascontiguousarray(x).view(np.uint8).reshape(x.size, -1), axis=1)
    return np.packbits(bits, axis=1, bitorder="little")[:, ::-1].copy().view(x.dtype)[:, 0]


def _clz(x: Array) -> Array:
    bits = 8 * x.dtype.itemsize
    filled = x
    for n in (1, 2, 4, 8, 16, 32):
        if n < bits:
            filled = filled | (filled >> x.dtype.type(n))
    return (bits - np.bitwise_count(filled)).astype(_U32)


def _bfe(x: Array, at: Array, n: Array) -> Array:
    bits = 8 * x.dtype.itemsize
    at, n = at & np.uint32(255), n & np.uint32(255)
    wide: Array = x.astype(_I64) if x.dtype.kind == "i" else x.astype(_U64)
    end = np.minimum(at + n, np.uint32(bits))
    size = np.where(end > at, end - at, 0)
    up = np.minimum(64 - np.minimum(end, np.uint32(64)), 63).astype(wide.dtype)
    down = np.minimum(64 - size, 63).astype(wide.dtype)
    return np.where(size == 0, 0, wide << up >> down).astype(x.dtype)


def _bfi(x: Array, onto: Array, at: Array, n: Array) -> Array:
    one, bits = x.dtype.type(1), 8 * x.dtype.itemsize
    at, n = at & np.uint32(255), n & np.uint32(255)
    ones = np.where(
        n >= bits, ~x.dtype.type(0), (one << np.minimum(n, bits - 1).astype(x.dtype)) - one
    )
    mask, moved = _shift_left(ones, at), _shift_left(x & ones, at)
    return (onto & ~mask) | (moved & mask)


def _prmt(x: Array, y: Array, select: Array) -> Array:
    pair = x.astype(_U64) | (y.astype(_U64) << np.uint64(32))
    result = np.zeros(1, np.uint64)
    for i in range(4):
        nibble = (select >> np.uint32(4 * i)).astype(_U64) & np.uint64(15)
        byte = pair >> (np.uint64(8) * (nibble & np.uint64(7))) & np.uint64(255)
        sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
        byte = np.where(nibble & np.uint64(8), sign, byte)
        result = result | (byte << np.uint64(8 * i))
    return result.astype(_U32)


def _lop3(x: Array, y: Array, z: Array, table: Array) -> Array:
    result = np.zeros(1, x.dtype)
    for i in range(8):
        if int(table[0]) >> i & 1:
            result = result | ((x if i & 4 else ~x) & (y if i & 2 else ~y) & (z if i & 1 else ~z))
    return result


def _funnel(now: Instruction) -> Callable[[Array, Array, Array], Array]:
    wrap, left = now.has("wrap"), now.has("l")

    def shift(low: Array, high: Array, n: Array) -> Array:
        pair = low.astype(_U64) | (high.astype(_U64) << np.uint64(32))
        n = n & np.uint32(31) if wrap else np.minimum(n, np.uint32(32))
        if left:
            return (pair << n.astype(_U64) >> np.uint64(32)).astype(_U32)
        return (pair >> n.astype(_U64)).astype(_U32)

    return shift


def _dot(x: Array, y: Array, z: Array) -> Array:
    parts = x.reshape(-1, 4).astype(np.int32) * y.reshape(-1, 4)
    return parts.sum(axis=1, dtype=np.int32) + z


def _dp4a(d: _Decoder, now: Instruction) -> Run:
    kinds = [np.uint8 if t == "u32" else np.int8 for t in now.op[1:3]]

    def f(x: Array, y: Array, z: Array) -> Array:
        x, y = np.ascontiguousarray(x).view(kinds[0]), np.ascontiguousarray(y).view(kinds[1])
        return _dot(x, y, z)

    result = "u32" if now.op[1:3] == ["u32", "u32"] else "s32"
    return _pure(d, now, f, result, "u32", "u32", result)


def _simple(f: Callable[..., Array]) -> Callable[[_Decoder, Instruction], Run]:
    """An instruction whose operands and result have its type."""
    return lambda d, now: _pure(d, now, _on_type(f, now.type), now.type)


def _float_or_int(f: Callable[..., Array]) -> Callable[[_Decoder, Instruction], Run]:
    """add, sub, mul: with rounding, saturation and carries."""

    def make(d: _Decoder, now: Instruction) -> Run:
        type_, g = now.type, f
        dtype = dtype_of(type_)
        if type_ in _PACKED or dtype.kind == "f":
            if _mode(now) != "rn":
                mode, exact = _mode(now), f
                g = lambda x, y: _rounded(exact(x.astype(_F64), y), dtype, mode)  # noqa: E731
            if now.has("sat"):
                inner = g
                g = lambda *a: np.clip(np.nan_to_num(inner(*a)), 0, 1)  # noqa: E731
            return _pure(d, now, _on_type(g, type_), type_)
        if now.has("cc") or now.op[0] in ("addc", "subc"):
            return _with_carry(d, now)
        if now.has("sat"):
            limits = np.iinfo(dtype)
            return _pure(
                d,
                now,
                lambda x, y: np.clip(f(x.astype(_I64), y), limits.min, limits.max).astype(dtype),
                type_,
            )
        return _pure(d, now, g, type_)

    return make


def _with_carry(d: _Decoder, now: Instruction) -> Run:
    """add, sub and mad with a carry in or out."""
    type_ = "u" + now.type[1:]
    name = now.op[0]
    put, carry = d.put(now.args[0], type_), d._read_register(d.carry, np.dtype(bool))
    reads = [d.read(a, type_) for a in now.args[1:]]
    takes, gives = name in ("addc", "subc", "madc"), now.has("cc")
    high = now.has("hi")

    def run(s: Batch, ix: Lanes) -> None:
        x, y, *more = [r(s, ix) for r in reads]
        if more:
            x, y = (_high_product(x, y) if high else x * y), more[0]
        if name.startswith("sub"):
            y = ~y
        one = carry(s, ix).astype(x.dtype) if takes else x.dtype.type(name == "sub")
        if name.startswith("subc"):
            one = x.dtype.type(1) - one
        part = x + y
        total = part + one
        if gives:
            out = (part < x) | (total < part)
            s.put(d.carry, ~out if name.startswith("sub") else out, ix)
        put(s, total, ix)

    return run


def _mul(d: _Decoder, now: Instruction) -> Run:
    type_ = now.type
    if now.has("wide"):
        wide = dtype_of(_twice(type_))
        return _pure(d, now, lambda x, y: x.astype(wide) * y, _twice(type_), type_, type_)
    if now.has("hi"):
        return _pure(d, now, _high_product, type_)
    return _float_or_int(np.multiply)(d, now)


def _mad(d: _Decoder, now: Instruction) -> Run:
    type_ = now.type
    dtype = dtype_of(type_)
    if now.op[0] == "madc" or now.has("cc"):
        return _with_carry(d, now)
    if type_ in _PACKED or dtype.kind == "f":
        mode, relu, sat = _mode(now), now.has("relu"), now.has("sat")

        def fused(x: Array, y: Array, z: Array) -> Array:
            total = np.multiply(x, y, dtype=_F64) + z
            result = _rounded(total, x.dtype, mode)
            if relu or sat:
                result = np.clip(np.nan_to_num(result), 0, 1 if sat else None)
            return result

        return _pure(d, now, _on_type(fused, type_), type_)
    if now.has("wide"):
        wide = dtype_of(_twice(type_))
        kinds = (type_, type_, _twice(type_))
        return _pure(d, now, lambda x, y, z: x.astype(wide) * y + z, _twice(type_), *kinds)
    if now.has("hi"):
        return _pure(d, now, lambda x, y, z: _high_product(x, y) + z, type_)
    return _pure(d, now, lambda x, y, z: x * y + z, type_)


def _min_max(d: _Decoder, now: Instruction) -> Run:
    least = now.op[0] == "min"
    if now.has("NaN"):
        f: Any = np.minimum if least else np.maximum
    else:
        f = np.fmin if least else np.fmax
    return _pure(d, now, _on_type(f, now.type), now.type)


_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_JOIN: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _comparison(d: _Decoder, now: Instruction, type_: str) -> Callable[[Array, Array], Array]:
    name = now.op[1]
    if dtype_of(type_).kind != "f" and type_ != "bf16":
        if name not in _COMPARE:
            raise d.unknown()
        return _COMPARE[name]
    if name in ("num", "nan"):
        inverted = name == "num"
        return lambda x, y: (np.isnan(x) | np.isnan(y)) ^ inverted
    if name == "ne":
        return lambda x, y: (x != y) & (x == x) & (y == y)
    if name in _COMPARE:
        return _COMPARE[name]
    if name == "neu":
        return np.not_equal
    f = _COMPARE[name[:-1]]
    return lambda x, y: f(x, y) | (x != x) | (y != y)


def _setp(d: _Decoder, now: Instruction) -> Run:
    type_ = now.type
    f = _comparison(d, now, type_)
    if type_ == "bf16":
        of_floats = f
        f = lambda x, y: of_floats(bf16_to_f32(x), bf16_to_f32(y))  # noqa: E731
    x, y = d.read(now.args[1], type_), d.read(now.args[2], type_)
    targets = [d.put(t, "pred") for t in now.args[0].split("|")]
    if len(now.args) == 3 and len(targets) == 1:
        (put,) = targets
        return lambda s, ix: put(s, f(x(s, ix), y(s, ix)), ix)
    join = _JOIN[now.op[2]] if len(now.args) > 3 else None
    other = d.read(now.args[3], "pred") if join else None

    def run(s: Batch, ix: Lanes) -> None:
        result = f(x(s, ix), y(s, ix))
        for put, value in zip(targets, (result, ~result), strict=False):
            if join and other:
                value = join(value, other(s, ix))
            put(s, value, ix)

    return run


def _set(d: _Decoder, now: Instruction) -> Run:
    to, type_ = now.op[-2], now.type
    f, dtype = _comparison(d, now, type_), dtype_of(to)
    true = dtype.type(1) if to[0] == "f" else dtype.type(-1 if to[0] == "s" else ~dtype.type(0))
    return _pure(d, now, lambda x, y: np.where(f(x, y), true, dtype.type(0)), to, type_, type_)


def _selp(d: _Decoder, now: Instruction) -> Run:
    kinds = (now.type, now.type, "pred")
    return _pure(d, now, lambda x, y, p: np.where(p, x, y), now.type, *kinds)


def _mov(d: _Decoder, now: Instruction) -> Run:
    type_ = now.type
    if now.args[0].startswith("{"):
        names = _names(now.args[0])
        whole, part = dtype_of("u" + type_[1:]), f"u{int(type_[1:]) // len(names)}"
        bits, small = whole.type(int(part[1:])), dtype_of(part)
        x, puts = d.read(now.args[1], "u" + type_[1:]), [d.put(n, part) for n in names]

        def unpack(s: Batch, ix: Lanes) -> None:
            value = x(s, ix)
            for i, put in enumerate(puts):
                put(s, (value >> whole.type(i) * bits).astype(small), ix)

        return unpack
    put = d.put(now.args[0], type_)
    if now.args[1].startswith("{"):
        names = _names(now.args[1])
        whole, part = dtype_of("u" + type_[1:]), f"u{int(type_[1:]) // len(names)}"
        bits, reads = whole.type(int(part[1:])), [d.read(n, part) for n in names]

        def pack(s: Batch, ix: Lanes) -> None:
            value = np.zeros(1, whole)
            for i, read in enumerate(reads):
                value = value | read(s, ix).astype(whole) << whole.type(i) * bits
            put(s, value, ix)

        return pack
    read = d.read(now.args[1], type_)
    return lambda s, ix: put(s, read(s, ix).copy() if ix is None else read(s, ix), ix)


_TO_INTEGER: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def _to_integer(x: Array, dtype: Any, rounding: Callable[[Array], Array]) -> Array:
    """Floats rounded to integers; those outside of the range become its ends, NaN 0."""
    limits = np.iinfo(dtype)
    x = rounding(x.astype(_F64))
    inside = (x > float(limits.min)) & (x < float(limits.max))
    result = np.where(inside, x, 0).astype(dtype)
    result = np.where(x >= float(limits.max), dtype.type(limits.max), result)
    return np.where(x <= float(limits.min), dtype.type(limits.min), result)


def _cvt(d: _Decoder, now: Instruction) -> Run:
    to, of = now.op[-2], now.op[-1]
    if len(now.args) == 3:  # two floats to a pair
        if of != "f32" or to not in ("f16x2", "bf16x2"):
            raise d.unknown()
        relu = now.has("relu")

        def pair(high: Array, low: Array) -> Array:
            both = np.stack(np.broadcast_arrays(low, high), axis=1)
            both = np.maximum(both, 0) if relu else both
            bits = both.astype(np.float16) if to == "f16x2" else f32_to_bf16(both)
            return np.ascontiguousarray(bits).view(np.uint32)[:, 0]

        return _pure(d, now, pair, to, of, of)
    target, source = dtype_of(to), dtype_of(of)
    is_float, was_float = to[0] in "f" or to == "bf16", of[0] == "f" or of == "bf16"
    rounding = next((_TO_INTEGER[w] for w in now.op if w in _TO_INTEGER), None)
    mode, sat, relu = _mode(now), now.has("sat"), now.has("relu")
    if (of == "bf16" and to not in ("f32", "bf16", "f64")) or (to == "bf16" and mode != "rn"):
        raise d.unknown()

    def convert(x: Array) -> Array:
        x = bf16_to_f32(x) if of == "bf16" else x
        if not is_float:
            if was_float:
                return _to_integer(x, target, rounding or np.trunc)
            if sat:
                limits = np.iinfo(target)
                low = limits.min if source.kind == "i" else 0
                x = np.clip(
                    x,
                    max(low, int(np.iinfo(source).min)),
                    min(limits.max, int(np.iinfo(source).max)),
                )
            return x.astype(target)
        if rounding is not None:
            x = rounding(x)
        if sat:
            x = np.clip(np.nan_to_num(x, posinf=1, neginf=0), 0, 1)
        if relu:
            x = np.maximum(x, 0)
        if to == "bf16":
            return f32_to_bf16(x)
        return x.astype(target) if mode == "rn" else _rounded(x.astype(_F64), target, mode)

    return _pure(d, now, convert, to, of)


def _cvta(d: _Decoder, now: Instruction) -> Run:
    space = next((w for w in now.op if w in ("shared", "local")), "")
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "": 0}[space]
    move = np.uint64(window)
    if now.has("to"):
        return _pure(d, now, lambda x: x - move, "u64")
    return _pure(d, now, lambda x: x + move, "u64")


# Memory


def _places(
    s: Batch, at: Array, space: str, n_bytes: int, text: str, ix: Lanes
) -> list[tuple[Space, Array, Any]]:
    """Where addresses are: an allocation, offsets in it, and the elements of ``at``.

    Args:
        at: an address for each lane of ``ix``, or one for all.
    """
    if int(np.bitwise_or.reduce(at)) & (n_bytes - 1):
        i = int(np.flatnonzero(at & (n_bytes - 1))[0])
        what = f"access of {n_bytes} bytes at {int(at[i]):#x} is not aligned"
        raise s.fault(text, int(s.lanes(ix)[i]), what)
    low, high = int(at.min()), int(at.max())
    if space in ("shared", "local"):
        limit = s.shared_limit if space == "shared" else s.program.local_bytes
        if low < 0 or high + n_bytes > limit:
            i = int(np.flatnonzero((at < 0) | (at + n_bytes > limit))[0])
            what = f"access of {n_bytes} bytes at byte {int(at[i])} of {limit} of {space} memory"
            raise s.fault(text, int(s.lanes(ix)[i]), what)
        memory, base = (s.shared, s.shared_base) if space == "shared" else (s.local, s.local_base)
        if len(s.blocks) == 1 and space == "shared":
            return [(memory, at, slice(None))]
        return [(memory, at + base[s.lanes(ix)], slice(None))]
    found = s.memory.lookup(low) or s.program.globals.lookup(low)
    if found is not None and high + n_bytes <= found.base + found.size:
        return [(found, at - found.base, slice(None))]
    if space == "" and high >= SHARED_WINDOW:
        return _generic_places(s, at, n_bytes, text, ix)
    places: list[tuple[Space, Array, Any]] = []
    granules, which = np.unique(at >> 8, return_inverse=True)  # allocations are aligned to 256
    spaces = [
        s.memory.lookup(int(g) << 8) or s.program.globals.lookup(int(g) << 8) for g in granules
    ]
    for one in dict.fromkeys(spaces):
        chosen = np.flatnonzero(np.array([x is one for x in spaces])[which])
        offsets = at[chosen] - (one.base if one else 0)
        wrong = offsets + n_bytes > one.size if one else np.ones(chosen.size, bool)
        if one is None or wrong.any():
            i = int(chosen[np.flatnonzero(wrong)[0]])
            address = int(at[i])
            what = f"access of {n_bytes} bytes at {address:#x}: {s.memory.describe(address)}"
            raise s.fault(text, int(s.lanes(ix)[i]), what)
        places.append((one, offsets, chosen))
    return places


def _generic_places(
    s: Batch, at: Array, n_bytes: int, text: str, ix: Lanes
) -> list[tuple[Space, Array, Any]]:
    lanes = s.lanes(ix)
    at = np.broadcast_to(at, lanes.shape)
    places: list[tuple[Space, Array, Any]] = []
    for window, space in ((0, "global"), (SHARED_WINDOW, "shared"), (LOCAL_WINDOW, "local")):
        chosen = np.flatnonzero(at & (SHARED_WINDOW | LOCAL_WINDOW) == window)
        if chosen.size:
            inner = _places(s, at[chosen] - window, space, n_bytes, text, lanes[chosen])
            for memory, offsets, part in inner:
                places.append((memory, offsets, chosen[part]))
    return places


def _space_of(now: Instruction) -> str:
    for word in now.op:
        if word in ("shared", "local", "global", "const", "param"):
            return word
        if word.startswith("shared::"):
            return "shared"
    return ""


def _vector(now: Instruction) -> int:
    return next((int(w[1]) for w in now.op if w in ("v2", "v4", "v8")), 1)


def _memory_lanes(s: Batch, ix: Lanes, *values: Array) -> tuple[Lanes, list[Array]]:
    """Lanes that access memory, and their values: without those that have exited."""
    if ix is None and s.n_alive != s.n:
        return s.all_lanes, [v if v.size == 1 else v[s.all_lanes] for v in values]
    return ix, list(values)


def _ld(d: _Decoder, now: Instruction) -> Run:
    space, n, dtype = _space_of(now), _vector(now), dtype_of(now.type)
    text, size = now.text, n * dtype.itemsize
    d.note_shared(space, dtype)
    if space == "param":
        found = re.match(r"\[([\w$]+)\]$", now.args[1])
        if found is None:
            raise d.unknown()
        name, put = found[1], d.put(now.args[0], now.type)
        return lambda s, ix: put(s, s.launch.arguments[name].view(dtype), ix)
    if size > 16:
        raise d.unknown()
    address, puts = d.address(now.args[1]), [d.put(r, now.type) for r in _names(now.args[0])]

    def run(s: Batch, ix: Lanes) -> None:
        ix, (at,) = _memory_lanes(s, ix, address(s, ix))
        places = _places(s, at, space, size, text, ix)
        if s.races:
            for memory, offsets, part in places:
                if memory is s.shared:
                    s.races.read(offsets, size, s.lanes(ix)[part], text)
        if len(places) == 1:
            memory, offsets, _ = places[0]
            values = memory.load(offsets, dtype, n)
        else:
            values = [np.empty(s.lanes(ix).size, dtype) for _ in range(n)]
            for memory, offsets, part in places:
                for value, loaded in zip(values, memory.load(offsets, dtype, n), strict=True):
                    value[part] = loaded
        for put, value in zip(puts, values, strict=True):
            put(s, value, ix)

    return run


def _st(d: _Decoder, now: Instruction) -> Run:
    space, dtype, text = _space_of(now), dtype_of(now.type), now.text
    address, reads = d.address(now.args[0]), [d.read(r, now.type) for r in _names(now.args[1])]
    size = len(reads) * dtype.itemsize
    d.note_shared(space, dtype)
    if size > 16:
        raise d.unknown()

    def run(s: Batch, ix: Lanes) -> None:
        ix, (at, *values) = _memory_lanes(s, ix, address(s, ix), *[r(s, ix) for r in reads])
        if at.size == 1 and any(v.size > 1 for v in values):
            at = np.broadcast_to(at, s.lanes(ix).shape)
        for memory, offsets, part in _places(s, at, space, size, text, ix):
            chosen = [v if v.size == 1 else v[part] for v in values]
            if s.races and memory is s.shared:
                _store_checked(s, offsets, chosen, dtype, s.lanes(ix)[part], text)
            else:
                memory.store(offsets, chosen, dtype)

    return run


def _store_checked(
    s: Batch, offsets: Array, values: list[Array], dtype: Any, lanes: Array, text: str
) -> None:
    """A store to shared memory, checked for races; one that changes nothing is none."""
    assert s.races is not None
    offsets = np.broadcast_to(offsets, lanes.shape)
    size = len(values) * dtype.itemsize
    changes = _differ(s.shared, offsets, values, dtype)
    if changes.any():
        s.races.write(offsets[changes], size, lanes[changes], text)
    s.shared.store(offsets, values, dtype)
    lost = _differ(s.shared, offsets, values, dtype)
    if lost.any():
        s.races.clash(offsets[lost], size, lanes[lost], text)


def _differ(memory: Space, offsets: Array, values: list[Array], dtype: Any) -> Array:
    bits = np.dtype(f"u{dtype.itemsize}")
    there = memory.load(offsets, bits, len(values))
    pairs = zip(there, values, strict=True)
    return np.logical_or.reduce([a != np.ascontiguousarray(b).view(bits) for a, b in pairs])


_ATOMIC: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.fmin,
    "max": np.fmax,
    "exch": lambda old, x: x,
    "inc": lambda old, x: np.where(old >= x, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, x: np.where((old == 0) | (old > x), x, old - old.dtype.type(1)),
    "cas": lambda old, x, y: np.where(old == x, y, old),
}


def _atomic(d: _Decoder, now: Instruction) -> Run:
    """red and atom: lanes in order, those with addresses of their own at once."""
    returns = now.op[0] == "atom"
    name = next((w for w in now.op if w in _ATOMIC), "")
    if not name or now.type in ("bf16", "bf16x2"):
        raise d.unknown()
    space, dtype, text = _space_of(now), dtype_of(now.type), now.text
    f = _on_type(_ATOMIC[name], now.type)
    first = 1 if returns else 0
    address = d.address(now.args[first])
    reads = [d.read(a, now.type) for a in now.args[first + 1 :]]
    put = d.put(now.args[0], now.type) if returns else None

    def run(s: Batch, ix: Lanes) -> None:
        lanes = s.lanes(ix)
        values = [np.broadcast_to(r(s, lanes), lanes.shape) for r in reads]
        at = np.broadcast_to(address(s, lanes), lanes.shape)
        old = np.empty(lanes.size, dtype)
        for memory, offsets, part in _places(s, at, space, dtype.itemsize, text, lanes):
            view = memory.view(dtype)
            where, given = offsets // dtype.itemsize, [v[part] for v in values]
            if s.races and memory is s.shared:
                s.races.atomic(offsets, dtype.itemsize, lanes[part], text)
            before = np.empty(where.size, dtype)
            for group in _distinct_parts(where):
                there = where[group]
                before[group] = view[there]
                view[there] = f(before[group], *[g[group] for g in given])
            old[part] = before
        if put:
            put(s, old, lanes)

    return run


def _distinct_parts(where: Array) -> list[Any]:
    """Groups of elements, in order, without equal values in a group."""
    order = np.argsort(where, kind="stable")
    ordered = where[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    if first.size == where.size:
        return [slice(None)]
    rank = np.arange(where.size) - np.repeat(first, np.diff(np.r_[first, where.size]))
    by_rank = np.argsort(rank, kind="stable")
    return np.split(order[by_rank], np.cumsum(np.bincount(rank))[:-1])


def _cp(d: _Decoder, now: Instruction) -> Run:
    """cp.async, and the instructions that wait for it."""
    if now.op[1] != "async" or now.has("bulk", "mbarrier"):
        raise d.unknown()
    if now.has("commit_group"):

        def commit(s: Batch, ix: Lanes) -> None:
            s.n_groups[s.lanes(ix)] += 1

        return commit
    if now.has("wait_group", "wait_all"):
        n = int(now.args[0]) if now.has("wait_group") else -1
        return lambda s, ix: _arrive(s, ix, n)
    target, source, text = d.address(now.args[0]), d.address(now.args[1]), now.text
    n_bytes = int(now.args[2])
    used = d.read(now.args[3], "u32") if len(now.args) > 3 else None
    dtype = np.dtype(WIDE_TYPES[n_bytes])

    def run(s: Batch, ix: Lanes) -> None:
        lanes = s.lanes(ix)
        at = np.broadcast_to(target(s, lanes), lanes.shape)
        of = np.broadcast_to(source(s, lanes), lanes.shape)
        data = np.zeros((lanes.size, n_bytes), np.uint8)
        counts = np.broadcast_to(used(s, lanes) if used else np.uint32(n_bytes), lanes.shape)
        reading = np.flatnonzero(counts)
        if reading.size:
            for memory, offsets, part in _places(
                s, of[reading], "global", n_bytes, text, lanes[reading]
            ):
                loaded = memory.view(dtype).take(offsets // n_bytes)
                data[reading[part]] = loaded.view(np.uint8).reshape(-1, n_bytes)
        data[np.arange(n_bytes) >= counts[:, None]] = 0
        ((memory, offsets, _),) = _places(s, at, "shared", n_bytes, text, lanes)
        offsets = np.broadcast_to(offsets, lanes.shape)
        if s.races:
            s.races.write(offsets, n_bytes, lanes, text)
        memory.view(dtype)[offsets // n_bytes] = np.full(n_bytes, POISON, np.uint8).view(dtype)[0]
        s.copies.append(_Copy(lanes, offsets, data.view(dtype)[:, 0], s.n_groups[lanes], text))

    return run


WIDE_TYPES = {4: np.uint32, 8: np.uint64, 16: np.complex128}


def _arrive(s: Batch, ix: Lanes, n: int) -> None:
    """Let copies arrive but those of each lane's last ``n`` groups; -1: all of them."""
    waiting = np.zeros(s.n, bool)
    waiting[s.lanes(ix)] = True
    later: list[_Copy] = []
    for copy in s.copies:
        now = waiting[copy.ix]
        if n >= 0:
            now = now & (copy.group < s.n_groups[copy.ix] - n)
        here = copy.only(now)
        if s.races and here.ix.size:
            s.races.write(here.target, copy.data.itemsize, here.ix, copy.text)
        s.shared.view(copy.data.dtype)[here.target // copy.data.itemsize] = here.data
        if not now.all():
            later.append(copy.only(~now))
    s.copies = later


def _nothing(d: _Decoder, now: Instruction) -> Run:
    return lambda s, ix: None


def _activemask(d: _Decoder, now: Instruction) -> Run:
    put = d.put(now.args[0], "u32")

    def run(s: Batch, ix: Lanes) -> None:
        lanes = s.lanes(ix)
        put(s, np.repeat(_bits(_present(s, lanes)), 32)[lanes], lanes)

    return run


def _copysign(d: _Decoder, now: Instruction) -> Run:
    return _pure(d, now, lambda sign, x: np.copysign(x, sign), now.type)


def _shl(d: _Decoder, now: Instruction) -> Run:
    type_ = "u" + now.type[1:]
    return _pure(d, now, _shift_left, type_, type_, "u32")


def _shr(d: _Decoder, now: Instruction) -> Run:
    type_ = now.type if now.type[0] == "s" else "u" + now.type[1:]
    return _pure(d, now, _shift_right, type_, type_, "u32")


def _bits_op(f: Callable[..., Array], result: str = "", *more: str) -> Any:
    """An instruction of unsigned bits, the other operands of types of their own."""

    def make(d: _Decoder, now: Instruction) -> Run:
        type_ = now.type if now.type[0] == "s" else "u" + now.type[1:]
        return _pure(d, now, f, result or type_, type_, *(m or type_ for m in more))

    return make


def _bfind(d: _Decoder, now: Instruction) -> Run:
    bits, amount = int(now.type[1:]), now.has("shiftamt")

    def find(x: Array) -> Array:
        x = np.where(x < 0, ~x, x) if x.dtype.kind == "i" else x
        lead = _clz(x.view(_UNSIGNED[bits]))
        if amount:
            return np.where(lead == bits, np.uint32(_FULL), lead)
        return np.uint32(bits - 1) - lead

    return _pure(d, now, find, "u32", now.type)


def _prmt_of(d: _Decoder, now: Instruction) -> Run:
    if now.op[1] != "b32":
        raise d.unknown()
    return _pure(d, now, _prmt, "u32")


OPS: dict[str, Callable[[_Decoder, Instruction], Run]] = {
    "abs": _simple(np.abs),
    "activemask": _activemask,
    "add": _float_or_int(np.add),
    "addc": _float_or_int(np.add),
    "and": _simple(lambda x, y: x & y),
    "atom": _atomic,
    "bfe": lambda d, now: _pure(d, now, _bfe, now.type, now.type, "u32", "u32"),
    "bfi": _bits_op(_bfi, "", "", "u32", "u32"),
    "bfind": _bfind,
    "brev": _bits_op(_reverse),
    "clz": _bits_op(_clz, "u32"),
    "cnot": _simple(lambda x: (x == 0).astype(x.dtype)),
    "copysign": _copysign,
    "cos": _simple(_approximate(np.cos)),
    "cp": _cp,
    "cvt": _cvt,
    "cvta": _cvta,
    "discard": _nothing,
    "div": _simple(_divide),
    "dp4a": _dp4a,
    "ex2": _simple(_approximate(np.exp2)),
    "fence": _nothing,
    "fma": _mad,
    "griddepcontrol": _nothing,
    "ld": _ld,
    "ldu": _ld,
    "lg2": _simple(_approximate(np.log2)),
    "lop3": lambda d, now: _pure(d, now, _lop3, "u32"),
    "mad": _mad,
    "madc": _mad,
    "max": _min_max,
    "membar": _nothing,
    "min": _min_max,
    "mov": _mov,
    "mul": _mul,
    "nanosleep": _nothing,
    "neg": _simple(np.negative),
    "not": _simple(np.invert),
    "or": _simple(lambda x, y: x | y),
    "popc": _bits_op(_popc, "u32"),
    "prefetch": _nothing,
    "prmt": _prmt_of,
    "rcp": _simple(_approximate(np.reciprocal)),
    "red": _atomic,
    "rem": _simple(lambda x, y: np.fmod(x, np.where(y == 0, x.dtype.type(1), y))),
    "rsqrt": _simple(_approximate(lambda x: 1 / np.sqrt(x))),
    "selp": _selp,
    "set": _set,
    "setp": _setp,
    "shf": lambda d, now: _pure(d, now, _funnel(now), "u32"),
    "shl": _shl,
    "shr": _shr,
    "sin": _simple(_approximate(np.sin)),
    "sqrt": _simple(_approximate(np.sqrt)),
    "st": _st,
    "sub": _float_or_int(np.subtract),
    "subc": _float_or_int(np.subtract),
    "tanh": _simple(_approximate(np.tanh)),
    "xor": _simple(lambda x, y: x ^ y),
}


# Instructions of several lanes


def _bits(on: Array) -> Array:
    """One 32-bit mask for each warp."""
    return np.packbits(on.reshape(-1, 32), axis=1, bitorder="little").view(np.uint32)[:, 0]


def _present(s: Batch, ix: Lanes) -> Array:
    """True for the lanes that are there."""
    if ix is None:
        return s.alive
    present = np.zeros(s.n, bool)
    present[ix] = True
    return present


def _barrier(d: _Decoder, now: Instruction, i: int) -> Callable[..., int | None]:
    """bar.sync and bar.red: the threads of a block that have not exited meet."""
    after = i + 1
    reduce = next((w for w in ("popc", "and", "or") if now.has("red") and w in now.op), "")
    if now.has("red"):
        put, value = d.put(now.args[0], now.type), d.read(now.args[-1], "pred")
    elif not now.has("sync") or len(now.args) > 1:
        raise d.unknown()

    def meet(s: Batch, ix: Array) -> None:
        if s.races:
            s.races.barrier(None if ix is s.all_lanes else ix)
        if not reduce:
            return
        on = np.broadcast_to(value(s, ix), ix.shape)
        counts = np.bincount(s.block_of[ix][on], minlength=len(s.blocks))
        total = np.bincount(s.block_of[ix], minlength=len(s.blocks))
        of_blocks = {"popc": counts, "and": counts == total, "or": counts > 0}[reduce]
        result = of_blocks[s.block_of[ix]]
        put(s, result.astype(_U32) if reduce == "popc" else result, ix)

    def end(s: Batch, ix: Lanes, retry: bool = False) -> int | None:
        if ix is None:
            meet(s, s.all_lanes)
            return after
        if not retry:
            s.park(i, ix)
            return None
        arrived = np.bincount(s.block_of[ix], minlength=len(s.blocks))
        alive = np.bincount(s.block_of[s.all_lanes], minlength=len(s.blocks))
        go = (arrived == alive)[s.block_of[ix]]
        if not go.all():
            s.park(i, ix[~go])
        if go.any():
            meet(s, ix[go])
            s.push(after, ix[go])
        return None

    return end


def _collective(
    d: _Decoder, i: int, mask: Read, run: Callable[[Batch, Lanes], None]
) -> Callable[..., int | None]:
    """Lanes of a warp that wait for the others that their mask names."""
    text, after = d.now.text, i + 1

    def end(s: Batch, ix: Lanes, retry: bool = False) -> int | None:
        masks = mask(s, None)
        if ix is None and masks.size == 1 and int(masks[0]) == _FULL:
            run(s, None)
            return after
        lanes = s.lanes(ix)
        there = s.parked.pop(i, None)
        if there is not None:
            lanes = np.sort(np.concatenate([lanes, there]))
        masks = np.broadcast_to(mask(s, lanes), lanes.shape)
        absent = masks >> (lanes & 31).astype(np.uint32) & np.uint32(1) == 0
        if absent.any():
            lane = int(lanes[np.flatnonzero(absent)[0]])
            raise s.fault(text, lane, "the lane is not in its own mask")
        here = _bits(_present(s, lanes))[lanes >> 5]
        go = masks & _bits(s.alive)[lanes >> 5] & ~here == 0
        if not go.all():
            s.park(i, lanes[~go])
            lanes = lanes[go]
        if lanes.size:
            run(s, lanes)
            s.push(after, lanes)
        return None

    return end


def _shfl(d: _Decoder, now: Instruction, i: int) -> Callable[..., int | None]:
    kind, text = now.op[2], now.text
    names = now.args[0].split("|")
    put = d.put(names[0], "u32")
    put_valid = d.put(names[1], "pred") if len(names) > 1 else None
    value, offset, limit = (d.read(a, "u32") for a in now.args[1:4])

    def sources(s: Batch, lanes: Array, by: Array, end: Array) -> tuple[Array, Array]:
        lane, by, end = lanes & 31, by.astype(int), end.astype(int)
        by, segment, end = by & 31, end >> 8 & 31, end & 31
        last = lane & segment | end & ~segment
        if kind == "up":
            source = lane - by
            valid = source >= last
        else:
            source = {"down": lane + by, "bfly": lane ^ by}.get(
                kind, lane & segment | by & ~segment
            )
            valid = source <= last
        return lanes - lane + np.where(valid, source, lane), valid

    known: dict[tuple[int, int, int], tuple[Array, Array]] = {}  # of constant operands

    def run(s: Batch, ix: Lanes) -> None:
        lanes = s.lanes(ix)
        by, end = offset(s, lanes), limit(s, lanes)
        if by.size + end.size == 2 and lanes.size == s.n:
            key = (s.n, int(by[0]), int(end[0]))
            if key not in known:
                known[key] = sources(s, lanes, by, end)
            source, valid = known[key]
            ix = None
        else:
            source, valid = sources(s, lanes, by, end)
            ix = lanes
        if lanes.size != s.n:
            present = _present(s, ix)[source]
            if not present.all():
                lane = int(lanes[np.flatnonzero(~present)[0]])
                raise s.fault(text, lane, "shuffle from a lane that takes no part")
        values = value(s, None)
        put(s, values.copy() if values.size == 1 else values[source], ix)
        if put_valid:
            put_valid(s, valid.copy(), ix)

    return _collective(d, i, d.read(now.args[4], "u32"), run)


def _vote(d: _Decoder, now: Instruction, i: int) -> Callable[..., int | None]:
    kind = now.op[2]
    put = d.put(now.args[0], "u32" if kind == "ballot" else "pred")
    predicate, mask = d.read(now.args[1], "pred"), d.read(now.args[2], "u32")

    def run(s: Batch, ix: Lanes) -> None:
        lanes = s.lanes(ix)
        on = np.zeros(s.n, bool)
        on[lanes] = predicate(s, lanes)
        members = mask(s, lanes) & _bits(_present(s, ix))[lanes >> 5]
        yes = _bits(on)[lanes >> 5] & members
        if kind == "ballot":
            put(s, yes, lanes)
        elif kind == "all":
            put(s, yes == members, lanes)
        elif kind == "any":
            put(s, yes != 0, lanes)
        else:
            put(s, (yes == members) | (yes == 0), lanes)

    return _collective(d, i, mask, run)


def _of_members(s: Batch, ix: Lanes, value: Read, mask: Read) -> tuple[Array, Array, Array]:
    """Lanes, the 32 values of the warp of each, and which of them are in its mask."""
    lanes = s.lanes(ix)
    values = s.full(value(s, None)).reshape(-1, 32)[lanes >> 5]
    members = mask(s, lanes) & _bits(_present(s, ix))[lanes >> 5]
    return lanes, values, members[:, None] >> _LANE.astype(np.uint32) & np.uint32(1) == 1


def _match(d: _Decoder, now: Instruction, i: int) -> Callable[..., int | None]:
    type_ = "u" + now.type[1:]
    names = now.args[0].split("|")
    put = d.put(names[0], "u32")
    put_all = d.put(names[1], "pred") if len(names) > 1 else None
    value, mask = d.read(now.args[1], type_), d.read(now.args[2], "u32")
    every = now.has("all")

    def run(s: Batch, ix: Lanes) -> None:
        lanes, values, members = _of_members(s, ix, value, mask)
        own = values[np.arange(lanes.size), lanes & 31]
        equal = (values == own[:, None]) & members
        result = _bits(equal.reshape(-1))
        if every:
            same = (equal == members).all(axis=1)
            result = np.where(same, result, np.uint32(0))
            if put_all:
                put_all(s, same, lanes)
        put(s, result, lanes)

    return _collective(d, i, mask, run)


def _redux(d: _Decoder, now: Instruction, i: int) -> Callable[..., int | None]:
    name = now.op[2]
    dtype = dtype_of(now.type)
    f: Any = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and}.get(name)
    f = f or {"or": np.bitwise_or, "xor": np.bitwise_xor}.get(name)
    if f is None or dtype.kind == "f":
        raise d.unknown()
    start: Any = {"min": np.iinfo(dtype).max, "max": np.iinfo(dtype).min}.get(name, 0)
    start = dtype.type(~dtype.type(0) if name == "and" else start)
    put, value = d.put(now.args[0], now.type), d.read(now.args[1], now.type)
    mask = d.read(now.args[2], "u32")

    def run(s: Batch, ix: Lanes) -> None:
        lanes, values, members = _of_members(s, ix, value, mask)
        put(s, f.reduce(np.where(members, values, start), axis=1, dtype=dtype), lanes)

    return _collective(d, i, mask, run)


def _whole_warps(s: Batch, ix: Lanes, text: str) -> tuple[Array, Array]:
    """Lanes and warps; all 32 lanes of each must be there."""
    lanes = s.lanes(ix)
    bits = _bits(_present(s, ix))
    warps = np.flatnonzero(bits)
    part = bits[warps] != _FULL
    if part.any():
        raise s.fault(text, 32 * int(warps[part][0]), "lanes of the warp are missing")
    return lanes, warps


_FULL_MASK = np.array([_FULL], np.uint32)


def _always(s: Batch, ix: Lanes) -> Array:
    return _FULL_MASK


def _ldmatrix(d: _Decoder, now: Instruction, i: int) -> Callable[..., int | None]:
    n = next((int(w[1]) for w in now.op if w in ("x1", "x2", "x4")), 0)
    if not now.has("m8n8") or now.type != "b16" or not n:
        raise d.unknown()
    address, transposed, text = d.address(now.args[1]), now.has("trans"), now.text
    puts = [d.put(r, "u32") for r in _names(now.args[0])]

    def run(s: Batch, ix: Lanes) -> None:
        lanes, warps = _whole_warps(s, ix, text)
        at = np.broadcast_to(address(s, lanes), lanes.shape)
        rows = (lanes & 31) < 8 * n
        ((memory, offsets, _),) = _places(s, at[rows], "shared", 16, text, lanes[rows])
        if s.races:
            s.races.read(offsets, 16, lanes[rows], text)
        data = memory.view(np.complex128).take(offsets // 16).view(np.uint16)
        tiles = data.reshape(warps.size, n, 8, 8)
        if transposed:
            tiles = tiles.transpose(0, 1, 3, 2)
        pairs = np.ascontiguousarray(tiles).view(np.uint32).reshape(warps.size, n, 32)
        for k, put in enumerate(puts):
            put(s, pairs[:, k].reshape(-1), lanes)

    return _collective(d, i, _always, run)


def _mma(d: _Decoder, now: Instruction, i: int) -> Callable[..., int | None]:
    """mma.sync of 16-bit floats and 8-bit integers, in the layouts of the PTX manual."""
    shape = re.match(r"m(8|16)n8k(8|16|32)$", now.op[3])
    types = now.op[-4:]
    text = now.text
    if shape is None or now.op[1:3] != ["sync", "aligned"]:
        raise d.unknown()
    m, k = int(shape[1]), int(shape[2])
    in_type, out_type = types[1], types[0]
    known = {
        ("f16", "f16"): np.float16,
        ("bf16", "bf16"): np.uint16,
        ("s8", "s8"): np.int8,
        ("u8", "u8"): np.uint8,
        ("u8", "s8"): np.uint8,
        ("s8", "u8"): np.int8,
    }
    if (types[1], types[2]) not in known or out_type not in ("f32", "s32"):
        raise d.unknown()
    a_type: Any = known[types[1], types[2]]
    b_type: Any = known[types[2], types[1]]
    each = 4 // np.dtype(a_type).itemsize  # elements of a register
    m_parts, k_parts = m // 8, k // (4 * each)
    a, b = ([d.read(r, "u32") for r in _names(x)] for x in now.args[1:3])
    c = [d.read(r, out_type) for r in _names(now.args[3])]
    puts = [d.put(r, out_type) for r in _names(now.args[0])]
    if (len(a), len(b), len(c)) != (m_parts * k_parts, k_parts, 2 * m_parts):
        raise d.unknown("shape")
    dtype = dtype_of(out_type)

    def numbers(reads: list[Read], type_: Any, s: Batch, lanes: Array, w: int) -> Array:
        registers = np.stack([np.broadcast_to(r(s, lanes), lanes.shape) for r in reads], axis=1)
        parts = np.ascontiguousarray(registers).view(type_)
        values = bf16_to_f32(parts) if in_type == "bf16" else parts
        return values.astype(_F64).reshape(w, 8, 4, len(reads), each)

    def run(s: Batch, ix: Lanes) -> None:
        lanes, warps = _whole_warps(s, ix, text)
        w = warps.size
        left = numbers(a, a_type, s, lanes, w).reshape(w, 8, 4, k_parts, m_parts, each)
        left = left.transpose(0, 4, 1, 3, 2, 5).reshape(w, m, k)
        right = numbers(b, b_type, s, lanes, w).transpose(0, 3, 2, 4, 1).reshape(w, k, 8)
        product = (left @ right).reshape(w, m_parts, 8, 4, 2)
        for r, put in enumerate(puts):
            part = np.ascontiguousarray(product[:, r // 2, :, :, r % 2]).reshape(-1)
            before = c[r](s, lanes)
            if dtype == _F32:
                put(s, (part + before).astype(_F32), lanes)
            else:
                put(s, part.astype(_I64).astype(dtype) + before, lanes)

    return _collective(d, i, _always, run)


_COLLECTIVES: dict[str, Callable[[_Decoder, Instruction, int], Callable[..., int | None]]] = {
    "ldmatrix": _ldmatrix,
    "match": _match,
    "mma": _mma,
    "redux": _redux,
    "shfl": _shfl,
    "vote": _vote,
}
