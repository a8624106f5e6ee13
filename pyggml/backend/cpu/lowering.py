"""Turn an allocated graph into launches: which kernel runs on which node, in how many chunks.

    @lowers("SCALE")
    def lower_scale(low, node):
        low.launch(scale_f32, node, (node.op_params["s"],), low.row_chunks(node))

Kernel files register one lowering an op (and one a fused pattern). A lowering may ask for the
quantized form of a source (``low.quantized``): it is made once for all matmuls that read it, by the
kernel that computes the source where that kernel can.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from ...cgraph import CGraph
from ...dtype import GGMLType
from ...errors import UnsupportedOp
from ...jit import Kernel
from ...tensor import Tensor
from .buffer import is_repacked
from .layout import ACTIVATION_BYTES
from .loop import MAX_THREADS
from .work import WorkMemory, WorkRange

Range = tuple[int, int]  # first byte, byte behind the last
Params = Sequence[int | float]

# Ops that know interleaved first sources.
READS_INTERLEAVED = frozenset(("MUL_MAT", "MUL_MAT_ID", "GET_ROWS"))

ALWAYS = 1 << 30  # ``Launch.private``: however many chunks its readers have
GRAIN = 8192  # elements: an element-wise chunk smaller than this costs more to claim than to do


@dataclass(eq=False)
class Launch:
    """One kernel call of a program (or a Python callable, which cuts the program)."""

    kernel: Kernel | None
    node: Tensor
    params: list[int | float]
    chunks: int
    dst: Tensor
    src: tuple[Tensor | None, ...]
    reads: list[Range]
    writes: list[Range]
    python: Callable[[], None] | None = None
    quantize_param: int = -1  # parameter that takes the address of the quantized result, if any
    streams: Tensor | None = None  # weights that it reads once, from memory
    private: int = 0  # each thread may run it for itself, where readers have at most so many chunks
    nodes: tuple[Tensor, ...] = ()  # what it computes, or helps to; several where they are fused
    variant: str = ""  # of the kernel, for profiles: types and layouts

    @property
    def name(self) -> str:
        """What profiles call it, such as ``mul_mat_q4_1_x16``."""
        if self.kernel is None:
            return "Python"
        return "_".join(part for part in (self.kernel.name, self.variant) if part)


Lower = Callable[["Lowering", Tensor], None]
LOWER: dict[str, Lower] = {}
SUPPORTS: dict[str, Callable[[Tensor], bool]] = {}
FUSED: dict[str, list[tuple[tuple[str, ...], Callable[..., bool]]]] = {}  # by their first op


def lowers(
    op: str, supports: Callable[[Tensor], bool] = lambda node: True
) -> Callable[[Lower], Lower]:
    """Register the lowering of an op; ``supports`` says which types and strides it takes."""

    def register(lower: Lower) -> Lower:
        LOWER[op], SUPPORTS[op] = lower, supports
        return lower

    return register


def fuses(*ops: str) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Register the lowering of adjacent nodes: ``lower(low, *nodes)``, False to decline.

    Every node but the last is read once, by a later node of the pattern, and is not an output.
    """

    def register(lower: Callable[..., bool]) -> Callable[..., bool]:
        FUSED.setdefault(ops[0], []).append((ops, lower))
        return lower

    return register


def _same_rows(x: Tensor) -> Tensor:
    """What ``x`` is a mere reshape of, where both have the same blocks of 32; or ``x``."""
    root = x.view_src
    if root is None or x.data != root.data or x.nelements != root.nelements:
        return x
    whole = x.is_contiguous() and root.is_contiguous() and root.ne[0] % 32 == 0
    return root if whole else x


def all_f32(node: Tensor) -> bool:
    """Whether the result and all sources are F32 with gap-free rows."""
    tensors = [node, *(s for s in node.src if s is not None)]
    return all(t.type is GGMLType.F32 and t.is_contiguous_rows() for t in tensors)


def reads_layout(node: Tensor) -> bool:
    """Whether interleaved sources are where kernels know that layout: a matmul's or table's rows.

    They are used whole: a view starts and ends inside of groups.
    """
    assert node.op is not None
    known = node.src[0] if node.op.name in READS_INTERLEAVED else None
    return not any(
        s is not None and is_repacked(s) and (s is not known or s.view_src is not None)
        for s in node.src
    )


def byte_range(tensor: Tensor) -> Range:
    """The bytes that a tensor may touch, gaps included."""
    return tensor.data, tensor.data + tensor.nbytes


def meet(some: Sequence[Range], others: Sequence[Range]) -> bool:
    """Whether any two of them overlap."""
    for start, end in some:
        for first, last in others:
            if start < last and first < end:
                return True
    return False


