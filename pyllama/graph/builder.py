"""Pieces that architectures share: embedding, norm, linear layer, rope, attention over the cache.

    b = GraphBuilder(hparams, weights, kv, n_tokens=1, n_outputs=1)
    logits = b.finish(build_graph(b))              # b.graph is complete

Shapes are in ne order; T is the number of tokens of the ubatch. Node names are llama.cpp's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pyggml import ops
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor

from ..hparams import HParams
from ..kv_cache import KVCache
from ..memory import Memory


class GraphBuilder:
    """Builds one graph.

    Attributes:
        tokens, positions: I32 [T].
        kv_index: for each cache I64 [T], the cell of each token (-1: none).
        rows: for each cache I32 [4, T], what each token attends to (see ``flash_attn_cells``).
        out_ids: I32 [n_outputs], the tokens whose logits are wanted; None for all in order.
    """

    def __init__(
        self,
        hparams: HParams,
        weights: Mapping[str, Tensor],
        kv: Memory,
        n_tokens: int,
        n_outputs: int,
    ) -> None:
        self.hparams, self.weights, self.kv = hparams, weights, kv
        self.n_tokens, self.n_outputs = n_tokens, n_outputs
        self.ctx = Context(no_alloc=True)
        self.graph = CGraph()
        self.tokens = self._input(GGMLType.I32, "inp_tokens", n_tokens)
        self.positions = self._input(GGMLType.I32, "inp_pos", n_tokens)
        self.kv_index, self.rows = [], []
        for cache in kv.caches:
            swa = "_swa" if cache.window else ""
            self.kv_index.append(self._input(GGMLType.I64, f"attn_inp_kv_idxs{swa}", n_tokens))
            self.rows.append(self._input(GGMLType.I32, f"attn_inp_rows{swa}", 4, n_tokens))
        self.out_ids = self._input(GGMLType.I32, "inp_out_ids", n_outputs)

    def _input(self, type: GGMLType, name: str, *ne: int) -> Tensor:
        return self.ctx.new_tensor(type, ne).set_name(name).set_input()

    def embed(self, name: str) -> Tensor:
        """Rows of the embedding for the ubatch's tokens: [n_embd, T]."""
        return ops.get_rows(self.ctx, self.weights[name], self.tokens).set_name("inp_embd")

    def rms_norm(self, x: Tensor, weight: str, name: str) -> Tensor:
        """RMS norm times its weight."""
        norm = ops.rms_norm(self.ctx, x, self.hparams.norm_eps).set_name(f"norm{_layer(name)}")
        return ops.mul(self.ctx, norm, self.weights[weight]).set_name(name)

    def linear(self, x: Tensor, prefix: str, name: str, residual: Tensor | None = None) -> Tensor:
        """``weight @ x``, plus the bias if the model has one, plus the residual if given."""
        y = ops.mul_mat(self.ctx, self.weights[f"{prefix}.weight"], x).set_name(name)
        bias = self.weights.get(f"{prefix}.bias")
        if bias is not None:
            y = ops.add(self.ctx, y, bias).set_name(f"{name}_b")
        if residual is not None:
            y = ops.add(self.ctx, y, residual).set_name(f"{name}_res")
        self.graph.build_forward_expand(y)
        return y

    def rope(self, x: Tensor, name: str) -> Tensor:
        """Rotate by position: [head_dim, n_head, T]."""
        hp = self.hparams
        freqs = self.weights.get("rope_freqs.weight")
        return ops.rope_ext(
            self.ctx,
            x,
            self.positions,
            freqs,
            n_dims=hp.n_rot,
            mode=int(ops.RopeMode.NORMAL),
            n_ctx_orig=hp.n_ctx_train,
            freq_base=hp.rope_freq_base,
            freq_scale=hp.rope_freq_scale,
        ).set_name(f"{name} (roped)")

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, sinks: Tensor | None = None
    ) -> Tensor:
        """Store keys and values in the layer's cache, then attend to it.

        Which keys a token sees, by sequence, position and window, is an input (``rows``); ALiBi's
        bias and the soft cap of scores are hyperparameters.

        Shape:
            sinks [n_head], q [head_dim, n_head, T], k [head_dim, n_head_kv, T], v [n_embd_kv, T]
            -> [n_embd_q, T]
        """
        ctx, hp, kv = self.ctx, self.hparams, self.kv.of_layer(layer)
        index, rows = (x[self.kv.caches.index(kv)] for x in (self.kv_index, self.rows))
        v = ops.reshape_3d(ctx, v, hp.head_dim, hp.n_head_kv, self.n_tokens)
        self.graph.build_forward_expand(q)
        for cache, new in ((kv.k[layer], k), (kv.v[layer], v)):  # [head_dim, n_cells, n_head_kv]
            new = ops.permute(ctx, new, 0, 2, 1, 3)  # [head_dim, T, n_head_kv]
            self.graph.build_forward_expand(ops.set_rows(ctx, cache, new, index))
        q = ops.permute(ctx, q, 0, 2, 1, 3)  # [head_dim, T, n_head]
        out = ops.flash_attn_cells(
            ctx,
            q,
            kv.k[layer],
            kv.v[layer],
            kv.cells,
            rows,
            1 / math.sqrt(hp.head_dim),
            hp.max_alibi_bias,
            hp.attn_logit_softcap,
            sinks=sinks,
        ).set_name(f"kqv-{layer}")  # [head_dim, n_head, T]
        return ops.reshape_2d(ctx, out, hp.n_embd_q, self.n_tokens).set_name(f"kqv_out-{layer}")

    def shift_keys(self, cache: KVCache, cells: Tensor) -> None:
        """Rotate the keys in T cells of a cache by ``positions``, which are differences here.

        Shape:
            cells I32 [T, n_head_kv], each head's the same
        """
        ctx, index = self.ctx, self.kv_index[self.kv.caches.index(cache)]
        for i, k in cache.k.items():
            rows = ops.get_rows(ctx, k, cells)  # [head_dim, T, n_head_kv]
            rows = self.rope(ops.permute(ctx, rows, 0, 2, 1, 3), f"cache_k_l{i}")
            rows = ops.permute(ctx, rows, 0, 2, 1, 3)  # [head_dim, T, n_head_kv]
            self.graph.build_forward_expand(ops.set_rows(ctx, k, rows, index))

    def select_outputs(self, x: Tensor) -> Tensor:
        """Only the tokens whose logits are wanted: [n, n_outputs]."""
        return ops.get_rows(self.ctx, x, self.out_ids)

    def finish(self, logits: Tensor) -> Tensor:
        """Complete the graph with its result."""
        logits.set_output()
        self.graph.build_forward_expand(logits)
        return logits


def _layer(name: str) -> str:
    """``-3`` of ``ffn_norm-3``, nothing where there is no layer."""
    return name[name.rfind("-") :] if "-" in name else ""
