"""GPT-2's forward pass by hand: every tensor that the model has, and every op it takes.

    python docs/examples/gpt2.py

The weights are random, so the next token means nothing; names and shapes are the real ones.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

import pyggml as ggml


@dataclass
class Params:
    """The sizes of a model; those of GPT-2 are 50257, 1024, 768, 12 and 12."""

    n_vocab: int = 300
    n_ctx: int = 64
    n_embd: int = 48
    n_head: int = 4
    n_layer: int = 2
    eps: float = 1e-5


def random_weights(hp: Params, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights by GGUF name; matrices are [out, in]."""
    n = hp.n_embd
    shapes = {
        "token_embd.weight": (hp.n_vocab, n),
        "position_embd.weight": (hp.n_ctx, n),
        "output_norm.weight": (n,),
        "output_norm.bias": (n,),
    }
    for i in range(hp.n_layer):
        shapes |= {f"blk.{i}.{name}.{kind}": (n,) for name in NORMS for kind in KINDS}
        for name, (n_out, n_in) in MATRICES.items():
            shapes[f"blk.{i}.{name}.weight"] = (n_out * n, n_in * n)
            shapes[f"blk.{i}.{name}.bias"] = (n_out * n,)
    rng = np.random.default_rng(seed)
    return {k: rng.normal(0, 0.2, shape).astype(np.float32) for k, shape in shapes.items()}


KINDS = ("weight", "bias")
NORMS = ("attn_norm", "ffn_norm")
MATRICES = {"attn_qkv": (3, 1), "attn_output": (1, 1), "ffn_up": (4, 1), "ffn_down": (1, 4)}


def attention(ctx, qkv, mask, hp):
    """All heads: softmax of the scaled scores, times the values."""
    n, n_tokens = hp.n_embd, qkv.ne[1]
    head = n // hp.n_head

    def part(i):  # queries, keys or values of all heads: [head, n_tokens, n_head]
        x = ggml.view_3d(ctx, qkv, (head, hp.n_head, n_tokens), (4 * head, qkv.nb[1]), 4 * n * i)
        return ggml.permute(ctx, x, 0, 2, 1, 3)

    q, k, v = part(0), part(1), part(2)
    scores = ggml.mul_mat(ctx, k, q)  # [n_tokens (keys), n_tokens, n_head]
    p = ggml.soft_max_ext(ctx, scores, mask, 1 / sqrt(head))
    v = ggml.cont(ctx, ggml.permute(ctx, v, 1, 0, 2, 3))  # [n_tokens, head, n_head]
    out = ggml.permute(ctx, ggml.mul_mat(ctx, v, p), 0, 2, 1, 3)  # [head, n_head, n_tokens]
    return ggml.cont_2d(ctx, out, n, n_tokens)


def gpt2(ctx, w, tokens, positions, mask, hp):
    """Logits of every token: [n_vocab, n_tokens]."""

    def norm(x, name):
        x = ggml.mul(ctx, ggml.norm(ctx, x, hp.eps), w[f"{name}.weight"])
        return ggml.add(ctx, x, w[f"{name}.bias"])

    def linear(x, name):
        return ggml.add(ctx, ggml.mul_mat(ctx, w[f"{name}.weight"], x), w[f"{name}.bias"])

    x = ggml.get_rows(ctx, w["token_embd.weight"], tokens)  # [n_embd, n_tokens]
    x = ggml.add(ctx, x, ggml.get_rows(ctx, w["position_embd.weight"], positions))
    for i in range(hp.n_layer):
        blk = f"blk.{i}"
        qkv = linear(norm(x, f"{blk}.attn_norm"), f"{blk}.attn_qkv")  # [3 n_embd, n_tokens]
        x = ggml.add(ctx, linear(attention(ctx, qkv, mask, hp), f"{blk}.attn_output"), x)
        up = ggml.gelu(ctx, linear(norm(x, f"{blk}.ffn_norm"), f"{blk}.ffn_up"))
        x = ggml.add(ctx, linear(up, f"{blk}.ffn_down"), x)  # [n_embd, n_tokens]
    return ggml.mul_mat(ctx, w["token_embd.weight"], norm(x, "output_norm"))


def logits(weights: dict[str, np.ndarray], tokens: list[int], hp: Params) -> np.ndarray:
    """float32[n_tokens, n_vocab]."""
    ctx = ggml.Context()
    w = {name: ctx.from_numpy(array, name) for name, array in weights.items()}
    n = len(tokens)
    future = np.triu(np.full((n, n), -np.inf, np.float32), 1)
    out = gpt2(
        ctx,
        w,
        ctx.from_numpy(np.array(tokens, np.int32)),
        ctx.from_numpy(np.arange(n, dtype=np.int32)),
        ctx.from_numpy(future),
        hp,
    )
    graph = ggml.CGraph()
    graph.build_forward_expand(out)
    ggml.graph_compute_with_ctx(ctx, graph)
    return out.numpy()


if __name__ == "__main__":
    hp = Params()
    print("next token:", logits(random_weights(hp), [7, 42, 13, 7], hp)[-1].argmax())