@dataclass
class Lowering:
    """The launches of a graph while they are collected.

    Args:
        n_threads: that will run them; the pool has room for ``MAX_THREADS``.
        fusion: let kernels take several adjacent nodes at once.
    """

    graph: CGraph
    n_threads: int
    work: WorkMemory
    fusion: bool = True
    launches: list[Launch] = field(default_factory=list)
    scratch_bytes: int = 64
    _producer: dict[Tensor, int] = field(default_factory=dict)
    _quantized: dict[tuple[Tensor, int], tuple[WorkRange, int]] = field(default_factory=dict)
    _made: dict[Hashable, tuple[WorkRange, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.n_threads = min(self.n_threads, MAX_THREADS)

    def launch(
        self,
        kernel: Kernel,
        node: Tensor,
        params: Params = (),
        chunks: int = 1,
        *,
        src: tuple[Tensor | None, ...] | None = None,
        work: Sequence[WorkRange] = (),
        scratch: int = 0,
    ) -> Launch:
        """Add a launch that writes ``node`` and reads ``src`` (the node's own by default).

        Args:
            params: integers and floats for ``int_param`` and ``float_param``.
            chunks: how many pieces the kernel may be called for.
            work: ranges of work memory that it reads.
            scratch: bytes of thread memory that it needs.
        """
        src = node.src if src is None else src
        reads = [byte_range(s) for s in src if s is not None and s.nelements]
        reads += [w.use(len(self.launches)) for w in work]
        launch = Launch(
            kernel, node, list(params), max(1, chunks), node, src, reads, [byte_range(node)]
        )
        self.scratch_bytes = max(self.scratch_bytes, scratch)
        self._producer[node] = len(self.launches)
        self.launches.append(launch)
        return launch

    def python(self, node: Tensor, call: Callable[[], None]) -> None:
        """Add a call into Python between two compiled parts of the program."""
        self.launches.append(
            Launch(None, node, [], 1, node, node.src, [], [byte_range(node)], python=call)
        )

    def row_chunks(self, node: Tensor) -> int:
        """Chunks for a kernel that splits rows: enough for the threads, none too small."""
        return max(1, min(node.nrows, node.nelements // GRAIN, 8 * self.n_threads))

    def mac_chunks(self, node: Tensor, macs: int, least: int = 1 << 17) -> int:
        """Chunks of rows for a kernel of so many multiply-adds, of about ``least`` or more each."""
        return max(1, min(node.nrows, macs // least, 16 * self.n_threads))

    def quantized(
        self, x: Tensor, columns: int, quantize: Callable[[Lowering, Tensor, int, WorkRange], None]
    ) -> WorkRange:
        """The int8 form of ``x`` (see ``kernels/quantize.py``), made once for adjacent readers.

        ``columns`` is the block size of the weights that it meets. Where the launch that computes
        ``x`` can quantize (``quantize_param``, blocks of 32), it does; else ``quantize`` adds a
        launch. It is made again where its work memory went to another tensor or ``x`` was written
        (by CPY or SET_ROWS) since.
        """
        if (x, columns) in self._quantized:
            known, at = self._quantized[x, columns]
            if known.held and not self._written(x, at):
                return known
        n_bytes = x.nrows * (x.ne[0] // columns) * ACTIVATION_BYTES[columns]
        producer = self._producer.get(_same_rows(x))
        launch = None if producer is None else self.launches[producer]
        if (
            launch is not None
            and producer is not None
            and columns == 32
            and launch.quantize_param >= 0
            and not launch.params[launch.quantize_param]
            and not self._written(x, producer)
        ):
            out = self.work.take(n_bytes, producer)
            launch.params[launch.quantize_param] = out.address
            launch.writes.append(out.use(producer))
            made = producer
        else:
            made = len(self.launches)
            out = self.work.take(n_bytes, made)
            quantize(self, x, columns, out)
        self._quantized[x, columns] = out, made
        return out

    def known(self, key: Hashable, *sources: Tensor | None) -> WorkRange | None:
        """What was remembered under a key, unless its memory or a source changed since."""
        made = self._made.get(key)
        if made is None or not made[0].held:
            return None
        fresh = not any(self._written(x, made[1]) for x in sources if x is not None)
        return made[0] if fresh else None

    def remember(self, key: Hashable, made: WorkRange) -> WorkRange:
        """Note what the last launch has made of some sources, for ``known``."""
        self._made[key] = made, len(self.launches) - 1
        return made

    def _written(self, x: Tensor, since: int) -> bool:
        """Whether a launch behind ``since`` writes bytes of ``x``."""
        return any(meet([byte_range(x)], la.writes) for la in self.launches[since + 1 :])

    def run(self) -> None:
        """Lower every node. Raises: UnsupportedOp."""
        nodes = [n for n in self.graph.nodes if n.op and not n.op.is_view and n.nelements]
        i = 0
        while i < len(nodes):
            before = len(self.launches)
            n = self._lower_fused(nodes, i) or self._lower_one(nodes[i])
            for launch in self.launches[before:]:
                launch.nodes = tuple(nodes[i : i + n])
            i += n

    def _lower_one(self, node: Tensor) -> int:
        assert node.op is not None
        lower = LOWER.get(node.op.name)
        if lower is None or not (reads_layout(node) and SUPPORTS[node.op.name](node)):
            sources = ", ".join(f"{s.type.name}{list(s.ne)}" for s in node.src if s is not None)
            raise UnsupportedOp(
                f"cpu backend: no kernel for '{node.name}' = {node.op.name}({sources}) -> "
                f"{node.type.name}; make its sources contiguous (repacked ones can only be a "
                "matmul's whole weight or a table of rows), or use the reference backend"
            )
        lower(self, node)
        return 1

    def _lower_fused(self, nodes: list[Tensor], i: int) -> int:
        if not self.fusion:
            return 0
        first = nodes[i].op
        assert first is not None
        for ops, lower in FUSED.get(first.name, ()):
            group = nodes[i : i + len(ops)]
            if tuple(n.op.name for n in group if n.op) != ops:
                continue
            if self._fusable(group) and lower(self, *group):
                return len(ops)
        return 0

    def _fusable(self, group: list[Tensor]) -> bool:
        """Whether all but the last are read once, inside the group, and nobody else looks."""
        return all(
            self.graph.use_count(n) == 1
            and not n.flags
            and any(n in later.src for later in group[k + 1 :])
            for k, n in enumerate(group[:-1])
        )
