"""Turn an allocated graph into launches: which kernel runs on which node, in how many chunks.

    @lowers("SCALE")
    def lower_scale(lowering, node):
        params = Scale(s=node.op_params["s"])      # what the kernel reads: ``abi.params_of``
        lowering.launch(scale_f32, node, params, lowering.row_chunks(node))

Kernel files register a lowering for each op and for each fused pattern. A lowering may take work
memory (``lowering.take``), which is its own until it returns. It may also take the quantized form
of a source (``lowering.quantized``), which is made once for all matmuls that read it, if possible
by the kernel that computes the source.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ....cgraph import CGraph
from ....compiler.jit import CpuKernel, compile_all
from ....tensor import Tensor
from ...common.lowering import Lowerings, computed
from ...common.memory import Range, any_overlap, byte_range
from ..weights.buffer import is_repacked
from ..weights.layout import ACTIVATION_BYTES
from .loop import MAX_THREADS
from .type_traits import TypeTraits
from .work import WorkMemory, WorkRange

# Ops with sources that may be interleaved, and the indices of these.
READS_INTERLEAVED = {"MUL_MAT": (0,), "MUL_MAT_ID": (0,), "GET_ROWS": (0,), "LORA": (1, 5)}

ANY_CHUNKS = 1 << 30  # for ``replicate``: with any number of chunks of the readers
GRAIN = 8192  # elements of an element-wise chunk, at least: claiming a smaller one costs more


class NoParams(NamedTuple):
    """The parameters of a kernel without any."""


NONE = NoParams()


@dataclass(eq=False)
class CpuLaunch:
    """One kernel of a program with its node and values (or a Python callable, which cuts it).

    Attributes:
        reads, writes: byte ranges.
        nodes: the nodes it computes or helps to compute (several if fused).
        first, whole: of a part of a launch with too many chunks, the first one and all of them.
        The others are the arguments of ``Lowering.launch``.
    """

    kernel: CpuKernel | None
    node: Tensor
    params: NamedTuple
    chunks: int
    src: tuple[Tensor | None, ...]
    reads: list[Range]
    writes: list[Range]
    python: Callable[[], None] | None = None
    quantizes: bool = False
    streams: Tensor | None = None
    replicate: int = 0
    variant: str = ""
    nodes: tuple[Tensor, ...] = ()
    first: int = 0
    whole: int = 0

    @property
    def name(self) -> str:
        """The name in profiles, such as ``mul_mat_q4_1_x16``."""
        if self.kernel is None:
            return "Python"
        return "_".join(part for part in (self.kernel.name, self.variant) if part)


def by_rows(kernel: CpuKernel) -> Callable[[CpuLowering, Tensor], None]:
    """The lowering of a kernel without values that is split by rows of the result."""
    return lambda lowering, node: lowering.launch(kernel, node, chunks=lowering.row_chunks(node))


def _same_rows(x: Tensor) -> Tensor:
    """The tensor that ``x`` is a reshape of, if both have the same blocks of 32; else ``x``."""
    root = x.view_src
    if root is None or x.data != root.data or x.nelements != root.nelements:
        return x
    whole = x.is_contiguous() and root.is_contiguous() and root.ne[0] % 32 == 0
    return root if whole else x


def reads_layout(node: Tensor) -> bool:
    """Whether kernels can read the node's interleaved sources: a matmul's weight, a table's rows.

    Views are excluded, since they may start and end inside groups.
    """
    assert node.op is not None
    known = READS_INTERLEAVED.get(node.op.name, ())
    return not any(
        s is not None and is_repacked(s) and (i not in known or s.view_src is not None)
        for i, s in enumerate(node.src)
    )


LOWERINGS: Lowerings[CpuLowering] = Lowerings(
    "cpu backend",
    "make its sources contiguous (repacked ones can only be a matmul's whole weight or a table of "
    "rows), or use the reference backend",
    reads_layout,
)
lowers, fuses = LOWERINGS.lowers, LOWERINGS.fuses


@dataclass
class CpuLowering:
    """Collects the launches of a graph.

    Args:
        n_threads: threads that will run them, at most ``MAX_THREADS``.
        fusion: let kernels take several adjacent nodes at once.
    """

    graph: CGraph
    n_threads: int
    work: WorkMemory
    fusion: bool = True
    launches: list[CpuLaunch] = field(default_factory=list)
    scratch_bytes: int = 64
    _first: int = 0  # number of the first launch of the current node
    _functions: dict[tuple[TypeTraits, int], CpuKernel] = field(default_factory=dict)
    _producer: dict[Tensor, int] = field(default_factory=dict)
    _quantized: dict[tuple[Tensor, int], tuple[WorkRange, int]] = field(default_factory=dict)
    _made: dict[Hashable, tuple[WorkRange, int]] = field(default_factory=dict)
    _readers: dict[Tensor, list[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.n_threads = min(self.n_threads, MAX_THREADS)

    def launch(
        self,
        kernel: CpuKernel,
        node: Tensor,
        params: NamedTuple = NONE,
        chunks: int = 1,
        *,
        src: tuple[Tensor | None, ...] | None = None,
        reads: Sequence[Tensor | None] | None = None,
        work: Sequence[WorkRange] = (),
        writes: Tensor | WorkRange | None = None,
        scratch: int = 0,
        quantizes: bool = False,
        streams: Tensor | None = None,
        replicate: int = 0,
        variant: str = "",
        updater: Tensor | None = None,
    ) -> None:
        """Add a launch.

        Args:
            node: the result in the kernel's record.
            params: what the kernel reads with ``abi.params_of``.
            chunks: the number of pieces of work.
            src: the sources in the record; by default the node's.
            reads: the tensors it reads; by default ``src``.
            work: the work memory it reads.
            writes: the memory it writes; by default the node's.
            scratch: bytes of thread scratch that it needs.
            quantizes: it can also write the result as int8 blocks, to ``params.quantize``.
            streams: weights that it reads once, from memory.
            replicate: each thread may run it for itself, if it has one chunk and its readers have
                at most so many (``ANY_CHUNKS``: any number).
            variant: types and layouts, for profiles.
            updater: the fused node that updates sources in place; by default ``node``.

        Raises:
            AllocError: a range of work memory was given to another launch meanwhile.
        """
        number, src = len(self.launches), node.src if src is None else src
        tensors = src if reads is None else reads
        read = [byte_range(s) for s in tensors if s is not None and s.nelements]
        read += [w.use(number) for w in work]
        if isinstance(writes, WorkRange):
            written = writes.use(number)
        else:
            written = byte_range(writes or node)
            self._producer[writes or node] = number
        updater = node if updater is None else updater
        more = [byte_range(t) for t in updater.op.updated(updater)] if updater.op else []
        chunks = max(1, chunks)
        self.launches.append(
            CpuLaunch(
                kernel, node, params, chunks, src, read, [written, *more], None, quantizes, streams,
                replicate if chunks == 1 else 0, variant,
            )
        )  # fmt: skip
        self.scratch_bytes = max(self.scratch_bytes, scratch)

    def python(self, node: Tensor, call: Callable[[], None]) -> None:
        """Add a call of a Python function between two compiled parts of the program."""
        reads = [byte_range(s) for s in node.src if s is not None and s.nelements]
        self.launches.append(
            CpuLaunch(None, node, NONE, 1, node.src, reads, [byte_range(node)], python=call)
        )

    def traits(self, traits: TypeTraits, *functions: int) -> int:
        """The address of a format's traits, of which the program calls these functions."""
        for place in functions:
            function = traits.missing(place)
            if function is not None:
                self._functions[traits, place] = function
        return traits.address

    def kernels(self) -> list[CpuKernel]:
        """The kernels of the launches, and the functions that they call by address."""
        kernels = [launch.kernel for launch in self.launches if launch.kernel is not None]
        return list(dict.fromkeys((*self._functions.values(), *kernels)))

    def compile(self) -> None:
        """Compile or load all kernels; before the launches can run."""
        compile_all(self.kernels())
        for (traits, place), function in self._functions.items():
            traits.fill(place, function)

    def take(self, size: int, beside: Tensor | None = None) -> WorkRange:
        """Work memory of ``size`` bytes for the current node.

        No other memory taken for this node overlaps it, nor does any earlier result that this node
        uses (``quantized``, ``known``).

        Args:
            beside: a source; no launch since the one that computes it uses the memory, so that all
                nodes that read it can run at the same time.
        """
        before = self._first
        if beside is not None:
            before = min(before, self._producer.get(_same_rows(beside), before))
        made = self.work.take(size, before)
        made.use(len(self.launches))
        return made

    def row_chunks(self, node: Tensor, grain: int = GRAIN) -> int:
        """The chunks of a kernel that is split by rows: enough for all threads, none too small.

        Args:
            grain: elements of a chunk, at least.
        """
        return max(1, min(node.nrows, node.nelements // grain, 8 * self.n_threads))

    def mac_chunks(self, node: Tensor, macs: int, least: int = 1 << 17) -> int:
        """The number of chunks of rows for so many multiply-adds, ``least`` or more in each."""
        return max(1, min(node.nrows, macs // least, 16 * self.n_threads))

    def quantized(
        self,
        x: Tensor,
        columns: int,
        quantize: Callable[[CpuLowering, Tensor, int, WorkRange], None],
    ) -> WorkRange:
        """The int8 form of ``x`` (see ``kernels/quantize.py``), made once for adjacent readers.

        Blocks of 32 are written by the launch that computes ``x``, if it can (``quantizes``). Else
        a launch is added. It is made again if its work memory was reused, or ``x`` was written
        (by CPY or SET_ROWS) since.

        Args:
            columns: the block size of the weights.
            quantize: adds the launch.
        """
        if (x, columns) in self._quantized:
            known, at = self._quantized[x, columns]
            if known.intact and not self._written(x, at):
                known.use(len(self.launches))
                self._quantized[x, columns] = known, len(self.launches) - 1
                return known
        n_bytes = x.nrows * (x.ne[0] // columns) * ACTIVATION_BYTES[columns]
        made = self._producer.get(_same_rows(x), -1)
        if columns == 32 and made >= 0 and self._may_quantize(x, made):
            producer = self.launches[made]
            out = self.work.take(n_bytes, min(made, self._first))
            producer.params = producer.params._replace(quantize=out.address)
            producer.writes.append(out.use(made))
            out.use(len(self.launches))
        else:
            made, out = len(self.launches), self.take(n_bytes)
            quantize(self, x, columns, out)
        self._quantized[x, columns] = out, made
        return out

    def _may_quantize(self, x: Tensor, number: int) -> bool:
        """Whether launch ``number``, which computes ``x``, can quantize it and does not yet."""
        launch = self.launches[number]
        free = launch.quantizes and not launch.params.quantize  # type: ignore[attr-defined]
        return free and not self._written(x, number)

    def readers(self, x: Tensor) -> list[Tensor]:
        """The nodes that read a tensor, in their order."""
        if not self._readers:
            for node in self.graph.nodes:
                for source in dict.fromkeys(node.src):
                    if source is not None:
                        self._readers.setdefault(source, []).append(node)
        return self._readers.get(x, [])

    def known(self, key: Hashable, *sources: Tensor | None) -> WorkRange | None:
        """The memory remembered under a key; None if it was reused or a source was written."""
        made, number = self._made.get(key, (None, 0))
        if made is None or not made.intact:
            return None
        if any(self._written(x, number) for x in sources if x is not None):
            return None
        made.use(len(self.launches))
        return self.remember(key, made)  # the next call checks only the launches after this one

    def remember(self, key: Hashable, made: WorkRange) -> WorkRange:
        """Remember the result of the last launch under a key, for ``known``; returns it."""
        self._made[key] = made, len(self.launches) - 1
        return made

    def _written(self, x: Tensor, since: int) -> bool:
        """Whether a launch after ``since`` writes bytes of ``x``."""
        ranges = [byte_range(x)]
        return any(any_overlap(ranges, launch.writes) for launch in self.launches[since + 1 :])

    def run(self) -> None:
        """Lower every node. Raises: UnsupportedOp."""
        nodes, i = computed(self.graph), 0
        while i < len(nodes):
            self._first = len(self.launches)
            n = LOWERINGS.lower_next(self, nodes, i)
            for launch in self.launches[self._first :]:
                launch.nodes = tuple(nodes[i : i + n])
            i += n
