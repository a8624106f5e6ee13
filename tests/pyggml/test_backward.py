"""Backward parts of whole graphs: sums, accumulators, memory, bits, errors, pictures."""

from __future__ import annotations

import numpy as np
import pytest

import pyggml as ggml
from pyggml.backend.registry import init_backend
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import PyggmlError, ShapeError, TypeMismatch, UnsupportedOp
from pyggml.sched import Sched
from pyggml.tensor import Tensor
from pyggml.viz import graph_dump_dot

from .float64 import Array, evaluate

F32, I32 = GGMLType.F32, GGMLType.I32


class Layer:
    """A layer over some tokens, with the loss of class labels."""

    def __init__(self, ctx: Context, n_tokens: int = 12) -> None:
        self.ctx, self.rng, self.n_tokens = ctx, np.random.default_rng(3), n_tokens
        self.params: dict[str, Tensor] = {}
        self.values: dict[Tensor, Array] = {}
        self.loss = self.build(ctx).set_name("loss").set_loss()

    def build(self, ctx: Context) -> Tensor:
        """The loss."""
        raise NotImplementedError

    def param(self, name: str, *ne: int) -> Tensor:
        """A trainable tensor of random values."""
        self.params[name] = t = self.ctx.new_tensor(F32, ne).set_name(name).set_param()
        self.values[t] = self.rng.normal(0, 0.3, t.ne[::-1]).astype(np.float32)
        return t

    def given(self, values: Array) -> Tensor:
        """An input with these values."""
        type = I32 if values.dtype.kind == "i" else F32
        t = self.ctx.new_tensor(type, values.shape[::-1]).set_input()
        self.values[t] = values.reshape(t.ne[::-1])
        return t

    def graph(self) -> CGraph:
        graph = CGraph()
        graph.build_forward_expand(self.loss)
        return graph

    def set(self) -> None:
        for tensor, values in self.values.items():
            tensor.set(values)


class Attention(Layer):
    """Attention and a feed-forward part.

    Every parameter is read in another way: as a table, a weight, a bias, by two readers, by views.
    """

    def build(self, ctx: Context) -> Tensor:
        n, head, n_head, n_vocab, n_tokens = 32, 8, 4, 17, self.n_tokens
        param, given, rng = self.param, self.given, self.rng
        tokens = given(rng.integers(0, n_vocab, n_tokens))
        table = param("token_embd", n, n_vocab)  # also the output matrix
        x = ggml.get_rows(ctx, table, tokens)
        y = ggml.mul(ctx, ggml.rms_norm(ctx, x), param("norm", n))
        qkv = ggml.add(ctx, ggml.mul_mat(ctx, param("qkv", n, 2 * n), y), param("bias", 2 * n))
        pos = given(np.arange(n_tokens))

        def part(first: int, n_heads: int) -> Tensor:
            ne, nb = (head, n_heads, n_tokens), (4 * head, qkv.nb[1])
            return ggml.view_3d(ctx, qkv, ne, nb, 4 * head * first)

        q, k, v = part(0, n_head), part(4, 2), part(6, 2)
        q, k = (ggml.rope(ctx, ggml.cont(ctx, t), pos, head, 2) for t in (q, k))
        q, k = (ggml.permute(ctx, t, 0, 2, 1, 3) for t in (q, k))
        kq = ggml.mul_mat(ctx, k, q)  # [n_tokens, n_tokens, n_head], keys of 2 heads repeat
        mask = given(np.where(np.tri(n_tokens) > 0, np.float32(0), np.float32(-np.inf)))
        p = ggml.soft_max_ext(ctx, kq, mask, head**-0.5)
        out = ggml.mul_mat(ctx, ggml.cont(ctx, ggml.permute(ctx, v, 1, 2, 0, 3)), p)
        out = ggml.cont_2d(ctx, ggml.permute(ctx, out, 0, 2, 1, 3), n, n_tokens)
        x = ggml.add(ctx, x, ggml.mul_mat(ctx, param("output", n, n), out))
        y = ggml.norm(ctx, x)
        gate, up = (ggml.mul_mat(ctx, param(name, n, 48), y) for name in ("gate", "up"))
        down = ggml.mul_mat(ctx, param("down", 48, n), ggml.swiglu_split(ctx, gate, up))
        logits = ggml.mul_mat(ctx, table, ggml.add(ctx, x, down))
        labels = given(rng.integers(-1, n_vocab, n_tokens))
        return ggml.cross_entropy_loss(ctx, logits, labels)


