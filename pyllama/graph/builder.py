"""The parts that architectures share: embedding, norms, linear layers, rope, attention.

    b = GraphBuilder(hparams, weights, kv, n_tokens=1, n_outputs=1)
    b.finish(build_graph(b))                       # b.graph is complete; b.logits, b.argmax

Shapes are in ne order; T is the number of tokens of the ubatch. Node names are llama.cpp's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyggml as ops
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.ops.attention.rope import RopeMode
from pyggml.tensor import Dims, Tensor

from ..activation import POSITIVE
from ..errors import ModelError
from ..hparams import POOLINGS, HParams
from ..kv.cache import KVCache
from ..kv.distances import FARTHEST
from ..kv.memory import HiddenReads, Memory, TargetCells
from .adapters import EMBEDDING, AdapterBank, layer_output

MAX_ARGMAX_OUTPUTS = 16  # batches with more outputs, as of perplexity, need all logits anyway
ROPE_FACTORS = {  # divisors of rope's angles: of Llama 3; of longrope for long and short contexts
    "rope_freqs.weight?": ("n_rot/2",),
    "rope_factors_long.weight?": ("n_rot/2",),
    "rope_factors_short.weight?": ("n_rot/2",),
}
Norm = Callable[[Tensor, str, str], Tensor]  # of a tensor, by its weight's prefix and a name
SCALED = (  # matrices that may have a ``scale``, one for each expert, in any architecture
    *(f"blk.{{i}}.attn_{part}" for part in ("q", "k", "v", "qkv", "output", "gate")),
    *(f"blk.{{i}}.ffn_{part}{kind}" for part in ("gate", "up", "down", "gate_up")
      for kind in ("", "_shexp", "_exps")),
    "output",
)  # fmt: skip
HEAD = "cls.output.weight"
HEAD_PREDICTOR = "lm_head_profiler"  # of the output matrix: PowerInfer's name
EXCLUDED = -1e30  # added to logits before a softmax
TARGET_EMBEDDING = "target.token_embd.weight"  # of a head: the target's
FUSED = "fc.weight"  # of an EAGLE-3 head: projects hidden states of the target, see `HiddenReads`
NEXTN = "blk.0.nextn"
NEXTN_TENSORS = {  # of a layer of multi-token prediction as a model of its own, see `runtime.heads`
    f"{NEXTN}.eh_proj.weight": ("2*n_embd", "n_embd"),
    f"{NEXTN}.enorm.weight": ("n_embd",),
    f"{NEXTN}.hnorm.weight": ("n_embd",),
}
CLASSIFIER = {  # the head of a reranker, of any architecture; a dense layer and tanh come first
    "cls.weight?": ("n_embd", "n_embd"),
    "cls.bias?": ("n_embd",),
    "cls.norm.weight?": ("n_embd",),
    "cls.norm.bias?": ("n_embd",),
    f"{HEAD}?": ("n_embd", "n_cls_out"),
    "cls.output.bias?": ("n_cls_out",),
}
DENSE = {  # after the pooling, of sentence-transformers' folders of any architecture
    "dense_2.weight?": ("n_embd", "dense_2_feat_out"),
    "dense_2.bias?": ("dense_2_feat_out",),
    "dense_3.weight?": ("dense_2_feat_out", "dense_3_feat_out"),
    "dense_3.bias?": ("dense_3_feat_out",),
}


class GraphBuilder:
    """Builds the graph of one ubatch.

    Args:
        hparams, weights, kv: of the model and the context.
        n_tokens: T, the number of tokens.
        n_outputs: the number of tokens to compute logits for.
        n_embeddings: the number of tokens to compute embeddings for.
        adapters: whose changes are added; None for a graph without any.
        encodes: whether it is the graph of the encoder of a model that has a decoder too.
        fetchers: by layer, the function that reads the chosen experts, see ``ExpertCache``.

    Attributes:
        causal: whether tokens attend to no later tokens.
        tokens, positions: I32 [T].
        kv_index: for each cache I64 [T], the cell of each token (-1: none).
        rows: for each cache I32 [6, T], the cells that each token attends to (see
            ``flash_attn_cells``).
        lists: by the ratio of compressed rows I32 [2, n, T] and [4, T], the cells that each token
            attends to in layers that have them; without rows that are chosen (see
            ``CompressedRows.lists``).
        cross_rows: I32 [6, T], the cells of the encoded text; None without cross-attention.
        ranges: without causality, for each attention window I32 [4, T], the tokens of the ubatch
            that each token attends to (see ``flash_attn_ranges``).
        token_types: I32 [T], of the tokens; None until a graph asks for it.
        buckets: I32 [2 FARTHEST + 1], of distances (``relative_buckets``); None until a graph asks
            for it.
        runs, slots: I32 [3, n_runs] and [T], which tokens and recurrent states belong together
            (see ``ops.recurrent.runs``); None without recurrent layers.
        out_ids: I32 [n_outputs + n_embeddings], indices of the tokens to compute logits for, then
            of those to compute embeddings for; one that is not used without any.
        chosen: I32 [2, n, T, 1 or n_head_kv], for each token the cells that the last indexer chose;
            None before it, and where tokens attend to all keys.
        query_rows: I64 [T], rows of ``Reduction.queries`` (-1: none); None without a reduction.
        logits: [n_vocab, n_outputs]; None without outputs.
        argmax: I32 [n_outputs], argmax of the logits; None for none or many outputs.
        embeddings: [n_embedding, n_outputs + n_embeddings], what the output matrix multiplies, or
            dense layers computed of it; None without embeddings.
        target_hidden: [n_embd_target, T], the target's hidden states before the tokens, which a
            head reads; None in other models.
        hidden: [n_embd, n_outputs], a head's own hidden states; None in other models.
        scores: [n_cls_out, n_outputs + n_embeddings], the classification head's of these; None if
            the model has none.
        adapter_scales: F32 [n_adapters, T], the factors of each token's adapters; None without.
        adaptable: sizes of the tensors, and of layers' outputs, that adapters may change.
    """

    def __init__(
        self,
        hparams: HParams,
        weights: Mapping[str, Tensor],
        kv: Memory | TargetCells,
        n_tokens: int,
        n_outputs: int,
        n_embeddings: int = 0,
        adapters: AdapterBank | None = None,
        *,
        encodes: bool = False,
        fetchers: Mapping[int, Callable[..., None]] = MappingProxyType({}),
    ) -> None:
        self.hparams, self.weights, self.kv = hparams, weights, kv
        self.causal, self.encodes = hparams.causal and not encodes, encodes
        self.fetchers = fetchers
        self._part = ""  # prefix of the names of `use_part`
        self.n_tokens, self.n_outputs, self.n_embeddings = n_tokens, n_outputs, n_embeddings
        self.ctx = Context(no_alloc=True)
        self.graph = CGraph()
        self.tokens = self._input(GGMLType.I32, "inp_tokens", n_tokens)
        self.positions = self._input(GGMLType.I32, "inp_pos", n_tokens)
        self.kv_index, self.rows = [], []
        for cache in kv.caches:
            swa = "_swa" if cache.window else ""
            self.kv_index.append(self._input(GGMLType.I64, f"attn_inp_kv_idxs{swa}", n_tokens))
            self.rows.append(self._input(GGMLType.I32, f"attn_inp_rows{swa}", 6, n_tokens))
        self.lists: dict[int, tuple[Tensor, Tensor]] = {}
        for ratio, cache in kv.compressed.items():
            name = f"attn_inp_lists_{ratio}"
            self.lists[ratio] = (
                self._input(GGMLType.I32, name, 2, cache.n_listed, n_tokens),
                self._input(GGMLType.I32, f"{name}_rows", 4, n_tokens),
            )
        self.cross_rows: Tensor | None = None
        if hparams.has_encoder and self.causal:
            self.cross_rows = self._input(GGMLType.I32, "attn_inp_rows_cross", 6, n_tokens)
        self.ranges: dict[int, Tensor] = {}
        self._keys: dict[int, tuple[Tensor, Tensor]] = {}  # and values, by layer, without a cache
        if not self.causal:
            for window in sorted({hparams.window(i) for i in range(hparams.n_layer)}):
                name = f"attn_inp_ranges{'_swa' if window else ''}"
                self.ranges[window] = self._input(GGMLType.I32, name, 4, n_tokens)
        self.token_types: Tensor | None = None
        self.buckets: Tensor | None = None
        self.runs: Tensor | None = None
        self.slots: Tensor | None = None
        if kv.states is not None:
            self.runs = self._input(GGMLType.I32, "inp_state_runs", 3, min(n_tokens, kv.n_seq_max))
            self.slots = self._input(GGMLType.I32, "inp_state_slots", n_tokens)
        self.chosen: Tensor | None = None
        self.query_rows: Tensor | None = None
        if kv.reduction is not None:
            self.query_rows = self._input(GGMLType.I64, "inp_query_rows", n_tokens)
        self.out_ids = self._input(GGMLType.I32, "inp_out_ids", n_outputs + n_embeddings or 1)
        # scores of the neurons of layers that are not built yet, [n_ff, T]; see `predict_next`
        self.predicted: dict[int, Tensor] = {}
        self.target_hidden: Tensor | None = None
        if hparams.n_embd_target:
            ne = hparams.n_embd_target, n_tokens
            self.target_hidden = self._input(GGMLType.F32, "inp_hidden", *ne)
        self.logits: Tensor | None = None
        self.hidden: Tensor | None = None
        self.argmax: Tensor | None = None
        self.embeddings: Tensor | None = None
        self.scores: Tensor | None = None
        self.adapters, self.adapter_scales = adapters, None
        self._row_scales: Tensor | None = None  # of the rows that are left: see `select_outputs`
        if adapters is not None:
            scales = self._input(GGMLType.F32, "inp_adapter_scales", adapters.n, n_tokens)
            self.adapter_scales = self._row_scales = scales
        self.adaptable: dict[str, Dims] = {}

    def _input(self, type: GGMLType, name: str, *ne: int) -> Tensor:
        return self.ctx.new_tensor(type, ne).set_name(name).set_input()

    def use_part(self, part: str) -> None:
        """Call the weights of a part of the model by names without its prefix, such as ``enc.``."""
        self._part = part
        self.weights = {name.removeprefix(part): w for name, w in self.weights.items()}

    def embed(self, name: str, norm: Norm | None = None) -> Tensor:
        """The embeddings of the ubatch's tokens, times ``embedding_scale``: [n_embd, T].

        In a layer of multi-token prediction, a projection of these and of ``target_hidden``, both
        after a norm.

        Args:
            norm: the method for these norms; None: `rms_norm`.

        Source: DeepSeek-AI 2024, "DeepSeek-V3", section 2.2.
        """
        x = ops.get_rows(self.ctx, self.weight(name), self.tokens).set_name("inp_embd")
        if name == EMBEDDING:
            x = self._adapt(x, None, name)
        x = self._scale(x, self.hparams.embedding_scale, "inp_scaled")
        if f"{NEXTN}.eh_proj.weight" not in self.weights or self.target_hidden is None:
            return x
        norm = norm or self.rms_norm
        x = norm(x, f"{NEXTN}.enorm", "mtp_enorm")
        hidden = norm(self.target_hidden, f"{NEXTN}.hnorm", "mtp_hnorm")
        x = ops.concat(self.ctx, x, hidden, 0).set_name("mtp_concat")  # [2 n_embd, T]
        return self.linear(x, f"{NEXTN}.eh_proj", "mtp_eh_proj")

    def _scale(self, x: Tensor, factor: float, name: str) -> Tensor:
        return x if factor == 1 else ops.scale(self.ctx, x, factor).set_name(name)

    def add_token_types(self, x: Tensor) -> Tensor:
        """``x`` plus the embeddings of token types, if the model has them.

        They are those of the first type, but of classifiers, which tell the second text of a pair.

        Shape:
            x [n_embd, T] -> the same
        """
        table = self.weights.get("token_types.weight")  # [n_embd, n_token_types]
        if table is None:
            return x
        if HEAD in self.weights and table.ne[1] > 1:
            self.token_types = self._input(GGMLType.I32, "inp_token_types", self.n_tokens)
            row = ops.get_rows(self.ctx, table, self.token_types)
        else:
            row = ops.view_1d(self.ctx, table, table.ne[0])
            row = row if row.type is GGMLType.F32 else ops.cast(self.ctx, row, GGMLType.F32)
        return ops.add(self.ctx, x, row).set_name("inp_types")

    def add_positions(self, x: Tensor) -> Tensor:
        """``x`` plus the learned position embeddings: [n_embd, T]."""
        table = self.weight("position_embd.weight")  # [n_embd, n_ctx_train]
        rows = ops.get_rows(self.ctx, table, self.positions).set_name("pos_embd")
        return ops.add(self.ctx, x, rows).set_name("inpL")

    def distance_bias(self, name: str) -> Tensor:
        """The bias of attention by distance, of a weight with one for each bucket.

        Shape:
            the weight [n_head, n_buckets] -> [2 FARTHEST + 1, n_head]
        """
        if self.buckets is None:
            self.buckets = self._input(GGMLType.I32, "pos_bucket", 2 * FARTHEST + 1)
        rows = ops.get_rows(self.ctx, self.weight(name), self.buckets)  # [n_head, 2 FARTHEST + 1]
        return ops.cont(self.ctx, ops.transpose(self.ctx, rows)).set_name("pos_bias")

    def weight(self, name: str) -> Tensor:
        """A required weight by name. Raises: ModelError."""
        if name not in self.weights:
            if name.replace("ffn_down.", "ffn_down_t.") in self.weights:  # laid out for AXPY
                raise ModelError(
                    "sparse inference does not support the feed-forward part of "
                    f"{self.hparams.arch} models; use `sparse='off'`"
                )
            raise ModelError(f"tensor '{name}' of this {self.hparams.arch} model is missing")
        return self.weights[name]

    def _has_many(self, w: Tensor) -> bool:
        """Whether products with a matrix are in the order for many tokens, as `mul_mat` says.

        One token of BF16 takes as long in it. Sparse products have the other order.
        """
        is_as_fast = w.type is GGMLType.BF16 and not self.hparams.sparse
        return not self.causal or is_as_fast

    def rms_norm(self, x: Tensor, prefix: str, name: str, eps: float = 0.0) -> Tensor:
        """RMS norm of each row, times the weight; ``eps`` 0: the model's.

        An empty ``prefix``: without a weight. Some files have weights without ``.weight``.
        """
        eps = eps or self.hparams.norm_eps
        norm = ops.rms_norm(self.ctx, x, eps)
        if not prefix:
            return norm.set_name(name)
        weight = self.weights[prefix] if prefix in self.weights else self.weight(f"{prefix}.weight")
        return ops.mul(self.ctx, norm.set_name(f"norm{_layer(name)}"), weight).set_name(name)

    def layer_norm(self, x: Tensor, prefix: str, name: str, eps: float = 0.0) -> Tensor:
        """Layer norm of each row, times the weight, plus the bias if the model has one.

        Args:
            eps: 0: the model's.
        """
        norm = ops.norm(self.ctx, x, eps or self.hparams.norm_eps).set_name(f"norm{_layer(name)}")
        y = ops.mul(self.ctx, norm, self.weight(f"{prefix}.weight"))
        bias = self.weights.get(f"{prefix}.bias")
        if bias is not None:
            y = ops.add(self.ctx, y.set_name(f"{name}_w"), bias)
        return y.set_name(name)

    def linear(
        self, x: Tensor, prefix: str, name: str, residual: Tensor | None = None, adapted: str = "",
        scores: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """``weight @ x``, plus the bias if the model has one, plus the residual if given.

        Of a matrix with a ``scale``, the product is multiplied by it. Then come the changes by
        adapters.

        Args:
            adapted: by which name adapters know the matrix; its own if empty.
            scores: rows of the matrix are multiplied only where they are positive.
        """
        w = self.weight(f"{prefix}.weight")
        if scores is None:
            y = ops.mul_mat(self.ctx, w, x, many=self._has_many(w)).set_name(name)
        else:
            y = ops.mul_mat_sparse(self.ctx, w, x, scores, POSITIVE).set_name(name)
        y = self.weight_scale(y, prefix, name)
        y = self._adapt(y, x, f"{adapted or prefix}.weight")
        bias = self.weights.get(f"{prefix}.bias")
        if bias is not None:
            y = ops.add(self.ctx, y, bias).set_name(f"{name}_b")
        if residual is not None:
            y = self.add_residual(y, residual, name)
        self.graph.build_forward_expand(y)
        return y

    def weight_scale(self, y: Tensor, prefix: str, name: str) -> Tensor:
        """``y``, a product with a matrix, times the matrix's ``scale`` if it has one.

        Source: NVIDIA, "Introducing NVFP4": a float32 for each tensor extends the range of its E4M3
        scales; llama.cpp, ``build_lora_mm``.
        """
        scale = self.weights.get(f"{prefix}.scale")  # [1]; of columns in Gemma 4's router
        if scale is None or scale.ne[0] != 1:
            return y
        return ops.mul(self.ctx, y, scale).set_name(f"{name}_s")

    def adapt_experts(self, y: Tensor, x: Tensor, name: str, ids: Tensor) -> Tensor:
        """``y``, the products of tokens with experts, with the changes by adapters.

        Shape:
            x [n_in, n, T], ids I32 [n_used, T], y [n_out, n_used, T] -> y's
        """
        return self._adapt(y, x, name, ids)

    def layer_output(self, x: Tensor, i: int) -> Tensor:
        """The output of layer ``i``, with control vectors: [n_embd, T]."""
        name = layer_output(i)
        return self._adapt(x.set_name(name), None, name).set_name(name)

    def _adapt(self, y: Tensor, x: Tensor | None, name: str, ids: Tensor | None = None) -> Tensor:
        """``y`` with the changes of a tensor by the adapters of its rows.

        Args:
            x: what the matrix multiplied; None for embeddings and for outputs of layers.
            ids: of experts: the matrix of each row.
        """
        name = f"{self._part}{name}" if name.startswith("blk.") else name
        if self.adapters is None:
            n_in = y.ne[0] if x is None else x.ne[0]
            n_expert = 1
            if name.endswith("_exps.weight"):  # its weight may be the slots of a cache
                n_expert = self.hparams.n_expert
            elif ids is not None:
                n_expert = self.weight(name.removeprefix(self._part)).ne[2]
            self.adaptable[name] = (n_in, y.ne[0], n_expert, 1)
            return y
        term, scales = self.adapters.terms.get(name), self._row_scales
        if term is None or scales is None:
            return y
        a = term.a
        if a is not None and x is None:  # of embeddings, whose rows are products
            x = ops.get_rows(self.ctx, a, self.tokens).set_name(f"{y.name}_lora_a")
            a = None
        change = term.b, scales, term.spans, term.gains, a, x, ids
        return ops.lora(self.ctx, y, *change).set_name(f"{y.name}_lora")

    def add_residual(self, x: Tensor, residual: Tensor, name: str) -> Tensor:
        """``x`` times ``residual_scale``, plus the residual."""
        x = self._scale(x, self.hparams.residual_scale, f"{name}_scaled")
        return ops.add(self.ctx, x, residual).set_name(f"{name}_res")

    def qkv(self, x: Tensor, i: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of layer ``i``, normalized if the model has weights for it.

        ``attn_q_norm`` and ``attn_k_norm`` are RMS norms of each head or, with as many weights as
        all heads have columns, of the whole row.

        Shape:
            as of `project_qkv`
        """
        q, k, v = self.project_qkv(x, i)
        return self._norm_qk(q, i, "q"), self._norm_qk(k, i, "k"), v

    def _norm_qk(self, x: Tensor, i: int, part: str) -> Tensor:
        prefix, name = f"blk.{i}.attn_{part}_norm", f"{part.upper()}cur_normed-{i}"
        n, heads, n_tokens = x.ne[:3]
        if f"{prefix}.weight" not in self.weights:
            return x
        if self.weight(f"{prefix}.weight").ne[0] == n:
            return self.rms_norm(x, prefix, name)
        rows = ops.reshape_2d(self.ctx, x, n * heads, n_tokens)
        return ops.reshape_3d(self.ctx, self.rms_norm(rows, prefix, name), n, heads, n_tokens)

    def project_qkv(self, x: Tensor, i: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of layer ``i``, from one matrix (``attn_qkv``) or from three.

        Shape:
            x [n_embd, T] -> q [head_dim, n_head, T], k [head_dim, n_head_kv, T],
            v [head_dim_v, n_head_kv, T]
        """
        hp, ctx = self.hparams.of_layer(i), self.ctx
        sizes = (
            (hp.head_dim, hp.n_head), (hp.head_dim, hp.n_head_kv), (hp.head_dim_v, hp.n_head_kv)
        )  # fmt: skip
        parts: list[Tensor] = []
        if f"blk.{i}.attn_qkv.weight" in self.weights:
            whole = self._clamp_qkv(self.linear(x, f"blk.{i}.attn_qkv", f"wqkv-{i}"))
            start = 0
            for n, heads in sizes:
                size, row = whole.nb[0], whole.nb[1]
                ne = (n, heads, self.n_tokens)
                parts.append(ops.view_3d(ctx, whole, ne, (n * size, row), start))
                start += heads * n * size
        else:
            for part, (n, heads) in zip("qkv", sizes, strict=True):
                y = self.linear(x, f"blk.{i}.attn_{part}", f"{part.upper()}cur-{i}")
                y = self._clamp_qkv(y)
                parts.append(ops.reshape_3d(ctx, y, n, heads, self.n_tokens))
        q, k, v = parts
        return q, k, v

    def _clamp_qkv(self, x: Tensor) -> Tensor:
        limit = self.hparams.clamp_kqv
        return ops.clamp(self.ctx, x, -limit, limit) if limit else x

    def rope(
        self, x: Tensor, name: str, layer: int = 0, positions: Tensor | None = None, *,
        back: bool = False,
    ) -> Tensor:  # fmt: skip
        """Rotary position embedding with the layer's parameters; ``x`` if the model has none.

        Args:
            positions: I32 [T]; None: those of the tokens.
            back: rotate by the negative angles.

        Shape:
            x [head_dim, n_head, T] -> the same
        """
        positions = self.positions if positions is None else positions
        params = self.hparams.rope(layer)
        rotated = self._apply_rope(x, layer, params, positions, back=back)
        return rotated if rotated is x else rotated.set_name(f"{name} (roped)")

    def _apply_rope(
        self, x: Tensor, layer: int, params: Mapping[str, Any], positions: Tensor, *,
        back: bool = False,
    ) -> Tensor:  # fmt: skip
        if not params["n_dims"]:
            return x
        kind = "rope_freqs" if "rope_freqs.weight" in self.weights else "rope_factors_short"
        if self.hparams.rope_long:
            kind = "rope_factors_long"
        freqs = self.weights.get(f"{kind}.weight")
        if self.hparams.rope_freq_base_swa and self.hparams.has_own_rope(layer):
            freqs = None  # a base of its own is without scaling
        first = x.ne[0] - params["n_dims"] if self.hparams.rope_last else 0
        return self._rotate_from(first, x, freqs, params, positions, back=back)

    def _rotate_from(
        self, first: int, x: Tensor, freqs: Tensor | None, params: Mapping[str, Any],
        positions: Tensor, *, back: bool = False,
    ) -> Tensor:  # fmt: skip
        """Rotate the columns from ``first`` on."""
        rotate = ops.rope_ext_back if back else ops.rope_ext
        if first == 0:
            return rotate(self.ctx, x, positions, freqs, **params)
        head, last = (
            ops.view_4d(self.ctx, x, (n, *x.ne[1:]), x.nb[1:], start * x.nb[0])
            for n, start in ((first, 0), (params["n_dims"], first))
        )
        last = rotate(self.ctx, last, positions, freqs, **params)
        return ops.concat(self.ctx, head, last, 0)

    def attention(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: int,
        distances: Tensor | None = None, chosen: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Store keys and values in the layer's cache, then attend to the cache.

        The input ``rows`` selects the keys of each token by sequence, position and window. Without
        causality there is no cache: a token attends to tokens of the ubatch by ``ranges``. ALiBi
        and the soft cap of scores are hyperparameters; ``attn_sinks`` [n_head], if the layer has
        it, are the logits of a key without a value.

        Args:
            k, v: None in a layer that uses the cache of an earlier one; v also where values are
                columns of the keys.
            distances: from `distance_bias`.
            chosen: the cells that each token attends to, from ``indexer.choose_keys``; None: all.
                In a layer with compressed rows, cells of these and of tokens.

        Shape:
            q [head_dim, n_head, T], k [head_dim, n_head_kv, T], v [head_dim_v, n_head_kv, T] ->
            [n_embd_out, T]
        """
        if not self.causal:
            return self._attention_in_texts(q, k, v, layer, distances)
        kv = self.kv.of_layer(layer)
        q = self._hadamard(q, kv.rotate_k)
        self.graph.build_forward_expand(q)
        self._store_queries(q, layer)
        self.store(k, v, layer)
        ratio = self.hparams.compress_ratio(layer)
        rows = self.lists[ratio][1] if ratio else self.rows[self.kv.caches.index(kv)]
        return self._attend(q, layer, rows, distances, chosen)

    def store(
        self, k: Tensor | None, v: Tensor | None, layer: int, kv: KVCache | None = None
    ) -> None:
        """Store keys and values of the tokens in the layer's cache, or in another cache ``kv``.

        Shape:
            as of `attention`
        """
        kv, owner = kv or self.kv.of_layer(layer), self.kv.owner(layer)
        index = self.kv_index[self.kv.caches.index(kv)]
        for cache, new, n in ((kv.k[owner], k, kv.rotate_k), (kv.v[owner], v, kv.rotate_v)):
            if new is not None:  # [head_dim, n_head_kv, T]
                new = ops.permute(self.ctx, self._hadamard(new, n), 0, 2, 1, 3)
                self.graph.build_forward_expand(ops.set_rows(self.ctx, cache, new, index))

    def store_index(self, k: Tensor, layer: int, kv: KVCache | None = None) -> None:
        """Store keys of the layer's indexer, in another cache ``kv`` if given.

        Shape:
            k [n_indexer_key, 1, T]
        """
        kv = kv or self.kv.of_layer(layer)
        k = ops.reshape_2d(self.ctx, k, k.ne[0], k.ne[2])
        index = self.kv_index[self.kv.caches.index(kv)]
        self.graph.build_forward_expand(ops.set_rows(self.ctx, kv.indexer_keys[layer], k, index))

    def rope_of_indexer(
        self, x: Tensor, params: Mapping[str, Any], positions: Tensor | None = None
    ) -> Tensor:
        """Rotate queries or keys of an indexer, whose pairs of columns may be others.

        Args:
            params: the layer's, of ``HParams.rope``.
            positions: of the rows; None: the tokens'.

        Shape:
            x [n_indexer_key, n, T], positions I32 [T] -> x's
        """
        own = self.hparams.own
        if not params["n_dims"]:
            return x
        mode = RopeMode.NEOX if own["indexer_neox"] else RopeMode.NORMAL
        first = x.ne[0] - params["n_dims"] if own["indexer_rope_last"] else 0
        at = self.positions if positions is None else positions
        return self._rotate_from(first, x, None, {**params, "mode": mode}, at)

    def _store_queries(self, q: Tensor, layer: int) -> None:
        """Store queries of the last tokens of each sequence, if sequences are reduced."""
        if self.kv.reduction is None or layer not in self.kv.reduction.queries:
            return
        assert self.query_rows is not None
        stored, q = self.kv.reduction.queries[layer], ops.permute(self.ctx, q, 0, 2, 1, 3)
        self.graph.build_forward_expand(ops.set_rows(self.ctx, stored, q, self.query_rows))

    def votes(self, layer: int, cells: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        """The sum of the probabilities with which stored queries attend to each of n cells.

        Args:
            cells: in which the keys are.
            rows: of the queries.
            mask: -inf hides a cell from a query, 0 does not.

        Shape:
            cells I32 [n, n_head_kv], rows I32 [n_queries, n_head], mask F32 [n, n_queries] ->
            [1, n, n_head]
        """
        ctx, hp, kv = self.ctx, self.hparams.of_layer(layer), self.kv.of_layer(layer)
        assert self.kv.reduction is not None
        k = ops.get_rows(ctx, kv.k[layer], cells)  # [head_dim, n, n_head_kv]
        q = ops.get_rows(ctx, self.kv.reduction.queries[layer], rows)
        x = ops.mul_mat(ctx, k, q)  # [n, n_queries, n_head]
        scale, cap = hp.attn_scale or 1 / math.sqrt(hp.head_dim), hp.attn_logit_softcap
        if cap:
            x = ops.unary(ctx, ops.scale(ctx, x, scale / cap), "tanh")
            scale = cap
        x = ops.soft_max_ext(ctx, x, mask, scale)
        x = ops.cont(ctx, ops.permute(ctx, x, 1, 0, 2, 3))  # [n_queries, n, n_head]
        votes = ops.sum_rows(ctx, x).set_name(f"kq_votes-{layer}").set_output()
        self.graph.build_forward_expand(votes)
        return votes

    def cross_attention(self, q: Tensor, layer: int) -> Tensor:
        """Attend to the encoded text, whose keys and values are in the layer's cache.

        Shape:
            q [head_dim, n_head, T] -> [n_embd_out, T]
        """
        assert self.cross_rows is not None
        q = self._hadamard(q, self.kv.of_layer(layer).rotate_k)
        return self._attend(q, layer, self.cross_rows, None)

    def _attend(
        self, q: Tensor, layer: int, rows: Tensor, distances: Tensor | None,
        chosen: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Attend to the cells of ``rows``, or to those ``chosen``."""
        ctx, hp, kv = self.ctx, self.hparams.of_layer(layer), self.kv.of_layer(layer)
        owner = self.kv.owner(layer)
        q = ops.permute(ctx, q, 0, 2, 1, 3)  # [head_dim, T, n_head]
        scale = hp.attn_scale or 1 / math.sqrt(hp.head_dim)
        params: dict[str, Any] = {
            "scale": scale,
            "max_bias": hp.max_alibi_bias,
            "logit_softcap": hp.attn_logit_softcap,
            "distances": distances,
            "bias_scale": scale if hp.alibi_scaled else 1.0,
        }
        sinks = self.weights.get(f"blk.{layer}.attn_sinks.weight")
        keys, values = kv.k[owner], kv.v[owner]
        if chosen is None:
            cells, branches = kv.tables(owner)
            params |= {"sinks": sinks, "branches": branches}
            out = ops.flash_attn_cells(ctx, q, keys, values, cells, rows, **params)
        elif hp.compress_ratio(layer):
            keys, values = kv.with_compressed(owner)
            out = ops.flash_attn_cells(ctx, q, keys, values, chosen, rows, sinks=sinks, **params)
        else:  # by heads of keys that have lists of their own
            lengths, n = ops.list_rows(ctx, chosen, rows), chosen.ne[3]
            sources = (q, 2), (keys, 2), (values, 2), (chosen, 3), (lengths, 2)
            parts = []
            for i in range(n):
                own_q, k, v, cells, own_rows = (_part(ctx, x, dim, i, n) for x, dim in sources)
                params["sinks"] = None if sinks is None else _part(ctx, sinks, 0, i, n)
                parts.append(ops.flash_attn_cells(ctx, own_q, k, v, cells, own_rows, **params))
            out = parts[0]
            for one in parts[1:]:
                out = ops.concat(ctx, out, one, 1)  # [head_dim_v, n_head, T]
        out = self._hadamard(out, kv.rotate_v).set_name(f"kqv-{layer}")
        return ops.reshape_2d(ctx, out, hp.n_embd_out, self.n_tokens).set_name(f"kqv_out-{layer}")

    def _attention_in_texts(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: int, distances: Tensor | None
    ) -> Tensor:
        """`attention` to the keys and values of the ubatch."""
        ctx, hp = self.ctx, self.hparams.of_layer(layer)
        if k is not None:
            k = ops.permute(ctx, k, 0, 2, 1, 3)  # [head_dim, T, n_head_kv]
            v = None if v is None else ops.permute(ctx, v, 0, 2, 1, 3)
            if v is None:  # its first columns
                v = ops.view_3d(ctx, k, (hp.head_dim_v, *k.ne[1:3]), k.nb[1:3], 0)
            self._keys[layer] = k, v
        k, v = self._keys[self.hparams.cache_layer(layer)]
        scale = hp.attn_scale or 1 / math.sqrt(hp.head_dim)
        out = ops.flash_attn_ranges(
            ctx,
            ops.permute(ctx, q, 0, 2, 1, 3),
            k,
            v,
            self.ranges[self.hparams.window(layer)],
            scale,
            hp.max_alibi_bias,
            hp.attn_logit_softcap,
            sinks=self.weights.get(f"blk.{layer}.attn_sinks.weight"),
            distances=distances,
            bias_scale=scale if hp.alibi_scaled else 1.0,
        ).set_name(f"kqv-{layer}")  # [head_dim_v, n_head, T]
        return ops.reshape_2d(ctx, out, hp.n_embd_out, self.n_tokens).set_name(f"kqv_out-{layer}")

    def _hadamard(self, x: Tensor, n: int) -> Tensor:
        """The Hadamard transform of groups of ``n`` elements of a head; ``x`` if ``n`` is 0.

        It is its own inverse. Queries and keys are both transformed, so scores do not change; the
        attention output is transformed back.
        """
        return ops.hadamard(self.ctx, x, n) if n else x

    def state(self, name: str, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """A layer's states [..., n_slots], and the runs and slots of the ubatch."""
        assert self.kv.states is not None and self.runs is not None and self.slots is not None
        return self.kv.states.tensors[name][layer], self.runs, self.slots

    def copy_cells(self, tensors: Sequence[Tensor], runs: Sequence[tuple[int, int, int]]) -> None:
        """Copy the bytes of keys or values between cells of a cache.

        Args:
            runs: (first source cell, first target cell, length).
        """
        for tensor in tensors:
            for source, target, n in runs:
                views = [_cells_as_i16(tensor, first, n) for first in (source, target)]
                self.graph.build_forward_expand(ops.cpy(self.ctx, *views))

    def shift_keys(self, cache: KVCache, cells: Tensor) -> None:
        """Rotate the keys in T cells of a cache by ``positions``, here the shifts of positions.

        Shape:
            cells I32 [T, n_head_kv], the same cells for each head; n_head_kv of the layer with
            the most
        """
        ctx, index = self.ctx, self.kv_index[self.kv.caches.index(cache)]
        for i, k in cache.k.items():
            params = self.hparams.rope(i)
            if not params["n_dims"]:
                continue
            yarn = 1 - 0.1 * math.log(params["freq_scale"]) if params["ext_factor"] else 1.0
            params["attn_factor"] = 1 / yarn  # stored keys are already scaled
            of_heads = ops.view_2d(ctx, cells, cells.ne[0], k.ne[2], cells.nb[1])
            rows = ops.get_rows(ctx, k, of_heads)  # [head_dim, T, n_head_kv]
            rows = self._hadamard(ops.permute(ctx, rows, 0, 2, 1, 3), cache.rotate_k)
            rows = self._apply_rope(rows, i, params, self.positions)
            rows = self._hadamard(rows, cache.rotate_k)
            rows = ops.permute(ctx, rows.set_name(f"k_shifted-{i}"), 0, 2, 1, 3)
            self.graph.build_forward_expand(ops.set_rows(ctx, k, rows, index))
            if i in cache.indexer_keys:
                of_head = ops.view_1d(ctx, cells, cells.ne[0])
                rows = ops.get_rows(ctx, cache.indexer_keys[i], of_head)
                rows = ops.reshape_3d(ctx, rows, rows.ne[0], 1, rows.ne[1])  # [n, 1, T]
                self.store_index(self.rope_of_indexer(rows, params), i)

    def self_attention(self, x: Tensor, i: int) -> Tensor:
        """Attention of layer ``i`` with rope on its queries and keys.

        Shape:
            x [n_embd, T], normed -> [n_embd_q, T]
        """
        q, k, v = self.qkv(x, i)
        return self.attention(self.rope(q, f"Qcur-{i}", i), self.rope(k, f"Kcur-{i}", i), v, i)

    def select_outputs(self, i: int, *xs: Tensor) -> tuple[Tensor, ...]:
        """In the last layer the columns of the tokens in ``out_ids``; before it all of them.

        Where hidden states of the last layer are kept, those of all tokens; `output` then selects.
        Scores in ``predicted`` are selected too.

        Shape:
            xs [n, T] -> the same, in the last layer [n, n_outputs + n_embeddings]
        """
        if i < self.hparams.n_layer - 1 or self._has_all_rows:
            return xs
        if i in self.predicted:
            self.predicted[i] = self.of_outputs(self.predicted[i])
        return tuple(self.of_outputs(x) for x in xs)

    @property
    def _has_all_rows(self) -> bool:
        """Whether the last layer computes the rows of all tokens, not only of outputs."""
        reads = () if self.kv.reads is None else self.kv.reads.nodes
        last = "result_norm", layer_output(self.hparams.n_layer - 1)
        return any(node in last for node in reads) or self._head_reads_mean

    @property
    def _head_reads_mean(self) -> bool:
        """Whether the classification head reads the mean of a text's rows."""
        return HEAD in self.weights and POOLINGS[self.hparams.head_pooling] == "mean"

    def of_outputs(self, x: Tensor) -> Tensor:
        """The columns of the tokens in ``out_ids``; all that follows is about these."""
        if self.n_tokens == self.out_ids.ne[0] == 1:
            return x  # there is only one token to select
        if self._row_scales is not None and self._row_scales is self.adapter_scales:
            self._row_scales = ops.get_rows(self.ctx, self._row_scales, self.out_ids)
            self.graph.build_forward_expand(self._row_scales)  # not between a matmul and its LORA
        return ops.get_rows(self.ctx, x, self.out_ids)

    def output(self, x: Tensor) -> Tensor:
        """Logits; tied embeddings are used if the model has no ``output.weight``.

        In a graph of embeddings only: ``x``.

        Shape:
            x [n_embd, n_outputs + n_embeddings], or [n_embd, T] where hidden states of the last
            layer are kept -> [n_vocab, n_outputs]
        """
        rows = self._mean_of_text(x) if self._head_reads_mean else x
        if self._has_all_rows:
            x, rows = self.of_outputs(x), self.of_outputs(rows)
        if self.n_embeddings:
            self.embeddings = self._dense(x)
            if HEAD in self.weights:
                self.scores = self._classify(rows)
            if not self.n_outputs:
                return self.embeddings
            x = ops.view_2d(self.ctx, x, x.ne[0], self.n_outputs, x.nb[1])
            if self._row_scales is not None:
                ne = self._row_scales.ne[0], self.n_outputs
                self._row_scales = ops.view_2d(self.ctx, self._row_scales, *ne, 4 * ne[0])
        prefix = "output" if "output.weight" in self.weights else "token_embd"
        scores = self._token_scores(x) if self.hparams.sparse_head else None
        logits = self.linear(x, prefix, "result_output", adapted="output", scores=scores)
        cap = self.hparams.final_logit_softcap
        logits = self._scale(logits, self.hparams.logit_scale, "result_output_scaled")
        if cap:
            logits = ops.unary(self.ctx, ops.scale(self.ctx, logits, 1 / cap), "tanh")
            logits = ops.scale(self.ctx, logits, cap).set_name("result_output_cap")
        if scores is not None:  # after the cap, which would make these logits ordinary ones
            excluded = ops.scale_bias(self.ctx, ops.step(self.ctx, scores), -EXCLUDED, EXCLUDED)
            logits = ops.add(self.ctx, logits, excluded).set_name("result_output_predicted")
        self.logits = logits
        return logits

    def _token_scores(self, x: Tensor) -> Tensor:
        """Scores of tokens by the predictor of the output matrix: positive of those to compute.

        Source: PowerInfer, ``lmhead_profile``.

        Shape:
            x [n_embd, n_outputs] -> [n_vocab, n_outputs]
        """
        hidden = self.linear(x, f"{HEAD_PREDICTOR}_1", "head_pre_hidden")  # [rank, n_outputs]
        return self.linear(hidden, f"{HEAD_PREDICTOR}_2", "head_pre_out")

    def _dense(self, x: Tensor) -> Tensor:
        """An encoder's output matrix and the dense layers after the pooling.

        They are applied to rows: the mean of results is the result of the mean.

        Shape:
            x [n_embd, n] -> [n_embedding, n]

        Source: llama.cpp, ``llm_graph_context::build_dense_out``.
        """
        for name in ("output", "dense_2", "dense_3"):
            if f"{name}.weight" in self.weights and (name != "output" or self.hparams.encoder):
                x = self.linear(x, name, f"result_{name}")
        return x

    def _mean_of_text(self, x: Tensor) -> Tensor:
        """The mean of each token's text, by attention whose scores are all 0.

        Shape:
            x [n_embd, T] -> the same
        """
        ctx, hp = self.ctx, self.hparams
        heads = ops.reshape_3d(ctx, x, hp.head_dim, x.ne[0] // hp.head_dim, self.n_tokens)
        heads = ops.permute(ctx, heads, 0, 2, 1, 3)  # [head_dim, T, n_head]
        mean = ops.flash_attn_ranges(ctx, heads, heads, heads, self.ranges[0], 0.0)
        return ops.reshape_2d(ctx, mean, *x.ne[:2]).set_name("result_mean")

    def _classify(self, x: Tensor) -> Tensor:
        """The scores of the classification head: [n_embd, n] -> [n_cls_out, n].

        Source: llama.cpp, ``llm_graph_context::build_pooling``.
        """
        if "cls.weight" in self.weights:
            act = self.hparams.head_act
            x = ops.unary(self.ctx, self.linear(x, "cls", "cls"), act).set_name(f"cls_{act}")
        if "cls.norm.weight" in self.weights:
            x = self.layer_norm(x, "cls.norm", "cls_norm")
        x = self.linear(x, "cls.output", "cls_output")
        return ops.soft_max(self.ctx, x) if self.hparams.softmax_scores else x

    def finish(self, result: Tensor) -> None:
        """Add the results to the graph; ``result`` is that of `output`."""
        inputs = [self.positions, self.out_ids, *self.kv_index, *self.rows, *self.ranges.values()]
        inputs += [x for lists in self.lists.values() for x in lists]
        inputs += filter(None, [self.cross_rows, self.query_rows])
        for unused in (*inputs, *filter(None, [self.adapter_scales])):
            self.graph.build_forward_expand(unused)  # without rope, attention or changed tensors
        self.graph.build_forward_expand(result.set_output())
        if self.kv.reads:
            self._keep_hidden(self.kv.reads)
        if self.target_hidden is not None:
            self.hidden = self._node(self.hparams.hidden).set_output()
        if self.logits is not None and self.n_outputs <= MAX_ARGMAX_OUTPUTS:
            self.argmax = ops.argmax(self.ctx, self.logits).set_name("result_argmax")
            self.graph.build_forward_expand(self.argmax.set_output())
        if self.embeddings is not None:
            self.graph.build_forward_expand(self.embeddings.set_output())
        if self.scores is not None:
            self.graph.build_forward_expand(self.scores.set_name("result_scores").set_output())

    def _keep_hidden(self, reads: HiddenReads) -> None:
        """Write the tokens' hidden states into the rows of their cells in ``cache.hidden``.

        These are columns of the nodes ``reads.nodes``, concatenated, normed and projected.
        """
        x = self._node(reads.nodes[0])
        for name in reads.nodes[1:]:
            x = ops.concat(self.ctx, x, self._node(name), 0)  # [n_columns, T]
        if reads.norm is not None:
            x = ops.rms_norm(self.ctx, x, reads.norm_eps)
            x = ops.mul(self.ctx, x, reads.norm).set_name("enc_input_norm")
        if reads.fc is not None:
            x = ops.mul_mat(self.ctx, reads.fc, x).set_name("fc_out")  # [n, T]
        cells = self.kv.caches[0].hidden
        assert cells is not None
        self.graph.build_forward_expand(ops.set_rows(self.ctx, cells, x, self.kv_index[0]))

    def _node(self, name: str) -> Tensor:
        # with a control vector two nodes have the name: the last one is after the addition
        for node in reversed(self.graph.nodes):
            if node.name == name:
                return node
        raise AssertionError(f"the graph has no node {name!r}")


def _cells_as_i16(tensor: Tensor, first: int, n: int) -> Tensor:
    """A view of consecutive cells of ``cache.k[i]`` or ``v[i]`` as I16, for any cache type.

    Shape:
        tensor [head_dim, n_cells, n_head_kv] -> [bytes of a row / 2, n, n_head_kv]
    """
    unit = GGMLType.I16
    ne = (tensor.nb[1] // unit.type_size, n, tensor.ne[2], 1)
    view = Tensor(unit, ne, (unit.type_size, *tensor.nb[1:]))
    view.view_src, view.view_offs = tensor, first * tensor.nb[1]
    view.buffer, view.data = tensor.buffer, tensor.data + view.view_offs
    return view.set_name(f"{tensor.name} (bytes)")


def _layer(name: str) -> str:
    """The layer suffix of a node name: ``-3`` of ``ffn_norm-3``, or an empty string."""
    return name[name.rfind("-") :] if "-" in name else ""


def _part(ctx: Context, x: Tensor, dim: int, i: int, n: int) -> Tensor:
    """Part ``i`` of ``n`` of a dimension."""
    size = x.ne[dim] // n
    n0, n1, n2, n3 = (size if d == dim else x.ne[d] for d in range(4))
    return x if n == 1 else ops.view_4d(ctx, x, (n0, n1, n2, n3), x.nb[1:], i * size * x.nb[dim])
