"""The graph that trains a model: forward, backward and the optimizer's steps, in one plan.

    inputs = ctx.new_tensor_2d(F32, 64, 50)        # [elements of a data point, a micro-batch]
    trainer = OptContext(backend, ctx, inputs, model(ctx, inputs), OptParams(n_batch=100))
    trainer.inputs.set(x); trainer.labels.set(y)
    trainer.eval(train=True)                       # every second call is a step of the optimizer
    trainer.loss_value()

Parameters are leafs with memory and names, marked by ``set_param``. All memory is allocated at the
start. ``eval`` blocks; its results have the same bits for any number of threads.
Source: ggml-opt, ``ggml_opt_init``, ``ggml_opt_eval``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..alloc import GraphAllocator, alloc_ctx_tensors
from ..backend.interface import Backend, Program
from ..backward import build_backward_expand
from ..cgraph import CGraph
from ..context import Context
from ..dtype import GGMLType
from ..errors import AllocError, PyggmlError, ShapeError
from ..ops.op import OpBuilders
from ..tensor import Flag, Tensor
from .optimizer import AdamW, Optimizer

F32, I32 = GGMLType.F32, GGMLType.I32


def _mean_squared_error(ops: OpBuilders, y: Tensor, labels: Tensor) -> Tensor:
    total: Tensor = ops.sum(ops.sqr(ops.sub(y, labels)))
    return ops.scale(total, s=1 / y.nelements)


def _binary_cross_entropy(ops: OpBuilders, y: Tensor, labels: Tensor) -> Tensor:
    """The mean of ``-log sigmoid(y)`` where the label is 1, ``-log(1 - sigmoid(y))`` where 0."""
    total: Tensor = ops.sum(ops.sub(ops.unary(y, kind="softplus"), ops.mul(y, labels)))
    return ops.scale(total, s=1 / y.nelements)


# (ops, outputs, labels) -> loss
LOSSES: dict[str, Callable[[OpBuilders, Tensor, Tensor], Tensor]] = {
    "cross_entropy": lambda ops, y, labels: ops.cross_entropy_loss(y, labels),
    "binary_cross_entropy": _binary_cross_entropy,
    "mean_squared_error": _mean_squared_error,
    "mean": lambda ops, y, labels: ops.scale(ops.sum(y), s=1 / y.nelements),
    "sum": lambda ops, y, labels: ops.sum(y),
}
_WITHOUT_LABELS = ("mean", "sum")
RESERVED = "training."  # names of this beginning are a checkpoint's own


@dataclass(frozen=True)
class OptParams:
    """How a model is trained.

    Args:
        loss: a name of ``LOSSES``.
        optimizer: ``AdamW`` or ``SGD``.
        n_batch: data points of an optimizer's step, a multiple of the inputs' (a micro-batch, of
            which gradients are added up); 0: one micro-batch.
        max_norm: bound of the L2 norm of all gradients together, which are scaled; 0: no bound.
        class_labels: labels of cross entropy are class numbers; else probabilities of the outputs'
            sizes.
    """

    loss: str = "cross_entropy"
    optimizer: Optimizer = field(default_factory=AdamW)
    n_batch: int = 0
    max_norm: float = 0.0
    class_labels: bool = True


class OptContext:
    """A model with its loss, gradients and optimizer, ready to run.

    Attributes:
        inputs: [elements of a data point, data points of a micro-batch]; the caller writes it.
        outputs: the model's result.
        labels: I32 [rows of outputs] or F32 of the outputs' sizes; None if the loss has none.
        loss: one number, divided by ``period``.
        pred: of cross entropy: the class of each row; else None.
        params: by name; moments: of the optimizer, by parameter.
        period: micro-batches of an optimizer's step.
        step: number of optimizer steps done.
        grad_norm: the L2 norm of all gradients before scaling; None without ``max_norm``.
        size_bytes: memory of gradients, moments and results of nodes, without parameters.
        settings: by name, what decides the results beside data and parameters; checkpoints record
            it, and are loaded only where it is equal. Callers may add to it.
        state: by name, further tensors that checkpoints keep, of a subclass.
        weight: factor of a micro-batch's gradients, 1 unless it is set; ``epoch`` sets it so that
            rows with a label count alike, however many rows of a batch have none.

    Args:
        ctx: gets the new tensors; ``no_alloc``.
        inputs: a leaf without memory.
        recomputed: nodes whose values are not kept for the gradients but computed again, see
            ``build_backward_expand``.

    Raises:
        PyggmlError: no parameter, one without name or memory, two of one name, a reserved name, an
            unknown loss; the loss depends on no parameter.
        ShapeError: ``n_batch`` is no multiple of the inputs' data points.
        AllocError: too little memory.
        UnsupportedOp: as ``build_backward_expand``.
    """

    def __init__(
        self,
        backend: Backend,
        ctx: Context,
        inputs: Tensor,
        outputs: Tensor,
        params: OptParams | None = None,
        recomputed: Collection[Tensor] = (),
    ) -> None:
        p = params or OptParams()
        if p.loss not in LOSSES:
            raise PyggmlError(f"loss is {p.loss!r}, want one of {', '.join(LOSSES)}")
        self.inputs, self.outputs = inputs.set_input(), outputs.set_output()
        self.n_micro_batch = inputs.ne[1]
        n_batch = p.n_batch or self.n_micro_batch
        if n_batch < 0 or n_batch % self.n_micro_batch:
            raise ShapeError(f"n_batch {n_batch} is no multiple of the {self.n_micro_batch} inputs")
        self.period, self.optimizer = n_batch // self.n_micro_batch, p.optimizer
        self.step = self._done = 0
        self.settings: dict[str, str | float] = {
            "loss": p.loss, "n_batch": n_batch, "n_micro_batch": self.n_micro_batch,
            "max_norm": p.max_norm, **_numbers_of(p.optimizer),
        }  # fmt: skip
        self.state: dict[str, Tensor] = {}
        self._backend, self._static, self._ops = backend, Context(no_alloc=True), OpBuilders(ctx)
        self.graph = CGraph()
        self.graph.build_forward_expand(outputs)
        self._add_loss(p)
        for node in self.extra_nodes(self._ops, self._static):
            self.graph.build_forward_expand(node)
        self.params = self._named_params()
        ends = [len(self.graph)]
        accs = {w: self._like(w, "acc") for w in self.params.values()} if self.period > 1 else {}
        self.weight = self._static.new_tensor(F32, self.loss.ne).set_name("weight").set_input()
        self._seeds = {
            node: self._static.new_tensor(F32, node.ne).set_name(f"weight of {node.name}")
            for node in self.graph.nodes
            if node.flags & Flag.LOSS and node is not self.loss
        }
        seeds = {**self._seeds, self.loss: self.weight}
        build_backward_expand(ctx, self.graph, {**accs, **seeds}, recomputed)
        ends.append(len(self.graph))
        self._add_steps(p.max_norm)
        ends.append(len(self.graph))
        allocator = GraphAllocator(backend.buffer_type())
        static = alloc_ctx_tensors(self._static, backend.buffer_type())
        allocator.alloc_graph(self.graph)
        self.size_bytes = static.size + allocator.buffer_size
        self._check_memory()
        self._ends, self._programs = ends, dict[int, Program]()
        self.reset()

    @property
    def is_mean(self) -> bool:
        """Whether the loss is a mean over rows or elements; else it is a sum."""
        return self._loss != "sum"

    @property
    def is_class_labels(self) -> bool:
        """Whether labels are class numbers."""
        return self.labels is not None and self.labels.type is I32

    def reset(self) -> None:
        """Forget moments and accumulated gradients; parameters stay."""
        self.graph.reset()
        for seed in self._seeds.values():
            seed.set(np.full(seed.shape, 1 / self.period, np.float32))
        self.step = self._done = 0

    def drop_micro_batches(self) -> None:
        """Forget the gradients of an unfinished batch: the next micro-batch starts a new one."""
        self._done = 0

    def set_inputs(self, points: npt.NDArray[Any]) -> None:
        """Write the data points of a micro-batch; a model with more inputs has a method of its own.

        Shape:
            points [data points, ...]
        """
        self.inputs.set(points.reshape(self.inputs.shape))

    def extra_nodes(self, ops: OpBuilders, static: Context) -> Sequence[Tensor]:
        """Nodes that a subclass computes beside loss and outputs, before the gradients.

        Auxiliary losses (``set_loss``) are added to the loss that is minimized, as means over
        micro-batches, but not to ``loss_value``; values to read need ``set_output``.

        Args:
            static: a context of leafs that get memory, such as factors that change in each step.
        """
        return ()

    def eval(self, train: bool) -> None:
        """Compute loss and predictions of the inputs.

        With ``train`` gradients are computed too, and with the last micro-batch of a batch the
        optimizer changes the parameters.
        """
        if not train:
            self._run(0)
            return
        if self._done == 0:
            for tensor, acc in self.graph.grad_accs.items():
                if not tensor.flags & Flag.LOSS:
                    acc.set(np.zeros(acc.shape, np.float32))
        self._done = (self._done + 1) % self.period
        if self._done:
            self._run(1)
            return
        self._numbers.set(np.array(self.optimizer.values(self.step), np.float32))
        self._run(2)
        self.step += 1

    def loss_value(self) -> float:
        """The loss of the last micro-batch."""
        value = float(self.loss.bytes().view(np.float32)[0])
        return value * self.period if self.is_mean else value

    def count_correct(self, n_rows: int) -> tuple[int, int]:
        """Count the rows with a right class, and those with a label, in the last micro-batch.

        A row of probabilities that are all 0 has no label.

        Args:
            n_rows: rows to count, from the first one on.
        """
        if self.pred is None or self.labels is None:
            return 0, 0
        pred, labels = (np.asarray(t.numpy(squeeze=False)) for t in (self.pred, self.labels))
        if self.is_class_labels:
            want = labels.ravel()
            has_label = want >= 0
        else:
            rows = labels.reshape(-1, labels.shape[-1])
            want, has_label = rows.argmax(-1), (rows != 0).any(axis=-1)
        right = (pred.ravel() == want) & has_label
        return int(right[:n_rows].sum()), int(has_label[:n_rows].sum())

    def _check_memory(self) -> None:
        """Check that free memory suffices: the system assigns it later, when it is written to."""
        memory = self._backend.memory()
        if memory is not None and self.size_bytes > memory[0]:
            need, free = (n / 2**30 for n in (self.size_bytes, memory[0]))
            raise AllocError(
                f"training needs {need:.2f} GiB for gradients, moments and results of nodes, "
                f"{self._backend.name} has {free:.2f} GiB free; use a smaller micro-batch"
            )

    def _run(self, part: int) -> None:
        """Run the forward nodes (0), with the backward ones (1), with the steps (2)."""
        if part not in self._programs:
            nodes = self.graph.nodes[: self._ends[part]]
            self._programs[part] = self._backend.compile(self.graph.part(nodes))
        self._programs[part].enqueue()
        self._backend.queue.synchronize()

    def _add_loss(self, p: OptParams) -> None:
        y, ops = self.outputs, self._ops
        rows, self._loss = y.nrows, p.loss
        self.labels: Tensor | None = None
        self.pred: Tensor | None = None
        if p.loss not in _WITHOUT_LABELS:
            classes = p.class_labels and p.loss == "cross_entropy"
            type, ne = (I32, (rows, 1, 1, 1)) if classes else (F32, y.ne)
            self.labels = self._static.new_tensor(type, ne).set_name("labels").set_input()
        loss = LOSSES[p.loss](ops, y, self.labels)  # type: ignore[arg-type]
        if self.is_mean and self.period > 1:
            loss = ops.scale(loss, s=1 / self.period)
        self.loss = loss.set_name("loss").set_output().set_loss()
        self.graph.build_forward_expand(self.loss)
        if p.loss == "cross_entropy":
            matrix = (y.ne[0], rows, 1, 1)
            self.pred = ops.argmax(ops.reshape(y, ne=matrix)).set_name("pred").set_output()
            self.graph.build_forward_expand(self.pred)

    def _named_params(self) -> dict[str, Tensor]:
        params: dict[str, Tensor] = {}
        for node in self.graph:
            if node.flags & Flag.PARAM:
                if not node.data:
                    raise PyggmlError(f"parameter '{node.name}' {node.ne} has no memory")
                if node.name.startswith(RESERVED):
                    raise PyggmlError(f"parameter '{node.name}': checkpoints reserve {RESERVED}*")
                if node.name in params:
                    raise PyggmlError(f"two parameters have the name '{node.name}'")
                params[node.name] = node
        return params

    def _like(self, w: Tensor, what: str) -> Tensor:
        return self._static.new_tensor(F32, w.ne).set_name(f"{what} of {w.name}")

    def _add_steps(self, max_norm: float) -> None:
        ops, graph = self._ops, self.graph
        n = self.optimizer.n_params
        self._numbers = self._static.new_tensor_1d(F32, n).set_name("optimizer").set_input()
        self.moments: dict[Tensor, list[Tensor]] = {}
        self.grad_norm: Tensor | None = None
        grads = {w: grad for w in self.params.values() if (grad := graph.get_grad(w)) is not None}
        if not grads:
            raise PyggmlError(f"no parameter has a gradient: '{self.loss.name}' depends on none")
        if max_norm > 0:
            squares = [ops.sum(ops.sqr(grad)) for grad in grads.values()]
            total = squares[0]
            for square in squares[1:]:
                total = ops.add(total, square)
            self.grad_norm = ops.sqrt(total).set_name("grad norm").set_output()
            length = ops.scale(self.grad_norm, s=1.0, b=1e-6)
            factor = ops.clamp(ops.div(ops.fill(length, c=max_norm), length), min=0.0, max=1.0)
            grads = {w: ops.mul(grad, factor) for w, grad in grads.items()}
        for w, grad in grads.items():
            self.moments[w] = [self._like(w, name) for name in self.optimizer.moments]
            step = self.optimizer.build(ops, w, grad, self.moments[w], self._numbers)
            graph.build_forward_expand(step.set_name(f"step of {w.name}"))


def _numbers_of(optimizer: Optimizer) -> dict[str, float]:
    """The numbers among the fields of an optimizer that is a dataclass, by name."""
    names = getattr(optimizer, "__dataclass_fields__", ())
    values = {name: getattr(optimizer, name) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}
