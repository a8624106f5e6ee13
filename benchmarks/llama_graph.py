"""The graph of a LLaMA that is trained: attention as one op, over the texts of a batch.

    s = Sizes()
    graph = LlamaGraph(backend, s, random_weights(s))
    trainer = opt.OptContext(backend, graph.ctx, graph.inputs, graph.outputs, params)
    weights = graph.arrays()                       # by name

Weights have the names of GGUF without ``.weight``. Without ``output`` the table of embeddings is
the output matrix too. Rotation is the half-split one of Hugging Face's checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import pyggml as ggml
from pyggml.backend.interface import Backend
from pyggml.context import Context
from pyggml.tensor import Tensor

F32, I32 = ggml.GGMLType.F32, ggml.GGMLType.I32
EPS, THETA = 1e-5, 10_000.0  # the latter is the default of rope
Array = npt.NDArray[Any]
Gated = Callable[[Context, Tensor, Tensor], Tensor]  # (ctx, gate, up) -> input of ffn_down


@dataclass(frozen=True)
class Sizes:
    n_vocab: int = 256
    n_embd: int = 256
    n_head: int = 8
    n_head_kv: int = 4
    n_ff: int = 896
    n_layer: int = 8
    n_ctx: int = 256
    n_batch: int = 8

    @property
    def n_tokens(self) -> int:
        """Tokens of a batch."""
        return self.n_ctx * self.n_batch


def random_weights(s: Sizes, seed: int = 0, tied: bool = False) -> dict[str, Array]:
    """Matrices [out, in] and gains; additions to the residual start small.

    Args:
        tied: there is no ``output``.
    """
    rng, kv = np.random.default_rng(seed), s.n_embd // s.n_head * s.n_head_kv

    def matrix(n_out: int, n_in: int, scale: float = 1.0) -> Array:
        return rng.normal(0, 0.02 * scale, (n_out, n_in)).astype(np.float32)

    gain, small = np.ones(s.n_embd, np.float32), (2 * s.n_layer) ** -0.5
    w = {"token_embd": matrix(s.n_vocab, s.n_embd)}
    for i in range(s.n_layer):
        w |= {
            f"blk.{i}.attn_norm": gain,
            f"blk.{i}.attn_q": matrix(s.n_embd, s.n_embd),
            f"blk.{i}.attn_k": matrix(kv, s.n_embd),
            f"blk.{i}.attn_v": matrix(kv, s.n_embd),
            f"blk.{i}.attn_output": matrix(s.n_embd, s.n_embd, small),
            f"blk.{i}.ffn_norm": gain,
            f"blk.{i}.ffn_gate": matrix(s.n_ff, s.n_embd),
            f"blk.{i}.ffn_up": matrix(s.n_ff, s.n_embd),
            f"blk.{i}.ffn_down": matrix(s.n_embd, s.n_ff, small),
        }
    w["output_norm"] = gain
    return w if tied else w | {"output": matrix(s.n_vocab, s.n_embd)}


class LlamaGraph:
    """The forward part, with its weights as parameters.

    Args:
        gated: the product of gate and up.

    Attributes:
        ctx: of the nodes; inputs: I32 [n_ctx, n_batch] tokens; outputs: logits.

    Shape:
        outputs [n_vocab, n_ctx * n_batch]
    """

    def __init__(
        self, backend: Backend, s: Sizes, weights: Mapping[str, Array],
        gated: Gated = ggml.swiglu_split,
    ) -> None:  # fmt: skip
        static, self.ctx = Context(no_alloc=True), Context(no_alloc=True)
        self._weights = {
            name: static.new_tensor(F32, array.shape[::-1]).set_name(name).set_param()
            for name, array in weights.items()
        }
        n = s.n_tokens
        self._pos, self._rows = static.new_tensor(I32, (n,)), static.new_tensor(I32, (4, n))
        ggml.alloc_ctx_tensors(static, backend.buffer_type())
        for name, array in weights.items():
            self._weights[name].set(array)
        place = np.tile(np.arange(s.n_ctx), s.n_batch)
        self._pos.set(place)
        self._rows.set(np.stack([np.arange(n) - place, 0 * place, place + 1, place], -1))
        self.inputs = self.ctx.new_tensor_2d(I32, s.n_ctx, s.n_batch)
        self.outputs = self._logits(s, gated)

    def arrays(self) -> dict[str, Array]:
        """Copies of the weights by name, in NumPy's order."""
        return {name: np.array(w.numpy()) for name, w in self._weights.items()}

    def _logits(self, s: Sizes, gated: Gated) -> Tensor:
        ctx, w, n, hd = self.ctx, self._weights, s.n_tokens, s.n_embd // s.n_head
        x = ggml.get_rows(ctx, w["token_embd"], ggml.reshape_1d(ctx, self.inputs, n))

        def normed(name: str, x: Tensor) -> Tensor:
            return ggml.mul(ctx, ggml.rms_norm(ctx, x, EPS), w[name])

        for i in range(s.n_layer):
            at = f"blk.{i}."
            y = normed(at + "attn_norm", x)
            q, k, v = (
                ggml.reshape_3d(ctx, ggml.mul_mat(ctx, w[f"{at}attn_{c}"], y), hd, heads, n)
                for c, heads in (("q", s.n_head), ("k", s.n_head_kv), ("v", s.n_head_kv))
            )
            q, k = (ggml.rope(ctx, t, self._pos, hd, 2) for t in (q, k))
            q, k, v = (ggml.permute(ctx, t, 0, 2, 1, 3) for t in (q, k, v))  # [hd, n, heads]
            y = ggml.flash_attn_ranges(ctx, q, k, v, self._rows, hd**-0.5)  # [hd, n_head, n]
            y = ggml.reshape_2d(ctx, y, s.n_embd, n)
            x = ggml.add(ctx, x, ggml.mul_mat(ctx, w[at + "attn_output"], y))
            y = normed(at + "ffn_norm", x)
            gate, up = (ggml.mul_mat(ctx, w[f"{at}ffn_{c}"], y) for c in ("gate", "up"))
            y = ggml.mul_mat(ctx, w[at + "ffn_down"], gated(ctx, gate, up))
            x = ggml.add(ctx, x, y)
        output = w.get("output", w["token_embd"])
        return ggml.mul_mat(ctx, output, normed("output_norm", x))