class Experts(Layer):
    """Two texts through attention as one op and 2 of 4 experts, as a layer of Qwen3-MoE has it."""

    def build(self, ctx: Context) -> Tensor:
        n, head, n_head, n_kv_head, n_ff, n_vocab, n_tokens = 24, 8, 3, 1, 20, 11, self.n_tokens
        n_expert, n_used, split = 4, 2, n_tokens // 3
        param, given, rng = self.param, self.given, self.rng
        starts = np.where(np.arange(n_tokens) < split, 0, split)
        pos = np.arange(n_tokens) - starts
        rows = given(np.stack([starts, 0 * pos, pos + 1, pos], -1))
        x = ggml.get_rows(ctx, param("embd", n, n_vocab), given(rng.integers(0, n_vocab, n_tokens)))
        positions = given(pos)

        def heads(name: str, n_heads: int, normed: bool = True) -> Tensor:
            t = ggml.mul_mat(ctx, param(name, n, head * n_heads), x)
            t = ggml.reshape_3d(ctx, t, head, n_heads, n_tokens)
            if normed:
                t = ggml.mul(ctx, ggml.rms_norm(ctx, t), param(f"{name}_norm", head))
                t = ggml.rope(ctx, t, positions, head, 2)
            return ggml.permute(ctx, t, 0, 2, 1, 3)  # [head, n_tokens, n_heads]

        q, k, v = heads("q", n_head), heads("k", n_kv_head), heads("v", n_kv_head, normed=False)
        out = ggml.flash_attn_ranges(ctx, q, k, v, rows, head**-0.5)
        x = ggml.add(ctx, x, ggml.reshape_2d(ctx, out, n, n_tokens))
        y = ggml.rms_norm(ctx, x)
        probs = ggml.soft_max(ctx, ggml.mul_mat(ctx, param("router", n, n_expert), y))
        ids = ggml.argsort_top_k(ctx, probs, n_used)  # [n_used, n_tokens]
        weights = ggml.get_rows(ctx, ggml.reshape_3d(ctx, probs, 1, n_expert, n_tokens), ids)
        weights = ggml.reshape_2d(ctx, weights, n_used, n_tokens)
        total = ggml.clamp(ctx, ggml.sum_rows(ctx, weights), 6e-5, float("inf"))
        weights = ggml.reshape_3d(ctx, ggml.div(ctx, weights, total), 1, n_used, n_tokens)
        y = ggml.reshape_3d(ctx, y, n, 1, n_tokens)
        gate, up = (
            ggml.mul_mat_id(ctx, param(name, n, n_ff, n_expert), y, ids) for name in ("gate", "up")
        )  # [n_ff, n_used, n_tokens]
        gate = ggml.add_id(ctx, gate, param("gate_bias", n_ff, n_expert), ids)
        down = ggml.swiglu_split(ctx, gate, up)
        down = ggml.mul_mat_id(ctx, param("down", n_ff, n, n_expert), down, ids)
        down = ggml.mul(ctx, down, weights)
        for i in range(n_used):
            x = ggml.add(ctx, x, ggml.view_2d(ctx, down, n, n_tokens, down.nb[2], i * down.nb[1]))
        logits = ggml.mul_mat(ctx, param("out", n, n_vocab), x)
        return ggml.cross_entropy_loss(ctx, logits, given(rng.integers(-1, n_vocab, n_tokens)))


LAYERS = pytest.mark.parametrize("layer_of", [Attention, Experts])


@LAYERS
def test_gradients_of_a_layer_are_those_of_differences(layer_of: type[Layer]) -> None:
    ctx = Context(no_alloc=True)
    layer = layer_of(ctx)
    forward, graph = layer.graph(), layer.graph()
    ggml.build_backward_expand(ctx, graph)
    values = evaluate(graph, layer.values)
    rng, h = np.random.default_rng(0), 1e-5
    for param in layer.params.values():
        direction = rng.uniform(-1, 1, param.ne[::-1])
        losses = [
            evaluate(forward, {**layer.values, param: layer.values[param] + s * h * direction})
            for s in (1, -1)
        ]
        want = (losses[0][layer.loss].item() - losses[1][layer.loss].item()) / (2 * h)
        grad = graph.get_grad(param)
        assert grad is not None and grad.ne == param.ne
        assert np.sum(values[grad] * direction) == pytest.approx(want, rel=1e-5)


