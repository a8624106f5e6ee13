"""Gradients against torch's: of ops, and of every parameter of a tiny GPT-2 and LLaMA."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pyggml as ggml
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.tensor import Tensor

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.long
Array = npt.NDArray[Any]

GPT2 = Path(__file__).parents[2] / "docs" / "examples" / "gpt2.py"
IDS = np.array([3, 0, 3, 1], np.int32)
FUTURE = np.triu(np.full((70, 70), -np.inf, np.float32), 1)


def gradients(ctx: Context, loss: Tensor, params: dict[str, Tensor]) -> dict[str, Array]:
    for param in params.values():
        param.set_param()
    graph = CGraph()
    graph.build_forward_expand(loss.set_loss())
    ggml.build_backward_expand(ctx, graph)
    ggml.graph_compute_with_ctx(ctx, graph, n_threads=2)
    return {name: np.array(graph.grads[w].numpy()) for name, w in params.items()}


Ours = Callable[..., Tensor]
OPS: dict[str, tuple[tuple[tuple[int, ...], ...], Ours, Callable[..., Any]]] = {
    "mul_mat": (((5, 7), (3, 7)), ggml.mul_mat, lambda a, b: b @ a.T),
    "silu": (((4, 9),), ggml.silu, F.silu),
    "gelu": (((4, 9),), ggml.gelu, lambda x: F.gelu(x, approximate="tanh")),
    "gelu_erf": (((4, 9),), ggml.gelu_erf, F.gelu),
    "softplus": (((4, 9),), ggml.softplus, F.softplus),
    "elu": (((4, 9),), ggml.elu, F.elu),
    "swiglu": (((4, 9), (4, 9)), ggml.swiglu_split, lambda a, b: F.silu(a) * b),
    "rms_norm": (((4, 9),), ggml.rms_norm, lambda x: F.rms_norm(x, (9,), eps=1e-5)),
    "norm": (((4, 9),), ggml.norm, lambda x: F.layer_norm(x, (9,))),
    "soft_max": (
        ((2, 4, 9),),
        lambda ctx, x: ggml.soft_max_ext(ctx, x, None, 0.3),
        lambda x: F.softmax(0.3 * x, -1),
    ),
    "attention": (
        ((2, 4, 70, 16), (2, 2, 70, 16), (2, 2, 70, 16)),
        lambda ctx, q, k, v: ggml.permute(
            ctx, ggml.flash_attn_ext(ctx, q, k, v, ctx.from_numpy(FUTURE), 0.25), 0, 2, 1, 3
        ),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
    ),
    "get_rows": (
        ((5, 7),),
        lambda ctx, a: ggml.get_rows(ctx, a, ctx.from_numpy(IDS)),
        lambda a: F.embedding(torch.tensor(IDS), a),
    ),
    "conv_2d": (
        ((4, 3, 3, 3), (2, 3, 9, 8)),
        lambda ctx, a, b: ggml.conv_2d(ctx, a, b, s0=2, p0=1, p1=1),
        lambda a, b: F.conv2d(b, a, stride=(1, 2), padding=1),
    ),
    "conv_2d_direct": (
        ((4, 3, 3, 3), (2, 3, 9, 8)),
        lambda ctx, a, b: ggml.conv_2d_direct(ctx, a, b, s1=2, p0=1, d0=2),
        lambda a, b: F.conv2d(b, a, stride=(2, 1), padding=(0, 1), dilation=(1, 2)),
    ),
    "max_pool": (
        ((2, 3, 9, 8),),
        lambda ctx, x: ggml.pool_2d(ctx, x, "max", 3, 3, 2, 2, 1, 1),
        lambda x: F.max_pool2d(x, 3, 2, 1),
    ),
    "avg_pool": (
        ((2, 3, 9, 8),),
        lambda ctx, x: ggml.pool_2d(ctx, x, "avg", 3, 3, 2, 2, 1, 1),
        lambda x: F.avg_pool2d(x, 3, 2, 1),
    ),
    "cross_entropy": (
        ((4, 9),),
        lambda ctx, x: ggml.cross_entropy_loss(ctx, x, ctx.from_numpy(IDS)),
        lambda x: F.cross_entropy(x, torch.tensor(IDS, dtype=torch.long)),
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_ops(name: str) -> None:
    shapes, ours, theirs = OPS[name]
    rng, ctx = np.random.default_rng(0), Context()
    arrays = [rng.normal(0, 1, shape).astype(np.float32) for shape in shapes]
    wanted = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
    y = theirs(*wanted)
    weights = rng.normal(0, 1, tuple(y.shape)).astype(np.float32)
    (y * torch.tensor(weights)).sum().backward()

    sources = {str(i): ctx.from_numpy(a) for i, a in enumerate(arrays)}
    out = ours(ctx, *sources.values())
    loss = ggml.sum(ctx, ggml.mul(ctx, ggml.cont(ctx, out), ctx.from_numpy(weights)))
    found = gradients(ctx, loss, sources)
    for got, want in zip(found.values(), wanted, strict=True):
        assert got == pytest.approx(want.grad.numpy(), rel=1e-5, abs=1e-5)


def compare(found: dict[str, Array], want: dict[str, Array]) -> None:
    """To 1e-4 of the largest element of each."""
    assert found.keys() == want.keys()
    for name, grad in want.items():
        scale = np.abs(grad).max()
        assert np.abs(found[name].reshape(grad.shape) - grad).max() <= 1e-4 * scale, name


def test_gpt2() -> None:
    transformers = pytest.importorskip("transformers")
    names = runpy.run_path(str(GPT2))
    hp = names["Params"]()
    weights = names["random_weights"](hp)
    tokens = np.random.default_rng(1).integers(0, hp.n_vocab, 33).astype(np.int32)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=hp.n_vocab, n_positions=hp.n_ctx, n_embd=hp.n_embd, n_layer=hp.n_layer,
            n_head=hp.n_head, layer_norm_epsilon=hp.eps, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        )
    ).double()  # fmt: skip
    theirs = {
        "token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "attn_norm": "ln_1",
        "ffn_norm": "ln_2", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
        "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
    }  # fmt: skip
    params = dict(model.named_parameters())

    def of(name: str) -> Any:
        *block, part, kind = name.split(".")
        prefix = f"transformer.h.{block[1]}." if block else "transformer."
        return params[f"{prefix}{theirs[part]}.{kind}"]

    def flips(name: str) -> bool:  # Conv1D has [in, out]
        return name.startswith("blk") and weights[name].ndim == 2

    with torch.no_grad():
        for name, array in weights.items():
            of(name).copy_(torch.tensor(array.T if flips(name) else array))
    ids = torch.tensor(tokens, dtype=torch.long)[None]
    model(ids, labels=ids).loss.backward()

    ctx, n = Context(), len(tokens)
    w = {name: ctx.from_numpy(array, name) for name, array in weights.items()}
    future = np.triu(np.full((n, n), -np.inf, np.float32), 1)
    positions = ctx.from_numpy(np.arange(n, dtype=np.int32))
    y = names["gpt2"](ctx, w, ctx.from_numpy(tokens), positions, ctx.from_numpy(future), hp)
    labels = ctx.from_numpy(np.append(tokens[1:], np.int32(-1)))
    loss = ggml.cross_entropy_loss(ctx, y, labels)  # of n rows, of which n - 1 have labels
    found = gradients(ctx, ggml.scale(ctx, loss, n / (n - 1)), w)
    compare(found, {k: g.T if flips(k) else g for k in w for g in [of(k).grad.numpy()]})


def llama(ctx: Context, w: dict[str, Tensor], tokens: Array, n_layer: int, head: int) -> Tensor:
    """The logits of a LLaMA with grouped queries: [n_vocab, n_tokens]."""
    n = len(tokens)
    pos = ctx.from_numpy(np.arange(n, dtype=np.int32))
    mask = ctx.from_numpy(np.triu(np.full((n, n), -np.inf, np.float32), 1))
    x = ggml.get_rows(ctx, w["model.embed_tokens.weight"], ctx.from_numpy(tokens))
    for i in range(n_layer):

        def linear(name: str, y: Tensor, i: int = i) -> Tensor:
            return ggml.mul_mat(ctx, w[f"model.layers.{i}.{name}.weight"], y)

        def norm(name: str, y: Tensor, i: int = i) -> Tensor:
            return ggml.mul(ctx, ggml.rms_norm(ctx, y), w[f"model.layers.{i}.{name}.weight"])

        y = norm("input_layernorm", x)
        q, k, v = (linear(f"self_attn.{c}_proj", y) for c in "qkv")
        q, k, v = (ggml.reshape_3d(ctx, t, head, t.ne[0] // head, n) for t in (q, k, v))
        q, k = (ggml.rope(ctx, t, pos, head, 2) for t in (q, k))
        q, k = (ggml.permute(ctx, t, 0, 2, 1, 3) for t in (q, k))  # [head, n, n_head]
        p = ggml.soft_max_ext(ctx, ggml.mul_mat(ctx, k, q), mask, head**-0.5)
        v = ggml.cont(ctx, ggml.permute(ctx, v, 1, 2, 0, 3))  # [n, head, n_head_kv]
        out = ggml.permute(ctx, ggml.mul_mat(ctx, v, p), 0, 2, 1, 3)
        out = ggml.cont_2d(ctx, out, x.ne[0], n)
        x = ggml.add(ctx, x, linear("self_attn.o_proj", out))
        y = norm("post_attention_layernorm", x)
        up = ggml.swiglu_split(ctx, linear("mlp.gate_proj", y), linear("mlp.up_proj", y))
        x = ggml.add(ctx, x, linear("mlp.down_proj", up))
    x = ggml.mul(ctx, ggml.rms_norm(ctx, x), w["model.norm.weight"])
    return ggml.mul_mat(ctx, w["lm_head.weight"], x)


def test_llama() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, initializer_range=0.2,
        attn_implementation="eager",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    tokens = np.random.default_rng(1).integers(0, 97, 33).astype(np.int32)
    ctx, n = Context(), len(tokens)
    w = {
        name: ctx.from_numpy(p.detach().numpy(), name[-60:]) for name, p in model.named_parameters()
    }
    ids = torch.tensor(tokens, dtype=torch.long)[None]
    model.double()(ids, labels=ids).loss.backward()

    y = llama(ctx, w, tokens, config.num_hidden_layers, 12)
    labels = ctx.from_numpy(np.append(tokens[1:], np.int32(-1)))
    loss = ggml.scale(ctx, ggml.cross_entropy_loss(ctx, y, labels), n / (n - 1))
    compare(gradients(ctx, loss, w), {name: p.grad.numpy() for name, p in model.named_parameters()})
