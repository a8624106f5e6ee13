"""The hyperparameters of a model, and the keys of GGUF metadata that hold them.

    hp = model.hparams
    hp.n_embd, hp.n_layer, hp.head_dim             # 576, 30, 64
    hp.of_layer(3).n_ff                            # of models whose layers differ

``KEYS`` gives the metadata key of each field. An architecture's ``HPARAMS`` may replace the key,
fix the value, or compute it from the others by a function. A name that is no field of ``HParams``
is a hyperparameter of this architecture alone, in ``hp.own``.
Source: llama.cpp, ``llama_hparams`` and the ``{arch}.*`` keys of GGUF.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

from pyggml.ops.attention.rope import RopeMode

from .errors import ModelError

Scalar = int | float | str | bool


class Key(NamedTuple):
    """The metadata key ``{arch}.{name}`` of a hyperparameter; required if it has no default.

    ``type`` is that of an architecture's own hyperparameter without a default; ``tuple`` for one
    number a layer, which is real if the default is; ``list`` for an array of any length, empty
    where the file lacks the key. A few keys have no prefix (llama.cpp's xIELU).
    """

    name: str
    default: Scalar | None = None
    type: type = int
    prefixed: bool = True


Got = Mapping[str, Any]  # the hyperparameters read so far, by field
Values = Mapping[str, Key | Scalar | Callable[[Got], Any]]  # by field of HParams

KEYS: Values = {
    "n_ctx_train": Key("context_length"),
    "n_embd": Key("embedding_length"),
    "n_layer": Key("block_count"),
    "n_layer_nextn": Key("nextn_predict_layers", 0),
    "norm_eps": Key("attention.layer_norm_rms_epsilon", 1e-5),
    "rope_freq_base": Key("rope.freq_base", 10000.0),
    "rope_scaling": Key("rope.scaling.type", "linear"),
    "rope_orig_ctx": Key("rope.scaling.original_context_length", 0),
    "rope_attn_factor": Key("rope.scaling.attn_factor", 1.0),
    "yarn_ext_factor": Key("rope.scaling.yarn_ext_factor", -1.0),
    "yarn_attn_factor": Key("rope.scaling.yarn_attn_factor", 1.0),
    "yarn_beta_fast": Key("rope.scaling.yarn_beta_fast", 32.0),
    "yarn_beta_slow": Key("rope.scaling.yarn_beta_slow", 1.0),
    "yarn_truncate": Key("rope.scaling.yarn_truncate", True),
    "hidden_act": Key("hidden_act", ""),
    "n_expert": Key("expert_count", 0),
    "n_expert_used": Key("expert_used_count", 0),
    "n_expert_groups": Key("expert_group_count", 0),
    "n_group_used": Key("expert_group_used_count", 0),
    "expert_weights_scale": Key("expert_weights_scale", 1.0),
    "expert_gating": Key("expert_gating_func", 1),
    "n_dense_lead": Key("leading_dense_block_count", 0),
    "causal": Key("attention.causal", True),
    "pooling_type": Key("pooling_type", 0),
    "head_pooling": Key("classifier.pooling_type", -1),
    "dense_2_feat_out": Key("dense_2_feat_out", 0),
    "dense_3_feat_out": Key("dense_3_feat_out", 0),
}
PER_LAYER_KEYS = {  # fields with a value for each layer -> their keys: a number, or an array
    "n_ff_arr": "feed_forward_length",
    "n_head_arr": "attention.head_count",
    "n_head_kv_arr": "attention.head_count_kv",
}
POOLINGS = ("none", "mean", "cls", "last", "rank")  # by llama.cpp's number of the pooling type
GATINGS = ("none", "softmax", "sigmoid", "softmax_weight", "sqrt_softplus")  # llama.cpp's numbers
PREDICTING = ("predictor", "cross", "signs", "svd")  # sources of scores that need a threshold
COMPRESS_RATIOS = "attention.compress_ratios"
BY_ROUTER = "router"  # value of ``expert_layers``: the layers whose router the file has
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True)
class HParams:
    """Sizes and constants of a model; a context may override some of them (``Overrides``).

    Sizes that may differ between layers are stored for each layer (``n_head_arr``). ``n_head``,
    ``n_head_kv``, ``n_ff`` and what follows from them are those of all layers, and raise ModelError
    if layers differ; graphs take them from ``of_layer(i)``.
    """

    arch: str
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_ff_arr: tuple[int, ...]  # by layer
    n_head_arr: tuple[int, ...]
    n_head_kv_arr: tuple[int, ...]
    head_dim_arr: tuple[int, ...]  # of queries and keys
    head_dim_v_arr: tuple[int, ...]  # of values
    n_rot_arr: tuple[int, ...]  # rotated columns of a head
    n_vocab: int
    norm_eps: float
    rope_freq_base: float
    rope_freq_scale: float
    rope_neox: bool = False  # pairs of columns are n_rot / 2 apart, not adjacent
    rope_last: bool = False  # the last n_rot columns of a head are rotated, not the first
    # of sliding-window layers without compressed rows, without scaling; 0: rope_freq_base
    rope_freq_base_swa: float = 0.0
    rope_scaling: str = "linear"
    rope_orig_ctx: int = 0  # positions before scaling; 0: n_ctx_train
    rope_attn_factor: float = 1.0  # factor on rotated queries and keys
    rope_long: bool = False  # longrope: use the table of long factors, else of short ones
    yarn_ext_factor: float = -1.0  # negative: 1 for yarn, else 0
    yarn_attn_factor: float = 1.0
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_truncate: bool = True  # the ramp begins and ends at whole pairs
    hidden_act: str = ""  # of the feed-forward part; empty: the architecture's
    situ_beta: float = 0.0  # limits of SiTU's gate and input; 0: unlimited
    situ_up_beta: float = 0.0
    n_swa: int = 0  # size of the sliding window, the token's own position included
    swa_period: int = 1  # the last of every swa_period layers has full attention; 0: none has
    swa_layers: tuple[bool, ...] = ()  # the layers with a window, in place of swa_period
    swa_chunked: bool = False  # a window is the token's chunk of n_swa positions up to the token
    swa_symmetric: bool = False  # a window is n_swa / 2 positions before and after the token
    nope_layers: tuple[bool, ...] = ()  # the layers whose queries and keys are not rotated
    n_layer_nextn: int = 0  # layers of multi-token prediction, which follow the others in the file
    n_embd_target: int = 0  # of a head: columns of its input of hidden states; 0: it is no head
    block_size: int = 0  # of a head that drafts a block of tokens at once; 0: of other models
    block_causal: bool = False  # the tokens of such a block attend to no later ones of it
    hidden: str = "result_norm"  # of a head: the node with its own hidden states
    states: tuple[Mapping[str, tuple[int, ...]], ...] = ()  # by layer: sizes of recurrent states
    n_layer_kv: int = 0  # the layers after these use the cache of an earlier one; 0: none does
    n_sparse_keys: int = 0  # keys that sparse attention chooses for a token; 0: all
    # the layers whose indexer chooses; the others take what an earlier one chose. Empty: sparse
    # attention is computed as that to all keys, for as many tokens as it chooses
    indexer_layers: tuple[int, ...] = ()
    # by layer: tokens that also become one compressed row of keys and values; 0: none do
    compress_ratios: tuple[int, ...] = ()
    values_in_keys: bool = False  # values are the first columns of keys (MLA), and not stored
    causal: bool = True  # a token attends to no later tokens
    has_encoder: bool = False  # an encoder reads the prompt, to which a decoder attends
    encoder: bool = False  # computes embeddings and scores only: there is no output matrix
    diffusion: bool = False  # makes text by unmasking, see ``pyllama.diffusion``
    shift_logits: bool = False  # of these models: a token's logits are those of the one before it
    pooling_type: int = 0  # index of POOLINGS: how an embedding of a text is computed by default
    n_embd_projected: int = 0  # columns of an encoder's output matrix; 0: it has none
    dense_2_feat_out: int = 0  # columns after each dense layer that follows the pooling; 0: none
    dense_3_feat_out: int = 0
    # index of POOLINGS: which rows the classification head reads; none: each, and the scores are
    # averaged; -1: the first row, of a causal model the last
    head_pooling: int = -1
    n_cls_out: int = 1  # outputs of the classification head, if the model has one
    head_act: str = "tanh"  # after the dense layer of the classification head
    softmax_scores: bool = False  # the scores of the classification head are probabilities
    max_alibi_bias: float = 0.0
    alibi_scaled: bool = False  # the ALiBi bias is multiplied by the scale of scores
    empty_layers: bool = False  # some may lack heads or neurons
    learned_positions: bool = False  # the model has position_embd.weight
    attn_logit_softcap: float = 0.0
    final_logit_softcap: float = 0.0  # logits are limited to +- this; 0: unlimited
    attn_scale: float = 0.0  # of scores; 0: 1 / sqrt(head_dim)
    attn_scales: tuple[float, ...] = ()  # by layer, in place of attn_scale
    embedding_scale: float = 1.0  # factor on the embeddings of tokens
    residual_scale: float = 1.0  # factor on what attention and feed-forward add to the residual
    logit_scale: float = 1.0  # factor on the logits, before the soft cap
    clamp_kqv: float = 0.0  # queries, keys and values are clamped to +- this; 0: not clamped
    parallel_residual: bool = True  # attention and feed-forward in parallel, if optional
    n_expert: int = 0
    n_expert_used: int = 0  # per token
    n_ff_exp: int = 0  # hidden size of an expert
    n_ff_shexp: int = 0  # hidden size of all shared experts together, which every token uses
    ffn_beside_experts: bool = False  # layers with experts have n_ff dense neurons too, else none
    n_dense_lead: int = 0  # the first layers without experts
    moe_period: int = 1  # after these, the last of every moe_period layers has experts
    expert_layers: tuple[bool, ...] = ()  # the layers with experts, in place of these two
    n_expert_groups: int = 0  # only the experts of the best n_group_used groups are chosen from
    n_group_used: int = 0
    expert_gating: int = 1  # index of GATINGS: how the router's logits become weights
    router_jitter: float = 0.0  # of SparseMixer, which chooses and weighs experts; 0: not used
    expert_weights_norm: bool = True  # the weights of a token's experts sum to 1
    expert_weights_scale: float = 1.0
    post_norm: bool = False  # norms after attention and feed-forward, if optional
    n_embd_token: int = 0  # columns of token_embd if a matrix projects them; 0: n_embd
    sparse: tuple[str, ...] = ()  # source of active neurons of each layer; empty: dense
    sparse_threshold: float = 0.0  # minimum score of an active neuron
    relu_experts: bool = False  # experts' gates are zero unless positive
    sparse_head: bool = False  # compute the logits of predicted tokens only

    own: Mapping[str, Any] = field(default_factory=dict)  # of this architecture alone

    def size(self, name: str) -> int:
        """A size by the name of a field, or of an architecture's own hyperparameter."""
        size: int = self.own[name] if name in self.own else getattr(self, name)
        return size

    def of_layer(self, layer: int) -> HParams:
        """The same hyperparameters with the sizes of one layer for all; ``self`` if none differ."""
        return self._by_layer[layer] if self._by_layer else self

    @cached_property
    def _by_layer(self) -> tuple[HParams, ...]:
        """The hyperparameters of each layer; empty if layers do not differ."""
        names = [f.name for f in fields(self) if f.name.endswith("_arr")]
        arrays = {name: getattr(self, name) for name in names}
        own = {k: v for k, v in self.own.items() if isinstance(v, tuple)}
        experts = [self.has_experts(i) for i in range(self.n_layer)]
        scales = self.attn_scales or (self.attn_scale,) * self.n_layer
        alike = [*arrays.values(), (bool(self.n_expert), *experts), scales]
        if not own and all(len(set(values)) == 1 for values in alike):
            return ()
        layers = []
        for i in range(self.n_layer):
            sizes: dict[str, Any] = {name: (x[i],) * len(x) for name, x in arrays.items()}
            if self.n_expert and not experts[i]:
                sizes |= {"n_expert": 0, "n_ff_exp": 0, "n_ff_shexp": 0}
            sizes["attn_scale"] = scales[i]
            sizes["own"] = {**self.own, **{name: x[i] for name, x in own.items()}}
            layers.append(replace(self, **sizes))
        return tuple(layers)

    def has_experts(self, layer: int) -> bool:
        """Whether the feed-forward part of a layer is a mixture of experts."""
        if self.expert_layers:
            return bool(self.n_expert) and self.expert_layers[layer]
        period = self.moe_period or 1
        return bool(self.n_expert) and layer >= self.n_dense_lead and (layer + 1) % period == 0

    @property
    def n_ff(self) -> int:
        """Neurons of a layer. Raises: ModelError: layers differ."""
        return self._of_all("n_ff_arr")

    @property
    def n_head(self) -> int:
        """Heads of queries in a layer. Raises: ModelError: layers differ."""
        return self._of_all("n_head_arr")

    @property
    def n_head_kv(self) -> int:
        """Heads of keys (or values) in a layer. Raises: ModelError: layers differ."""
        return self._of_all("n_head_kv_arr")

    @property
    def head_dim(self) -> int:
        """Columns of a head of queries and keys. Raises: ModelError: layers differ."""
        return self._of_all("head_dim_arr")

    @property
    def head_dim_v(self) -> int:
        """Columns of a head of values. Raises: ModelError: layers differ."""
        return self._of_all("head_dim_v_arr")

    @property
    def n_rot(self) -> int:
        """Rotated columns of a head. Raises: ModelError: layers differ."""
        return self._of_all("n_rot_arr")

    def _of_all(self, name: str) -> int:
        values: tuple[int, ...] = getattr(self, name)
        if values.count(values[0]) != len(values):
            raise ModelError(
                f"the layers of this {self.arch} model differ in {PER_LAYER_KEYS.get(name, name)} "
                f"({min(values)} to {max(values)}), which is not supported here"
            )
        return values[0]

    def window(self, layer: int) -> int:
        """Size of the attention window of a layer, 0 for full attention."""
        if self.swa_layers:
            slides = self.swa_layers[layer]
        else:
            period = self.swa_period
            slides = period == 0 or layer % period < period - 1
        return self.n_swa if slides else 0

    def cache_layer(self, layer: int) -> int:
        """The layer whose keys and values a layer attends to: its own, or of an earlier one.

        Source: llama.cpp, ``n_layer_kv_from_start``.
        """
        if not self.n_layer_kv or layer < self.n_layer_kv:
            return layer
        same = [
            i for i in range(self.n_layer_kv) if bool(self.window(i)) == bool(self.window(layer))
        ]
        return same[-1]

    def compress_ratio(self, layer: int) -> int:
        """How many tokens also become one compressed row in a layer; 0: none do."""
        return self.compress_ratios[layer] if self.compress_ratios else 0

    def has_own_rope(self, layer: int) -> bool:
        """Whether the angles of a layer are those of ``rope_freq_base_swa``, if that is given."""
        return bool(self.window(layer)) and not self.compress_ratio(layer)

    def source(self, layer: int) -> str:
        """The source of a layer's active neurons without its parameter: ``topk``, ``off``."""
        return self.sparse[layer].partition("=")[0] if self.sparse else "off"

    @property
    def predicted(self) -> dict[int, str]:
        """The layers whose active neurons are only predicted, with their sources."""
        sources = {i: self.source(i) for i in range(self.n_layer)}
        return {i: source for i, source in sources.items() if source in PREDICTING}

    def rope(self, layer: int) -> dict[str, Any]:
        """The arguments of ``rope_ext`` in a layer."""
        own = self.rope_freq_base_swa if self.has_own_rope(layer) else 0.0
        ext = self.yarn_ext_factor
        nope = bool(self.nope_layers) and self.nope_layers[layer]
        return {
            "n_dims": 0 if nope else self.n_rot_arr[layer],
            "mode": RopeMode.NEOX if self.rope_neox else RopeMode.NORMAL,
            "n_ctx_orig": self.n_ctx_orig,
            "freq_base": own or self.rope_freq_base,
            "freq_scale": 1.0 if own else self.rope_freq_scale,
            "ext_factor": 0.0 if own else ext if ext >= 0 else float(self.rope_scaling == "yarn"),
            "attn_factor": 1.0 if own else self.yarn_attn_factor * self.rope_attn_factor,
            "beta_fast": self.yarn_beta_fast,
            "beta_slow": self.yarn_beta_slow,
            "truncate": self.yarn_truncate,
        }

    @property
    def n_positions(self) -> int:
        """The most positions of a sequence; 0: any number."""
        if self.learned_positions:
            return self.n_ctx_train
        return 0 if self.indexer_layers else self.n_sparse_keys

    def chooses_keys(self, n_cells: int) -> bool:
        """Whether tokens attend to chosen keys only, in a cache of so many cells."""
        return bool(self.indexer_layers) and 0 < self.n_sparse_keys < n_cells

    @property
    def reads_texts(self) -> bool:
        """Whether it computes whole texts at once, whose tokens attend to later ones too."""
        return self.has_encoder or not self.causal

    @property
    def n_ctx_orig(self) -> int:
        """Context length of training before rope scaling."""
        return self.rope_orig_ctx or self.n_ctx_train

    @property
    def n_embedding(self) -> int:
        """Columns of a text's embedding."""
        after_pooling = self.dense_3_feat_out or self.dense_2_feat_out
        return after_pooling or self.n_embd_projected or self.n_embd

    @property
    def n_embd_inp(self) -> int:
        """Columns of the embedding."""
        return self.n_embd_token or self.n_embd

    @property
    def n_embd_output_norm(self) -> int:
        """Columns of the norm before the output; 0 if there is none (``post_norm``)."""
        return 0 if self.post_norm else self.n_embd

    @property
    def n_embd_ffn_norm(self) -> int:
        """Columns of the norm before the feed-forward part; 0 if parallel to attention."""
        return 0 if self.parallel_residual else self.n_embd

    @property
    def n_embd_qkv(self) -> int:
        """Columns of the queries, keys and values of all heads together."""
        return self.n_embd_q + self.n_embd_k + self.n_embd_v

    @property
    def n_embd_q(self) -> int:
        """Columns of the queries of all heads."""
        return self.n_head * self.head_dim

    @property
    def n_embd_k(self) -> int:
        """Columns of the keys of all heads."""
        return self.n_head_kv * self.head_dim

    @property
    def n_embd_v(self) -> int:
        """Columns of the values of all heads."""
        return self.n_head_kv * self.head_dim_v

    @property
    def n_embd_out(self) -> int:
        """Columns of the attention output of all heads."""
        return self.n_head * self.head_dim_v


DIFFUSION: Values = {  # of models that make text by unmasking
    "causal": False,
    "diffusion": True,
    "shift_logits": Key("diffusion.shift_logits", True, prefixed=False),
}
SIGMOID_ROUTER: Values = {  # of files without the keys
    "expert_gating": Key("expert_gating_func", GATINGS.index("sigmoid")),
    "expert_weights_norm": Key("expert_weights_norm", False),
}
SHARED_SIZES: Values = {  # of shared experts, each as large as a routed one
    "n_shared": Key("expert_shared_count", 0),
    "n_ff_exp": Key("expert_feed_forward_length"),
    "n_ff_shexp": lambda got: got["n_shared"] * got["n_ff_exp"],
}


def window_values(period: int, n_swa: int | None = None, base: float | None = None) -> Values:
    """The values of a sliding window in all layers but each ``period``-th.

    Args:
        period: for files without the key.
        n_swa: the window for files without the key; None refuses them.
        base: of rope in layers with a window, for files without the key; None: the model's.
    """
    values: Values = {
        "n_swa": Key("attention.sliding_window", n_swa),
        "swa_period": Key("attention.sliding_window_pattern", period),
    }
    of_rope = {} if base is None else {"rope_freq_base_swa": Key("rope.freq_base_swa", base)}
    return {**values, **of_rope}


def layer_keys(of_arch: Values) -> list[str]:
    """The keys that may have a value for each layer, by ``HPARAMS`` of an architecture."""
    return [*PER_LAYER_KEYS.values(), *(x.name for x in of_arch.values() if isinstance(x, Key))]


def nope_without_window(got: Got) -> tuple[bool, ...]:
    """``nope_layers`` of models that rotate only in layers with a window (Cohere 2, EXAONE 4)."""
    n_layer, period = got["n_layer"], got.get("swa_period", 0)
    if not got["n_swa"]:
        return ()
    slides = got.get("swa_layers") or [
        bool((i + 1) % (period or n_layer + 1)) for i in range(n_layer)
    ]
    return tuple(not windowed for windowed in slides)