@LAYERS
@pytest.mark.parametrize("scheduled", [False, True])
def test_kernels_and_planned_memory_give_the_same_gradients_on_any_threads(
    scheduled: bool, layer_of: type[Layer]
) -> None:
    found = []
    for n_threads in (1, 2, 3):
        ctx = Context(no_alloc=True)
        layer = layer_of(ctx)
        graph = layer.graph()
        ggml.build_backward_expand(ctx, graph)
        for param in layer.params.values():
            graph.grads[param].set_output()
        cpu = init_backend("cpu", n_threads=n_threads)
        if scheduled:
            schedule = Sched([cpu, init_backend("reference")]).compile(graph)
            layer.set()
            schedule.run()
        else:
            ggml.GraphAllocator(cpu.buffer_type()).alloc_graph(graph)
            layer.set()
            cpu.graph_compute(graph)
        found.append([np.array(graph.grads[p].numpy(squeeze=False)) for p in layer.params.values()])
        cpu.close()
    bits = [[grad.tobytes() for grad in grads] for grads in found]
    assert bits[0] == bits[1] == bits[2]
    want = evaluate(graph, layer.values)
    for param, grad in zip(layer.params.values(), found[0], strict=True):
        exact = want[graph.grads[param]]
        assert np.abs(grad - exact).max() <= 2e-6 * np.abs(exact).max() + 1e-9


def test_recomputed_nodes_give_the_same_bits_in_less_memory() -> None:
    """What is kept is the layer's input; nothing that no gradient reads is computed again."""
    found, sizes = [], []
    for recompute in (False, True):
        ctx = Context(no_alloc=True)
        layer = Attention(ctx, n_tokens=48)
        graph = layer.graph()
        logits = graph.nodes[-1].src[0]
        inner = [n for n in graph.nodes if n.op is not None and n not in (layer.loss, logits)]
        ggml.build_backward_expand(ctx, graph, None, inner if recompute else ())
        again = [n.name for n in graph.backward if n.name.endswith("(recomputed)")]
        assert bool(again) is recompute and "loss (recomputed)" not in again
        for param in layer.params.values():
            graph.grads[param].set_output()
        cpu = init_backend("cpu", n_threads=1)
        sizes.append(ggml.GraphAllocator(cpu.buffer_type()).alloc_graph(graph).size)
        layer.set()
        cpu.graph_compute(graph)
        found.append([graph.grads[p].bytes().tobytes() for p in layer.params.values()])
        cpu.close()
    assert found[0] == found[1]
    assert sizes[1] <= sizes[0]


def test_accumulated_gradients_add_up_until_reset() -> None:
    ctx = Context()
    w = ctx.from_numpy(np.array([2.0, 3.0], np.float32), "w").set_param()
    x = ctx.from_numpy(np.array([1.0, 10.0], np.float32))
    loss = ggml.sum(ctx, ggml.mul(ctx, ggml.sqr(ctx, w), x)).set_loss()  # gradient 2 w x
    acc, seed = ctx.new_tensor_1d(F32, 2), ctx.new_tensor_1d(F32, 1)
    graph = CGraph()
    graph.build_forward_expand(loss)
    ggml.build_backward_expand(ctx, graph, {w: acc, loss: seed})
    assert graph.get_grad_acc(w) is acc
    graph.reset()
    for n in (1, 2):
        ggml.graph_compute_with_ctx(ctx, graph)
        assert acc.numpy().tolist() == [n * 4, n * 60]
    graph.reset()
    seed.set([0.5])
    ggml.graph_compute_with_ctx(ctx, graph)
    assert graph.get_grad(w).numpy().tolist() == acc.numpy().tolist() == [2, 30]


def test_the_gradient_of_a_loss_and_that_of_a_view_add_up() -> None:
    ctx = Context()
    w = ctx.from_numpy(np.array([2.0], np.float32)).set_param()
    x = ggml.dup(ctx, w)
    loss = ggml.add(ctx, ggml.add(ctx, ggml.view_1d(ctx, x, 1, 0), x), w).set_loss()  # 3 w
    graph = CGraph()
    graph.build_forward_expand(loss)
    ggml.build_backward_expand(ctx, graph)
    ggml.graph_compute_with_ctx(ctx, graph)
    assert graph.get_grad(w).numpy().item() == 3


def test_optimizers_step_in_the_graph() -> None:
    ctx = Context()
    w = ctx.from_numpy(np.array([1.0, -2.0], np.float32)).set_param()
    loss = ggml.sum(ctx, ggml.sqr(ctx, w)).set_loss()
    graph = CGraph()
    graph.build_forward_expand(loss)
    ggml.build_backward_expand(ctx, graph)
    m, v = (ctx.from_numpy(np.ones(2, np.float32)) for _ in range(2))
    params = ctx.from_numpy(np.array([0.1, 0.9, 0.99, 0, 0, 1, 1], np.float32))
    graph.build_forward_expand(ggml.opt_step_adamw(ctx, w, graph.grads[w], m, v, params))
    graph.reset()
    ggml.graph_compute_with_ctx(ctx, graph)
    assert m.numpy() == pytest.approx([0.2, -0.4])
    assert w.numpy() == pytest.approx([1 - 0.1, -2 + 0.1])  # 0.1 * 0.2 / sqrt(0.01 * 4)


