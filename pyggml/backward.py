"""Gradients: the backward part of a graph.

    w.set_param()                                  # a trainable leaf
    loss.set_loss()                                # one number
    graph.build_forward_expand(loss)
    build_backward_expand(ctx, graph)              # appends nodes
    graph.get_grad(w)                              # the gradient of the loss, of w's sizes

Each op declares its gradients (``ops/op.py``). They are nodes like any other: planned, scheduled,
computed and drawn with the rest. Nothing is computed here.

With ``grad_accs`` each compute adds gradients to tensors of the caller, which ``graph.reset()``
sets to 0: micro-batches add up to a batch. Nodes in ``recomputed`` need no memory between the two
parts: gradients read copies of them, which are computed again from what is kept.
Source: ggml, ``ggml_build_backward_expand``; Chen et al. 2016, "Training Deep Nets with Sublinear
Memory Cost".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy

from .cgraph import CGraph
from .context import Context
from .dtype import GGMLType
from .errors import PyggmlError, ShapeError, UnsupportedOp
from .ops.op import OpBuilders
from .tensor import Flag, Tensor

_FLOATS = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


def build_backward_expand(
    ctx: Context,
    graph: CGraph,
    grad_accs: Mapping[Tensor, Tensor] | None = None,
    recomputed: Collection[Tensor] = (),
) -> None:
    """Append the gradients of all losses with respect to all parameters of a forward graph.

    Args:
        ctx: gets the new tensors.
        grad_accs: by parameter or other node, an F32 tensor with memory to which its gradient is
            added; by loss, a tensor with the gradient to start from (1 for losses without one).
        recomputed: nodes of the forward part that are computed again where gradients read them,
            such as those of a layer but its output. Nodes that write in place are kept.

    Raises:
        PyggmlError: the graph has no parameter or no loss, or has its gradients already.
        ShapeError: an accumulator does not have the sizes of its tensor.
        UnsupportedOp: an op between a parameter and a loss has no gradient, or a gradient needs a
            value that a later node overwrites.
    """
    _check(graph, grad_accs or {})
    graph.n_forward = len(graph.nodes)
    graph.grad_accs = dict(grad_accs or {})
    ops, needed, writers = OpBuilders(ctx), _needed(graph), _writers(graph)
    copies = _recomputing_copies(graph, set(recomputed))
    for node in graph.nodes[::-1]:
        first = len(graph.nodes)
        dy = graph.grads.get(node)
        acc = graph.grad_accs.get(node)
        if node.flags & Flag.LOSS:
            seed = ops.fill(node, c=1.0) if acc is None else acc
            dy = seed if dy is None else ops.add(dy, seed)
            _set_grad(graph, node, dy)
        elif dy is not None and acc is not None:
            _set_grad(graph, node, _added_in_place(ops, acc, dy))
        if dy is not None and node in needed:
            _expand_sources(ops, graph, node, dy, needed, copies)
            for added in graph.nodes[first:] if writers else ():
                _check_sources(added, node, writers)


def _check(graph: CGraph, grad_accs: Mapping[Tensor, Tensor]) -> None:
    flags = Flag.NONE
    for node in graph.nodes:
        flags |= node.flags
    if not flags & Flag.PARAM:
        raise PyggmlError("the graph has no trainable parameter: call set_param() on some leafs")
    if not flags & Flag.LOSS:
        raise PyggmlError("the graph has no loss to minimize: call set_loss() on a node")
    if graph.n_forward is not None:
        raise PyggmlError("the graph has a backward part already")
    for tensor, acc in grad_accs.items():
        if acc.ne != tensor.ne or acc.type is not GGMLType.F32 or not acc.is_contiguous():
            raise ShapeError(
                f"accumulator '{acc.name}' {acc.type.name} {acc.ne} must be F32 {tensor.ne}, "
                f"without gaps, as '{tensor.name}'"
            )


def _needed(graph: CGraph) -> set[Tensor]:
    """The tensors that depend on a parameter."""
    needed: set[Tensor] = set()
    for node in graph.nodes:
        depends = node.type in _FLOATS and any(s in needed for s in node.src)
        if depends or node.flags & Flag.PARAM:
            needed.add(node)
    return needed


def _writes_in_place(node: Tensor) -> bool:
    assert node.op is not None
    return node.view_src is not None and not node.op.is_view


def _recomputing_copies(graph: CGraph, recomputed: set[Tensor]) -> dict[Tensor, Tensor]:
    """Headers by node, for gradients to read: copies of recomputed nodes and of their readers.

    A reader that is kept itself has a copy so that gradients find its recomputed sources. Copies
    enter the graph when a gradient reads them; the others are not computed.
    """
    sources: dict[Tensor, Tensor] = {}  # the copy of each recomputed node, for other copies
    copies: dict[Tensor, Tensor] = {}
    for node in graph.nodes if recomputed else ():
        if node.op is None:
            continue
        again = node in recomputed and not _writes_in_place(node)
        src = tuple(s if s is None else sources.get(s, s) for s in node.src)
        if again or src != node.src:
            copies[node] = twin = copy(node)
            twin.src, twin.flags = src, Flag.NONE
            twin.set_name(f"{node.name} (recomputed)")
            if node.view_src is not None:
                twin.view_src = sources.get(node.view_src, node.view_src)
            if again:
                sources[node] = twin
    return copies


def _expand_sources(
    ops: OpBuilders,
    graph: CGraph,
    node: Tensor,
    dy: Tensor,
    needed: set[Tensor],
    copies: Mapping[Tensor, Tensor],
) -> None:
    """Add a node's term of the chain rule to the gradients of its sources."""
    if node.op is None:
        return
    in_place = _writes_in_place(node) and node.op.name != "CPY"
    for name, source in zip(node.op.src, node.src, strict=False):
        if source is None or source not in needed:
            continue
        rule = node.op.gradients.get(name.removesuffix("?"))
        if rule is None or in_place:
            what = "in place " * in_place
            raise UnsupportedOp(
                f"'{node.name}' = {node.op.name} {what}has no gradient for its source {name} "
                f"'{source.name}', which depends on a parameter"
            )
        dx = rule(ops, copies.get(node, node), dy)
        if dx is not None:
            if not dx.is_contiguous_rows():
                dx = ops.cont(dx)
            before = graph.grads.get(source)
            _set_grad(graph, source, dx if before is None else _sum(ops, before, dx))