def test_what_cannot_be_trained_is_said() -> None:
    ctx = Context(no_alloc=True)
    x, w = ctx.new_tensor_2d(F32, 8, 4), ctx.new_tensor_2d(F32, 8, 4)

    def expand(loss: Tensor, acc: Tensor | None = None) -> None:
        graph = CGraph()
        graph.build_forward_expand(loss)
        ggml.build_backward_expand(ctx, graph, None if acc is None else {w: acc})

    with pytest.raises(TypeMismatch, match="F32"):
        ctx.new_tensor_1d(GGMLType.F16, 8).set_param()
    with pytest.raises(ShapeError, match="leaf"):
        ggml.sqr(ctx, x).set_param()
    with pytest.raises(ShapeError, match="one F32 number"):
        x.set_loss()
    loss = ggml.sum(ctx, ggml.mul(ctx, x, w))
    with pytest.raises(PyggmlError, match="set_param"):
        expand(loss)
    w.set_param()
    with pytest.raises(PyggmlError, match="set_loss"):
        expand(loss)
    loss.set_loss()
    with pytest.raises(ShapeError, match="accumulator"):
        expand(loss, acc=ctx.new_tensor_1d(F32, 8))
    with pytest.raises(UnsupportedOp, match="PAD_REFLECT_1D has no gradient for its source a"):
        expand(ggml.sum(ctx, ggml.pad_reflect_1d(ctx, w, 1, 1)).set_loss())
    with pytest.raises(UnsupportedOp, match="in place"):
        other = ggml.acc_inplace(ctx, w, x, w.nb[1:], 0)
        expand(ggml.sum(ctx, other).set_loss())
    graph = CGraph()
    graph.build_forward_expand(loss)
    ggml.build_backward_expand(ctx, graph)
    with pytest.raises(PyggmlError, match="already"):
        ggml.build_backward_expand(ctx, graph)


def test_what_gradients_of_two_sources_share_is_built_once() -> None:
    ctx = Context(no_alloc=True)
    a, b = (ctx.new_tensor(F32, ne).set_param() for ne in ((3, 3, 5, 7), (17, 9, 5, 2)))
    graph = CGraph()
    graph.build_forward_expand(ggml.sum(ctx, ggml.conv_2d_direct(ctx, a, b)).set_loss())
    ggml.build_backward_expand(ctx, graph)
    copies = [node for node in graph.backward if node.op is not None and node.op.name == "CONT"]
    assert len(copies) == 1


def test_a_value_that_is_overwritten_before_its_gradient_is_found() -> None:
    def expand(late: bool) -> CGraph:
        ctx = Context(no_alloc=True)
        w, c = (ctx.new_tensor_2d(F32, 8, 4) for _ in range(2))
        x = ggml.scale(ctx, w.set_param(), 2.0).set_name("x")
        part = ggml.view_2d(ctx, x, 8, 2, x.nb[1], 0)
        squares = ggml.sqr(ctx, part if late else ggml.cpy(ctx, ggml.sqr(ctx, c), x))
        loss = ggml.sum(ctx, squares.set_name("squares"))
        if late:
            after = ggml.cpy(ctx, ggml.view_2d(ctx, c, 8, 1, c.nb[1], 0), ggml.view_2d(
                ctx, x, 8, 1, x.nb[1], x.nb[1]))  # fmt: skip
            loss = ggml.add(ctx, loss, ggml.sum(ctx, after.set_name("second row")))
        else:
            loss = ggml.add(ctx, loss, ggml.sum(ctx, w))
        graph = CGraph()
        graph.build_forward_expand(loss.set_loss())
        ggml.build_backward_expand(ctx, graph)
        return graph

    expand(late=False)  # reads what was written
    with pytest.raises(UnsupportedOp, match=r"'second row' = CPY overwrites .*'squares' = SQR"):
        expand(late=True)


def test_the_backward_part_has_its_own_colour() -> None:
    ctx = Context(no_alloc=True)
    layer = Attention(ctx)
    graph = layer.graph()
    forward = graph_dump_dot(graph)
    ggml.build_backward_expand(ctx, graph)
    text = graph_dump_dot(graph)
    assert ">backward" not in forward
    assert f">backward {len(graph.backward)}<" in text
    assert '"grad for qkv"' in text