def _writers(graph: CGraph) -> dict[Tensor, list[tuple[int, Tensor, Tensor]]]:
    """The nodes that write into existing tensors, by the tensor that owns the memory.

    Each is (place in the graph, node, written view). Most graphs have no such nodes.
    """
    writers: dict[Tensor, list[tuple[int, Tensor, Tensor]]] = {}
    for place, node in enumerate(graph.nodes):
        if node.op is None:
            continue
        written = [node] if node.view_src is not None and not node.op.is_view else []
        for tensor in (*written, *node.op.updated(node)):
            writers.setdefault(tensor.root, []).append((place, node, tensor))
    return writers


def _check_sources(
    added: Tensor, node: Tensor, writers: Mapping[Tensor, list[tuple[int, Tensor, Tensor]]]
) -> None:
    """Check that no source of a new node was overwritten after it was computed.

    Raises:
        UnsupportedOp: with the name of ``node``, of whose gradient the new node is a part.
    """
    for source in added.src:
        if source is None or source.root not in writers:
            continue
        value: Tensor | None = source  # the node that computed it, of which it is a view
        while value is not None and value.op is not None and value.op.is_view:
            value = value.src[0]
        writes = writers[source.root]
        since = next((place for place, writer, _ in writes if writer is value), -1)
        for place, writer, written in writes:
            if place > since and _overlap(source, written):
                assert writer.op is not None and node.op is not None
                raise UnsupportedOp(
                    f"'{writer.name}' = {writer.op.name} overwrites '{source.name}', which the "
                    f"gradient of '{node.name}' = {node.op.name} needs: write to a copy"
                )


def _overlap(x: Tensor, y: Tensor) -> bool:
    """Whether the byte ranges of two views of one tensor overlap."""
    return x.view_offs < y.view_offs + y.nbytes and y.view_offs < x.view_offs + x.nbytes


def _set_grad(graph: CGraph, tensor: Tensor, grad: Tensor) -> None:
    graph.grads[tensor] = grad
    if not grad.name:
        grad.set_name(f"grad for {tensor.name}")
    graph.build_forward_expand(grad)


def _sum(ops: OpBuilders, x: Tensor, y: Tensor) -> Tensor:
    """``x + y``. If y is zero outside a region (gradient of a view), only the region is added."""
    zeros = y.src[0] if y.op is not None and y.op.name == "ACC" else None
    if zeros is not None and _is_zeros(zeros):
        out: Tensor = ops.acc(ops.contiguous(x), y.src[1], **y.op_params)
    else:
        out = ops.add(x, y)
    return out


def _is_zeros(x: Tensor) -> bool:
    """Whether ``x`` is a FILL of zeros; the gradient of a loss is a FILL of ones."""
    return x.op is not None and x.op.name == "FILL" and x.op_params["c"] == 0


def _added_in_place(ops: OpBuilders, acc: Tensor, x: Tensor) -> Tensor:
    out: Tensor = ops.acc(acc, x, nb=acc.nb[1:], offset=0, inplace=True)
    return out
